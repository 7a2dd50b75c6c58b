"""Bit packing: lossless, as small as its blocks allow, and safe against altered messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fcil.errors import DataError
from fcil.stats import bits

BLOCK = 128
EDGES = st.sampled_from([0, 1, 255, 256, 2**31, 2**32 - 1, 2**61, 2**62, 2**63 - 1])
UNSIGNED = st.integers(0, 63).flatmap(lambda width: st.integers(0, 2**width - 1))
SIGNED = st.integers(0, 62).flatmap(lambda width: st.integers(-(2**width), 2**width - 1))


def fold(values: list[int]) -> list[int]:
    if min(values, default=0) >= 0:
        return values
    return [2 * v if v >= 0 else -2 * v - 1 for v in values]


@settings(max_examples=150, deadline=None)
@given(
    values=st.one_of(
        st.lists(st.one_of(UNSIGNED, EDGES), max_size=300),
        st.lists(SIGNED, max_size=300),
        st.integers(0, 400).map(lambda count: [0] * count),
    )
)
def test_round_trip_in_no_more_bytes_than_each_block_needs(values: list[int]) -> None:
    tensor = torch.tensor(values, dtype=torch.int64)
    parts = bits.pack(tensor)
    assert torch.equal(bits.unpack(parts, len(values)), tensor)
    folded = fold(values)
    blocks = [folded[at : at + BLOCK] for at in range(0, len(values), BLOCK)]
    widths = [max(block).bit_length() for block in blocks]
    assert parts["widths"].tolist() == widths
    assert len(parts["data"]) == sum(widths) * BLOCK // 8


@pytest.mark.parametrize("width", range(64))
def test_every_width(width: int) -> None:
    high = 2**width - 1
    values = [high, 0, high // 2, high // 3] * 40
    tensor = torch.tensor(values)
    assert torch.equal(bits.unpack(bits.pack(tensor), len(values)), tensor)


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8, torch.int16, torch.int32])
def test_any_tensor_type_and_shape(dtype: torch.dtype) -> None:
    tensor = torch.arange(60).view(3, 4, 5).to(dtype)
    assert torch.equal(bits.unpack(bits.pack(tensor), 60), torch.arange(60))


@settings(max_examples=100, deadline=None)
@given(
    length=st.integers(0, 500),
    claimed=st.integers(0, 2000),
    cut=st.integers(0, 3),
    name=st.sampled_from(["data", "widths"]),
)
def test_a_message_of_another_size_is_refused(
    length: int, claimed: int, cut: int, name: str
) -> None:
    parts = bits.pack(torch.arange(length))
    altered = {**parts, name: parts[name][: max(0, len(parts[name]) - cut)]}
    fits = len(altered[name]) == len(parts[name]) and -(-claimed // BLOCK) == -(-length // BLOCK)
    if fits:
        assert len(bits.unpack(altered, claimed)) == claimed
    else:
        with pytest.raises(DataError, match="cut or altered"):
            bits.unpack(altered, claimed)


@settings(max_examples=100, deadline=None)
@given(widths=st.lists(st.integers(0, 255), max_size=6), data=st.integers(0, 3000))
def test_altered_widths_are_refused_or_fit(widths: list[int], data: int) -> None:
    parts = {
        "data": torch.from_numpy(np.random.default_rng(0).integers(0, 256, data, dtype=np.uint8)),
        "widths": torch.tensor(widths, dtype=torch.uint8),
        "signed": torch.tensor([1], dtype=torch.uint8),
    }
    try:
        values = bits.unpack(parts, BLOCK * len(widths))
    except DataError:
        assert data != 16 * sum(widths) or max(widths) > 63
    else:
        assert len(values) == BLOCK * len(widths)


def test_a_promise_of_very_many_integers_allocates_nothing() -> None:
    with pytest.raises(DataError):
        bits.unpack(bits.pack(torch.arange(3)), 10**15)


@settings(max_examples=60, deadline=None)
@given(values=st.lists(SIGNED, max_size=300))
def test_an_outline_is_the_message_without_its_data(values: list[int]) -> None:
    tensor = torch.tensor(values, dtype=torch.int64)
    parts, outline = bits.pack(tensor), bits.outline(tensor)
    assert parts.keys() == outline.keys()
    for name, part in parts.items():
        assert outline[name].shape == part.shape and outline[name].dtype == part.dtype
        assert name == "data" or torch.equal(outline[name], part)
    assert outline["data"].is_meta
    assert bits.size(tensor) == sum(len(part) for part in parts.values())


@pytest.mark.parametrize("length", [127, 128, 129, 256, 1000])
@pytest.mark.parametrize("low", [0, -(2**50)])
def test_float64_integers_are_packed_as_they_are(length: int, low: int) -> None:
    values = torch.from_numpy(np.random.default_rng(length).integers(low, 2**50, length))
    values[::3] //= 2**45  # blocks of many widths
    before = values.double()
    parts = bits.pack(before)
    assert torch.equal(bits.unpack(parts, length), values)
    assert torch.equal(before, values.double())


@pytest.mark.parametrize("run", [1, 3, 65536])
@pytest.mark.parametrize("length", [128 * 7, 128 * 7 + 1, 128 * 7 - 1])
def test_runs_of_blocks(run: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "_RUN", run)
    values = torch.arange(length) % 1000 - 300
    parts = bits.pack(values)
    assert len(parts["data"]) == len(bits.outline(values)["data"])
    assert torch.equal(bits.unpack(parts, length), values)
