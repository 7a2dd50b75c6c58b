"""The solver against least squares built another way, and against identities."""

from __future__ import annotations

import time
from functools import reduce
from operator import add

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fcil.errors import NumericalError, UsageError
from fcil.ridge import Factor, Head, as_gram, check_gamma, gamma_value, solve
from fcil.stats import packed
from fcil.stats.features import Features
from fcil.stats.grid import Grid
from fcil.stats.moments import Moments


def data(
    rows: int, width: int, classes: int = 3, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features like random ReLU ones, labels that all occur, and their one-hot form."""
    rng = np.random.default_rng(seed)
    X = np.maximum(rng.normal(size=(rows, width)) + 0.3, 0)
    y = rng.permutation(np.arange(rows) % classes)
    return X, y, np.eye(classes)[y]


def integers(rows: int, width: int, seed: int = 0) -> Features:
    values = np.random.default_rng(seed).integers(0, 256, (rows, width), dtype=np.uint8)
    return Features(torch.from_numpy(values), Grid(8, -6), "map")


def by_qr(X: np.ndarray, Y: np.ndarray, gamma: float) -> np.ndarray:
    """Ridge as least squares on [X; sqrt(gamma) I], never forming X^T X."""
    width = X.shape[1]
    Q, R = np.linalg.qr(np.vstack([X, np.sqrt(gamma) * np.eye(width)]))
    return np.linalg.solve(R, Q.T @ np.vstack([Y, np.zeros((width, Y.shape[1]))]))


def weights(X: np.ndarray, y: np.ndarray, gamma: float | str) -> np.ndarray:
    return solve(Moments.of(X, y), gamma).weights.numpy()


def factor(X: np.ndarray, gamma: float, rank: int | None = None) -> Factor:
    return Factor.of(packed.gram(torch.from_numpy(X)), X.shape[1], gamma, rank=rank)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(3, 80),
    width=st.integers(1, 40),
    gamma=st.sampled_from([1e-3, 0.1, 1.0, 1e4]),
    seed=st.integers(0, 50),
)
def test_ridge_is_augmented_least_squares(rows: int, width: int, gamma: float, seed: int) -> None:
    X, y, Y = data(rows, width, seed=seed)
    expected = by_qr(X, Y, gamma)
    error = np.linalg.norm(weights(X, y, gamma) - expected)
    assert error <= 1e-9 * np.linalg.norm(expected)


def test_statistics_on_a_grid_keep_the_meaning_of_gamma() -> None:
    features, y = integers(60, 9), np.arange(60) % 3
    real = features.real().numpy()
    head = solve(Moments.of(features, y), 2.5)
    np.testing.assert_allclose(head.weights, by_qr(real, np.eye(3)[y], 2.5), rtol=1e-9)
    np.testing.assert_allclose(head.scores(features), real @ head.weights.numpy(), rtol=1e-12)


def test_duplicated_features_with_doubled_ridge_halve_the_weights() -> None:
    X, y, _ = data(50, 8)
    both = weights(np.hstack([X, X]), y, 6.0)
    np.testing.assert_allclose(both, np.vstack([weights(X, y, 3.0)] * 2) / 2, rtol=1e-9)


def test_duplicated_samples_with_doubled_ridge_change_nothing() -> None:
    X, y, _ = data(50, 8)
    twice = weights(np.vstack([X, X]), np.hstack([y, y]), 6.0)
    np.testing.assert_allclose(twice, weights(X, y, 3.0), rtol=1e-11)
    once = Moments.of(integers(50, 8), y)
    fourfold = once + once + once + once  # a square, so that even the factor's bits only double
    assert torch.equal(solve(fourfold, 12.0).weights, solve(once, 3.0).weights)


@settings(max_examples=15, deadline=None)
@given(
    holders=st.lists(st.integers(0, 3), min_size=40, max_size=40), width=st.sampled_from([6, 170])
)
def test_any_partition_gives_the_pooled_answer_bit_for_bit(holders: list[int], width: int) -> None:
    features, y = integers(40, width), np.arange(40) % 5
    parts = []
    for holder in set(holders):
        mine = np.flatnonzero(np.array(holders) == holder)
        parts.append(Moments.of(Features(features.values[mine], features.grid, "map"), y[mine]))
    pooled, total = solve(Moments.of(features, y)), solve(reduce(add, parts))
    assert pooled.classes == total.classes == (0, 1, 2, 3, 4)
    assert torch.equal(pooled.weights, total.weights)


def test_task_order_permutes_columns_only() -> None:
    features, y = integers(80, 12), np.arange(80) % 4
    renamed = np.array([30, 10, 20, 0])  # the same classes in another order of tasks
    here, there = solve(Moments.of(features, y)), solve(Moments.of(features, renamed[y]))
    assert there.classes == (0, 10, 20, 30)
    order = [there.classes.index(int(label)) for label in renamed]
    np.testing.assert_allclose(there.weights[:, order], here.weights, rtol=1e-12)
    predicted = renamed[here.predict(features).numpy()]
    np.testing.assert_array_equal(there.predict(features).numpy(), predicted)


def test_a_large_ridge_makes_weights_proportional_to_class_sums() -> None:
    X, y, Y = data(60, 10)
    gamma = 1e9 * float((X**2).sum())
    np.testing.assert_allclose(gamma * weights(X, y, gamma), X.T @ Y, rtol=1e-8)


@pytest.mark.parametrize(
    ("rows", "route"), [(1, "low-rank"), (5, "low-rank"), (15, "low-rank"), (16, "dense")]
)
def test_the_low_rank_route_is_taken_below_a_quarter_of_the_width(rows: int, route: str) -> None:
    X, y, Y = data(rows, 64, classes=min(rows, 3))
    head = solve(Moments.of(X, y), 0.1)
    assert head.report is not None and head.report.route == route
    right = torch.from_numpy(X.T @ Y)
    dense = factor(X, 0.1)
    assert dense.route == "dense" and factor(X, 0.1, rank=rows).route == route
    W = dense.solve(right)
    assert float((head.weights - W).norm()) <= 1e-8 * float(W.norm())
    expected = by_qr(X, Y, 0.1)
    assert np.linalg.norm(head.weights.numpy() - expected) <= 1e-8 * np.linalg.norm(expected)


def test_a_rank_that_was_promised_too_small_is_not_believed() -> None:
    X, _, Y = data(40, 64)
    promised = factor(X, 0.1, rank=10)
    assert promised.route == "dense"
    expected = by_qr(X, Y, 0.1)
    np.testing.assert_allclose(promised.solve(torch.from_numpy(X.T @ Y)), expected, rtol=1e-7)


@pytest.mark.parametrize(
    ("G", "gamma", "error"),
    [
        ([[1.0, 2.0], [2.0, 1.0]], 0.75, NumericalError),
        ([[-1.0, 0.0], [0.0, 1.0]], 1.0, NumericalError),
        ([[np.nan, 0.0], [0.0, 1.0]], 0.75, NumericalError),
        ([[1.0, 0.0], [0.0, 1.0]], -1.0, UsageError),
        ([[1.0, 0.0], [0.0, 0.0]], 0.0, UsageError),
    ],
)
def test_what_cannot_be_factored_is_refused(
    G: list[list[float]], gamma: float, error: type[Exception]
) -> None:
    with pytest.raises(error):
        Factor.of(as_gram(np.array(G)), 2, gamma)


@pytest.mark.parametrize("G", [np.diag([2.0, -1.0]), np.array([[0.0, 5.0], [5.0, 0.0]])])
def test_an_indefinite_matrix_is_not_taken_for_one_of_low_rank(G: np.ndarray) -> None:
    whole = np.zeros((9, 9))
    whole[3:5, 3:5] = G
    with pytest.raises(NumericalError, match="negative eigenvalue"):
        Factor.of(as_gram(whole), 9, 0.5, rank=2)
    made = Factor.of(as_gram(whole), 9, 6.0, rank=2)
    expected = np.linalg.inv(whole + 6 * np.eye(9))
    np.testing.assert_allclose(made.solve(torch.eye(9).double()), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("rank", [None, 3])
def test_a_scale_is_that_of_the_gram_matrix(rank: int | None) -> None:
    X, _, Y = data(3, 20)
    gram, right = packed.gram(torch.from_numpy(X)), torch.from_numpy(X.T @ Y)
    before = gram.clone()
    scaled = Factor.of(gram, 20, 0.3, rank=rank, scale=0.25)
    plain = Factor.of(gram * 0.25, 20, 0.3, rank=rank)
    assert torch.equal(gram, before) and scaled.gram is gram
    assert torch.equal(scaled.solve(right), plain.solve(right))
    W = scaled.solve(right)
    assert scaled.report(W, right).residual == plain.report(W, right).residual
    assert scaled.report(W, right).condition == plain.report(W, right).condition


def test_the_leading_minor_that_fails_is_counted_over_the_whole_matrix() -> None:
    for place in range(7):
        G = np.eye(7)
        G[place, place] = -3.0
        with pytest.raises(NumericalError, match=f"leading minor {place + 1} is not"):
            Factor.of(as_gram(G), 7, 0.5)


def test_the_factor_takes_one_packed_triangle() -> None:
    made = factor(data(60, 30)[0], 0.1)
    assert made.lower.shape == (packed.size(30),)


def test_a_failed_factorisation_names_gamma_and_repairs_nothing() -> None:
    G = as_gram(np.array([[1.0, 2.0], [2.0, 1.0]]))  # eigenvalues 3 and -1
    with pytest.raises(NumericalError, match=r"gamma = 0\.75.*negative eigenvalue") as failure:
        Factor.of(G, 2, 0.75)
    assert failure.value.exit_code == 5
    W = Factor.of(G, 2, 1.25).solve(torch.eye(2, dtype=torch.float64))
    np.testing.assert_allclose(W, np.linalg.inv([[2.25, 2.0], [2.0, 2.25]]), rtol=1e-12)


def test_statistics_that_were_never_added_fail_aloud() -> None:
    X, y, _ = data(60, 5)
    missing = Moments.of(X[:10], y[:10]) - Moments.of(X, y)
    with pytest.raises(NumericalError, match="subtracted"):
        solve(missing, 1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gram_matrix_that_is_not_finite_is_refused(bad: float) -> None:
    G = np.eye(8)
    G[1, 2] = G[2, 1] = bad
    for rank in (None, 1):
        with pytest.raises(NumericalError, match=r"the Gram matrix.*NaN or infinity") as failure:
            Factor.of(as_gram(G), 8, 1.0, rank=rank)
        assert failure.value.exit_code == 5


def test_gamma_as_a_multiple_of_the_mean_diagonal() -> None:
    X, y, _ = data(40, 6)
    mean = float((X**2).sum(0).mean())
    head = solve(Moments.of(X, y), "0.25r")
    assert head.report is not None and head.report.gamma == pytest.approx(0.25 * mean, rel=1e-12)
    np.testing.assert_allclose(head.weights, weights(X, y, 0.25 * mean), rtol=1e-12)
    on_grid = Moments.of(integers(30, 6), np.arange(30) % 2)
    diagonal = packed.diagonal(on_grid.gram, 6) * on_grid.step**2
    report = solve(on_grid, "1e-2r").report
    assert report is not None and report.gamma == pytest.approx(0.01 * float(diagonal.mean()))


@pytest.mark.parametrize(
    ("text", "factor"), [("0.003r", 0.003), (" 2 r ", 2.0), ("1e-4r", 1e-4), ("1.5E+2r", 150.0)]
)
def test_ways_to_write_a_multiple(text: str, factor: float) -> None:
    assert gamma_value(text, torch.tensor([3.0, 5.0])) == pytest.approx(4 * factor)
    assert check_gamma(text) == text


BAD = [
    0,
    0.0,
    -1.0,
    float("nan"),
    float("inf"),
    "0r",
    "-1r",
    "r",
    "0.003",
    "much",
    "1e400r",
    "1.2.3r",
]


@pytest.mark.parametrize("gamma", BAD)
def test_a_gamma_that_is_no_positive_number_is_refused(gamma: float | str) -> None:
    with pytest.raises(ValueError, match="gamma"):
        check_gamma(gamma)
    with pytest.raises(UsageError, match="positive, finite") as refusal:
        solve(Moments.of(*data(9, 3)[:2]), gamma)
    assert refusal.value.exit_code == 2
    if not isinstance(gamma, str):
        with pytest.raises(UsageError):
            Factor.of(packed.zeros(3), 3, gamma)


def test_a_multiple_of_nothing_is_refused_with_its_cause() -> None:
    nothing = Moments.of(np.zeros((4, 3)), np.arange(4))
    with pytest.raises(UsageError, match="all features are zero"):
        solve(nothing, "0.1r")
    assert not solve(nothing, 1.0).weights.any()


@pytest.mark.parametrize("gamma", [1e-2, 1.0, 1e3])
@pytest.mark.parametrize(("rows", "width"), [(300, 40), (100, 90), (10, 60), (50, 1)])
def test_the_report_gives_condition_and_residual(rows: int, width: int, gamma: float) -> None:
    X, y, _ = data(rows, width)
    before = time.perf_counter()
    report = solve(Moments.of(X, y), gamma).report
    elapsed = time.perf_counter() - before
    assert report is not None
    truth = np.linalg.cond(X.T @ X + gamma * np.eye(width))
    assert truth / 2 <= report.condition <= truth * 2
    assert report.residual < 1e-10 and report.gamma == gamma
    assert 0 < report.seconds < elapsed
    assert report.asdict()["route"] == report.route


def test_the_residual_is_the_same_on_a_grid() -> None:
    report = solve(Moments.of(integers(30, 6), np.arange(30) % 2), 1.0).report
    assert report is not None and report.residual < 1e-10


@pytest.mark.parametrize("width", range(2, 9))
def test_the_condition_of_equal_features(width: int) -> None:
    """One direction holds everything and all others nothing; the start must meet both."""
    report = factor(np.ones((10, width)), 1.0).report(*[torch.ones(width, 1).double()] * 2)
    assert report.condition == pytest.approx(10 * width + 1, rel=1e-6)


def test_the_residual_is_that_of_the_equations() -> None:
    X, _, Y = data(30, 5)
    made, right = factor(X, 0.5), torch.from_numpy(X.T @ Y)
    wrong = made.solve(right) + 0.1
    left = (X.T @ X + 0.5 * np.eye(5)) @ wrong.numpy()
    expected = np.linalg.norm(left - X.T @ Y) / np.linalg.norm(X.T @ Y)
    assert made.report(wrong, right).residual == pytest.approx(expected, rel=1e-10)
    assert made.report(torch.zeros((5, 3), dtype=torch.float64), right * 0).residual == 0


def test_the_cosine_rule_forgets_the_length_of_a_class() -> None:
    X, y, _ = data(90, 7)
    linear, cosine = (solve(Moments.of(X, y), 1.0, rule=rule) for rule in ("linear", "cosine"))
    assert torch.equal(linear.weights, cosine.weights)
    assert solve(Moments.of(X, y), 1.0).rule == linear.rule == "linear"
    W = linear.weights.numpy()
    np.testing.assert_allclose(cosine.scores(X), X @ W / np.linalg.norm(W, axis=0), rtol=1e-12)
    longer = Head(cosine.weights * torch.tensor([1.0, 50.0, 0.01]), (4, 5, 6), "cosine")
    np.testing.assert_array_equal(longer.predict(X), cosine.predict(X) + 4)
    empty = Head(torch.zeros((7, 2), dtype=torch.float64), (0, 1), "cosine")
    assert torch.isfinite(empty.scores(X)).all()


def test_classes_without_rows_get_no_weights() -> None:
    X, y, _ = data(30, 4)
    head = solve(Moments.of(X, y, classes=[9]), 1.0)
    assert head.classes == (0, 1, 2) and head.weights.shape == (4, 3)


def test_a_prediction_lies_where_the_rows_do() -> None:
    head = Head(torch.zeros((4, 2), dtype=torch.float64, device="meta"), (3, 5))
    rows = Features(torch.zeros((6, 4), dtype=torch.uint8, device="meta"), Grid(8), "map")
    predicted = head.predict(rows)
    assert predicted.device.type == "meta" and predicted.shape == (6,)


def test_no_rows_are_solved_densely() -> None:
    made = Factor.of(packed.zeros(6), 6, 2.0, rank=0)
    assert made.route == "dense"
    right = torch.ones((6, 2), dtype=torch.float64)
    np.testing.assert_allclose(made.solve(right), right / 2, rtol=1e-15)
