"""Class sums by unit, and the Gram matrix estimated from them, against loops over the formula."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fcil.errors import DataError, Refused, UsageError
from fcil.stats import packed
from fcil.stats.features import Features
from fcil.stats.grid import Grid
from fcil.stats.moments import Moments
from fcil.stats.unit_sums import Count, UnitSums, chain, estimate_gram


def draw(
    rows: int, classes: int, width: int = 4, seed: int = 0, bits: int = 8
) -> tuple[Features, np.ndarray]:
    """Labelled rows, integers on a grid or (bits = 0) real numbers."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    centres = rng.integers(0, 100, (classes, width))
    values = centres[labels] + rng.integers(0, 60, (rows, width))
    if bits == 0:
        return Features.given(values + rng.random(values.shape), "map"), labels
    return Features(torch.from_numpy(values).to(torch.uint8), Grid(bits, -2), "map"), labels


def units_of(
    features: Features | np.ndarray, labels: np.ndarray, units: int, seed: int = 0, **more: Any
) -> Any:
    return UnitSums.of(features, labels, units=units, rng=np.random.default_rng(seed), **more)


def estimated(sums: UnitSums, count: Count = "holders", shrink: float = 0.0) -> np.ndarray:
    return packed.unpack(estimate_gram(sums, count, shrink), sums.width).numpy()


def exact(features: Features) -> np.ndarray:
    X = features.values.double().numpy()
    return X.T @ X


def federation(seed: int, bits: int = 8) -> UnitSums:
    """Three clients with different classes, sizes and numbers of units; one holds very little."""
    parts = [(60, 4, 5), (25, 2, 3), (2, 5, 4)]
    total = UnitSums.zero("map", Grid(bits, -2) if bits else Grid(), 4)
    for client, (rows, classes, units) in enumerate(parts):
        features, labels = draw(rows, classes, seed=seed * 10 + client, bits=bits)
        total = total + units_of(features, labels, units, seed, client=client)
    return total


def by_the_formula(sums: UnitSums, count: Count, shrink: float = 0.0) -> np.ndarray:
    """The published formula, class by class and cell by cell.

    K' counts a class's holders or all units; both coefficients of `all` are clamped at zero. With
    one holder, S S^T / n, and for `holders` (n - 1) times the scatter of all classes, pooled.
    """
    cells: dict[int, list[tuple[np.ndarray, float]]] = {}
    for key, C, n_u in zip(
        sums.keys.tolist(), sums.sums.numpy(), sums.counts.tolist(), strict=True
    ):
        cells.setdefault(key[3], []).append((C, float(n_u)))
    scatter, freedom = np.zeros((sums.width, sums.width)), 0
    for held in cells.values():
        m = sum(C for C, _ in held) / sum(n_u for _, n_u in held)
        for C, n_u in held:
            scatter += n_u * np.outer(C / n_u - m, C / n_u - m)
        freedom += len(held) - 1
    pooled = scatter / freedom if freedom else scatter
    G = np.zeros((sums.width, sums.width))
    for held in cells.values():
        S, n = sum(C for C, _ in held), sum(n_u for _, n_u in held)
        if count == "all":
            K = sum(units for _, _, units in sums.declared)
            if K == 1:
                G += np.outer(S, S) / n
                continue
            first, second = max(0.0, (n - 1) / (K - 1)), max(0.0, (n - K) / (n * (K - 1)))
        else:
            K = len(held)
            if K == 1:
                G += np.outer(S, S) / n + (n - 1) * pooled
                continue
            first, second = (n - 1) / (K - 1), (n - K) / (n * (K - 1))
        own = -second * np.outer(S, S)
        for C, n_u in held:
            own += first * np.outer(C, C) / n_u
        G += (1 - shrink) * own + shrink * (np.outer(S, S) / n + (n - 1) * pooled)
    return G


def assert_close(left: np.ndarray, right: np.ndarray, tolerance: float = 1e-6) -> None:
    assert np.linalg.norm(left - right) <= tolerance * max(np.linalg.norm(right), 1e-30)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 60),
    classes=st.integers(1, 6),
    units=st.integers(1, 70),
    bits=st.sampled_from([0, 8]),
    seed=st.integers(0, 50),
    shrink=st.sampled_from([0.0, 0.3, 1.0]),
)
@example(rows=4, classes=1, units=2, bits=8, seed=0, shrink=0.3)
def test_the_estimate_is_the_published_formula(
    rows: int, classes: int, units: int, bits: int, seed: int, shrink: float
) -> None:
    sums = units_of(*draw(rows, classes, seed=seed, bits=bits), units, seed)
    assert_close(estimated(sums, "holders", shrink), by_the_formula(sums, "holders", shrink))
    assert_close(estimated(sums, "all"), by_the_formula(sums, "all"))


@pytest.mark.parametrize("seed", range(5))
def test_the_estimate_over_clients_is_the_published_formula(seed: int) -> None:
    sums = federation(seed)
    assert_close(estimated(sums), by_the_formula(sums, "holders"))
    assert_close(estimated(sums, "all"), by_the_formula(sums, "all"))
    assert not np.allclose(estimated(sums), estimated(sums, "all"), rtol=1e-3)


@pytest.mark.parametrize("shrink", [0.0, 0.4])
def test_a_class_with_one_holder_takes_the_pooled_scatter(shrink: float) -> None:
    features, labels = draw(60, 2)
    several = units_of(features, labels, 5)
    alone, _ = draw(7, 1, seed=8)
    sums = several + units_of(alone, np.full(7, 9), 1, client=1)
    S = alone.values.double().numpy().sum(0)
    pooled = np.zeros((4, 4))
    for label in (0, 1):
        mine = (several.keys[:, 3] == label).numpy()
        C, n_k = several.sums.numpy()[mine], several.counts.numpy()[mine, None]
        off = C / n_k - C.sum(0) / n_k.sum()
        pooled += (off * n_k).T @ off
    pooled /= len(several.counts) - 2
    expected = estimated(several, shrink=shrink) + np.outer(S, S) / 7 + 6 * pooled
    assert_close(estimated(sums, shrink=shrink), expected)
    assert_close(expected, by_the_formula(sums, "holders", shrink))


def test_one_pair_of_units_lends_its_scatter_to_every_other_class() -> None:
    features, labels = draw(6, 1)
    alone, _ = draw(5, 1, seed=8)
    sums = units_of(features, labels, 2) + units_of(alone, np.full(5, 9), 1, client=1)
    first, second = (sums.sums[at].numpy() / 3 for at in (0, 1))
    scatter = 3 * np.outer(first - second, first - second) / 2
    S, T = features.values.double().sum(0).numpy(), alone.values.double().sum(0).numpy()
    expected = np.outer(S, S) / 6 + np.outer(T, T) / 5 + (5 + 4) * scatter
    for shrink in (0.0, 0.7, 1.0):
        assert_close(estimated(sums, shrink=shrink), expected)


def test_holders_without_shrinkage_is_the_default() -> None:
    sums = federation(2)
    assert torch.equal(estimate_gram(sums), estimate_gram(sums, "holders", 0.0))
    assert not np.allclose(estimated(sums), estimated(sums, "holders", 1.0), rtol=1e-3)


@pytest.mark.parametrize("count", ["holders", "all"])
def test_one_unit_leaves_the_outer_product_of_the_sum(count: Count) -> None:
    features, labels = draw(20, 1)
    S = features.values.double().numpy().sum(0)
    assert_close(estimated(units_of(features, labels, 1), count), np.outer(S, S) / 20)


def test_fewer_rows_than_units_fill_the_last_unit_alone() -> None:
    features, labels = draw(5, 2)
    sums = units_of(features, labels, 9)
    assert set(sums.keys[:, 2].tolist()) == {8}
    assert sums.declared == ((0, 0, 9),)


@pytest.mark.parametrize("seed", range(4))
def test_one_sample_a_unit_makes_holders_exact_and_all_shrunken(seed: int) -> None:
    features, labels = draw(30, 4, seed=seed)
    sums = units_of(features, labels, 30)
    assert sums.single == 30
    assert np.array_equal(estimated(sums), exact(features))
    X = features.values.double().numpy()
    shrunken = sum(
        (np.sum(labels == c) - 1) / 29 * X[labels == c].T @ X[labels == c] for c in range(4)
    )
    assert_close(estimated(sums, "all"), shrunken)
    assert np.trace(shrunken) < 0.5 * np.trace(exact(features))


def splits(
    features: Features, labels: np.ndarray, repeats: int, count: Count, **how: Any
) -> np.ndarray:
    """Estimates over random splits of the rows onto two clients and their units."""
    rng = np.random.default_rng(11)
    estimates = []
    for _ in range(repeats):
        order = rng.permutation(len(labels))
        first, second = (
            UnitSums.of(
                Features(features.values[part], features.grid, "map"),
                labels[part],
                rng=rng,
                client=client,
                **how,
            )
            for client, part in enumerate((order[: len(order) // 3], order[len(order) // 3 :]))
        )
        estimates.append(estimated(first + second, count))
    return np.stack(estimates)


@pytest.mark.parametrize("how", [{"units": 6}, {"units": 4, "min_cell": 3}], ids=str)
def test_the_mean_over_random_splits_is_the_gram_matrix(how: dict[str, int]) -> None:
    features, labels = draw(90, 3)
    G = exact(features)
    estimates = splits(features, labels, 600, "holders", **how)
    error = estimates.mean(0) - G
    standard = estimates.std(0, ddof=1) / math.sqrt(len(estimates))
    assert (np.abs(error) <= 4.5 * standard).all()  # 10 entries: once in 10^4 seeds by chance
    assert standard.max() < 0.003 * G.max()  # and the bound says something
    published = splits(features, labels, 100, "all", units=12).mean(0)
    assert np.trace(published) < np.trace(G) - 20 * np.trace(standard)  # few cells, all units


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 30),
    classes=st.integers(1, 8),
    units=st.integers(1, 12),
    count=st.sampled_from(["holders", "all"]),
    seed=st.integers(0, 99),
)
def test_the_estimate_is_symmetric_and_positive(
    rows: int, classes: int, units: int, count: Count, seed: int
) -> None:
    features, labels = draw(rows, classes, width=6, seed=seed)
    G = estimated(units_of(features, labels, units, seed), count)
    assert np.array_equal(G, G.T)
    values = np.linalg.eigvalsh(G)
    assert values[0] >= -1e-7 * max(values[-1], 1.0)  # the scatter's products are float32


def test_full_shrinkage_gives_every_class_the_pooled_scatter() -> None:
    sums = federation(3)
    ids, C, counts = sums.class_moments()
    unit_means = sums.sums / sums.counts[:, None]
    scatter, freedom = torch.zeros((4, 4), dtype=torch.float64), 0
    for at, label in enumerate(ids):
        mine = sums.keys[:, 3] == label
        off = unit_means[mine] - C[:, at] / counts[at]
        scatter += (off * sums.counts[mine, None]).T @ off
        freedom += int(mine.sum()) - 1
    expected = (C / counts) @ C.T + scatter / freedom * float((counts - 1).sum())
    assert_close(estimated(sums, shrink=1.0), expected.numpy())


@pytest.mark.parametrize("shrink", [-0.1, 1.1, float("nan")])
def test_a_shrinkage_outside_its_range_is_refused(shrink: float) -> None:
    with pytest.raises(UsageError, match=r"method\.shrink = .* between 0 and 1"):
        estimate_gram(federation(0), shrink=shrink)


def test_no_rows_estimate_zero() -> None:
    zero = UnitSums.zero("map", Grid(8), 4)
    assert (zero.keys.shape, zero.sums.shape, zero.counts.shape) == ((0, 4), (0, 4), (0,))
    assert (zero.keys.dtype, zero.counts.dtype) == (torch.int64, torch.int64)
    assert zero.sums.dtype == torch.float64
    for count in ("holders", "all"):
        assert not estimated(zero, count).any()


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(0, 50),
    classes=st.integers(1, 5),
    units=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_class_moments_are_the_pooled_ones_exactly(
    rows: int, classes: int, units: int, seed: int
) -> None:
    features, labels = draw(rows, classes, seed=seed)
    sums = units_of(features, labels, units, seed)
    pooled = Moments.of(features, labels)
    ids, C, counts = sums.class_moments()
    assert ids == pooled.classes
    assert torch.equal(C, pooled.cross) and torch.equal(counts, pooled.counts)
    assert sums.withheld == 0


@pytest.mark.parametrize(("rows", "units"), [(23, 5), (20, 5), (7, 7), (5, 6), (9, 1)])
def test_units_are_random_parts_of_equal_size_the_last_takes_the_rest(
    rows: int, units: int
) -> None:
    features, labels = draw(rows, 1)
    sizes = dict.fromkeys(range(units), rows // units)
    sizes[units - 1] += rows - sum(sizes.values())
    drawn = set()
    for seed in range(4):
        sums = units_of(features, labels, units, seed)
        found = dict(zip(sums.keys[:, 2].tolist(), sums.counts.tolist(), strict=True))
        assert found == {unit: size for unit, size in sizes.items() if size}
        assert torch.equal(sums.sums.sum(0), features.values.double().sum(0))
        drawn.add(sums.hash)
    assert len(drawn) == (4 if 1 < units <= rows else 1)
    assert units_of(features, labels, units, 2).hash == units_of(features, labels, units, 2).hash


def test_keys_ascend_and_name_client_task_unit_and_class() -> None:
    features, labels = draw(40, 3)
    sums = units_of(features, labels, 4, client=6, task=2, classes=[0, 1, 2, 8])
    keys = [tuple(key) for key in sums.keys.tolist()]
    assert keys == sorted(set(keys))
    assert {key[:2] for key in keys} == {(6, 2)}
    assert sums.contributors == {6} and sums.classes == (0, 1, 2, 8)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(0, 60),
    classes=st.integers(1, 6),
    units=st.integers(1, 15),
    smallest=st.integers(1, 8),
    seed=st.integers(0, 99),
)
def test_no_cell_stays_below_min_cell_and_nothing_is_lost_unseen(
    rows: int, classes: int, units: int, smallest: int, seed: int
) -> None:
    features, labels = draw(rows, classes, seed=seed)
    sums = units_of(features, labels, units, seed, min_cell=smallest)
    present = np.unique(labels)
    small = [c for c in present if (labels == c).sum() < smallest]
    assert (sums.counts >= smallest).all()
    assert sums.withheld == np.isin(labels, small).sum()
    kept = ~np.isin(labels, small)
    pooled = Moments.of(Features(features.values[kept], features.grid, "map"), labels[kept])
    ids, C, counts = sums.class_moments()
    assert ids == pooled.classes
    assert torch.equal(C, pooled.cross) and torch.equal(counts, pooled.counts)
    assert sums.classes == tuple(present.tolist())
    keys = [tuple(key) for key in sums.keys.tolist()]
    assert keys == sorted(set(keys))
    if smallest == 1:
        assert sums == units_of(features, labels, units, seed)


def test_min_cell_merges_as_little_as_it_must() -> None:
    features, labels = draw(40, 1)
    assert units_of(features, labels, 8, min_cell=5).counts.tolist() == [5] * 8
    assert units_of(features, labels, 8, min_cell=6).counts.tolist() == [10] * 4
    assert units_of(features, labels, 8, min_cell=11).counts.tolist() == [15, 25]
    assert units_of(features, labels, 8, min_cell=40).counts.tolist() == [40]


@pytest.mark.parametrize("wrong", [{"units": 0}, {"units": 3, "min_cell": 0}])
def test_fewer_than_one_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        UnitSums.of(*draw(9, 2), rng=np.random.default_rng(0), **wrong)


@given(order=st.permutations(range(4)))
@settings(max_examples=24, deadline=None)
def test_the_order_of_arrival_never_shows(order: list[int]) -> None:
    parts = [
        units_of(*draw(12, 3, seed=k), 3, k, client=k % 2, task=k // 2, classes=[k])
        for k in range(4)
    ]
    total = parts[order[0]]
    for k in order[1:]:
        total = total + parts[k]
    direct = parts[0] + parts[1] + parts[2] + parts[3]
    assert total == direct and total.hash == direct.hash
    assert total.classes == tuple(sorted({label for part in parts for label in part.classes}))
    assert total.declared == direct.declared
    assert torch.equal(estimate_gram(total), estimate_gram(direct))
    without = direct - parts[order[0]]
    rest = [parts[k] for k in sorted(order[1:])]
    assert without == rest[0] + rest[1] + rest[2]
    assert without.hash == (rest[0] + rest[1] + rest[2]).hash


def test_a_second_contribution_to_the_same_task_is_refused() -> None:
    a = units_of(*draw(12, 3), 3, client=4)
    b = units_of(*draw(9, 3, seed=1), 2, client=4)
    told = "Client 4 has already contributed to task 0.*take the old contribution out"
    with pytest.raises(Refused, match=told) as refusal:
        a + b
    assert refusal.value.exit_code == 4
    other_task = units_of(*draw(9, 3, seed=1), 2, client=4, task=1)
    assert (a + other_task).contributors == {4}


def test_an_empty_contribution_is_one_too() -> None:
    features, labels = draw(0, 3)
    nothing = units_of(features, labels, 5, client=1)
    a = units_of(*draw(12, 3), 3)
    assert (a + nothing).declared == ((0, 0, 3), (1, 0, 5))
    assert (a + nothing) - nothing == a and a + nothing != a
    with pytest.raises(Refused):
        a + nothing + nothing


def test_only_what_stands_there_is_taken_out() -> None:
    a, b = units_of(*draw(12, 3), 3, client=0), units_of(*draw(12, 3, seed=1), 3, client=1)
    another = units_of(*draw(12, 3, seed=1), 3, seed=9, client=1)
    fewer = units_of(*draw(12, 3, seed=1), 2, client=1)
    for never in (another, fewer, units_of(*draw(12, 3), 3, client=2)):
        with pytest.raises(Refused, match=r"taken out.*another upload of the same client"):
            (a + b) - never
    assert (a + b) - b == a


def test_rows_and_labels_must_match() -> None:
    features, labels = draw(12, 3)
    with pytest.raises(UsageError, match=r"12 rows of features need as many labels, not \(11,\)"):
        units_of(features, labels[:-1], 3)


def test_a_plain_array_is_a_users_own_real_features() -> None:
    features, labels = draw(12, 3, bits=0)
    plain = units_of(features.values.numpy(), labels, 3)
    given = units_of(Features.given(features.values), labels, 3)
    assert plain.map == "given" and plain.grid.real
    assert plain == given and plain.hash == given.hash


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.bool_, np.float64])
def test_labels_of_any_type_name_the_same_classes(dtype: Any) -> None:
    features, labels = draw(12, 2)
    sums = units_of(features, labels.astype(dtype), 3)
    assert sums == units_of(features, labels, 3)
    assert {type(label) for label in sums.classes} == {int}


def clipped(rows: int, client: int, outside: int) -> UnitSums:
    """A contribution with values outside the grid, and one lone row of class 9 withheld."""
    features, labels = draw(rows, 1, seed=client)
    labels[0] = 9
    features = Features(features.values, features.grid, "map", clipped=outside)
    sums: UnitSums = units_of(features, labels, 2, client=client, min_cell=2)
    return sums


def test_clipped_values_and_withheld_rows_are_counted_through_sums_and_messages() -> None:
    a, b = clipped(12, 0, 5), clipped(9, 1, 3)
    assert (a.clipped, a.withheld, b.clipped, b.withheld) == (5, 1, 3, 1)
    both = a + b
    assert (both.clipped, both.withheld) == (8, 2)
    rest = both - b
    assert (rest.clipped, rest.withheld) == (5, 1)
    for encoding in ("exact", "full"):
        again = UnitSums.from_parts(*a.to_parts(encoding))
        assert again == a and (again.clipped, again.withheld) == (5, 1)


def test_rows_are_integers_on_a_grid_and_real_numbers_elsewhere() -> None:
    on_grid, real = units_of(*draw(12, 3), 3), units_of(*draw(12, 3, bits=0), 3)
    assert on_grid.rows().dtype == torch.int64 and real.rows().dtype == torch.float64
    assert torch.equal(on_grid.rows().double(), on_grid.sums)
    assert torch.equal(real.rows(), real.sums)


def test_to_moves_every_tensor_and_nothing_else() -> None:
    sums = clipped(12, 3, 5)
    there = sums.to("meta")  # a device every machine has: shapes without numbers
    for name in ("keys", "sums", "counts"):
        moved, here = getattr(there, name), getattr(sums, name)
        assert moved.device.type == "meta" and here.device.type == "cpu"
        assert (moved.shape, moved.dtype) == (here.shape, here.dtype)
    for name in ("map", "grid", "classes", "declared", "clipped", "withheld"):
        assert getattr(there, name) == getattr(sums, name)
    assert sums.to("cpu") == sums and sums.to(torch.device("cpu")).hash == sums.hash


def test_nothing_lies_on_the_device_it_was_asked_for() -> None:
    nothing = UnitSums.zero("map", Grid(8), 4, torch.device("meta"))
    made = (nothing.keys, nothing.sums, nothing.counts, estimate_gram(nothing))
    assert {tensor.device.type for tensor in made} == {"meta"}


def test_a_chain_is_one_hash_of_all_tasks_in_their_order() -> None:
    first, second, third = (units_of(*draw(9, 3, seed=k), 2).hash for k in range(3))
    assert chain("", first) == first  # one task alone is its own hash
    both = chain(first, second)
    assert both == hashlib.sha256((first + second).encode()).hexdigest()
    assert len({both, chain(second, first), chain(first, third), first, second}) == 5


def test_packed_is_another_name_for_exact() -> None:
    sums = units_of(*draw(20, 3), 4)
    for encoding in ("auto", "exact", "packed"):
        meta, tensors = sums.to_parts(encoding)
        assert meta["encoding"] == "exact"
        again = UnitSums.from_parts(meta, tensors)
        assert again == sums and again.classes == sums.classes
    with pytest.raises(UsageError, match=r"'zip'.*auto, exact, packed and full"):
        sums.to_parts("zip")


def test_dense_cells_are_found_by_their_counts_not_by_their_values() -> None:
    values = torch.zeros((12, 4), dtype=torch.uint8)
    sums = units_of(Features(values, Grid(8, -2), "map"), np.arange(12) % 3, 3)
    assert UnitSums.from_parts(*sums.to_parts("full")) == sums


@pytest.mark.parametrize("shape", [(2, 3, 5), (4, 3, 5), (3, 2, 5), (3, 4, 5), (3, 3)])
def test_dense_cells_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    meta, _ = units_of(*draw(30, 3), 3).to_parts("full")
    with pytest.raises(DataError, match="not 3 units x 3 classes"):
        UnitSums.from_parts(meta, {"cells": torch.ones(shape)})


def test_a_real_message_is_read_as_it_was_written() -> None:
    sums = units_of(*draw(20, 3, bits=0), 3, task=1)
    meta, tensors = sums.to_parts("auto")
    assert meta["encoding"] == "real"
    assert UnitSums.from_parts(meta, tensors) == sums


MISFITS: dict[str, Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]] = {
    "real keys": lambda t: {"keys": t["keys"].double()},
    "real counts": lambda t: {"counts": t["counts"].double()},
    "counts in a column": lambda t: {"counts": t["counts"][:, None]},
    "keys in a row": lambda t: {"keys": t["keys"].flatten()},
    "a column of keys lacking": lambda t: {"keys": t["keys"][:, :3]},
    "one key lacking": lambda t: {"keys": t["keys"][:-1]},
    "narrower sums": lambda t: {"sums": t["sums"][:, :-1]},
    "one sum lacking": lambda t: {"sums": t["sums"][:-1]},
    "an empty cell": lambda t: {"counts": t["counts"] - t["counts"].min()},
}


@pytest.mark.parametrize("name", MISFITS)
def test_cells_that_do_not_fit_together_are_refused(name: str) -> None:
    meta, tensors = units_of(*draw(20, 3, bits=0), 3).to_parts("auto")
    with pytest.raises(DataError, match="do not fit together"):
        UnitSums.from_parts(meta, tensors | MISFITS[name](tensors))


@pytest.mark.parametrize(
    "change",
    [
        {"declared": [[0, 0, 2]]},  # fewer units than there are cells of
        {"declared": [[1, 0, 3]]},
        {"declared": [[0, 1, 3]]},
        {"declared": []},
        {"classes": [0, 1]},
    ],
    ids=str,
)
@pytest.mark.parametrize("units", [1, 3])
def test_cells_the_header_does_not_declare_are_refused(change: Any, units: int) -> None:
    meta, tensors = units_of(*draw(20, 3, bits=0), units).to_parts("auto")
    if units == 1 and change == {"declared": [[0, 0, 2]]}:
        change = {"declared": [[0, 0, 0]]}
    with pytest.raises(DataError, match="its header does not declare"):
        UnitSums.from_parts({**meta, **change}, tensors)


def test_a_cell_twice_is_refused() -> None:
    meta, tensors = units_of(*draw(20, 3, bits=0), 3).to_parts("auto")
    twice = {name: torch.cat([t[:1], t]) for name, t in tensors.items()}
    with pytest.raises(DataError, match="or one twice"):
        UnitSums.from_parts(meta, twice)
