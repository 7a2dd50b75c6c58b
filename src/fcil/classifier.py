"""A scikit-learn classifier over the statistics: ridge regression that learns and forgets exactly.

It equals `RidgeClassifier` on the same features, and takes rows, classes and other fitted
classifiers at any time, because all it keeps is their moments.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from fcil.errors import Refused, UsageError
from fcil.features import FeatureMap
from fcil.ridge import Factor, gamma_value
from fcil.stats import packed
from fcil.stats.features import Features
from fcil.stats.moments import Moments

Labels = NDArray[Any]


class StatisticsClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Ridge classification from sums of random ReLU features.

    width: random ReLU features; 0 = the given features as they are.
    gamma: the ridge, a number or a multiple of the Gram matrix's mean diagonal ("0.003r").
    fit_intercept: whether scores have a constant term, which the ridge leaves alone.
    scale: None = real numbers; a number = the largest absolute value expected of a given feature:
        features are then rounded, which makes every sum exact, and larger ones are clipped
        (`moments_.clipped` counts them).
    bits: size of the rounded features.
    seed: of the random features.

    After fitting, `moments_` holds the sums; its class ids are positions in `classes_`.
    """

    def __init__(
        self,
        width: int = 0,
        gamma: float | str = 1.0,
        fit_intercept: bool = True,
        scale: float | None = None,
        bits: int = 8,
        seed: int = 0,
    ) -> None:
        self.width = width
        self.gamma = gamma
        self.fit_intercept = fit_intercept
        self.scale = scale
        self.bits = bits
        self.seed = seed

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn these rows and nothing else."""
        labels, moments = self._sums(X, y, reset=True)
        return self._keep(labels, moments, labels[:0])

    def partial_fit(self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None) -> Self:
        """Learn more rows; classes may be new in any call. `classes` declares some beforehand."""
        first = not hasattr(self, "moments_")
        labels, moments = self._sums(X, y, reset=first)
        declared = _union(labels[:0] if classes is None else np.asarray(classes))
        if not first:
            return self._add(labels, moments, declared)
        union = _union(labels, declared)
        return self._keep(union, _renumber(moments, labels, union), declared)

    def forget(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Take out rows that were learned before; with `scale` set, as if they had never come."""
        check_is_fitted(self)
        labels, moments = self._sums(X, y, reset=False)
        if len(_union(self.classes_, labels)) > len(self.classes_):
            raise UsageError(
                "Some of these labels were never learned, so rows of theirs cannot be forgotten. "
                "`classes_` lists what is known."
            )
        rest = self.moments_ - _renumber(moments, labels, self.classes_)
        if bool((rest.counts < 0).any()):
            raise Refused(
                "More rows of a class were to be forgotten than were learned; nothing was changed. "
                "Most likely they were forgotten before."
            )
        return self._keep(self.classes_, rest, self._declared)

    def merge(self, other: StatisticsClassifier) -> Self:
        """Learn all that another fitted classifier has learned, from its sums alone."""
        check_is_fitted(self)
        check_is_fitted(other)
        return self._add(other.classes_, other.moments_, other._declared)

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Scores: rows x classes, or one a row for up to two classes (positive = the last)."""
        check_is_fitted(self)
        W, intercept = self._solution.coefficients
        phi = _mapped(self._map, validate_data(self, X, reset=False, dtype=np.float64))
        scores: NDArray[np.float64] = (phi.real() @ W + intercept).numpy()
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: ArrayLike) -> Labels:
        """One label a row."""
        scores = self.decision_function(X)
        last = len(self.classes_) - 1
        at = scores.argmax(1) if scores.ndim == 2 else last * (scores > 0)
        return np.asarray(self.classes_[at])

    def _sums(self, X: ArrayLike, y: ArrayLike, reset: bool) -> tuple[Labels, Moments]:
        """The labels that occur, and the moments of some rows under the map of the parameters."""
        gamma_value(self.gamma, torch.ones(1))  # refuses now what the solve would refuse later
        rows, y = validate_data(self, X, y, reset=reset, dtype=np.float64)
        check_classification_targets(y)
        if self.scale is not None and not (self.scale > 0 and self.bits > 0):
            raise UsageError(
                f"scale = {self.scale} and bits = {self.bits} must be positive. For real numbers "
                "leave scale = None."
            )
        phi = FeatureMap.for_features(
            self.n_features_in_,
            self.width,
            seed=self.seed if self.width else 0,
            largest=1.0 if self.scale is None else self.scale,
            bits=0 if self.scale is None else self.bits,
        )
        if reset:
            self._map = phi
        labels, ids = np.unique(y, return_inverse=True)
        return labels, Moments.of(_mapped(phi, rows), ids)

    def _add(self, labels: Labels, moments: Moments, declared: Labels) -> Self:
        union = _union(self.classes_, labels, declared)
        known = _renumber(self.moments_, self.classes_, union)
        total = known + _renumber(moments, labels, union)
        return self._keep(union, total, _union(self._declared, declared))

    def _keep(self, labels: Labels, moments: Moments, declared: Labels) -> Self:
        """Take over a new state: a column for each class that has rows or was declared."""
        moments = moments.on(range(len(labels)))
        kept = (moments.counts.numpy() != 0) | np.isin(labels, declared)
        self.classes_, self._declared = labels[kept], declared
        self.moments_ = replace(
            moments,
            classes=tuple(range(len(self.classes_))),
            cross=moments.cross[:, kept].contiguous(),
            counts=moments.counts[kept],
        )
        self._solution = _Solution(self.moments_, self.gamma, self.fit_intercept)
        return self


class _Solution:
    """Weights and intercepts of some moments, solved for when first asked for."""

    def __init__(self, moments: Moments, gamma: float | str, fit_intercept: bool) -> None:
        self.moments, self.gamma, self.fit_intercept = moments, gamma, fit_intercept

    @cached_property
    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Ridge regression onto +1 for a row's own class and -1 for the others."""
        here = self.moments
        if here.rows == 0:
            raise UsageError("Every row that was learned has been forgotten; learn some first.")
        gram, cross = here.gram * here.step**2, here.cross * here.step
        gamma = gamma_value(self.gamma, packed.diagonal(gram, here.width))
        total = cross.sum(1, keepdim=True)
        columns = slice(-1, None) if len(here.classes) <= 2 else slice(None)
        cross, share = cross[:, columns], here.counts[columns].double() / here.rows
        if not self.fit_intercept:
            W = Factor.of(gram, here.width, gamma, rank=here.rows).solve(2 * cross - total)
            return W, torch.zeros_like(share)
        mean = total / here.rows
        gram -= packed.gram(mean.T) * here.rows
        W = Factor.of(gram, here.width, gamma, rank=here.rows).solve(2 * (cross - total * share))
        return W, 2 * share - 1 - (mean.T @ W)[0]


def _mapped(phi: FeatureMap, rows: NDArray[np.float64]) -> Features:
    return phi(np.require(rows, requirements="W"))  # PyTorch warns about read-only memory


def _union(*groups: Labels) -> Labels:
    """All labels of some lists, sorted."""
    filled = [group for group in groups if len(group)]
    if len({isinstance(label, str) for group in filled for label in group.tolist()}) > 1:
        raise UsageError("Class labels are all text or all numbers; here are both.")
    return np.unique(np.concatenate(filled or groups))


def _renumber(moments: Moments, labels: Labels, union: Labels) -> Moments:
    """Moments whose class ids are positions in a longer sorted list of labels."""
    return replace(moments, classes=tuple(np.searchsorted(union, labels).tolist()))
