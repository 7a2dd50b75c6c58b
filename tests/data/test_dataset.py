"""What a data set refuses, and what its fingerprint sees."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fcil.data.dataset import Dataset, statistics
from fcil.errors import DataError


def small(**changes: Any) -> Dataset:
    rng = np.random.RandomState(1)
    fields: dict[str, Any] = {
        "name": "small",
        "train_images": rng.randint(0, 256, (12, 3, 4, 4)).astype(np.uint8),
        "train_labels": np.arange(12) % 3,
        "test_images": rng.randint(0, 256, (6, 3, 4, 4)).astype(np.uint8),
        "test_labels": np.arange(6) % 3,
        "class_names": ("a", "b", "c"),
        "mean": (0.5, 0.5, 0.5),
        "std": (0.2, 0.2, 0.2),
    }
    return Dataset(**{**fields, **changes})


def test_a_sound_data_set_tells_its_shape() -> None:
    data = small()
    assert (data.channels, data.size, data.classes) == (3, 4, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train_images": np.zeros((12, 3, 4, 4))}, "uint8"),
        ({"train_images": np.zeros((12, 4, 4), np.uint8)}, "uint8, images x channels"),
        ({"train_images": np.zeros((12, 3, 4, 5), np.uint8)}, "square"),
        ({"train_images": np.zeros((12, 4, 4, 3), np.uint8).transpose(0, 3, 1, 2)}, "contiguous"),
        ({"train_labels": np.arange(11) % 3}, "one for each of the 12"),
        ({"train_labels": (np.arange(12) % 3).astype(np.int32)}, "int64"),
        ({"train_labels": np.arange(12) % 4}, "0 to 3, but there are 3"),
        ({"train_labels": np.arange(12) % 3 - 1}, "-1 to 1"),
        ({"train_labels": np.arange(12) % 2}, "train set: 1 of 3 classes have no image: c"),
        ({"test_labels": np.arange(6) % 2}, "test set: 1 of 3 classes have no image: c"),
        ({"test_images": np.zeros((6, 3, 5, 5), np.uint8)}, "3x5x5"),
        ({"test_images": np.zeros((6, 1, 4, 4), np.uint8)}, "1x4x4"),
        ({"test_images": np.zeros((0, 3, 4, 4), np.uint8)}, "no pixels"),
        ({"mean": (0.5,)}, "one finite number for each of the 3"),
        ({"std": (0.2, float("nan"), 0.2)}, "finite"),
        ({"std": (0.2, 0.0, 0.2)}, "positive"),
    ],
)
def test_a_broken_data_set_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        small(**changes)


def test_the_fingerprint_sees_every_field() -> None:
    data = small()
    assert data.fingerprint == small().fingerprint
    images, labels = data.train_images.copy(), data.train_labels[::-1].copy()
    images[3, 1, 2, 0] ^= 1
    test_images = data.test_images.copy()
    test_images[-1, -1, -1, -1] ^= 1
    others = [
        replace(data, name="other"),
        replace(data, train_images=images),
        replace(data, train_labels=labels),
        replace(data, test_images=test_images),
        replace(data, test_labels=data.test_labels[::-1].copy()),
        replace(data, mean=(0.5, 0.5, 0.4)),
        replace(data, std=(0.2, 0.2, 0.3)),
        replace(data, class_names=("a", "b", "d")),
    ]
    assert len({data.fingerprint, *(other.fingerprint for other in others)}) == 9


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 6), st.integers(0, 2**31))
def test_statistics_are_those_of_the_pixels(n: int, channels: int, side: int, seed: int) -> None:
    images = np.random.RandomState(seed).randint(0, 256, (n, channels, side, side))
    mean, std = statistics(images.astype(np.uint8))
    np.testing.assert_allclose(mean, (images / 255).mean(axis=(0, 2, 3)), rtol=1e-12, atol=1e-15)
    expected = (images / 255).std(axis=(0, 2, 3))
    np.testing.assert_allclose(std, np.where(expected == 0, 1, expected), rtol=1e-9)
    shuffled = images[np.random.RandomState(seed).permutation(n)].astype(np.uint8)
    assert statistics(shuffled) == (mean, std)


def test_statistics_of_many_images_are_added_in_blocks() -> None:
    images = np.arange(3 * 2**22, dtype=np.uint32).astype(np.uint8).reshape(3, 1, 2048, 2048)
    big = np.concatenate([images] * 12)
    assert statistics(big) == statistics(images)
