"""What was found when files of a data set were looked at; reading and checking share it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcil.errors import DataError, UsageError

BLOCK = 1 << 20


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    ok: bool
    subject: str
    """A file, a folder or a set."""
    message: str
    """What was found; where it is not ok, also what was expected and what to do."""


def require(findings: Iterable[Finding]) -> None:
    """Raise the first finding that is not ok."""
    bad = [finding.message for finding in findings if not finding.ok]
    if bad:
        more = f" (One of {len(bad)} problems: `fcil data check` lists all.)" if bad[1:] else ""
        raise DataError(bad[0] + more)


def need_root(name: str, root: Path | None) -> Path:
    """The folder of a data set that needs one."""
    if root is None:
        raise UsageError(
            f"{name} is read from files and no folder was given. Set `data.root` (`--root`) to "
            "the folder that holds it; docs/data.md shows the layout."
        )
    return root


def own_size(name: str, size: int | None, own: int) -> None:
    """Refuse to resize images that all have one size of their own."""
    if size not in (None, own):
        raise UsageError(
            f"data.size = {size} is not possible with {name}: its images are {own}x{own} and stay "
            "so. Leave data.size empty; it is for image files of varying size."
        )


def md5(path: Path) -> str:
    """Checksum of a file."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def examine_file(path: Path, *, size: int | None, checksum: str | None, advice: str) -> Finding:
    """Is a file there, complete and the official one?"""
    if not path.is_file():
        return Finding(False, str(path), f"There is no file {path}. {advice}")
    try:
        found = path.stat().st_size
        if size is not None and found != size:
            return Finding(
                False,
                str(path),
                f"{path} has {found:,} bytes instead of {size:,}: it was cut short or is another "
                f"file. Delete it. {advice}",
            )
        if checksum is not None and (sum_found := md5(path)) != checksum:
            return Finding(
                False,
                str(path),
                f"{path} ({found:,} bytes) has md5 {sum_found} instead of {checksum}: it is "
                f"incomplete, damaged or not the official file. Delete it. {advice}",
            )
    except OSError as why:
        return Finding(False, str(path), f"{path} cannot be read: {why}.")
    said = f"{found:,} bytes" + (", md5 as published" if checksum else "")
    return Finding(True, str(path), said)


def counted(part: str, labels: Sequence[int] | NDArray[Any], names: Sequence[str]) -> Finding:
    """Images and classes of a set, and whether every class has an image."""
    subject, classes = f"{part} set", len(names)
    if len(labels) == 0:
        return Finding(False, subject, f"The {part} set holds no images.")
    held = np.bincount(np.asarray(labels, dtype=np.int64), minlength=classes)
    if len(held) > classes:
        said = f"The {part} set has a label {len(held) - 1}; labels are 0 to {classes - 1}."
        return Finding(False, subject, said)
    said = f"{held.sum():,} images of {classes} classes"
    if not held.all():
        empty = [name for name, images in zip(names, held, strict=True) if not images]
        return Finding(
            False,
            subject,
            f"The {part} set has {said}, {len(empty)} of them without an image: "
            f"{enumerated(empty)}. Add images of them or take the classes out of both sets.",
        )
    return Finding(True, subject, f"{said}, {held.min()} to {held.max()} a class")


def enumerated(names: Sequence[str], most: int = 5) -> str:
    """The first few of many names.

    >>> enumerated(["a", "b", "c"], most=2)
    'a, b, ...'
    """
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
