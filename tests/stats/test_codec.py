"""Messages: lossless where they say so, of the size they say, and safe to open."""

from __future__ import annotations

import io
import json
import pickle
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from fcil.errors import DataError, NotExact, Refused, UsageError
from fcil.stats import bits, packed
from fcil.stats.codec import ENCODINGS, Message, decode, encode, from_message, to_message
from fcil.stats.extent import Extent
from fcil.stats.features import Features
from fcil.stats.grid import Grid
from fcil.stats.moments import Moments
from fcil.stats.parameters import Parameters
from fcil.stats.unit_sums import UnitSums


def extent(source: list[float], mapped: list[float]) -> Extent:
    return Extent.of(torch.tensor(source), torch.tensor(mapped))


def features(
    rows: int, width: int, grid: Grid | None = None, seed: int = 0
) -> tuple[Features, np.ndarray]:
    grid = Grid(8, -3) if grid is None else grid
    rng = np.random.default_rng(seed)
    labels = rng.choice([0, 2, 3, 1000], rows)
    if grid.real:
        return Features(torch.from_numpy(rng.normal(size=(rows, width))), grid, "map"), labels
    values = rng.integers(grid.lowest, grid.highest, (rows, width), endpoint=True)
    return Features(torch.from_numpy(values).to(grid.dtype), grid, "map"), labels


def moments(rows: int, width: int, grid: Grid | None = None, seed: int = 0) -> Moments:
    return Moments.of(*features(rows, width, grid, seed), classes=[5])


def unit_sums(rows: int, width: int, grid: Grid | None = None, seed: int = 0) -> UnitSums:
    rng = np.random.default_rng(seed)
    return UnitSums.of(
        *features(rows, width, grid, seed),
        units=3,
        rng=rng,
        client=2,
        task=1,
        min_cell=1 + seed % 3,
    )


GRIDS = st.sampled_from([Grid(), Grid(1), Grid(8, -3), Grid(8, 0, True), Grid(12, 1), Grid(16, -9)])
SIZES = {"rows": st.integers(0, 40), "width": st.integers(1, 30), "seed": st.integers(0, 99)}
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(
    lambda name: name != "__metadata__"
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(
        st.sampled_from(
            # One type of each item size; two of one size have their own test below.
            [torch.float64, torch.float32, torch.bfloat16, torch.uint8]
        )
    )
    shape = draw(st.lists(st.integers(0, 12), max_size=3))
    return torch.arange(int(np.prod(shape))).view(shape).to(dtype)


PARAMETERS = st.builds(
    Parameters,
    st.dictionaries(NAMES, tensors(), max_size=6),
    st.floats(0, 1e6),
    st.integers(0, 10**9),
)
VALUES = st.one_of(
    st.builds(moments, grid=GRIDS, **SIZES),
    st.builds(unit_sums, grid=GRIDS, **SIZES),
    st.builds(extent, st.lists(st.floats(-9, 9), max_size=9), st.lists(st.floats(-9, 9))),
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Parameters):
        return (
            (a.weight, a.steps, a.total.keys()) == (b.weight, b.steps, b.total.keys())
            and all(a.total[k].dtype == b.total[k].dtype for k in a.total)
            and all(torch.equal(a.total[k], b.total[k]) for k in a.total)
        )
    return bool(a == b)


def attempt(value: Any, encoding: str) -> Message | None:
    """The message of a value, None where this value has no such encoding."""
    try:
        return to_message(value, encoding)
    except (Refused, UsageError):
        return None


def nothing_in_full(value: Any, encoding: str) -> bool:
    return encoding == "full" and isinstance(value, UnitSums) and not len(value.keys)


@settings(max_examples=120, deadline=None)
@given(value=st.one_of(VALUES, PARAMETERS), encoding=st.sampled_from(ENCODINGS))
def test_a_message_knows_its_size_and_holds_the_value(value: Any, encoding: str) -> None:
    assume(not nothing_in_full(value, encoding))  # has its own test below
    message = attempt(value, encoding)
    if message is None:
        assert encoding != "auto"
        return
    data = message.to_bytes()
    assert message.size == len(data)
    again = decode(data)
    assert type(again) is type(value)
    exactly = encoding in ("auto", "packed") or (
        encoding in ("exact", "factor") and not (isinstance(value, Moments) and value.grid.real)
    )
    if exactly or isinstance(value, Parameters | Extent):
        assert same(again, value)
    if exactly and isinstance(value, Moments | UnitSums):
        assert again.hash == value.hash
        assert (again.classes, again.clipped) == (value.classes, value.clipped)
    if exactly and isinstance(value, Moments):
        assert again.exact == value.exact


def test_the_size_is_right_whatever_the_order_of_names_and_types() -> None:
    value = Parameters(
        {"a": torch.zeros(1, dtype=torch.float64), "z": torch.zeros(100_000, dtype=torch.int64)}, 1
    )
    assert to_message(value).size == len(encode(value))


@settings(max_examples=30, deadline=None)
@given(
    value=st.builds(
        moments,
        grid=st.sampled_from([Grid(), Grid(1), Grid(8, -3), Grid(8, 0, True), Grid(12)]),
        width=st.integers(64, 90),
        rows=st.integers(0, 100),
        seed=st.integers(0, 99),
    )
)
def test_auto_is_the_smallest_of_the_lossless_ones(value: Moments) -> None:
    automatic = to_message(value)
    for encoding in ("exact", "packed", "factor"):
        message = attempt(value, encoding)
        if message is None:
            continue
        lossless = same(from_message(message), value)
        assert lossless or value.grid.real  # the factor of real numbers is only near
        if encoding != "factor" or not value.grid.real:
            # "auto" is decided by tensors; the headers differ by a few bytes.
            assert payload(automatic) <= payload(message)


def payload(message: Message) -> int:
    return sum(t.numel() * t.element_size() for t in message.tensors.values())


@pytest.mark.parametrize("width", [2, 16])
def test_auto_is_the_smallest_for_narrow_maps_too(width: int) -> None:
    value = moments(40, width)
    assert to_message(value).size <= to_message(value, "packed").size


@pytest.mark.parametrize(
    ("rows", "width", "chosen"), [(4, 200, "factor"), (400, 200, "exact"), (0, 20, "exact")]
)
def test_auto_takes_the_factor_with_few_rows(rows: int, width: int, chosen: str) -> None:
    assert to_message(moments(rows, width)).meta["encoding"] == chosen


def test_auto_of_sums_that_are_not_exact_keeps_every_bit() -> None:
    value = moments(3, 40, Grid())
    assert to_message(value).meta["encoding"] == "packed"
    assert same(decode(encode(value)), value)


@pytest.mark.parametrize(("rows", "width"), [(30, 7), (3, 7), (0, 3)])
def test_full_moments_take_the_published_bytes(rows: int, width: int) -> None:
    value = moments(rows, width)
    message = to_message(value, "full")
    classes = len(value.classes)
    counts = 8 * classes
    assert payload(message) == 4 * (width + classes) * width + counts
    header = 8 + int.from_bytes(message.to_bytes()[:8], "little")
    assert message.size == header + payload(message)
    assert same(from_message(message), value)  # these integers fit float32
    assert not from_message(message).exact


def test_full_unit_sums_of_no_rows() -> None:
    value = unit_sums(0, 4)
    assert same(decode(encode(value, "full")), value)


def test_full_unit_sums_take_the_published_bytes() -> None:
    value = unit_sums(30, 7)
    message = to_message(value, "full")
    assert payload(message) == 4 * (7 + 1) * len(value.classes) * 3
    assert same(from_message(message), value)
    with pytest.raises(Refused, match="one client"):
        other = UnitSums.of(*features(9, 7), units=3, rng=np.random.default_rng(0), client=8)
        to_message(value + other, "full")


@settings(max_examples=25, deadline=None)
@given(value=st.builds(moments, grid=GRIDS, **SIZES))
def test_int16_is_within_half_a_step_of_the_correlation(value: Moments) -> None:
    again = from_message(to_message(value, "int16"))
    assert not again.exact
    G, width = packed.unpack(value.gram, value.width), value.width
    root = G.diagonal().sqrt()
    off = (packed.unpack(again.gram, width) - G).abs()
    assert (off <= (0.5 / 32767 + 2**-23) * root[:, None] * root + 1e-30).all()
    assert ((off.diagonal()) <= 2**-24 * G.diagonal()).all()
    assert ((again.cross - value.cross).abs() <= 2**-24 * value.cross.abs()).all()
    assert torch.equal(again.counts, value.counts)
    assert payload(to_message(value, "int16")) == (
        2 * packed.size(width) + 4 * width + (4 * width + 8) * len(value.classes)
    )


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(0, 24),
    grid=st.sampled_from([Grid(8), Grid(8, 0, True), Grid(16)]),
    seed=st.integers(0, 99),
)
def test_the_factor_gives_back_integers_exactly(rows: int, grid: Grid, seed: int) -> None:
    value = moments(rows, 25, grid, seed)
    message = to_message(value, "factor")
    again = from_message(message)
    assert again == value and again.hash == value.hash and again.exact
    rank = np.linalg.matrix_rank(value.gram_matrix().numpy())
    assert len(message.tensors["factor"]) == rank * 25 - rank * (rank - 1) // 2


def test_the_factor_of_real_numbers_is_near() -> None:
    value = moments(10, 25, Grid())
    again = from_message(to_message(value, "factor"))
    assert not again.exact
    np.testing.assert_allclose(again.gram, value.gram, rtol=0, atol=1e-12 * float(value.gram.max()))
    assert torch.equal(again.cross, value.cross)


def test_the_factor_is_refused_where_it_would_not_pay_or_not_be_exact() -> None:
    with pytest.raises(Refused, match="full rank"):
        encode(moments(40, 25), "factor")
    large = moments(20, 25, Grid(16))
    while packed.within_exact_range(large.gram + large.gram, 25):
        large = large + large
    assert large.exact
    with pytest.raises(Refused, match="exactly"):
        encode(large, "factor")
    assert to_message(large).meta["encoding"] == "exact"
    assert decode(encode(large)).hash == large.hash


def with_class_structure(rows: int, width: int, seed: int = 0) -> Moments:
    """Features that are near the mean of their class, as networks give."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([0, 2, 3, 1000], rows)
    means = rng.integers(40, 200, (1001, width))
    values = np.clip(means[labels] + rng.integers(-12, 13, (rows, width)), 0, 255)
    return Moments.of(Features(torch.from_numpy(values).to(torch.uint8), Grid(8), "map"), labels)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 60),
    width=st.integers(1, 40),
    gone=st.integers(0, 60),
    declared=st.booleans(),
    encoding=st.sampled_from(["exact", "auto"]),
    seed=st.integers(0, 99),
)
def test_what_class_sums_predict_comes_back_exactly(
    rows: int, width: int, gone: int, declared: bool, encoding: str, seed: int
) -> None:
    value = with_class_structure(rows, width, seed) - with_class_structure(gone, width, seed + 1)
    if declared:
        value = value.on([*value.present().classes, 5000])
    again = decode(encode(value, encoding))
    assert again == value and again.hash == value.hash and again.exact


@pytest.mark.parametrize("sign", [1, -1])
def test_predicting_from_class_sums_saves_what_they_say(sign: int) -> None:
    value = with_class_structure(300, 200)
    if sign < 0:  # less than nothing: these counts are not those of rows
        value = value - value - value
    message = to_message(value, "exact")
    assert ("predicted" in message.tensors) == (sign > 0)
    assert from_message(message) == value
    if sign > 0:
        assert message.tensors["gram.data"].numel() < 0.65 * bits.size(value.gram)


def test_no_prediction_where_it_would_cost_more() -> None:
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.integers(-127, 128, (50, 100))).to(torch.int16)
    value = Moments.of(Features(values, Grid(8, 0, True), "map"), np.arange(50))  # a class a row
    flipped = Moments.of(Features(-values, Grid(8, 0, True), "map"), np.arange(50))
    total = value + flipped  # class sums are zero and say nothing
    message = to_message(total, "exact")
    assert "predicted" not in message.tensors and from_message(message) == total


@settings(max_examples=40, deadline=None)
@given(value=VALUES, encoding=st.sampled_from(ENCODINGS))
def test_an_outline_has_the_names_types_and_shapes_of_the_message(
    value: Any, encoding: str
) -> None:
    if isinstance(value, Extent) or attempt(value, encoding) is None:
        return
    meta, parts = value.to_parts(encoding)
    same_meta, outline = value.to_parts(encoding, outline=True)
    assert same_meta == meta
    described = [{n: (t.dtype, t.shape) for n, t in each.items()} for each in (parts, outline)]
    assert described[0] == described[1]


@pytest.mark.parametrize("rows", [1, 2, 40])
@pytest.mark.parametrize("grid", [Grid(8), Grid(16), Grid(16, 0, True)])
def test_packed_takes_four_bytes_an_entry_where_they_hold_it_and_eight_elsewhere(
    rows: int, grid: Grid
) -> None:
    top = torch.full((rows, 9), grid.highest, dtype=grid.dtype)
    top[:, 4] = grid.lowest
    value = Moments.of(Features(top, grid, "map"), np.zeros(rows, dtype=int))
    message = to_message(value, "packed")
    fits = float(value.gram.min()) >= 0 and float(value.gram.max()) < 2**32
    assert message.tensors["gram"].element_size() == (4 if fits else 8)
    assert from_message(message).hash == value.hash


def test_exact_is_refused_for_real_numbers() -> None:
    with pytest.raises(NotExact, match="packed"):
        encode(moments(5, 4, Grid()), "exact")


@pytest.mark.parametrize("value", [moments(9, 4), Extent()])
def test_an_unknown_encoding_is_named(value: Any) -> None:
    with pytest.raises(UsageError, match=r"zip.*auto, exact"):
        encode(value, "zip")


@pytest.mark.parametrize("encoding", ["factor", "int16"])
def test_unit_sums_have_fewer_encodings(encoding: str) -> None:
    with pytest.raises(UsageError, match=encoding):
        encode(unit_sums(9, 4), encoding)


# What else may be sent: nothing but a DataError may come of it.


@cache
def originals() -> list[tuple[str, Message]]:
    values = {
        "moments": (moments(9, 12), ENCODINGS),
        "predicted": (with_class_structure(30, 12), ("exact",)),
        "few": (moments(3, 12), ("factor",)),
        "real": (moments(9, 4, Grid()), ("packed",)),
        "units": (unit_sums(9, 5), ("exact", "full")),
        "real units": (unit_sums(9, 5, Grid()), ("auto",)),
        "parameters": (Parameters.of({"a.b": torch.ones(3, 2)}, 2.0, 7), ("auto",)),
        "extent": (extent([1.0, 3.0], [-2.0]), ("auto",)),
    }
    found = []
    for name, (value, encodings) in values.items():
        for encoding in encodings:
            message = attempt(value, encoding)
            if message is not None:
                found.append((f"{name} {encoding}", message))
    return found


def opens_or_refuses(data: bytes) -> None:
    try:
        decode(data)
    except (DataError, UsageError) as refusal:
        assert len(str(refusal)) > 20  # a sentence, not a bare cause


def refuses(data: bytes) -> None:
    with pytest.raises(DataError):
        decode(data)


FUZZ = settings(
    max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@FUZZ
@given(data=st.data())
def test_altered_bytes_are_opened_or_refused(data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(originals()))[1].to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        # Half of the blows hit the first bytes and the header, where the structure is.
        place = data.draw(st.one_of(st.integers(0, 500), st.integers(0, len(content) - 1)))
        content[place % len(content)] = data.draw(st.integers(0, 255))
    opens_or_refuses(bytes(content))


@FUZZ
@given(data=st.data())
def test_cut_bytes_are_refused(data: st.DataObject) -> None:
    content = data.draw(st.sampled_from(originals()))[1].to_bytes()
    refuses(content[: data.draw(st.integers(0, len(content) - 1))])
    refuses(content + b"\x00" * data.draw(st.integers(1, 9)))


@FUZZ
@given(content=st.binary(max_size=200))
@example(b"")
@example(b"\xff" * 8)
@example((2**63 - 1).to_bytes(8, "little") + b"{}")
def test_garbage_is_refused(content: bytes) -> None:
    refuses(content)


class Trap:
    """Unpickling this would leave a trace."""

    sprung = False

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _spring, ()


def _spring() -> None:
    Trap.sprung = True


def test_pickles_are_refused_unopened() -> None:
    file = io.BytesIO()
    torch.save({"gram": torch.zeros(3)}, file)
    for content in (pickle.dumps(Trap()), pickle.dumps({"a": 1}), file.getvalue()):
        refuses(content)
    assert not Trap.sprung


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 40),
        st.sampled_from([0.5, 10**4, 10**400, float("inf"), float("nan")]),
        st.text(max_size=3),
        st.sampled_from(
            ["exact", "packed", "factor", "int16", "full", "real", "moments", "extent"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=2), inner)
    ),
    max_leaves=5,
)


@settings(FUZZ, max_examples=300)
@given(data=st.data())
def test_altered_headers_and_tensors_are_opened_or_refused(data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(originals()))[1]
    meta, parts = json.loads(json.dumps(message.meta)), dict(message.tensors)
    for _ in range(data.draw(st.integers(1, 2))):
        change = data.draw(st.sampled_from(["value", "drop", "tensor", "lose"]))
        key, name = (
            data.draw(st.sampled_from(sorted(meta))),
            data.draw(st.sampled_from(sorted(parts))),
        )
        if change == "value":
            meta[key] = data.draw(JSON)
        elif change == "drop" and len(meta) > 1:
            del meta[key]
        elif change == "tensor":
            parts[name] = data.draw(tensors())
        elif len(parts) > 1:
            del parts[name]
    opens_or_refuses(Message(meta, parts).to_bytes())


@pytest.mark.parametrize("kind", ["moments", "unit-sums", "parameters", "extent"])
@pytest.mark.parametrize("change", [{"schema": 2}, {"schema": None}, {"kind": "pickle"}])
def test_another_schema_or_kind_is_refused(kind: str, change: dict[str, Any]) -> None:
    message = next(m for _, m in originals() if m.meta["kind"] == kind)
    with pytest.raises(DataError, match="schema 1"):
        from_message(Message({**message.meta, **change}, message.tensors))
    with pytest.raises(DataError):
        from_message(Message({"schema": 1, "kind": kind}, {}))


def test_another_librarys_file_is_refused() -> None:
    for metadata in (None, {"format": "pt"}, {"fcil": "no json"}):
        refuses(safetensors.torch.save({"weight": torch.zeros(2)}, metadata))


def altered(
    value: Any, encoding: str, parts: dict[str, torch.Tensor] | None = None, **meta: Any
) -> bytes:
    message = to_message(value, encoding)
    return Message({**message.meta, **meta}, {**message.tensors, **(parts or {})}).to_bytes()


def bare(metadata: str) -> bytes:
    return safetensors.torch.save({"a": torch.zeros(1)}, {"fcil": metadata})


def predicted(shift: torch.Tensor, **parts: torch.Tensor) -> bytes:
    return altered(with_class_structure(40, 12), "exact", {"predicted": shift, **parts})


NESTED = b"[" * 200_000
INFINITE = float("inf")
CRASHES: dict[str, Callable[[], bytes]] = {
    "predicted from two shifts": lambda: predicted(torch.tensor([3, 4], dtype=torch.int8)),
    "predicted from no shift": lambda: predicted(torch.zeros(0, dtype=torch.int8)),
    "predicted from a text of bytes": lambda: predicted(torch.zeros((1, 2), dtype=torch.int8)),
    "predicted past float64": lambda: predicted(torch.tensor([60], dtype=torch.int8)),
    "predicted beyond all": lambda: predicted(torch.tensor([127], dtype=torch.int8)),
    "predicted from counts of others": lambda: predicted(
        torch.tensor([3], dtype=torch.int8), counts=torch.ones(2, dtype=torch.int64)
    ),
    "predicted from negative counts": lambda: predicted(
        torch.tensor([3], dtype=torch.int8), counts=torch.full((4,), -1)
    ),
    "metadata is a list": lambda: bare("[]"),
    "kind is a list": lambda: bare('{"schema": 1, "kind": []}'),
    "header nested deep": lambda: len(NESTED).to_bytes(8, "little") + NESTED,
    "metadata nested deep": lambda: bare(NESTED.decode()),
    "width is infinite": lambda: altered(moments(9, 4), "exact", width=INFINITE),
    "clipped is infinite": lambda: altered(moments(9, 4), "exact", clipped=INFINITE),
    "declared is infinite": lambda: altered(unit_sums(9, 4), "exact", declared=[[INFINITE, 0, 1]]),
    "extent is infinite": lambda: altered(Extent(), "auto", source=[INFINITE] * 128),
    "weight past float64": lambda: altered(Parameters({}, 1.0), "auto", weight=10**400),
    "dense cells of two axes": lambda: altered(
        unit_sums(9, 4), "full", {"cells": torch.ones(3, 5)}
    ),
    "more dense cells than classes": lambda: altered(
        unit_sums(9, 4), "full", {"cells": torch.ones(3, 9, 5)}
    ),
}
"""Messages that end in some other exception."""
ACCEPTED: dict[str, Callable[[], bytes]] = {
    "counts of another length": lambda: altered(
        moments(9, 4), "exact", {"counts": torch.zeros(9, dtype=torch.int64)}
    ),
    "counts that are NaN": lambda: altered(
        moments(9, 4), "exact", {"counts": torch.full((5,), torch.nan)}
    ),
    "fewer classes than columns": lambda: altered(moments(9, 4), "exact", classes=[0, 2]),
    "a class twice": lambda: altered(moments(9, 4), "exact", classes=[0, 0, 2, 3, 5]),
    "classes that are text": lambda: altered(moments(9, 4), "exact", classes="abcde"),
    "a map that is a number": lambda: altered(moments(9, 4), "exact", map=5),
    "half a bit": lambda: altered(
        moments(9, 4), "exact", grid={"bits": 8.5, "exponent": 0, "signed": False}
    ),
    "a step past float64": lambda: altered(
        moments(9, 4), "exact", grid={"bits": 8, "exponent": 10**9, "signed": False}
    ),
    "keys out of order": lambda: altered(
        unit_sums(9, 4), "exact", {"keys": to_message(unit_sums(9, 4)).tensors["keys"].flip(0)}
    ),
    "cells of another client": lambda: altered(unit_sums(9, 4), "exact", declared=[[7, 1, 3]]),
}
"""Messages that are opened as values that break their own promises."""


@pytest.mark.parametrize("name", [*CRASHES, *ACCEPTED])
def test_a_message_that_contradicts_itself_is_refused(name: str) -> None:
    refuses({**CRASHES, **ACCEPTED}[name]())


@pytest.mark.parametrize("entries", [0, 5])
def test_a_promise_of_a_wide_factor_costs_nothing(
    entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arange, ranges = torch.arange, [0]
    monkeypatch.setattr(
        torch, "arange", lambda *to, **kw: ranges.append(max(to)) or arange(*to, **kw)
    )
    factor = {"factor": torch.zeros(entries, dtype=torch.float64)}
    message = altered(moments(3, 12), "factor", factor, width=2 * 10**7)
    started = time.perf_counter()
    refuses(message)
    assert time.perf_counter() - started < 0.1 and max(ranges) < 10**6
