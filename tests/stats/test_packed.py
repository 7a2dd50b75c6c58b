"""Packed symmetric matrices against dense integer algebra."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fcil.stats import packed

WIDTHS = (1, 2, 3, 4, 7, 64, 65)
RANGES = {
    torch.uint8: (0, 255),
    torch.int16: (-(2**15), 2**15 - 1),
    torch.int32: (0, 2**16 - 1),
    torch.int64: (-4095, 4095),
}


def integers(rows: int, width: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    low, high = RANGES[dtype]
    drawn = np.random.default_rng(seed).integers(low, high, (rows, width), endpoint=True)
    return torch.from_numpy(drawn).to(dtype)


def truth(rows: torch.Tensor) -> np.ndarray:
    """X^T X in 64-bit integers, by NumPy."""
    X = rows.numpy().astype(np.int64)
    return X.T @ X


def symmetric(width: int) -> torch.Tensor:
    A = torch.from_numpy(np.random.default_rng(width).normal(size=(width, width)))
    return A + A.T


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(0, 300),
    width=st.integers(1, 40),
    dtype=st.sampled_from(list(RANGES)),
    seed=st.integers(0, 99),
)
def test_gram_of_integers_is_exact(rows: int, width: int, dtype: torch.dtype, seed: int) -> None:
    X = integers(rows, width, dtype, seed)
    G = packed.gram(X)
    assert G.dtype == torch.float64
    np.testing.assert_array_equal(packed.unpack(G, width).numpy(), truth(X))


@pytest.mark.parametrize(("width", "leaf"), [(2051, packed._LEAF), (37, 1), (38, 2), (75, 3)])
def test_gram_recurses_over_wide_matrices(
    width: int, leaf: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_LEAF", leaf)
    X = integers(6, width, torch.uint8)
    np.testing.assert_array_equal(packed.unpack(packed.gram(X), width).numpy(), truth(X))


@pytest.mark.parametrize(
    ("value", "rows"),
    [(255, 258), (255, 259), (255, 40_000), (4095, 5000), (4095, 2), (65535, 3000), (65535, 1)],
)
def test_gram_is_exact_where_float32_sums_would_round(value: int, rows: int) -> None:
    X = integers(rows, 3, torch.int32) % 2
    X = value - X.to(torch.int32)  # large, odd and even: nothing cancels or rounds by luck
    np.testing.assert_array_equal(packed.unpack(packed.gram(X), 3).numpy(), truth(X))
    if value**2 * rows > 2**25:
        assert not np.array_equal((X.float().T @ X.float()).numpy(), truth(X))


def test_gram_is_exact_when_one_row_is_large_and_the_others_small() -> None:
    X = torch.ones((500, 4), dtype=torch.int32)
    X[100], X[300, 2], X[499] = 4097, 65535, 65533
    np.testing.assert_array_equal(packed.unpack(packed.gram(X), 4).numpy(), truth(X))


@pytest.fixture
def coarse_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("coarse_products")
def test_gram_stays_exact_where_float32_products_may_be_coarse() -> None:
    X = integers(700, 33, torch.uint8)
    assert {piece.dtype for piece in packed._exact_chunks(X)} == {torch.float64}
    np.testing.assert_array_equal(packed.unpack(packed.gram(X), 33).numpy(), truth(X))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", WIDTHS)
def test_gram_of_real_rows_is_the_float64_product(width: int, dtype: torch.dtype) -> None:
    X = torch.from_numpy(np.random.default_rng(1).normal(size=(50, width))).to(dtype)
    dense = X.double().numpy().T @ X.double().numpy()
    off = np.abs(packed.unpack(packed.gram(X), width).numpy() - dense)
    scale = np.sqrt(np.outer(dense.diagonal(), dense.diagonal()))
    assert (off <= (1e-6 if dtype == torch.float32 else 1e-14) * scale).all()


@pytest.mark.parametrize("width", [*WIDTHS, 201])
def test_pack_and_unpack_are_inverse_in_half_the_memory(width: int) -> None:
    A = symmetric(width)
    vector = packed.pack(A)
    assert vector.shape == (width * (width + 1) // 2,) == packed.zeros(width).shape
    assert torch.equal(packed.unpack(vector, width), A)
    assert len(vector.unique()) == len(A.unique())  # nothing is kept twice


@pytest.mark.parametrize("width", WIDTHS)
def test_operations_equal_the_dense_ones(width: int) -> None:
    A = symmetric(width)
    vector = packed.pack(A)
    right = torch.from_numpy(np.random.default_rng(2).normal(size=(width, 5)))
    assert torch.equal(packed.diagonal(vector, width), A.diagonal())
    np.testing.assert_allclose(
        packed.times(vector, width, right), A @ right, rtol=1e-12, atol=1e-12
    )
    assert packed.norm(vector, width) == pytest.approx(float(A.norm()), rel=1e-12)


def test_times_of_integers_is_exact() -> None:
    X, right = integers(40, 21, torch.uint8), integers(21, 3, torch.int64)
    product = packed.times(packed.gram(X), 21, right.double())
    np.testing.assert_array_equal(product.numpy(), truth(X) @ right.numpy())


def test_the_diagonal_is_a_copy() -> None:
    vector = packed.pack(symmetric(5))
    before = vector.clone()
    packed.diagonal(vector, 5).zero_()
    assert torch.equal(vector, before)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_exact_range_ends_at_two_to_the_53(place: int) -> None:
    A = torch.eye(3, dtype=torch.float64)
    A[place, place] = 2**53 - 1
    assert packed.within_exact_range(packed.pack(A), 3)
    A[place, place] = 2**53
    assert not packed.within_exact_range(packed.pack(A), 3)
    A[place, place] = torch.nan
    assert not packed.within_exact_range(packed.pack(A), 3)


LEAVES = pytest.mark.parametrize(("width", "leaf"), [(1, 320), (2, 1), (37, 1), (38, 5), (700, 90)])


def positive(width: int) -> torch.Tensor:
    X = torch.from_numpy(np.random.default_rng(width).normal(size=(2 * width + 3, width)))
    return X.T @ X


@LEAVES
def test_everything_holds_for_any_tiling(
    width: int, leaf: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_LEAF", leaf)
    A = symmetric(width)
    vector = packed.pack(A)
    assert torch.equal(packed.unpack(vector, width), A)
    right = torch.from_numpy(np.random.default_rng(2).normal(size=(width, 3)))
    np.testing.assert_allclose(packed.times(vector, width, right), A @ right, rtol=0, atol=1e-10)
    index = torch.from_numpy(np.random.default_rng(3).integers(0, width, 9))
    assert torch.equal(packed.rows_of(vector, width, index), A[index])
    packed.add_diagonal_(vector, width, 2.5)
    moved = A.clone()
    moved.diagonal().add_(2.5)
    assert torch.equal(packed.unpack(vector, width), moved)


@LEAVES
def test_the_cholesky_factor_is_the_one_of_the_full_matrix(
    width: int, leaf: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_LEAF", leaf)
    A = positive(width)
    made = packed.pack(A)
    assert packed.cholesky_(made, width) == 0
    L = np.linalg.cholesky(A.numpy())
    h = (width + 1) // 2
    whole = packed.unpack(made, width).numpy()
    scale = np.abs(L).max()
    np.testing.assert_allclose(np.tril(whole[:h, :h]), L[:h, :h], rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(whole[h:, :h], L[h:, :h], rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(np.tril(whole[h:, h:]), L[h:, h:], rtol=0, atol=1e-12 * scale)
    right = torch.from_numpy(np.random.default_rng(2).normal(size=(width, 4)))
    before = right.clone()
    found = packed.cholesky_solve(made, width, right)
    assert torch.equal(right, before)
    expected = np.linalg.solve(A.numpy(), right.numpy())
    assert np.linalg.norm(found.numpy() - expected) <= 1e-10 * np.linalg.norm(expected)


def test_a_matrix_that_is_not_positive_says_where() -> None:
    for place in range(8):
        A = torch.eye(8, dtype=torch.float64)
        A[place, place] = 0
        assert packed.cholesky_(packed.pack(A), 8) == place + 1


def test_other_types_are_taken_and_given_without_a_copy_of_the_square() -> None:
    A = symmetric(33)
    vector = packed.pack(A.float(), torch.float64)
    assert vector.dtype == torch.float64
    assert torch.equal(packed.unpack(vector, 33), A.float().double())
    assert torch.equal(packed.unpack(packed.pack(A), 33, torch.float32), A.float())


def test_numbers_that_are_not_finite_stay_where_they_are() -> None:
    for place in range(6):
        A = symmetric(6)
        A[place, 2] = A[2, place] = torch.inf
        back = packed.unpack(packed.pack(A), 6)
        assert torch.equal(back, A)
