"""The feature map against arithmetic in Python's own integers and fractions."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fcil.errors import NumericalError
from fcil.features import FeatureMap, JoinedMap
from fcil.projection import UNIT, projection
from fcil.stats.extent import Extent, Reach
from fcil.stats.grid import Grid

INPUTS = 5


def clip(value: int, grid: Grid) -> int:
    return min(max(value, grid.lowest), grid.highest)


def by_fractions(phi: FeatureMap, vectors: np.ndarray) -> tuple[list[list[int]], int]:
    """phi in exact arithmetic, and how many values were clipped on the way."""
    R = projection(phi.inputs, phi.width, phi.seed).tolist() if phi.projected else None
    step, answer, clipped = Fraction(2) ** phi.grid.exponent, [], 0
    for row in vectors:
        totals = [Fraction(0)] * phi.width
        for view in row:
            real = [Fraction(float(v)) for v in view]
            if not phi.source_grid.real:
                unit = Fraction(2) ** phi.source_grid.exponent
                whole = [round(v / unit) for v in real]
                inside = [clip(n, phi.source_grid) for n in whole]
                clipped += sum(a != b for a, b in zip(whole, inside, strict=True))
                real = [n * unit for n in inside]
            for m in range(phi.width):
                if R is None:
                    totals[m] += real[m]
                else:
                    response = sum(v * R[i][m] for i, v in enumerate(real)) * Fraction(UNIT)
                    totals[m] += max(response, Fraction(0))
        nearest = [round(total / len(row) / step) for total in totals]  # halves to even
        answer.append([clip(n, phi.grid) for n in nearest])
        clipped += sum(a != b for a, b in zip(nearest, answer[-1], strict=True))
    return answer, clipped


@settings(max_examples=60, deadline=None)
@given(
    width=st.sampled_from([0, 1, 7]),
    views=st.integers(1, 3),
    bits=st.sampled_from([2, 5, 8, 12, 16]),
    largest=st.sampled_from([0.3, 1.0, 6.0]),
    rows=st.integers(0, 6),
    coarse=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_integer_path_is_exact_arithmetic(
    width: int, views: int, bits: int, largest: float, rows: int, coarse: bool, seed: int
) -> None:
    phi = FeatureMap.for_features(INPUTS, width, seed=seed, largest=largest, bits=bits)
    vectors = np.random.default_rng(seed).normal(size=(rows, views, INPUTS)) * largest
    if coarse:  # many halves, where the way of rounding shows
        vectors = np.round(vectors / phi.grid.step * 2) / 2 * phi.grid.step
    found = phi(vectors)
    expected, clipped = by_fractions(phi, vectors)
    assert found.values.tolist() == expected
    assert found.clipped == clipped
    assert found.grid == phi.grid and found.map == phi.fingerprint
    if views == 1:
        assert torch.equal(phi(vectors[:, 0]).values, found.values)


def test_halves_are_rounded_to_even() -> None:
    phi = FeatureMap.for_features(6, largest=100.0, bits=8)
    assert phi.grid.step == 1.0
    row = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, 62.5]])
    assert phi(row).values.tolist() == [[0, 2, 2, 0, -2, 62]]


def test_views_are_averaged_after_the_rectifier() -> None:
    phi = FeatureMap.for_features(4, 50, seed=1, largest=4.0, bits=0)
    v = np.random.default_rng(0).normal(size=(3, 4))
    mirrored = np.stack([v, -v], 1)
    R = projection(4, 50, 1).double().numpy() * UNIT
    np.testing.assert_allclose(phi(mirrored).values, np.abs(v @ R) / 2, rtol=1e-12)


@pytest.mark.parametrize("rows", [3, 5000])
def test_without_bits_it_is_relu_of_the_product_in_float64(rows: int) -> None:
    phi = FeatureMap.for_features(20, 30, seed=2, largest=1.0, bits=0)
    v = np.random.default_rng(0).normal(size=(rows, 20)) * 1e3  # far past `largest`: nothing clips
    R = projection(20, 30, 2).double().numpy() * UNIT
    found = phi(v)
    assert found.grid.real and found.clipped == 0 and found.values.dtype == torch.float64
    np.testing.assert_allclose(found.values, np.maximum(v @ R, 0), rtol=1e-12, atol=1e-9)
    plain = FeatureMap.for_features(20, largest=1.0, bits=0)
    assert torch.equal(plain(v).values, torch.from_numpy(v))


@pytest.mark.parametrize("bits", [8, 12])
def test_any_batch_size_gives_the_same_bits(bits: int) -> None:
    phi = FeatureMap.for_features(48, 64, seed=3, largest=3.0, bits=bits)
    vectors = torch.from_numpy(np.random.default_rng(1).normal(size=(5000, 2, 48))).float()
    whole = phi(vectors)
    for size in (1, 33, 4096):
        part = vectors[:size]
        assert torch.equal(phi(part).values, whole.values[:size])
    pieces = [phi(piece) for piece in vectors.split(1700)]
    assert torch.equal(torch.cat([piece.values for piece in pieces]), whole.values)
    assert sum(piece.clipped for piece in pieces) == whole.clipped


def test_float32_and_float64_vectors_of_equal_value_give_the_same_bits() -> None:
    phi = FeatureMap.for_features(9, 20, seed=3, largest=3.0)
    vectors = np.random.default_rng(1).normal(size=(50, 9)).astype(np.float32)
    assert torch.equal(phi(vectors).values, phi(vectors.astype(np.float64)).values)


def test_clips_are_counted_with_and_without_a_projection() -> None:
    plain = FeatureMap.for_features(3, largest=1.9, bits=8)
    inside = np.array([[1.9, -1.9, 0.0]])
    assert plain(inside).clipped == 0
    assert plain(inside * 2).clipped == 2
    assert plain(inside * 2).values.tolist() == [[127, -128, 0]]
    mapped = FeatureMap.for_features(3, 40, largest=1.9, bits=8)
    far = mapped(np.full((1, 3), 1.99))
    top = int((far.values == mapped.grid.highest).sum())
    assert 0 < far.clipped <= top


@pytest.mark.parametrize("width", [0, 60])
def test_a_map_made_from_what_was_seen_clips_none_of_it(width: int) -> None:
    vectors = torch.from_numpy(np.random.default_rng(5).normal(size=(200, 2, 12)) * 7)
    probe = FeatureMap.on_grid("source", 12, width, 4, 0, Reach())
    extent = probe.extent(vectors).reach(beyond=0)
    assert 2.0 ** (extent.source - 1) <= float(vectors.abs().max()) < 2.0**extent.source
    reach = float(probe(vectors).values.abs().max())
    assert 2.0 ** (extent.mapped - 1) <= reach < 2.0**extent.mapped
    assert extent.signed == (width == 0)
    phi = FeatureMap.on_grid("source", 12, width, 4, 8, extent)
    made = phi(vectors)
    # Only a value that rounds up to the end of the grid can be cut, by less than one step.
    assert made.clipped <= 2
    np.testing.assert_allclose(made.real(), probe(vectors).values, atol=1.001 * phi.grid.step)


@pytest.mark.parametrize("width", [0, 30])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_vectors_that_are_not_finite_are_refused_by_row(width: int, bad: float) -> None:
    vectors = np.zeros((6, 4))
    vectors[4, 2] = bad
    for bits in (0, 8):
        phi = FeatureMap.for_features(4, width, largest=1.0, bits=bits)
        with pytest.raises(NumericalError, match="row 4"):
            phi(vectors)
    with pytest.raises(NumericalError, match="row 4"):
        phi.extent(torch.from_numpy(vectors))


def test_fingerprints_differ_when_anything_differs() -> None:
    base = FeatureMap.for_features(10, 20, seed=1, largest=2.0, bits=8, name="net")
    others = [
        replace(base, source="other"),
        replace(base, inputs=11),
        replace(base, width=21),
        replace(base, seed=2),
        replace(base, projected=False),
        replace(base, source_grid=Grid(16, -9, True)),
        replace(base, grid=Grid(9, base.grid.exponent)),
        replace(base, grid=Grid(8, base.grid.exponent + 1)),
        replace(base, grid=Grid(8, base.grid.exponent, True)),
        FeatureMap.for_features(10, 20, seed=1, largest=2.0, bits=0, name="net"),
    ]
    assert len({phi.fingerprint for phi in [base, *others]}) == 1 + len(others)
    again = FeatureMap.for_features(10, 20, seed=1, largest=2.0, bits=8, name="net")
    assert again.fingerprint == base.fingerprint


def test_the_random_matrix_is_part_of_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    make = lambda: FeatureMap.for_features(10, 20, largest=2.0).fingerprint  # noqa: E731
    before = make()
    monkeypatch.setattr("fcil.features.fingerprint", lambda *size: "other bits")
    assert make() != before


def test_no_rows_give_no_rows() -> None:
    made = FeatureMap.for_features(4, 9, largest=1.0)(np.zeros((0, 4)))
    assert made.values.shape == (0, 9) and made.clipped == 0


def test_a_holder_of_nothing_does_not_move_the_grid() -> None:
    real = FeatureMap.on_grid("s", 4, 9, 0, 0, Reach())
    small = real.extent(torch.full((3, 1, 4), 2.0**-9))
    assert small.reach().source == -8 and small.reach().mapped < 0
    for nothing in (torch.zeros((0, 1, 4)), torch.zeros((5, 1, 4))):
        assert real.extent(nothing) + small == small == small + real.extent(nothing)


def joined(bits: int, reach: Reach, width: int = 0) -> JoinedMap:
    return JoinedMap.on_grids(("net", 6), ("patches", 4), width, 1, bits, reach)


@pytest.mark.parametrize("width", [0, 20])
def test_parts_side_by_side_keep_their_own_grids(width: int) -> None:
    reach = Reach(source=2, mapped=3, patches=-1)
    phi = joined(8, reach, width)
    rng = np.random.default_rng(0)
    net = torch.from_numpy(rng.random((9, 2, 6)) * 4).float()
    patches = torch.from_numpy(rng.random((9, 4)) / 2).float()
    found = phi([net, patches])
    alone = FeatureMap.on_grid("net", 6, width, 1, 8, reach)(net)
    here = width or 6
    assert torch.equal(found.values[:, :here], alone.values)
    in_steps = (patches.double() * 2**9).round().clamp(max=255)  # 2^-1 is 256 steps
    assert torch.equal(found.values[:, here:-1].double(), in_steps)
    assert found.values[:, -1].tolist() == [min(round(1 / alone.grid.step), 255)] * 9
    assert (phi.width, phi.grid) == (here + 5, alone.grid)
    assert found.map == phi.fingerprint


def test_real_numbers_weigh_the_parts_as_the_grids_do() -> None:
    reach = Reach(source=2, mapped=3, patches=-1)
    rng = np.random.default_rng(0)
    net = torch.from_numpy(rng.integers(0, 256, (9, 6)) * 2.0**-5)
    patches = torch.from_numpy(rng.integers(0, 256, (9, 4)) * 2.0**-9)
    real, whole = joined(0, reach)([net, patches]), joined(8, reach)([net, patches])
    assert torch.equal(real.values[:, :-1], whole.real()[:, :-1])
    assert real.values[:, -1].tolist() == [1.0] * 9


def test_a_joined_map_of_one_network_is_that_network_s_map() -> None:
    reach = Reach(2, 3)
    alone = FeatureMap.on_grid("net", 6, 20, 1, 8, reach)
    phi = JoinedMap.on_grids(("net", 6), None, 20, 1, 8, reach)
    vectors = torch.rand(5, 6)
    assert phi.fingerprint == alone.fingerprint and phi.width == 20
    assert torch.equal(phi([vectors]).values, alone(vectors).values)


def test_every_part_decides_the_fingerprint() -> None:
    reach = Reach(2, 3, False, -1)
    base = ("net", 6), ("patches", 4), 20, 1, 8, reach
    changes = {0: [("other", 6), ("net", 7), None], 1: [("other", 4), ("patches", 5)]}
    changes |= {2: [21], 3: [2], 4: [7], 5: [Reach(2, 3, False, 0), Reach(2, 2, False, -1)]}
    seen = {JoinedMap.on_grids(*base).fingerprint}
    for at, values in changes.items():
        for value in values:
            given = [*base]
            given[at] = value
            seen.add(JoinedMap.on_grids(*given).fingerprint)
    assert len(seen) == 11


def test_the_extent_of_parts_is_taken_apart() -> None:
    phi = joined(0, Reach(), 20)
    net, patches = torch.rand(7, 6), torch.rand(7, 4) / 8
    found = phi.extent([net, patches])
    assert found == phi.maps[0].extent(net) + Extent.of_patches(patches)
    assert found.reach().patches == -3
    only = JoinedMap.on_grids(None, ("patches", 4), 0, 1, 0, Reach())
    assert only.extent([patches]) == Extent.of_patches(patches)
