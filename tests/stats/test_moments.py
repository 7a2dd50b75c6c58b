"""Statistics as exact values: laws with equality, and truth computed in 64-bit integers."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fcil.errors import FingerprintMismatch, NotExact, NumericalError, UsageError
from fcil.stats import packed
from fcil.stats.codec import encode
from fcil.stats.features import Features
from fcil.stats.grid import Grid
from fcil.stats.moments import Moments
from fcil.stats.unit_sums import UnitSums

GRIDS = (Grid(1), Grid(8, -3), Grid(8, 2, True), Grid(12, -9), Grid(16, -4), Grid(16, 0, True))
IDS = (0, 1, 2, 7, 40, 10**12)
"""Class ids need be neither dense nor small."""
WIDTH = 5


@dataclass(frozen=True)
class Rows:
    """Integer features with labels."""

    grid: Grid
    values: np.ndarray
    labels: np.ndarray

    def __getitem__(self, chosen: Any) -> Rows:
        return Rows(self.grid, self.values[chosen], self.labels[chosen])

    def features(self, dtype: torch.dtype | None = None) -> Features:
        return Features(
            torch.from_numpy(self.values).to(dtype or self.grid.dtype), self.grid, "map"
        )

    def moments(self, declared: tuple[int, ...] = ()) -> Moments:
        return Moments.of(self.features(), self.labels, declared)


@st.composite
def rows(draw: st.DrawFn, grid: Grid | None = None, largest: int = 40) -> Rows:
    """Random integers over the whole range of a grid, ends included."""
    chosen = draw(st.sampled_from(GRIDS)) if grid is None else grid
    count = draw(st.integers(0, largest))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    values = rng.integers(chosen.lowest, chosen.highest, (count, WIDTH), endpoint=True)
    ends = rng.random((count, WIDTH)) < 0.2
    values[ends] = chosen.highest
    ids = draw(st.lists(st.sampled_from(IDS), min_size=1, unique=True))
    return Rows(chosen, values, rng.choice(ids, count))


DECLARED = st.lists(st.sampled_from(IDS), max_size=4, unique=True).map(tuple)


# What each statistic is made of in the laws: (rows, which contribution) -> value, and its zero.
def as_moments(given: Rows, number: int) -> Moments:
    return given.moments()


def as_moments_with_empty_classes(given: Rows, number: int) -> Moments:
    return given.moments(IDS[number : number + 2])


def as_unit_sums(given: Rows, number: int) -> UnitSums:
    return UnitSums.of(
        given.features(), given.labels, units=3, rng=np.random.default_rng(0), client=9 - number
    )


ADDITIVE: dict[str, tuple[Callable[[Rows, int], Any], Any]] = {
    "moments": (as_moments, Moments),
    "moments with empty classes": (as_moments_with_empty_classes, Moments),
    "unit sums": (as_unit_sums, UnitSums),
}


@pytest.mark.parametrize("name", ADDITIVE)
@settings(max_examples=20, deadline=None)
@given(data=st.data(), grid=st.sampled_from(GRIDS))
def test_laws_of_every_additive_statistic(name: str, data: st.DataObject, grid: Grid) -> None:
    make, kind = ADDITIVE[name]
    a, b, c = (make(data.draw(rows(grid)), number) for number in range(3))
    zero = kind.zero("map", grid, WIDTH)
    for left, right in (
        ((a + b) + c, a + (b + c)),
        (a + b, b + a),
        (a + zero, a),
        (zero + a, a),
        ((a + b) - b, a),
        ((a + b) - a, b),
        ((a + b + c) - (a + c), b),
        (a - a, zero),
    ):
        assert left == right
        assert left.hash == right.hash
    assert (a == b) == (a.hash == b.hash)


@settings(max_examples=40, deadline=None)
@given(given_rows=rows(largest=60), data=st.data())
def test_any_partition_order_and_class_set_gives_the_pooled_bits(
    given_rows: Rows, data: st.DataObject
) -> None:
    count = len(given_rows.labels)
    parts = data.draw(st.integers(1, 5))
    holder = np.array(
        data.draw(st.lists(st.integers(0, parts - 1), min_size=count, max_size=count)), dtype=int
    )
    pooled = given_rows.moments()
    uploads = [
        given_rows[np.flatnonzero(holder == part)].moments(data.draw(DECLARED))
        for part in data.draw(st.permutations(range(parts)))
    ]
    total = reduce(add, uploads)
    assert total == pooled and total.hash == pooled.hash
    assert total.exact and pooled.exact and total.rows == count
    gone = uploads[0]
    rest = reduce(add, uploads[1:], Moments.zero("map", given_rows.grid, WIDTH))
    assert total - gone == rest and (total - gone).hash == rest.hash


@settings(max_examples=40, deadline=None)
@given(given_rows=rows())
def test_moments_equal_integer_sums(given_rows: Rows) -> None:
    X, y = given_rows.values.astype(object), given_rows.labels  # Python integers never overflow
    made = given_rows.moments()
    classes = sorted(set(y.tolist()))
    assert made.classes == tuple(classes)
    assert packed.unpack(made.gram, WIDTH).tolist() == (X.T @ X).tolist() or len(y) == 0
    for column, label in enumerate(classes):
        assert made.cross[:, column].tolist() == X[y == label].sum(0).tolist()
        assert int(made.counts[column]) == (y == label).sum()
    real = X.astype(float) * given_rows.grid.step
    np.testing.assert_allclose(made.gram_matrix(), real.T @ real, rtol=1e-14)


@pytest.mark.parametrize("batch", [1, 7, 64, 257, 1000])
def test_any_batch_size_gives_the_same_bits(batch: int) -> None:
    rng = np.random.default_rng(3)
    whole = Rows(Grid(8), rng.integers(0, 256, (1000, 65)), rng.integers(0, 5, 1000))
    pieces = [whole[at : at + batch].moments() for at in range(0, 1000, batch)]
    assert reduce(add, pieces).hash == whole.moments().hash


def test_the_type_the_integers_come_in_does_not_show() -> None:
    rng = np.random.default_rng(4)
    given_rows = Rows(Grid(8), rng.integers(0, 256, (300, 9)), rng.integers(0, 3, 300))
    hashes = {
        Moments.of(given_rows.features(dtype), labels).hash
        for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64, torch.float64)
        for labels in (given_rows.labels, torch.from_numpy(given_rows.labels).to(torch.uint8))
    }
    assert len(hashes) == 1


def test_a_difference_that_leaves_the_exact_range_off_the_diagonal_says_so() -> None:
    apart = []
    for sign in (1, -1):
        one = Moments.of(
            Features(torch.tensor([[127, sign * 127]], dtype=torch.int16), Grid(8, 0, True), "map"),
            torch.tensor([0]),
        )
        while packed.within_exact_range(one.gram + one.gram, 2):
            one = one + one
        apart.append(one)
    difference = apart[0] - apart[1]
    assert float(difference.gram.abs().max()) > 2**53 and not difference.exact


def test_real_numbers_are_not_exact_and_say_so() -> None:
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(400, 30)), rng.integers(0, 3, 400)
    pooled = Moments.of(X, y)
    parts = sum((Moments.of(X[k::7], y[k::7]) for k in range(1, 7)), Moments.of(X[::7], y[::7]))
    assert not pooled.exact and not parts.exact
    assert parts != pooled  # this is what the grid is for
    np.testing.assert_allclose(parts.gram, pooled.gram, rtol=1e-9, atol=1e-9)


def test_exactness_is_lost_past_two_to_the_53_and_stays_lost() -> None:
    top = Rows(Grid(16), np.full((2**10, 1), 2**16 - 1), np.zeros(2**10, dtype=int)).moments()
    while top.exact:
        last, top = top, top + top
    largest = float(last.gram.max())
    assert 2**52 <= largest < 2**53 <= float(top.gram.max())
    back = top - last
    assert float(back.gram.max()) < 2**53 and not back.exact
    assert not (back + last.zero("map", Grid(16), 1)).exact
    with pytest.raises(NotExact) as refusal:
        encode(back, "exact")
    assert refusal.value.exit_code == 4


@settings(max_examples=40, deadline=None)
@given(given_rows=rows(), declared=DECLARED)
def test_empty_columns_change_neither_equality_nor_hash(
    given_rows: Rows, declared: tuple[int, ...]
) -> None:
    bare, wide = given_rows.moments(), given_rows.moments(declared)
    assert wide == bare and wide.hash == bare.hash
    assert set(wide.classes) == {*bare.classes, *declared}
    assert wide.present().classes == bare.classes
    assert bare.on(wide.classes).classes == wide.classes
    assert wide.on(bare.classes) == bare


def test_columns_that_hold_rows_cannot_be_left_out() -> None:
    made = Rows(Grid(8), np.ones((3, WIDTH), dtype=int), np.array([0, 1, 2])).moments()
    with pytest.raises(UsageError, match="2"):
        made.on([0, 1])


@settings(max_examples=40, deadline=None)
@given(given_rows=rows(Grid(8)), data=st.data())
def test_one_changed_value_or_label_changes_the_hash(given_rows: Rows, data: st.DataObject) -> None:
    assume(len(given_rows.labels) > 0)
    before = given_rows.moments()
    row = data.draw(st.integers(0, len(given_rows.labels) - 1))
    values, labels = given_rows.values.copy(), given_rows.labels.copy()
    values[row, 2] = (values[row, 2] + 1) % 256
    labels[row] += 1
    for other in (replace(given_rows, values=values), replace(given_rows, labels=labels)):
        assert other.moments() != before
        assert other.moments().hash != before.hash


def documented_hash(given_rows: Rows) -> str:
    """The hash as its documents say it, over NumPy's 64-bit integers, entry by entry."""
    X, y = given_rows.values.astype(np.int64), given_rows.labels
    classes = sorted(set(y.tolist()))
    G, width, half = X.T @ X, X.shape[1], (X.shape[1] + 1) // 2
    rest = width - half
    rectangle = np.zeros((half, rest + 1), dtype=np.int64)
    for i in range(half):
        for j in range(i + 1):
            rectangle[i, j] = G[i, j]  # lower triangle of A
    for i in range(rest):
        for j in range(i, rest):
            rectangle[i, j + 1] = G[half + i, half + j]  # upper triangle of B
    grid = given_rows.grid
    head = (
        f"map Grid(bits={grid.bits}, exponent={grid.exponent}, signed={grid.signed}) "
        f"{width} {tuple(classes)}"
    )
    entries = [rectangle.ravel(), G[:half, half:].ravel()]
    numbers = [
        np.array([(y == c).sum() for c in classes]),
        np.concatenate([X[y == c].sum(0) for c in classes]),
        np.concatenate(entries),
    ]
    small = [bool((n >= 0).all() and (n < 2**32).all()) for n in numbers]
    head += "".join(" uint32" if s else " int64" for s in small)
    digest = hashlib.sha256(head.encode())
    for n, s in zip(numbers, small, strict=True):
        data = n.astype("<u4" if s else "<i8").tobytes()
        for at in range(0, len(data), 2**23):
            digest.update(hashlib.sha256(data[at : at + 2**23]).digest())
    return digest.hexdigest()


@pytest.mark.parametrize("lowest", [0, -128])
@pytest.mark.parametrize("width", [1, 2, 5, 6])
def test_the_hash_is_what_its_documents_say(width: int, lowest: int) -> None:
    rng = np.random.default_rng(width)
    values = rng.integers(lowest, 128, (30, width))
    given_rows = Rows(Grid(8, -2, True), values, rng.choice([3, 5, 2**40], 30))
    assert given_rows.moments().hash == documented_hash(given_rows)


def test_the_hash_is_the_same_in_another_process() -> None:
    program = """
import numpy as np, torch
torch.set_num_threads(1)
from fcil import Features, Grid, Moments, UnitSums
rng = np.random.default_rng(0)
rows = Features(torch.from_numpy(rng.integers(0, 256, (500, 33))), Grid(8, -1), "map")
labels = rng.integers(0, 6, 500)
units = UnitSums.of(rows, labels, units=4, rng=np.random.default_rng(1))
print(Moments.of(rows, labels).hash, units.hash)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    rng = np.random.default_rng(0)
    features = Features(torch.from_numpy(rng.integers(0, 256, (500, 33))), Grid(8, -1), "map")
    labels = rng.integers(0, 6, 500)
    units = UnitSums.of(features, labels, units=4, rng=np.random.default_rng(1))
    assert done.stdout.split() == [Moments.of(features, labels).hash, units.hash]


@pytest.mark.parametrize("name", ["moments", "unit sums"])
@pytest.mark.parametrize("what", ["map", "grid", "width"])
def test_statistics_of_other_maps_are_refused(name: str, what: str) -> None:
    kind = ADDITIVE[name][1]
    here = {"map": "one" * 30, "grid": Grid(8), "width": 4}
    other = {"map": "two" * 30, "grid": Grid(8, 1), "width": 5}
    a, b = kind.zero(**here), kind.zero(**{**here, what: other[what]})
    for combine in (lambda: a + b, lambda: b + a, lambda: a - b):
        with pytest.raises(FingerprintMismatch, match="different feature maps") as refusal:
            combine()
        assert refusal.value.exit_code == 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_refused_by_row(bad: float) -> None:
    X = np.ones((5, 3))
    X[3, 1] = bad
    with pytest.raises(NumericalError, match="row 3") as refusal:
        Moments.of(X, np.zeros(5, dtype=int))
    assert refusal.value.exit_code == 5


@pytest.mark.parametrize("labels", [np.zeros(4, dtype=int), np.zeros((5, 1), dtype=int)])
def test_rows_and_labels_must_match(labels: np.ndarray) -> None:
    with pytest.raises(UsageError, match="5 rows"):
        Moments.of(np.ones((5, 3)), labels)
    with pytest.raises(UsageError, match="shape"):
        Moments.of(np.ones(5), np.zeros(5, dtype=int))


def test_clipped_values_are_summed_and_subtracted() -> None:
    features = Features(torch.ones((2, 3), dtype=torch.uint8), Grid(8), "map", clipped=4)
    a = Moments.of(features, torch.tensor([0, 1]))
    assert (a + a).clipped == 8 and (a + a - a).clipped == 4
