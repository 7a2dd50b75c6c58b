"""The registered readers: each takes a folder and a size and gives a `Dataset`."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcil import registry
from fcil.data.cifar import cifar100
from fcil.data.dataset import Dataset, Images, Labels, statistics
from fcil.data.findings import need_root, own_size
from fcil.data.idx import fashion_mnist
from fcil.data.splits import imagenet_r
from fcil.data.trees import folder, tiny_imagenet
from fcil.errors import DataError

__all__ = [
    "arrays",
    "cifar100",
    "digits",
    "fashion_mnist",
    "folder",
    "imagenet_r",
    "load",
    "tiny_imagenet",
]

ARRAYS_ADVICE = (
    "Write it with numpy.savez(path, x_train=..., y_train=..., x_test=..., y_test=...): images "
    "uint8, labels integers from 0."
)


def load(name: str, root: Path | None = None, size: int | None = None) -> Dataset:
    """Read a data set by its registered name."""
    dataset = registry.find("datasets", name)(root, size)
    if not isinstance(dataset, Dataset):
        raise DataError(
            f"The reader of {name!r} gave {type(dataset).__name__} instead of a Dataset: the "
            "package that brings it is broken."
        )
    return dataset


def digits(root: Path | None = None, size: int | None = None) -> Dataset:
    """Handwritten digits that ship with scikit-learn: 10 classes of 8x8 grey pixels.

    Three of every ten images of a class, counted in file order, are test images.
    """
    from sklearn.datasets import load_digits

    own_size("digits", size, 8)
    pixels, targets = load_digits(return_X_y=True)
    grey = pixels.astype(np.int64)  # 0..16
    images = ((grey * 255 + 8) // 16).astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = targets.astype(np.int64)
    place = np.empty(len(labels), dtype=np.int64)  # of an image among those of its class
    for label in range(10):
        rows = np.flatnonzero(labels == label)
        place[rows] = np.arange(len(rows))
    test = np.isin(place % 10, (2, 5, 8))
    mean, std = statistics(images[~test])
    return Dataset(
        name="digits",
        train_images=images[~test],
        train_labels=labels[~test],
        test_images=images[test],
        test_labels=labels[test],
        class_names=tuple("0123456789"),
        mean=mean,
        std=std,
    )


def arrays(root: Path | None, size: int | None = None) -> Dataset:
    """Your own arrays in one .npz file: x_train, y_train, x_test, y_test."""
    path = _npz(need_root("arrays", root))
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            content = {key: stored[key] for key in stored.files}
    except (
        AttributeError,  # np.load gave one array: a .npy file under another name
        EOFError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
    ) as why:
        raise DataError(
            f"{path} cannot be read: {why}. It is cut short, no .npz file, or holds Python objects "
            f"instead of plain arrays. {ARRAYS_ADVICE}"
        ) from why
    if missing := [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in content]:
        held = ", ".join(sorted(content)) or "nothing"
        raise DataError(f"{path} lacks {', '.join(missing)}; it holds {held}. {ARRAYS_ADVICE}")
    train_images = _pixels(path, "x_train", content)
    train_labels = _classes(path, "y_train", content)
    names = tuple(str(name) for name in np.ravel(content.get("class_names", ())))
    mean, std = statistics(train_images) if train_images.size else ((), ())
    dataset = Dataset(
        name=path.stem,
        train_images=train_images,
        train_labels=train_labels,
        test_images=_pixels(path, "x_test", content),
        test_labels=_classes(path, "y_test", content),
        class_names=names or tuple(map(str, range(int(train_labels.max(initial=-1)) + 1))),
        mean=_numbers(path, "mean", content) or mean,
        std=_numbers(path, "std", content) or std,
    )
    own_size("arrays", size, dataset.size)
    return dataset


def _npz(root: Path) -> Path:
    """The file itself, or the only one of its kind in a folder."""
    if root.suffix == ".npz":
        found = [root] if root.is_file() else []
    else:
        found = sorted(root.glob("*.npz"))
    if len(found) != 1:
        what = f"{len(found)} .npz files" if found else "no .npz file"
        raise DataError(f"There is {what} at {root}; one is needed. {ARRAYS_ADVICE}")
    return found[0]


def _pixels(path: Path, key: str, content: dict[str, NDArray[Any]]) -> Images:
    """Images as uint8, images x channels x side x side, from any of the three usual layouts."""
    images = content[key]
    if images.dtype != np.uint8:
        raise DataError(
            f"{path}: {key} is {images.dtype}; images must be uint8, 0 to 255. Numbers from 0 to 1 "
            "become that by numpy.rint(255 * x).astype(numpy.uint8)."
        )
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3) and images.shape[1] == images.shape[2]:
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise DataError(
            f"{path}: {key} has shape {content[key].shape}; it must be (N, H, W), (N, H, W, C) or "
            "(N, C, H, W) with 1 or 3 channels."
        )
    return np.ascontiguousarray(images)


def _classes(path: Path, key: str, content: dict[str, NDArray[Any]]) -> Labels:
    labels = content[key]
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise DataError(
            f"{path}: {key} is {labels.dtype} of shape {labels.shape}; labels must be integers, "
            "one an image."
        )
    return np.ascontiguousarray(labels, dtype=np.int64)


def _numbers(path: Path, key: str, content: dict[str, NDArray[Any]]) -> tuple[float, ...]:
    values = content.get(key, np.empty(0))
    if values.dtype.kind not in "iuf":
        raise DataError(f"{path}: {key} is {values.dtype}; it must be one number for each channel.")
    return tuple(float(value) for value in values.ravel())
