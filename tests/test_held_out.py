"""Choosing gamma from held-out cells, against rows, scans and counts computed another way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fcil import held_out, ridge
from fcil.data import readers
from fcil.errors import NumericalError, UsageError
from fcil.held_out import cell_error, cells, choose, fold_units, parts, slots
from fcil.stats import packed
from fcil.stats.features import Features
from fcil.stats.grid import Grid
from fcil.stats.moments import Moments
from fcil.stats.unit_sums import UnitSums, estimate_gram
from fcil.stats.with_fold import SLOTS, TOGETHER, MomentsWithFold, coarse

Rule = Literal["linear", "cosine"]
RULES: tuple[Rule, ...] = ("linear", "cosine")
Problem = tuple[Features, np.ndarray, np.ndarray]


def problem(
    seed: int, rows: int = 240, width: int = 30, classes: int = 4, exponent: int = -2
) -> Problem:
    """Noisy classes on a grid: rows, labels, and the slot of each row."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    centres = rng.integers(0, 60, (classes, width))
    values = centres[labels] + rng.integers(0, 190, (rows, width))
    features = Features(torch.from_numpy(values).to(torch.uint8), Grid(8, exponent), "map")
    return features, labels, slots(labels, 0.3, rng)


def some(features: Features, mask: np.ndarray) -> Features:
    return replace(features, values=features.values[torch.from_numpy(mask)])


def summed(features: Features, labels: np.ndarray, slot: np.ndarray) -> tuple[Moments, Moments]:
    """The total and the fold."""
    both = MomentsWithFold.of(features, labels, slot)
    return both.total, both.fold


def real(rows: np.ndarray, labels: np.ndarray, held: np.ndarray) -> tuple[Moments, Moments]:
    """The same of real-valued rows; the marked ones are held out, each alone."""
    finer = SLOTS * labels[held] + np.arange(held.sum()) % SLOTS
    return Moments.of(rows, labels), Moments.of(rows[held], finer)


def moments(seed: int, **more: int) -> tuple[Moments, Moments]:
    return summed(*problem(seed, **more))


def mean_diagonal(of: Moments) -> float:
    return float(of.gram_matrix().diagonal().mean())


def trial(train: Moments, multiple: float) -> torch.Tensor:
    """W by a plain solve in real units."""
    G = train.gram_matrix()
    G.diagonal().add_(multiple * mean_diagonal(train))
    return torch.linalg.solve(G, train.cross * train.step)


def by_hand(W: np.ndarray, given: Problem, rule: Rule) -> float:
    """The cells' error from rows, one cell and one competing class after another."""
    features, labels, slot = given
    used = W / np.linalg.norm(W, axis=0) if rule == "cosine" else W
    scores = features.real().numpy() @ used
    held = slot >= 0
    within = [scores[held & (labels == c)] for c in range(W.shape[1])]
    deviations = np.concatenate([part - part.mean(0) for part in within])
    freedom = len(deviations) - len(within)
    cells = [
        (c, scores[rows])
        for c in range(W.shape[1])
        for part in range(SLOTS)
        if (rows := (labels == c) & (slot == part)).any()
    ]
    margins = [
        {j: cell.mean(0)[c] - cell.mean(0)[j] for j in range(W.shape[1]) if j != c}
        for c, cell in cells
    ]
    soft = held_out.SOFT * np.std([min(one.values()) for one in margins], ddof=1)
    wrong = []
    for (c, cell), one in zip(cells, margins, strict=True):
        z = [
            gap
            / math.sqrt(
                soft**2
                + held_out.RESTORED
                * (1 - 1 / len(cell))
                * ((deviations[:, c] - deviations[:, j]) ** 2).sum()
                / freedom
            )
            for j, gap in one.items()
        ]
        wrong.append(stats.norm.cdf(-min(z)))
    return float(np.average(wrong, weights=[len(cell) for _, cell in cells]))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(3))
def test_the_error_from_sums_is_the_one_computed_from_rows(rule: Rule, seed: int) -> None:
    given = problem(seed)
    total, fold = summed(*given)
    W = trial(total - coarse(fold), 0.01)
    expected = by_hand(W.numpy(), given, rule)
    assert 0.01 < expected < 0.9
    for scale in (1.0, 7.0):
        found = cell_error(scale * W, fold, total.classes, rule)
        assert found == pytest.approx(expected, abs=1e-10)


def test_a_class_that_the_fold_or_the_training_misses_does_no_harm() -> None:
    features, labels, slot = problem(1)
    for other in (np.where(labels == 2, -1, slot), np.where(labels == 2, labels, slot)):
        total, fold = summed(features, labels, other)
        for rule in RULES:
            choice = choose(total, fold, rule=rule)
            assert all(0 <= error <= 1 for _, error in choice.curve)


def test_scores_that_never_vary_give_no_nan() -> None:
    labels = np.arange(40) % 4
    _, fold = real(np.eye(4)[labels], labels, np.ones(40, dtype=np.bool_))
    perfect = torch.eye(4, dtype=torch.float64)
    assert cell_error(perfect, fold, range(4)) == pytest.approx(0.0, abs=1e-12)
    assert 0 <= cell_error(torch.zeros_like(perfect), fold, range(4)) <= 1


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.5))
@settings(max_examples=20, deadline=None)
def test_the_rest_by_subtraction_equals_the_rest_computed_directly(seed: int, share: float) -> None:
    features, labels, _ = problem(seed % 100)
    slot = slots(labels, share, np.random.default_rng(seed))
    total, fold = summed(features, labels, slot)
    rest = Moments.of(some(features, slot < 0), labels[slot < 0])
    assert total == Moments.of(features, labels)
    assert total - coarse(fold) == rest
    assert (total - coarse(fold)).hash == rest.hash


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("start", [None, 1e-6, 0.7])
def test_the_search_ends_where_a_scan_has_its_minimum(
    rule: Rule, seed: int, start: float | None
) -> None:
    total, fold = moments(seed, rows=400, width=60)
    train = total - coarse(fold)
    grid = np.arange(-7, 0.01, 0.125)
    scan = [cell_error(trial(train, 10**x), fold, total.classes, rule) for x in grid]
    choice = choose(total, fold, start=start, rule=rule)
    assert abs(np.log10(choice.multiple) - grid[np.argmin(scan)]) <= 0.5
    for multiple, error in choice.curve:
        expected = cell_error(trial(train, multiple), fold, total.classes, rule)
        assert error == pytest.approx(expected, abs=1e-8)
    assert choice.curve == sorted(choice.curve)
    assert choice.gamma == pytest.approx(choice.multiple * mean_diagonal(total), rel=1e-12)
    x, errors = np.array(choice.curve).T
    best = int(errors.argmin())
    if not choice.border:
        a, b, _ = np.polyfit(np.log10(x[best - 1 : best + 2]), errors[best - 1 : best + 2], 2)
        assert np.log10(choice.multiple) == pytest.approx(-b / (2 * a), abs=1e-6)


def test_a_good_start_takes_three_factorisations(monkeypatch: pytest.MonkeyPatch) -> None:
    total, fold = moments(1, rows=400, width=60)
    cold = choose(total, fold, start=1e-6)
    made = []
    plain = ridge.Factor.of
    monkeypatch.setattr(
        ridge.Factor, "of", lambda *args, **more: made.append(args[2]) or plain(*args, **more)
    )
    warm = choose(total, fold, start=cold.multiple)
    assert warm.multiple == pytest.approx(cold.multiple, rel=1e-9)
    assert len(made) == len(set(made)) == len(warm.curve) == 3
    assert len(cold.curve) > 3


def test_the_fold_trains_nothing_while_gamma_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other labels in the fold: the same W, another choice. In the rest: another W."""
    features, labels, slot = problem(0, rows=400, width=60)
    held = slot >= 0
    solved: list[torch.Tensor] = []
    plain = held_out.cell_error

    def watched(W: torch.Tensor, *more: object) -> float:
        solved.append(W)
        return plain(W, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(held_out, "cell_error", watched)
    first, choices = [], []
    for changed in (
        labels,
        np.where(held, (labels + 1) % 4, labels),
        np.where(held, labels, (labels + 1) % 4),
    ):
        solved.clear()
        choices.append(choose(*summed(features, changed, slot)))
        first.append(solved[0])
    assert torch.equal(first[0], first[1])
    assert choices[0].curve[0][1] != choices[1].curve[0][1]
    assert choices[0].multiple != choices[1].multiple
    assert not torch.allclose(first[0], first[2])


def test_the_final_solve_holds_the_fold_again() -> None:
    total, fold = moments(2)
    choice = choose(total, fold)
    W = ridge.solve(total, choice.gamma).weights
    torch.testing.assert_close(W, trial(total, choice.multiple), rtol=1e-8, atol=1e-12)
    assert not torch.allclose(W, trial(total - coarse(fold), choice.multiple), rtol=1e-3)


def test_the_unit_of_the_grid_does_not_matter() -> None:
    coarse, fine = (choose(*moments(4, exponent=exponent)) for exponent in (0, -6))
    assert coarse.multiple == fine.multiple
    assert coarse.gamma == fine.gamma * 2.0**12


def test_a_minimum_at_the_border_is_taken_and_marked() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    sign = np.where(y, 1.0, -1.0)[:, None]
    held = np.arange(400) >= 300
    # Equal spread in all directions: the class means are the best weights, hence all the ridge.
    spread = 0.1 * sign + rng.normal(size=(400, 250))
    most = choose(*real(spread, y, held))
    assert (most.multiple, most.border) == (1.0, True)
    assert most.curve[-1][0] == 1.0
    # What tells the classes apart is a ten-thousandth as long as the noise beside it.
    noise = rng.normal(size=(400, 1)) * 1e4
    hidden = np.hstack([noise, sign + 0.3 * rng.normal(size=(400, 1))])
    least = choose(*real(hidden, y, held), start=1e-5)
    assert (least.multiple, least.border) == (pytest.approx(1e-7), True)


def test_a_flat_curve_stays_at_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "cell_error", lambda *_: 0.25)
    choice = choose(*moments(0), start=0.01)
    assert choice.multiple == pytest.approx(0.01)
    assert [error for _, error in choice.curve] == [0.25, 0.25, 0.25]
    assert not choice.border


def test_one_class_alone_needs_no_other() -> None:
    one_class = np.zeros(40, dtype=np.int64)
    X = np.random.default_rng(0).random((40, 5))
    choice = choose(*real(X, one_class, np.arange(40) < 10))
    assert all(0 <= error <= 1 for _, error in choice.curve)


def shifted(of: Moments, by: float, *, exact: bool) -> Moments:
    """G less a multiple of its mean diagonal times I, as rounding may leave an estimate."""
    diagonal = packed.zeros(of.width)
    packed.add_diagonal_(diagonal, of.width, -by * float(packed.diagonal(of.gram, of.width).mean()))
    return replace(of, gram=of.gram + diagonal.round(), exact=exact)


def test_an_estimates_rounding_ends_the_range_and_an_exact_matrix_that_fails_is_an_error() -> None:
    total, fold = moments(0, rows=80, width=70, classes=2)
    rough = shifted(total, 0.002, exact=False)
    choice = choose(rough, replace(fold, exact=False), start=1e-5)
    assert choice.curve[0][0] > 0.002
    assert all(np.isfinite(error) for _, error in choice.curve)
    with pytest.raises(NumericalError, match="could not be factored"):
        choose(shifted(total, 0.002, exact=True), fold, start=1e-5)


def test_an_estimate_that_no_ridge_repairs_is_an_error() -> None:
    total, fold = moments(0, rows=80, width=70, classes=2)
    broken = replace(total, gram=-total.gram, exact=False)
    with pytest.raises((NumericalError, UsageError)):
        choose(broken, fold)


def test_folds_that_say_too_little_are_refused() -> None:
    features, labels, slot = problem(0)
    total, fold = summed(features, labels, slot)
    nothing = Moments.zero("map", features.grid, features.width)
    with pytest.raises(UsageError, match=r"No rows were held out.*gamma_fold"):
        choose(total, nothing)
    held = np.flatnonzero(slot >= 0)
    few, enough = (np.where(np.arange(240) <= held[n - 1], slot, -1) for n in (19, 20))
    with pytest.raises(UsageError, match=r"19 of 240 rows for 4 classes.*gamma_fold"):
        choose(*summed(features, labels, few))
    choose(*summed(features, labels, enough))
    for no_rest in (coarse(fold), Moments.of(some(features, enough >= 0), labels[enough >= 0])):
        with pytest.raises(UsageError, match="nothing to train on"):
            choose(no_rest, fold)


@pytest.mark.parametrize("start", [0.0, -1.0, float("nan"), float("inf")])
def test_a_start_that_is_no_multiple_is_refused(start: float) -> None:
    with pytest.raises(UsageError, match="cannot start"):
        choose(*moments(0), start=start)


@pytest.mark.parametrize(("units", "lost"), [(0, 0.3), (25, 0.8)])
def test_on_the_digits_the_choice_is_near_the_best(units: int, lost: float) -> None:
    """Mean of four random maps: an image is 0.19 points, and the best of one curve partly luck.

    Of estimates the fold holds a hundred cells of one row or two, which is a rough judge.
    """
    data = readers.load("digits")
    multiples = 10 ** np.arange(-5, 0.01, 0.25)
    curves, chosen = [], []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        R = torch.randint(-8, 9, (64, 400), generator=generator).double()
        train, test = (
            ((torch.from_numpy(images).flatten(1).double() - 77) @ R / 40).relu().round()
            for images in (data.train_images, data.test_images)
        )
        rows = Features(train.clamp(max=255).to(torch.uint8), Grid(8, 0), "map")
        total, fold = held_out_of(rows, data.train_labels, units, np.random.default_rng(seed))
        accuracy = []
        for multiple in (*multiples, choose(total, fold).multiple):
            head = ridge.solve(total, multiple * mean_diagonal(total))
            right = head.predict(test.clamp(max=255).numpy()).numpy() == data.test_labels
            accuracy.append(100 * right.mean())
        curves.append(accuracy[:-1])
        chosen.append(accuracy[-1])
    curve = np.mean(curves, axis=0)
    assert curve.max() - curve.min() > 1
    assert np.mean(chosen) >= curve.max() - lost


def held_out_of(
    rows: Features, labels: np.ndarray, units: int, rng: np.random.Generator
) -> tuple[Moments, Moments]:
    """The total and a fold of a tenth, exact or estimated."""
    if not units:
        return summed(rows, labels, slots(labels, 0.1, rng))
    sums = UnitSums.zero("map", rows.grid, rows.width)
    for client, mine in enumerate(np.array_split(rng.permutation(len(labels)), 5)):
        own = some(rows, mine)
        sums = sums + UnitSums.of(own, labels[mine], units=units, rng=rng, client=client)
    rest, fold = parts(sums, 0.1)
    classes, cross, counts = cells(fold).class_moments()
    held = estimated(fold)
    finer = replace(held, classes=classes, cross=cross, counts=counts)
    return estimated(rest) + held, finer


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=80),
    st.floats(0.01, 0.99),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=50, deadline=None)
def test_each_class_holds_out_its_share_rounded_up_or_down(
    labels: list[int], share: float, seed: int
) -> None:
    y = np.array(labels)
    found = slots(y, share, np.random.default_rng(seed))
    assert found.shape == y.shape
    assert found.min() >= -1
    assert found.max() < SLOTS
    for c in np.unique(y):
        held = (found[y == c] >= 0).sum()
        wanted = share * (y == c).sum()
        assert math.floor(wanted) <= held <= math.ceil(wanted)
    again = slots(torch.from_numpy(y), share, np.random.default_rng(seed))
    assert np.array_equal(found, again)


def test_no_row_stands_alone_in_a_slot_where_more_are_held_out() -> None:
    for seed in range(20):
        found = slots(np.zeros(150), 0.1, np.random.default_rng(seed))
        sizes = np.bincount(found[found >= 0])
        assert sizes.sum() == 15
        assert sizes[sizes > 0].min() >= TOGETHER
        assert (sizes > 0).sum() > 1


def test_every_row_is_held_out_as_often_as_any_other_and_in_every_slot() -> None:
    y = np.array([0] * 7 + [1] * 25 + [2])
    rng = np.random.default_rng(0)
    drawn = np.array([slots(y, 0.1, rng) for _ in range(8000)])
    assert np.abs((drawn >= 0).mean(0) - 0.1).max() < 0.015
    spread = np.bincount(drawn[drawn >= 0], minlength=SLOTS) / (drawn >= 0).sum()
    assert np.abs(spread - 1 / SLOTS).max() < 0.01


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
@pytest.mark.parametrize(
    "cut",
    [lambda share: slots(np.zeros(3), share, np.random.default_rng(0)), partial(fold_units, 50)],
)
def test_a_share_that_is_none_is_refused(share: float, cut: Callable[[float], object]) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        cut(share)


@given(st.integers(4, 500), st.floats(0.01, 0.99))
def test_training_and_fold_have_two_units_each(units: int, share: float) -> None:
    held = fold_units(units, share)
    assert 2 <= held <= units - 2
    assert abs(held - share * units) <= 0.5 or held in (2, units - 2)


@pytest.mark.parametrize("units", [1, 2, 3])
def test_too_few_units_for_a_fold_are_refused(units: int) -> None:
    with pytest.raises(UsageError, match=f"method.units = {units} .*at least 4"):
        fold_units(units, 0.1)


def estimated(sums: UnitSums) -> Moments:
    classes, cross, counts = sums.class_moments()
    return Moments(sums.map, sums.grid, classes, estimate_gram(sums), cross, counts, exact=False)


def units_of(seed: int, rows: int, units: int, client: int = 0, task: int = 0) -> UnitSums:
    features, labels, _ = problem(seed, rows=rows, width=5, classes=3)
    rng = np.random.default_rng(seed + 1000)
    return UnitSums.of(features, labels, units=units, rng=rng, client=client, task=task)


def test_parts_are_whole_class_sums_of_their_own() -> None:
    """Clients and tasks with other numbers of units, one with fewer rows than units."""
    sizes = [(0, 0, 60, 10), (1, 0, 33, 4), (2, 0, 3, 10), (0, 1, 50, 25)]
    alone = [units_of(i, rows, units, c, t) for i, (c, t, rows, units) in enumerate(sizes)]
    together = alone[0] + alone[1] + alone[2] + alone[3]
    training, fold = parts(together, 0.1)
    assert fold.declared == ((0, 0, 2), (0, 1, 3), (1, 0, 2), (2, 0, 2))
    assert training.declared == ((0, 0, 8), (0, 1, 22), (1, 0, 2), (2, 0, 8))
    assert len(training.counts) + len(fold.counts) == len(together.counts)
    assert not fold.part({(2, 0)}).counts.numel()  # its three rows all lie in the last unit
    for part in (training, fold):
        meta, tensors = part.to_parts("auto")
        assert UnitSums.from_parts(meta, tensors) == part
    classes, cross, counts = together.class_moments()
    total = estimated(training) + estimated(fold)
    assert (total.classes, total.rows) == (classes, together.counts.sum())
    assert torch.equal(total.cross, cross)
    assert torch.equal(total.counts, counts)
    for whole in alone:
        pairs = {d[:2] for d in whole.declared}
        for both, part in zip((training, fold), parts(whole, 0.1), strict=True):
            assert both.part(pairs) == part


def test_units_of_one_row_make_both_parts_exact() -> None:
    features, labels, _ = problem(5, rows=60, width=5, classes=3)
    sums = UnitSums.of(features, labels, units=60, rng=np.random.default_rng(0))
    training, fold = parts(sums, 0.1)
    assert (int(training.counts.sum()), int(fold.counts.sum())) == (54, 6)
    whole = Moments.of(features, labels)
    assert torch.equal(estimated(training).gram + estimated(fold).gram, whole.gram)


def test_cells_keep_the_class_and_tell_units_apart() -> None:
    _, fold = parts(units_of(3, 200, 30) + units_of(4, 200, 30, client=1), 0.1)
    finer = cells(fold)
    assert torch.equal(finer.keys[:, 3] // SLOTS, fold.keys[:, 3])
    assert torch.equal(finer.sums, fold.sums)
    # Two clients with three units each: no two of them share a slot.
    assert len({*map(tuple, finer.keys[:, 3:].tolist())}) == len(fold.keys)


def test_no_sums_have_empty_parts() -> None:
    training, fold = parts(UnitSums.zero("map", Grid(8, 0), 5), 0.1)
    assert len(training.counts) == len(fold.counts) == 0


def test_both_estimates_are_unbiased() -> None:
    """Over draws of the units, two of ten units hold a fifth of G and the rest the other fifths."""
    features, labels, _ = problem(6, rows=120, width=4, classes=2)
    G = Moments.of(features, labels).gram
    rng, draws = np.random.default_rng(0), 800
    mean = {0: torch.zeros_like(G), 1: torch.zeros_like(G)}
    for _ in range(draws):
        sums = UnitSums.of(features, labels, units=10, rng=rng)
        for which, part in enumerate(parts(sums, 0.1)):
            mean[which] += estimate_gram(part) / draws
    X = features.values.double()
    # The scatter is what could be biased, so its size is the measure.
    scatter = sum(float((X[labels == c] - X[labels == c].mean(0)).square().sum()) for c in (0, 1))
    for which, share in ((0, 0.8), (1, 0.2)):
        error = packed.norm(mean[which] - share * G, features.width)
        assert error < 0.05 * share * scatter
        trace = float(packed.diagonal(mean[which] - share * G, features.width).sum())
        assert abs(trace) < 0.03 * share * scatter
