"""CIFAR-100 from the official binary archive or the official Python one."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fcil.data.dataset import Dataset, Images, Labels
from fcil.data.findings import Finding, counted, examine_file, need_root, own_size, require
from fcil.data.sources import how_to_get
from fcil.errors import DataError

CLASSES, SIDE = 100, 32
NUMBERS = tuple(map(str, range(CLASSES)))
ROW = 2 + 3 * SIDE * SIDE
"""Bytes of an image in the binary form: coarse label, fine label, pixels by channel."""
ROWS = {"train": 50_000, "test": 10_000}
MD5 = {"train": "6172c7755cfe09b2fe270c85cebc1b15", "test": "4499cfba6c016c1be1438163640a0898"}
"""Of train.bin and test.bin."""
MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)


def cifar100(root: Path | None, size: int | None) -> Dataset:
    """CIFAR-100: 100 classes, 50,000 training and 10,000 test images of 32x32 pixels."""
    folder = need_root("cifar100", root)
    own_size("cifar100", size, SIDE)
    rows, names, findings = _inspect(folder)
    require(findings)
    return Dataset(
        name="cifar100",
        train_images=_images(rows["train"]),
        train_labels=_labels(rows["train"]),
        test_images=_images(rows["test"]),
        test_labels=_labels(rows["test"]),
        class_names=names,
        mean=MEAN,
        std=STD,
    )


def examine(root: Path) -> list[Finding]:
    """Everything there is to say about the files under a folder."""
    return _inspect(root)[2]


def read_pickle(path: Path) -> dict[bytes, Any]:
    """A dictionary of texts, numbers and arrays of bytes; anything else in a pickle is refused.

    Python 2 wrote the official files, so texts come as bytes.
    """
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="bytes").load()
    except FileNotFoundError:
        raise DataError(f"There is no file {path}.") from None
    except DataError as why:
        raise DataError(f"{path} {why}") from None
    except (
        pickle.UnpicklingError,
        ArithmeticError,
        AttributeError,
        EOFError,
        LookupError,
        MemoryError,
        OSError,
        TypeError,
        ValueError,
    ) as why:
        raise DataError(
            f"{path} is cut short or no pickle ({type(why).__name__}: {why}). Fetch it again."
        ) from why
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no dictionary; the official file does.")
    return {
        key.encode(errors="replace") if isinstance(key, str) else key: (
            value.values if isinstance(value, _ByteArray) else value
        )
        for key, value in content.items()
    }


class _ByteType:
    """Stands for NumPy's dtype; of all there are, only single bytes are let in."""

    def __init__(self, kind: object, *_: object) -> None:
        if kind not in (b"u1", "u1"):
            raise DataError(f"holds an array of {kind!r}, not of bytes, and was not read.")

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment say nothing about single bytes."""


class _ByteArray:
    """Stands for NumPy's array while it is read.

    NumPy's own would take whatever state a pickle gives it, and a made-up one can break the whole
    process.
    """

    def __init__(self, *_: object) -> None:
        self.values: Images | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, raw = state
        if not isinstance(kind, _ByteType) or not isinstance(raw, bytes):
            raise DataError("holds an array that is not made of bytes and was not read.")
        values = np.frombuffer(raw, dtype=np.uint8)
        self.values = values.reshape(shape, order="F" if fortran else "C")


def _latin1(text: str, encoding: str | bytes) -> bytes:
    """How Python 3 writes bytes into a pickle that Python 2 can read."""
    if encoding not in ("latin1", b"latin1"):
        raise DataError(f"asks for the text encoding {encoding!r}, which no array of bytes needs.")
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    """Builds plain values and arrays of bytes, and calls nothing that a file names."""

    permitted: ClassVar[dict[tuple[str, str], Callable[..., Any]]] = {
        ("numpy", "ndarray"): _ByteArray,
        ("numpy", "dtype"): _ByteType,
        ("numpy.core.multiarray", "_reconstruct"): _ByteArray,
        ("numpy._core.multiarray", "_reconstruct"): _ByteArray,
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.permitted:
            raise DataError(
                f"asks for {module}.{name}, which no array of bytes needs, and was not read: a "
                "pickle that asks for it can run any program. Delete the file and fetch the "
                "official archive; the binary one holds no pickle."
            )
        return self.permitted[module, name]


def _inspect(root: Path) -> tuple[dict[str, Images], tuple[str, ...], list[Finding]]:
    advice = how_to_get("cifar100", root)
    for folder in (root / "cifar-100-binary", root):
        if any((folder / f"{part}.bin").is_file() for part in ROWS):
            return _inspect_binary(folder, advice)
    for folder in (root / "cifar-100-python", root):
        if any((folder / name).is_file() for name in (*ROWS, "meta")):
            return _inspect_python(folder, advice)
    missing = (
        f"There is neither cifar-100-binary nor cifar-100-python under {root}: the data set is "
        f"not there. {advice}"
    )
    return {}, (), [Finding(False, str(root), missing)]


def _inspect_binary(
    folder: Path, advice: str
) -> tuple[dict[str, Images], tuple[str, ...], list[Finding]]:
    rows: dict[str, Images] = {}
    findings = []
    for part, count in ROWS.items():
        path = folder / f"{part}.bin"
        finding = examine_file(path, size=count * ROW, checksum=MD5[part], advice=advice)
        findings.append(finding)
        if finding.ok:
            rows[part] = np.fromfile(path, dtype=np.uint8).reshape(count, ROW)
            findings.append(counted(part, _labels(rows[part]), NUMBERS))
    path = folder / "fine_label_names.txt"
    if not path.is_file():
        findings.append(Finding(True, str(path), "missing; classes are called by number"))
        return rows, NUMBERS, findings
    try:
        names = tuple(path.read_text(encoding="ascii").split())
    except (OSError, UnicodeDecodeError) as why:
        findings.append(Finding(False, str(path), f"{path} cannot be read: {why}. {advice}"))
        return rows, (), findings
    findings.append(_named(path, names, advice))
    return rows, names, findings


def _inspect_python(
    folder: Path, advice: str
) -> tuple[dict[str, Images], tuple[str, ...], list[Finding]]:
    rows: dict[str, Images] = {}
    names: tuple[str, ...] = ()
    findings = []
    for part in ROWS:
        path = folder / part
        try:
            rows[part] = _rows(path, read_pickle(path))
        except DataError as why:
            findings.append(Finding(False, str(path), f"{why} {advice}"))
            continue
        found = hashlib.md5(rows[part].data, usedforsecurity=False).hexdigest()
        if found != MD5[part]:
            findings.append(
                Finding(
                    False,
                    str(path),
                    f"{path} holds {len(rows[part]):,} images that written as {part}.bin have md5 "
                    f"{found} instead of {MD5[part]}: they are not the official ones, or not in "
                    f"their order. {advice}",
                )
            )
            continue
        findings.append(Finding(True, str(path), "content as published"))
        findings.append(counted(part, _labels(rows[part]), NUMBERS))
    path = folder / "meta"
    try:
        found_names = read_pickle(path).get(b"fine_label_names")
        if not isinstance(found_names, list):
            raise DataError(f"{path} has no list `fine_label_names`.")
        names = tuple(n.decode() if isinstance(n, bytes) else str(n) for n in found_names)
    except (DataError, UnicodeDecodeError) as why:
        findings.append(Finding(False, str(path), f"{why} {advice}"))
    else:
        findings.append(_named(path, names, advice))
    return rows, names, findings


def _rows(path: Path, content: dict[bytes, Any]) -> Images:
    """The images of a Python archive's file in the binary form."""
    pixels = content.get(b"data")
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2:
        raise DataError(f"{path} has no array `data` of bytes, one row an image.")
    columns = []
    for key in (b"coarse_labels", b"fine_labels"):
        labels = content.get(key)
        if not isinstance(labels, list) or not all(
            isinstance(label, int) and 0 <= label < CLASSES for label in labels
        ):
            raise DataError(f"{path} has no list `{key.decode()}` of labels under {CLASSES}.")
        columns.append(np.array(labels, dtype=np.uint8)[:, None])
    if pixels.shape[1] != ROW - 2 or any(len(column) != len(pixels) for column in columns):
        raise DataError(
            f"{path} has {len(pixels):,} rows of {pixels.shape[1]} bytes for {len(columns[1]):,} "
            f"labels; there must be one label for each row of {ROW - 2} bytes."
        )
    return np.hstack([*columns, pixels])


def _named(path: Path, names: Sequence[str], advice: str) -> Finding:
    if len(names) != CLASSES:
        said = f"{path} has {len(names)} class names instead of {CLASSES}. Delete it. {advice}"
        return Finding(False, str(path), said)
    return Finding(True, str(path), f"{CLASSES} class names")


def _images(rows: Images) -> Images:
    return np.ascontiguousarray(rows[:, 2:]).reshape(-1, 3, SIDE, SIDE)


def _labels(rows: Images) -> Labels:
    return rows[:, 1].astype(np.int64)
