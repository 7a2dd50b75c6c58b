"""Shared fixtures. Real data is optional: FCIL_TEST_DATA names a folder that holds some.

Its `cifar100/` has all of CIFAR-100 in the official order as lossless WebP mosaics, `train000.webp`
to `train099.webp` and `test000.webp` to `test019.webp`: 500 images each, two to a row, in reading
order, 32x32 pixels in colour. `labels.npz` beside them has `y_train`, `y_test` (fine labels),
`fine_names` and `fine_to_coarse`.
"""

from __future__ import annotations

import os

# Read by SciPy when it is first imported: lets scikit-learn run its array-API estimator checks.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fcil.data.dataset import Dataset

MOSAIC = 500


@pytest.fixture(scope="session")
def mosaics() -> Path:
    """The folder of CIFAR-100 mosaics."""
    named = os.environ.get("FCIL_TEST_DATA")
    if not named:
        pytest.skip("FCIL_TEST_DATA names no folder with real data")
    folder = Path(named) / "cifar100"
    if not (folder / "labels.npz").is_file():
        pytest.skip(f"FCIL_TEST_DATA={named} has no cifar100/labels.npz")
    return folder


@pytest.fixture(scope="session")
def real_cifar100(mosaics: Path) -> Dataset:
    """A slice of CIFAR-100: the first 40 training and 10 test images of each class."""
    with np.load(mosaics / "labels.npz", allow_pickle=False) as file:
        names = tuple(str(name) for name in file["fine_names"])
        labels = {part: file[f"y_{part}"].astype(np.int64) for part in ("train", "test")}
    chosen = {
        part: np.sort(np.concatenate([np.flatnonzero(labels[part] == c)[:n] for c in range(100)]))
        for part, n in (("train", 40), ("test", 10))
    }
    return Dataset(
        name="cifar100-slice",
        train_images=_tiles(mosaics, "train", int(chosen["train"][-1]) + 1)[chosen["train"]],
        train_labels=labels["train"][chosen["train"]],
        test_images=_tiles(mosaics, "test", int(chosen["test"][-1]) + 1)[chosen["test"]],
        test_labels=labels["test"][chosen["test"]],
        class_names=names,
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
    )


@pytest.fixture(scope="session")
def cifar100_root(mosaics: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the official binary files, rebuilt from all mosaics (some seconds)."""
    root = tmp_path_factory.mktemp("cifar100")
    folder = root / "cifar-100-binary"
    folder.mkdir()
    with np.load(mosaics / "labels.npz", allow_pickle=False) as file:
        coarse = file["fine_to_coarse"]
        for part, count in (("train", 50_000), ("test", 10_000)):
            fine = file[f"y_{part}"]
            pixels = _tiles(mosaics, part, count).reshape(count, -1)
            rows = np.hstack([coarse[fine][:, None], fine[:, None], pixels])
            (folder / f"{part}.bin").write_bytes(rows.astype(np.uint8).tobytes())
        (folder / "fine_label_names.txt").write_text("".join(f"{n}\n" for n in file["fine_names"]))
    return root


def _tiles(folder: Path, part: str, count: int) -> NDArray[np.uint8]:
    """The first images of a set, images x channels x 32 x 32."""
    tiles = []
    for number in range(-(-count // MOSAIC)):
        with Image.open(folder / f"{part}{number:03}.webp") as mosaic:
            pixels = np.asarray(mosaic).reshape(MOSAIC // 2, 32, 2, 32, 3)
        tiles.append(pixels.transpose(0, 2, 4, 1, 3).reshape(MOSAIC, 3, 32, 32))
    return np.concatenate(tiles)[:count]
