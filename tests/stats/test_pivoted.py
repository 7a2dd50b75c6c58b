"""The thin factor against ranks and matrices known from how they were made."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fcil.stats import packed, pivoted


def drawn(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    values = np.random.default_rng(seed).integers(0, 256, (rows, width), dtype=np.uint8)
    return torch.from_numpy(values)


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(0, 30), width=st.integers(1, 40), seed=st.integers(0, 99))
def test_the_factor_gives_the_matrix_back(rows: int, width: int, seed: int) -> None:
    X = drawn(rows, width, seed)
    X[:, seed % width] = 0  # a feature that is never active
    gram = packed.gram(X)
    found = pivoted.factor(gram, width, width)
    assert found is not None
    R, order = found
    rank = np.linalg.matrix_rank(X.numpy().astype(float))
    assert len(R) == rank
    assert sorted(order.tolist()) == list(range(width))
    assert not R[:, order].tril(-1).any()  # trapezoidal, pivots first
    assert torch.equal(packed.gram(R).round(), gram)
    if rank:
        assert pivoted.factor(gram, width, rank - 1) is None


@pytest.mark.parametrize(("rows", "width"), [(150, 400), (64, 300), (65, 300), (129, 130)])
def test_many_blocks_of_pivots(rows: int, width: int) -> None:
    X = drawn(rows, width)
    gram = packed.gram(X)
    found = pivoted.factor(gram, width, rows)
    assert found is not None and len(found[0]) == rows
    assert float((packed.gram(found[0]) - gram).abs().max()) < 1e-6
    assert pivoted.factor(gram, width, rows - 1) is None


def test_features_of_very_different_size() -> None:
    scale = 10.0 ** torch.arange(-4, 4, dtype=torch.float64).repeat(25)
    X = drawn(40, 200).double() * scale
    gram = packed.gram(X)
    found = pivoted.factor(gram, 200, 60)
    assert found is not None
    off = packed.unpack(packed.gram(found[0]) - gram, 200).abs()
    root = packed.diagonal(gram, 200).sqrt()
    assert float((off / root.max() ** 2).max()) < 1e-12


def test_nothing_has_rank_zero() -> None:
    found = pivoted.factor(packed.zeros(5), 5, 0)
    assert found is not None and found[0].shape == (0, 5)
