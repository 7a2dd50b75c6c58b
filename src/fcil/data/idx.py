"""Fashion-MNIST from its four idx files."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np

from fcil.data.dataset import Dataset, Images, statistics
from fcil.data.findings import Finding, counted, examine_file, need_root, own_size, require
from fcil.data.sources import SOURCES, how_to_get
from fcil.errors import DataError

NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
SIDE = 28
ROWS = {"train": 60_000, "t10k": 10_000}
FOLDERS = ("fashion-mnist", "FashionMNIST/raw", ".")
"""Where the files may lie under the root; the second is torchvision's place."""


def fashion_mnist(root: Path | None, size: int | None) -> Dataset:
    """Fashion-MNIST: 10 classes, 60,000 training and 10,000 test images of 28x28 grey pixels."""
    folder = need_root("fashion-mnist", root)
    own_size("fashion-mnist", size, SIDE)
    arrays, findings = _inspect(folder)
    require(findings)
    images = {part: arrays[part, "images"][:, None] for part in ROWS}
    labels = {part: arrays[part, "labels"].astype(np.int64) for part in ROWS}
    mean, std = statistics(images["train"])
    return Dataset(
        name="fashion-mnist",
        train_images=images["train"],
        train_labels=labels["train"],
        test_images=images["t10k"],
        test_labels=labels["t10k"],
        class_names=NAMES,
        mean=mean,
        std=std,
    )


def examine(root: Path) -> list[Finding]:
    """Everything there is to say about the files under a folder."""
    return _inspect(root)[1]


def read_idx(path: Path, shape: tuple[int, ...]) -> Images:
    """An idx file of bytes, gzipped or not, that must have a given shape."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as why:
        raise DataError(f"{path} cannot be read: {why}. It is cut short or damaged.") from why
    header = bytes([0, 0, 8, len(shape)])  # 8 = unsigned bytes
    if content[:4] != header:
        raise DataError(
            f"{path} begins with {content[:4].hex() or 'nothing'} instead of {header.hex()}: it "
            "is no such idx file."
        )
    sides, body = content[4 : 4 + 4 * len(shape)], content[4 + 4 * len(shape) :]
    found = tuple(int.from_bytes(sides[at : at + 4]) for at in range(0, len(sides), 4))
    if found != shape:
        raise DataError(f"{path} says it holds {found} values instead of {shape}.")
    values = np.frombuffer(body, dtype=np.uint8)
    expected = int(np.prod(shape))
    if values.size != expected:
        raise DataError(
            f"{path} has {values.size:,} bytes after its header instead of {expected:,}: it is "
            "cut short or damaged."
        )
    return values.reshape(shape).copy()


def _inspect(root: Path) -> tuple[dict[tuple[str, str], Images], list[Finding]]:
    advice = how_to_get("fashion-mnist", root)
    checksums = {remote.file: remote.md5 for remote in SOURCES["fashion-mnist"].remotes}
    arrays: dict[tuple[str, str], Images] = {}
    findings = []
    for part, count in ROWS.items():
        for what, shape in (("images", (count, SIDE, SIDE)), ("labels", (count,))):
            path = _find(root, f"{part}-{what}-idx{len(shape)}-ubyte")
            finding = examine_file(
                path, size=None, checksum=checksums.get(path.name), advice=advice
            )
            findings.append(finding)
            if not finding.ok:
                continue
            try:
                arrays[part, what] = read_idx(path, shape)
            except DataError as why:
                findings[-1] = Finding(False, str(path), f"{why} Delete it. {advice}")
        if (part, "labels") in arrays:
            name = "train" if part == "train" else "test"
            findings.append(counted(name, arrays[part, "labels"], NAMES))
    return arrays, findings


def _find(root: Path, name: str) -> Path:
    """The file, gzipped or not; where there is none, the place where it should be."""
    places = [root / folder / file for folder in FOLDERS for file in (f"{name}.gz", name)]
    return next((place for place in places if place.is_file()), places[0])
