"""The grid on which features become integers."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fcil.errors import NumericalError, UsageError
from fcil.stats.grid import Grid, power_above

FINITE = st.floats(-1e9, 1e9, allow_nan=False)


@settings(max_examples=200, deadline=None)
@given(
    values=st.lists(st.one_of(FINITE, st.integers(-600, 600).map(lambda k: k / 2)), max_size=20),
    bits=st.integers(1, 16),
    signed=st.booleans(),
)
def test_rounding_is_to_the_nearest_halves_to_even_and_clips_are_counted(
    values: list[float], bits: int, signed: bool
) -> None:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    nearest = [round(Fraction(v)) for v in values]  # exact, halves to even
    rounded, clipped = Grid(bits, 0, signed).round(torch.tensor(values, dtype=torch.float64))
    assert rounded.tolist() == [min(max(n, low), high) for n in nearest]
    assert clipped == sum(not low <= n <= high for n in nearest)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", range(1, 17))
def test_the_type_holds_every_integer_of_the_grid(bits: int, signed: bool) -> None:
    grid = Grid(bits, 0, signed)
    ends = torch.tensor([grid.lowest, grid.highest], dtype=torch.float64)
    assert grid.round(ends)[0].tolist() == [grid.lowest, grid.highest]
    assert grid.highest - grid.lowest == 2**bits - 1


@given(largest=st.floats(1e-6, 1e6), bits=st.integers(2, 16), signed=st.booleans())
def test_a_reaching_grid_reaches_and_wastes_less_than_a_bit(
    largest: float, bits: int, signed: bool
) -> None:
    grid = Grid.reaching(largest, bits, signed=signed)
    end = (grid.highest + 1) * grid.step
    assert largest < end <= 2 * largest
    assert grid.step == 2.0**grid.exponent


def test_no_bits_are_real_numbers() -> None:
    assert Grid().real and Grid.reaching(5.0, 0) == Grid()
    assert not Grid(8).real and Grid().step == 1.0


def test_powers() -> None:
    assert [power_above(v) for v in (0.0, 0.5, 0.99, 1.0, 2.0, -4.0)] == [0, 0, 0, 1, 2, 3]


@pytest.mark.parametrize("bits", [-1, 17])
def test_other_sizes_are_refused(bits: int) -> None:
    with pytest.raises(UsageError, match=str(bits)):
        Grid(bits)


@pytest.mark.parametrize("largest", [float("inf"), float("nan")])
def test_a_reach_that_is_not_finite_is_refused(largest: float) -> None:
    with pytest.raises(NumericalError, match="diverged"):
        Grid.reaching(largest, 8)
