"""How far features reach, against counting in plain Python."""

from __future__ import annotations

import math
from functools import reduce
from operator import add

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fcil.stats.extent import Extent, Reach

NUMBERS = st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), max_size=30)


def extent(source: list[float], mapped: list[float]) -> Extent:
    return Extent.of(*(torch.tensor(v, dtype=torch.float64) for v in (source, mapped)))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5))
def test_who_holds_what_does_not_show(parts: list[tuple[list[float], list[float]]]) -> None:
    total = reduce(add, (extent(*part) for part in parts))
    assert total == reduce(add, (extent(*part) for part in reversed(parts)))
    assert total == extent(*([v for part in parts for v in part[k]] for k in (0, 1)))
    assert total - extent(*parts[0]) + extent(*parts[0]) == total
    assert total + Extent() == total + extent([], [0.0] * 5) == total


@given(NUMBERS, NUMBERS, st.sampled_from([0.0, 1e-3, 0.1, 0.5]))
def test_the_reach_leaves_out_no_more_than_the_share(
    source: list[float], mapped: list[float], beyond: float
) -> None:
    reach = extent(source, mapped).reach(beyond)
    seen = [abs(v) for v in mapped if abs(v) >= 2**-64]
    outside = [sum(v >= 2.0 ** (reach.mapped - k) for v in seen) for k in (0, 1)]
    tiny = len([v for v in mapped if v]) - len(seen)
    assert outside[0] <= beyond * (len(seen) + tiny)
    if seen and not tiny:
        assert outside[1] > beyond * len(seen), "one power of two less would leave out too many"
    assert reach.signed == any(v < 0 for v in mapped)
    large = max((abs(v) for v in source), default=0.0)
    if large >= 2**-64:
        assert reach.source == math.frexp(large)[1]


def test_a_few_outliers_do_not_make_the_grid_coarse() -> None:
    values = torch.ones(10_000)
    values[:5] = 1000.0
    assert Extent.of(values, values).reach() == Reach(10, 1, False)
    values[:50] = 1000.0
    assert Extent.of(values, values).reach() == Reach(10, 10, False)


@pytest.mark.parametrize("values", [[], [0.0, 0.0]])
def test_nothing_reaches_nowhere(values: list[float]) -> None:
    assert extent(values, values).reach() == Reach(0, 0, False)
