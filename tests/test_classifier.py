"""The scikit-learn classifier: its contract, its algebra, learning and forgetting."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import RidgeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks

import fcil.classifier as module
from fcil.classifier import StatisticsClassifier
from fcil.errors import FingerprintMismatch, Refused, UsageError
from fcil.features import FeatureMap

Rows = NDArray[np.float64]


@parametrize_with_checks(
    [
        StatisticsClassifier(),
        StatisticsClassifier(width=40, fit_intercept=False),
        StatisticsClassifier(scale=16.0),
        StatisticsClassifier(width=40, scale=16.0, gamma="0.003r", bits=12),
    ]
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def blobs(
    classes: int, rows: int = 120, width: int = 9, seed: int = 0
) -> tuple[Rows, NDArray[np.int64]]:
    """Overlapping classes far from the origin, so that an intercept matters."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(rows) % classes)
    return rng.normal(size=(classes, width))[y] + rng.normal(size=(rows, width)) + 3.0, y


@settings(max_examples=25, deadline=None)
@given(
    classes=st.integers(2, 6),
    width=st.sampled_from([1, 5, 90]),  # 90: more features than rows, the low-rank route
    gamma=st.sampled_from([0.3, 1.0, 50.0]),
    intercept=st.booleans(),
    data=st.data(),
)
def test_equals_scikit_learns_ridge_classifier_however_the_rows_arrive(
    classes: int, width: int, gamma: float, intercept: bool, data: st.DataObject
) -> None:
    X, y = blobs(classes, 40, width)
    order = np.array(data.draw(st.permutations(range(len(y)))))
    cuts = sorted(data.draw(st.lists(st.integers(1, len(y) - 1), max_size=4, unique=True)))
    ours = StatisticsClassifier(gamma=gamma, fit_intercept=intercept)
    for part in np.split(order, cuts):
        ours.partial_fit(X[part], y[part])
    theirs = RidgeClassifier(alpha=gamma, fit_intercept=intercept).fit(X, y)
    new = blobs(classes, 30, width, seed=1)[0]
    scores = theirs.decision_function(new)
    assert ours.decision_function(new).shape == scores.shape
    np.testing.assert_allclose(ours.decision_function(new), scores, rtol=1e-8, atol=1e-8)
    np.testing.assert_array_equal(ours.predict(new), theirs.predict(new))


@pytest.mark.parametrize("scale", [None, 8.0])
def test_random_features_are_the_feature_maps(scale: float | None) -> None:
    X, y = blobs(4)
    ours = StatisticsClassifier(width=60, seed=3, scale=scale).fit(X, y)
    bits = 0 if scale is None else 8
    phi = FeatureMap.for_features(9, 60, seed=3, largest=scale or 1.0, bits=bits)
    theirs = RidgeClassifier(alpha=1.0).fit(phi(X).real().numpy(), y)
    expected = theirs.decision_function(phi(X).real().numpy())
    np.testing.assert_allclose(ours.decision_function(X), expected, rtol=1e-8, atol=1e-8)


def test_a_relative_gamma_is_a_multiple_of_the_mean_diagonal() -> None:
    X, y = blobs(3)
    alpha = 0.01 * (X**2).sum(0).mean()
    relative, number = StatisticsClassifier(gamma="0.01r"), StatisticsClassifier(gamma=alpha)
    np.testing.assert_allclose(
        relative.fit(X, y).decision_function(X), number.fit(X, y).decision_function(X), rtol=1e-9
    )


EXACT = {"width": 30, "scale": 16.0}


@settings(max_examples=12, deadline=None)
@given(order=st.permutations(range(5)), labels=st.sampled_from(["number", "text"]))
def test_exact_sums_make_any_order_and_any_merge_the_same_bits(
    order: list[int], labels: str
) -> None:
    X, y = blobs(5)
    y = y if labels == "number" else np.array(["fox", "ant", "zebu", "cow", "mole"])[y]
    pooled = StatisticsClassifier(**EXACT).fit(X, y)
    total = StatisticsClassifier(**EXACT)
    alone = []
    for part in (np.arange(len(y)) % 5 == k for k in order):  # any five classes each
        total.partial_fit(X[part], y[part])
        alone.append(StatisticsClassifier(**EXACT).fit(X[part], y[part]))
    merged = alone[0]
    for other in alone[1:]:
        merged.merge(other)
    for learner in (total, merged):
        assert learner.moments_.exact
        assert learner.moments_.hash == pooled.moments_.hash
        np.testing.assert_array_equal(learner.classes_, pooled.classes_)
        np.testing.assert_array_equal(learner.decision_function(X), pooled.decision_function(X))


def test_merging_aligns_labels_the_other_side_has_in_another_place() -> None:
    X, y = blobs(4)
    names = np.array(["m", "c", "x", "a"])[y]
    left, right = np.isin(names, ["m", "x"]), np.isin(names, ["a", "c"])
    merged = StatisticsClassifier(**EXACT).fit(X[left], names[left])
    merged.merge(StatisticsClassifier(**EXACT).fit(X[right], names[right]))
    pooled = StatisticsClassifier(**EXACT).fit(X, names)
    assert merged.moments_ == pooled.moments_
    np.testing.assert_array_equal(merged.predict(X), pooled.predict(X))


def test_forgetting_is_never_having_learned() -> None:
    X, y = blobs(4)
    gone = (y == 3) | (np.arange(len(y)) < 50)
    never = StatisticsClassifier(**EXACT).fit(X[~gone], y[~gone])
    forgot = StatisticsClassifier(**EXACT).fit(X, y).forget(X[gone], y[gone])
    assert forgot.moments_.hash == never.moments_.hash
    np.testing.assert_array_equal(forgot.classes_, [0, 1, 2])
    np.testing.assert_array_equal(forgot.decision_function(X), never.decision_function(X))


def test_forgetting_real_numbers_leaves_rounding_only() -> None:
    X, y = blobs(3)
    gone = y == 1
    forgot = StatisticsClassifier().fit(X, y).forget(X[gone], y[gone])
    never = StatisticsClassifier().fit(X[~gone], y[~gone])
    np.testing.assert_array_equal(forgot.classes_, [0, 2])
    np.testing.assert_allclose(forgot.decision_function(X), never.decision_function(X), rtol=1e-9)


def test_what_was_not_learned_is_not_forgotten() -> None:
    X, y = blobs(3)
    learner = StatisticsClassifier(**EXACT).fit(X[:60], y[:60])
    before = learner.moments_.hash
    with pytest.raises(UsageError, match="never learned"):
        learner.forget(X[:1], [7])
    with pytest.raises(Refused, match="More rows"):
        learner.forget(X, y)
    assert learner.moments_.hash == before
    with pytest.raises(UsageError, match="learn some first"):
        learner.forget(X[:60], y[:60]).predict(X)
    np.testing.assert_array_equal(
        learner.partial_fit(X, y).predict(X), StatisticsClassifier(**EXACT).fit(X, y).predict(X)
    )


def test_declared_classes_have_columns_and_are_never_predicted_without_rows() -> None:
    X, y = blobs(3)
    learner = StatisticsClassifier().partial_fit(X[y != 1], y[y != 1], classes=[0, 1, 2, 9])
    np.testing.assert_array_equal(learner.classes_, [0, 1, 2, 9])
    assert learner.decision_function(X).shape == (len(X), 4)
    assert set(learner.predict(X)) <= {0, 2}
    two = StatisticsClassifier().fit(X[y != 1], y[y != 1])
    np.testing.assert_allclose(
        learner.decision_function(X)[:, 3 - 1], two.decision_function(X), rtol=1e-9
    )
    learner.forget(X[y == 2], y[y == 2])
    np.testing.assert_array_equal(learner.classes_, [0, 1, 2, 9])


def test_one_class_is_predicted_until_a_second_comes() -> None:
    X, y = blobs(2)
    learner = StatisticsClassifier().partial_fit(X[y == 0], ["only"] * int((y == 0).sum()))
    assert set(learner.predict(X)) == {"only"}
    assert learner.decision_function(X).shape == (len(X),)
    learner.partial_fit(X[y == 1], ["second"] * int((y == 1).sum()))
    names = np.array(["only", "second"])[y]
    np.testing.assert_array_equal(learner.predict(X), RidgeClassifier().fit(X, names).predict(X))


@pytest.mark.parametrize(
    "change", [{"width": 31}, {"seed": 1}, {"scale": 64.0}, {"scale": None}, {"bits": 9}]
)
def test_other_maps_are_refused(change: dict[str, Any]) -> None:
    X, y = blobs(3)
    learner = StatisticsClassifier(**EXACT).fit(X, y)
    before = learner.moments_.hash
    other = StatisticsClassifier(**{**EXACT, **change}).fit(X, y)
    with pytest.raises(FingerprintMismatch):
        learner.merge(other)
    with pytest.raises(FingerprintMismatch):
        learner.set_params(**change).partial_fit(X, y)
    assert learner.moments_.hash == before
    learner.predict(X)


def test_without_random_features_the_seed_decides_nothing() -> None:
    X, y = blobs(3)
    learner = StatisticsClassifier(seed=1).fit(X[:60], y[:60])
    learner.merge(StatisticsClassifier(seed=2).fit(X[60:], y[60:]))
    assert learner.moments_.rows == len(y)


def test_it_solves_once_and_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = []
    factor = module.Factor.of
    monkeypatch.setattr(
        module.Factor, "of", lambda *given, **named: solved.append(1) or factor(*given, **named)
    )
    X, y = blobs(3)
    learner = StatisticsClassifier()
    for start in range(0, 120, 20):
        learner.partial_fit(X[start : start + 20], y[start : start + 20])
    assert solved == []
    learner.predict(X)
    learner.decision_function(X)
    assert solved == [1]
    learner.partial_fit(X, y).predict(X)
    assert solved == [1, 1]


def test_pickle_and_clone() -> None:
    X, y = blobs(3)
    learner = StatisticsClassifier(**EXACT).partial_fit(X[:60], y[:60])
    copy = pickle.loads(pickle.dumps(learner))  # noqa: S301 - our own bytes
    assert copy.moments_ == learner.moments_
    for each in (learner, copy):
        each.partial_fit(X[60:], y[60:])
    np.testing.assert_array_equal(copy.decision_function(X), learner.decision_function(X))
    fresh = clone(learner)
    assert fresh.get_params() == learner.get_params()
    with pytest.raises(NotFittedError):
        fresh.predict(X)


@pytest.mark.parametrize(
    "wrong",
    [
        {"gamma": 0.0},
        {"gamma": float("nan")},
        {"gamma": "much"},
        {"scale": -1.0},
        {"scale": 8.0, "bits": 0},
        {"scale": 8.0, "bits": 17},
    ],
)
def test_bad_parameters_are_refused_when_fitting(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        StatisticsClassifier(**wrong).fit(*blobs(3))


def test_text_and_numbers_as_labels_do_not_mix() -> None:
    X, y = blobs(3)
    learner = StatisticsClassifier().fit(X, y)
    with pytest.raises(UsageError, match="text or all numbers"):
        learner.partial_fit(X, y.astype(str))


def test_clipped_values_are_counted() -> None:
    X, y = blobs(3)
    inside = StatisticsClassifier(scale=float(np.abs(X).max()))
    assert inside.fit(X, y).moments_.clipped == 0
    assert StatisticsClassifier(scale=1.0).fit(X, y).moments_.clipped > 0
