"""Moments with a held-out fold: subtraction gives what is left, as if computed alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fcil.errors import DataError, FingerprintMismatch
from fcil.stats import codec
from fcil.stats.features import Features
from fcil.stats.grid import Grid
from fcil.stats.moments import Moments
from fcil.stats.with_fold import SLOTS, MomentsWithFold, coarse

GRID = Grid(8, -3)


def drawn(rows: int, seed: int, width: int = 6) -> tuple[Features, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.integers(0, 256, (rows, width))).to(torch.uint8)
    slots = np.where(rng.random(rows) < 0.3, rng.integers(0, SLOTS, rows), -1)
    return Features(values, GRID, "map", clipped=rows % 5), rng.integers(0, 4, rows), slots


def both(rows: int, seed: int) -> MomentsWithFold:
    return MomentsWithFold.of(*drawn(rows, seed), range(4))


def of(parts: list[tuple[Features, np.ndarray, np.ndarray]], keep: str) -> Moments:
    """Moments of some of all rows together, computed in one go."""
    values = torch.cat([features.values for features, _, _ in parts])
    labels, slots = (np.concatenate([part[k] for part in parts]) for k in (1, 2))
    chosen = {"all": slots >= -1, "held": slots >= 0, "rest": slots < 0}[keep]
    return Moments.of(Features(values[torch.from_numpy(chosen)], GRID, "map"), labels[chosen])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(0, 10**6))
def test_what_is_left_equals_what_is_computed_directly(sizes: list[int], seed: int) -> None:
    parts = [drawn(rows, seed + at) for at, rows in enumerate(sizes)]
    found = both(sizes[0], seed)
    for at, rows in enumerate(sizes[1:], 1):
        found = found + both(rows, seed + at)
    assert found.total == of(parts, "all") and coarse(found.fold) == of(parts, "held")
    assert found.total - coarse(found.fold) == of(parts, "rest")
    assert found.total.hash == of(parts, "all").on(range(4)).hash
    assert found.total.clipped == sum(rows % 5 for rows in sizes)
    first = both(sizes[0], seed)
    assert found - first + first == found


def test_the_fold_holds_the_sum_of_every_cell() -> None:
    features, labels, slots = drawn(200, 1)
    fold = MomentsWithFold.of(features, labels, slots).fold
    for column, finer in enumerate(fold.classes):
        rows = (labels == finer // SLOTS) & (slots == finer % SLOTS)
        assert int(fold.counts[column]) == rows.sum() > 0
        expected = features.values[torch.from_numpy(rows)].double().sum(0)
        assert torch.equal(fold.cross[:, column], expected)
    assert len(fold.classes) == len({*zip(labels[slots >= 0], slots[slots >= 0], strict=True)})


@pytest.mark.parametrize("encoding", ["auto", "exact", "packed", "full", "int16"])
def test_a_message_brings_both_back(encoding: str) -> None:
    value = both(40, 3)
    message = codec.to_message(value, encoding)
    assert message.size == len(message.to_bytes()) == codec.outlined(value, encoding).size
    back = codec.decode(message.to_bytes())
    if encoding in ("full", "int16"):
        assert message.meta["encoding"] == encoding
        torch.testing.assert_close(back.total.gram, value.total.gram, rtol=1e-3, atol=600.0)
    else:
        assert back == value and back.total.hash == value.total.hash


def test_a_fold_that_is_no_part_of_the_rows_is_refused() -> None:
    value = both(40, 3)
    for wrong in (
        replace(value, fold=value.fold + value.fold + value.fold + value.fold),
        replace(value, total=value.total - value.total),
    ):
        with pytest.raises(DataError, match="holds out rows"):
            codec.decode(codec.encode(wrong))
    other = replace(value.fold, map="another")
    with pytest.raises(FingerprintMismatch):
        codec.decode(codec.encode(replace(value, fold=other)))
    message = codec.to_message(value)
    for meta in (
        {**message.meta, "fold": 3},
        {k: v for k, v in message.meta.items() if k != "fold"},
    ):
        with pytest.raises(DataError):
            codec.from_message(codec.Message(meta, message.tensors))
