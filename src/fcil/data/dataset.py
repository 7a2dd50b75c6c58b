"""Images and labels in memory, as the files give them. NumPy only."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fcil.data.findings import enumerated
from fcil.errors import DataError

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test set over the same classes; checks itself when it is made."""

    name: str
    train_images: Images = field(repr=False)
    """uint8, images x channels x side x side."""
    train_labels: Labels = field(repr=False)
    """Raw labels 0..C-1, int64; the class order of a run comes later."""
    test_images: Images = field(repr=False)
    test_labels: Labels = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    mean: tuple[float, ...]
    """By channel, of pixels scaled to 0..1."""
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_part(self, "train", self.train_images, self.train_labels)
        _check_part(self, "test", self.test_images, self.test_labels)
        if self.train_images.shape[1:] != self.test_images.shape[1:]:
            raise DataError(
                f"{self.name}: training images are {_shape(self.train_images)} and test images "
                f"{_shape(self.test_images)}; both must have the same channels and side."
            )
        if not all(
            len(numbers) == self.channels and all(map(math.isfinite, numbers))
            for numbers in (self.mean, self.std)
        ):
            raise DataError(
                f"{self.name}: mean {self.mean} and std {self.std} must be one finite number for "
                f"each of the {self.channels} channels."
            )
        if min(self.std) <= 0:
            raise DataError(f"{self.name}: std {self.std} must be positive in every channel.")

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return int(self.train_images.shape[1])

    @property
    def size(self) -> int:
        """Side of an image in pixels."""
        return int(self.train_images.shape[2])

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for two data sets exactly when all that a network can see of them is equal."""
        digest = hashlib.sha256()
        digest.update(repr((self.name, self.class_names, self.mean, self.std)).encode())
        for array in (self.train_images, self.train_labels, self.test_images, self.test_labels):
            digest.update(repr(array.shape).encode())
            digest.update(array.data)
        return digest.hexdigest()


def statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation by channel, of pixels scaled to 0..1.

    They come from integer counts of the 256 values, so they do not depend on any order of
    summation. A channel that never changes gets deviation 1: there is nothing to scale.

    >>> statistics(np.array([0, 255], dtype=np.uint8).reshape(2, 1, 1, 1))
    ((0.5,), (0.5,))
    """
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    for block in np.array_split(images, max(1, images.nbytes >> 24)):  # bincount widens to int64
        for channel, count in enumerate(counts):
            count += np.bincount(block[:, channel].ravel(), minlength=256)
    mean, std = [], []
    for histogram in counts.tolist():
        n = sum(histogram)
        first = sum(value * times for value, times in enumerate(histogram))
        second = sum(value * value * times for value, times in enumerate(histogram))
        mean.append(first / n / 255)
        std.append((n * second - first * first) ** 0.5 / n / 255 or 1.0)
    return tuple(mean), tuple(std)


def _check_part(data: Dataset, part: str, images: Images, labels: Labels) -> None:
    where = f"{data.name}, {part} set"
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[2] != images.shape[3]:
        raise DataError(
            f"{where}: images are {images.dtype} of shape {images.shape}; they must be uint8, "
            "images x channels x side x side, with square sides."
        )
    if not images.flags.c_contiguous or not labels.flags.c_contiguous:
        raise DataError(f"{where}: arrays must be contiguous; pass numpy.ascontiguousarray(...).")
    if images.size == 0:
        raise DataError(f"{where}: it holds no pixels (shape {images.shape}).")
    if labels.dtype != np.int64 or labels.shape != (len(images),):
        raise DataError(
            f"{where}: labels are {labels.dtype} of shape {labels.shape}; they must be int64, one "
            f"for each of the {len(images)} images."
        )
    if labels.min() < 0 or labels.max() >= data.classes:
        raise DataError(
            f"{where}: labels run from {labels.min()} to {labels.max()}, but there are "
            f"{data.classes} classes, numbered from 0."
        )
    held = np.bincount(labels, minlength=data.classes)
    if not held.all():
        empty = [name for name, n in zip(data.class_names, held, strict=True) if not n]
        what = "learned" if part == "train" else "measured"
        raise DataError(
            f"{where}: {len(empty)} of {data.classes} classes have no image: {enumerated(empty)}. "
            f"Such a class cannot be {what}: add images of it or take it out of both sets."
        )


def _shape(images: Images) -> str:
    return "x".join(map(str, images.shape[1:]))
