"""The prediction of G from class sums, against Python's own integers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fcil.stats import packed, predicted


def by_hand(cross: np.ndarray, counts: np.ndarray, k: int) -> list[list[int]]:
    """floor(Q^T Q / 4^k) in exact arithmetic; the roots and quotients alone are floats."""
    width, classes = cross.shape
    Q = [
        [
            round(float(cross[i, c]) * 2.0**k / math.sqrt(int(counts[c]))) if counts[c] else 0
            for c in range(classes)
        ]
        for i in range(width)
    ]
    return [
        [
            math.floor(Fraction(sum(a * b for a, b in zip(Q[i], Q[j], strict=True))) / 4**k)
            if k >= 0
            else sum(a * b for a, b in zip(Q[i], Q[j], strict=True)) * 4**-k
            for j in range(width)
        ]
        for i in range(width)
    ]


@settings(max_examples=80, deadline=None)
@given(
    width=st.integers(1, 9),
    counts=st.lists(st.integers(0, 10**6), min_size=1, max_size=5),
    size=st.sampled_from([1, 255, 65535]),
    signed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_prediction_is_the_same_in_exact_arithmetic(
    width: int, counts: list[int], size: int, signed: bool, seed: int
) -> None:
    n = np.array(counts)
    rng = np.random.default_rng(seed)
    cross = rng.integers(-size if signed else 0, size, (width, len(n)), endpoint=True) * n
    given_cross, given_counts = torch.from_numpy(cross).double(), torch.from_numpy(n)
    k = predicted.shift(given_cross, given_counts)
    found = predicted.gram(given_cross, given_counts, k)
    assert found is not None
    assert packed.unpack(found, width).tolist() == by_hand(cross, n, k)


def test_the_shift_uses_float64_to_its_end() -> None:
    cross, counts = torch.tensor([[300.0], [255.0]]).double(), torch.tensor([9])
    k = predicted.shift(cross, counts)
    peak = (round(300 * 2.0**k / 3)) ** 2
    assert 2**49 < peak < 2**53
    assert predicted.gram(cross, counts, k + 3) is None


def test_rows_that_equal_their_class_mean_leave_little() -> None:
    rng = np.random.default_rng(1)
    means, n = rng.integers(0, 256, (4, 30)), np.array([5, 1, 80, 9])
    X = torch.from_numpy(np.repeat(means, n, axis=0))
    cross = torch.from_numpy((means * n[:, None]).T.copy()).double()
    counts = torch.from_numpy(n)
    k = predicted.shift(cross, counts)
    rest = predicted.residual(packed.gram(X), cross, counts, k)
    assert rest is not None and float(rest.abs().max()) <= 1


@pytest.mark.parametrize(
    ("sums", "counts"),
    [([[3.0]], [0]), ([[3.0]], [-2]), ([[0.0]], [-2]), ([[3.0, 1.0]], [4, 0]), ([[math.nan]], [1])],
)
def test_sums_that_no_rows_have_predict_nothing(sums: list[list[float]], counts: list[int]) -> None:
    assert predicted.gram(torch.tensor(sums).double(), torch.tensor(counts), 3) is None


def test_no_classes_predict_nothing() -> None:
    cross, counts = torch.zeros((4, 0)).double(), torch.zeros(0, dtype=torch.int64)
    assert predicted.gram(cross, counts, predicted.shift(cross, counts)) is None


def test_what_float64_cannot_hold_is_not_left_over() -> None:
    values = packed.pack(torch.tensor([[-(2.0**53) + 1]], dtype=torch.float64))
    cross, counts = torch.tensor([[2.0**40]]).double(), torch.tensor([1])
    k = predicted.shift(cross, counts)
    assert predicted.gram(cross, counts, k) is not None
    assert predicted.residual(values, cross, counts, k) is None
