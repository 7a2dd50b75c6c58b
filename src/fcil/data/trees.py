"""Data sets of image files: class folders, and Tiny-ImageNet's own layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np

from fcil.data.dataset import Dataset, statistics
from fcil.data.findings import Finding, counted, need_root, require
from fcil.data.images import SUFFIXES, decode, stack
from fcil.data.sources import how_to_get
from fcil.errors import DataError

Rows = list[tuple[Path, int]]

TINY_MEAN, TINY_STD = (0.4802, 0.4481, 0.3975), (0.2302, 0.2265, 0.2262)


@dataclass
class Listing:
    """Which files belong to which class, and what was odd about them."""

    class_names: tuple[str, ...] = ()
    train: Rows = field(default_factory=list)
    test: Rows = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def problem(self, subject: Path, message: str) -> None:
        """Note something that keeps the data set from being read."""
        self.findings.append(Finding(False, str(subject), message))

    def count(self) -> Listing:
        """Add the counts, once the rows are complete."""
        for part, rows in (("train", self.train), ("test", self.test)):
            labels = [label for _, label in rows]
            self.findings.append(counted(part, labels, self.class_names))
        return self


def folder(root: Path | None, size: int | None) -> Dataset:
    """Your own images: root/train/CLASS/* and root/test/CLASS/* (or root/val)."""
    return read("folder", list_folder(need_root("folder", root)), size)


def tiny_imagenet(root: Path | None, size: int | None) -> Dataset:
    """Tiny-ImageNet: 200 classes of 64x64 pixels; the validation set is the test set."""
    listing = list_tiny_imagenet(need_root("tiny-imagenet", root))
    return read("tiny-imagenet", listing, size, TINY_MEAN, TINY_STD)


def decodable(listing: Listing) -> list[Finding]:
    """Try every file; what cannot be decoded is reported and does not stop the others."""
    findings = []
    rows = listing.train + listing.test
    for path, _ in rows:
        try:
            decode(path, None)
        except DataError as why:
            findings.append(Finding(False, str(path), str(why)))
    if rows:
        good = len(rows) - len(findings)
        findings.append(Finding(not findings, "images", f"{good:,} of {len(rows):,} decode"))
    return findings


def list_folder(root: Path) -> Listing:
    """Class folders under train/ and under test/ or val/; classes sorted by name."""
    listing = Listing()
    train = root / "train"
    test = next((root / name for name in ("test", "val") if (root / name).is_dir()), root / "test")
    for part in (train, test):
        if not part.is_dir():
            listing.problem(
                part,
                f"There is no folder {part}. Put training images into {train}/CLASS/ and test "
                f"images into {root / 'test'}/CLASS/, one folder a class.",
            )
    if listing.findings:
        return listing
    listing.class_names = folders(train)
    number = {name: label for label, name in enumerate(listing.class_names)}
    for stranger in sorted(set(folders(test)) - set(number)):
        listing.problem(
            test / stranger, f"{test / stranger} is a class that has no folder in {train}."
        )
    for part, rows in ((train, listing.train), (test, listing.test)):
        for name, label in number.items():
            rows.extend((path, label) for path in _images(part / name))
    return listing.count()


def list_tiny_imagenet(root: Path) -> Listing:
    """train/WNID/images/*, labels of val/images/* from val/val_annotations.txt, wnids sorted."""
    listing = Listing()
    advice = how_to_get("tiny-imagenet", root)
    base = _base(root, "tiny-imagenet-200", ("train", "val"))
    if base is None:
        said = f"Neither {root} nor {root / 'tiny-imagenet-200'} has a folder train. {advice}"
        listing.problem(root, said)
        return listing
    try:
        given = (base / "wnids.txt").read_text().split()
    except FileNotFoundError:
        given = list(folders(base / "train"))
    wnids = sorted(set(given))
    number = {wnid: label for label, wnid in enumerate(wnids)}
    listing.class_names = _words(base / "words.txt", wnids)
    for wnid, label in number.items():
        images = _images(base / "train" / wnid / "images")
        listing.train.extend((path, label) for path in images)
    annotations = base / "val" / "val_annotations.txt"
    try:
        lines = annotations.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as why:
        listing.problem(annotations, f"{annotations} cannot be read: {why}. {advice}")
        return listing.count()
    for at, line in enumerate(lines, start=1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0].strip()
        path = base / "val" / "images" / name
        if wnid not in number or PurePosixPath(name).name != name:
            listing.problem(
                annotations,
                f"{annotations}, line {at}: {line!r} does not name a file and one of the "
                f"{len(wnids)} classes. {advice}",
            )
        elif not path.is_file():
            listing.problem(path, f"There is no file {path}, but {annotations.name} names it.")
        else:
            listing.test.append((path, number[wnid]))
    return listing.count()


def read(
    name: str,
    listing: Listing,
    size: int | None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> Dataset:
    """Decode what was listed; without mean and deviation they are those of the training images."""
    require(listing.findings)
    train_paths, train_labels = zip(*listing.train, strict=True)
    test_paths, test_labels = zip(*listing.test, strict=True)
    train_images = stack(train_paths, size)
    test_images = stack(test_paths, size)
    if mean is None or std is None:
        mean, std = statistics(train_images)
    return Dataset(
        name=name,
        train_images=train_images,
        train_labels=np.array(train_labels, dtype=np.int64),
        test_images=test_images,
        test_labels=np.array(test_labels, dtype=np.int64),
        class_names=listing.class_names,
        mean=mean,
        std=std,
    )


def _base(root: Path, name: str, inside: tuple[str, ...]) -> Path | None:
    places = (root / name, root)
    return next((at for at in places if any((at / part).is_dir() for part in inside)), None)


def folders(path: Path) -> tuple[str, ...]:
    """Sorted names of the folders in a folder; none where there is none."""
    if not path.is_dir():
        return ()
    return tuple(
        sorted(e.name for e in path.iterdir() if e.is_dir() and not e.name.startswith("."))
    )


def _images(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return sorted(
        entry
        for entry in path.iterdir()
        if entry.suffix.lower() in SUFFIXES and not entry.name.startswith(".")
    )


def _words(path: Path, wnids: list[str]) -> tuple[str, ...]:
    """Names of classes from a file of `WNID<tab>word, other word` lines, where there is one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return tuple(wnids)
    except (OSError, UnicodeDecodeError) as why:
        raise DataError(f"{path} cannot be read: {why}.") from why
    words = dict(line.partition("\t")[::2] for line in lines)
    return tuple(words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids)
