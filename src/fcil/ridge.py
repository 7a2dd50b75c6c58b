"""Ridge regression from sums: factor once, solve many, report how it went.

No repair happens in silence: a matrix that cannot be factored is an error that names gamma.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fcil.errors import NumericalError, UsageError
from fcil.stats import packed, pivoted
from fcil.stats.features import Array, Features, as_tensor, check_finite
from fcil.stats.moments import Moments

Route = Literal["dense", "low-rank"]
_WHY_NOT_POSITIVE = (
    "G has a negative eigenvalue: statistics were subtracted without having been added, an upload "
    "was lossy, or the matrix is conditioned too badly for this gamma. Raise gamma, or check the "
    "statistics."
)


@dataclass(frozen=True)
class Report:
    """How a solve went."""

    gamma: float
    route: str
    condition: float
    """Estimate of the condition number of G + gamma I, by power iteration from both ends."""
    residual: float
    """|| (G + gamma I) W - C || / || C ||."""
    seconds: float

    def asdict(self) -> dict[str, Any]:
        """Plain values, for the record."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Head:
    """A linear classifier over class ids."""

    weights: Tensor
    """W, width x classes, float64."""
    classes: tuple[int, ...]
    rule: Literal["linear", "cosine"] = "linear"
    report: Report | None = None

    def scores(self, rows: Features | Array) -> Tensor:
        """phi W, rows x classes; with the cosine rule each column of W has length one."""
        phi = rows if isinstance(rows, Features) else Features.given(rows)
        W = self.weights
        if self.rule == "cosine":
            W = W / W.norm(dim=0).clamp(min=torch.finfo(W.dtype).tiny)
        return phi.real() @ W

    def predict(self, rows: Features | Array) -> Tensor:
        """Class ids, one a row."""
        scores = self.scores(rows)
        return torch.tensor(self.classes, device=scores.device)[scores.argmax(1)]


def solve(
    moments: Moments,
    gamma: float | str = "0.003r",
    *,
    rule: Literal["linear", "cosine"] = "linear",
) -> Head:
    """The ridge head of some moments: W = (G + gamma I)^-1 C."""
    present = moments.present()
    unit = moments.step**2
    value = gamma_value(gamma, packed.diagonal(moments.gram, moments.width) * unit)
    factor = Factor.of(present.gram, moments.width, value, rank=present.rows, scale=unit)
    W = factor.solve(present.cross * moments.step)
    return Head(W, present.classes, rule, factor.report(W, present.cross * moments.step))


def gamma_value(gamma: float | str, diagonal: Tensor) -> float:
    """A ridge as a number: "0.003r" is that multiple of G's mean diagonal.

    >>> gamma_value("0.5r", torch.tensor([2.0, 4.0]))
    1.5
    """
    value = (
        float(gamma) if not isinstance(gamma, str) else _multiple(gamma) * float(diagonal.mean())
    )
    if not (math.isfinite(value) and value > 0):
        raise UsageError(
            f"gamma = {gamma!r} comes to {value}; the ridge must be a positive, finite number. "
            "With a multiple of the mean diagonal this means that all features are zero."
        )
    return value


def check_gamma(gamma: float | str) -> float | str:
    """Refuse what `gamma_value` could never turn into a positive number."""
    value = _multiple(gamma) if isinstance(gamma, str) else gamma
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"gamma = {gamma} must be positive and finite")
    return gamma


def _multiple(gamma: str) -> float:
    match = re.fullmatch(r"\s*([0-9.]+(?:[eE][-+]?[0-9]+)?)\s*r\s*", gamma)
    try:
        return float(match[1]) if match else math.nan
    except ValueError:
        return math.nan


@dataclass(frozen=True, eq=False)
class Factor:
    """G + gamma I, factored: a Cholesky factor, or a low-rank one with the Woodbury identity.

    Beside G it holds one packed triangle; while that is made, a quarter of the full square too.
    """

    gram: Tensor
    """G packed, float64, to be multiplied by `scale`."""
    width: int
    gamma: float
    route: Route
    lower: Tensor
    """Cholesky factor: packed, of G + gamma I; on the low-rank route square, of gamma I + R R^T."""
    low_rank: Tensor | None
    """R with R^T R = G, on the low-rank route."""
    seconds: float
    scale: float = 1.0

    @classmethod
    def of(
        cls,
        gram: Tensor,
        width: int,
        gamma: float,
        *,
        rank: int | None = None,
        scale: float = 1.0,
    ) -> Factor:
        """Factor; `rank` is an upper bound on G's rank (its number of rows) where one is known.

        Below a quarter of the width the low-rank route is taken, on a processor: above it the two
        products cost more than the full factor.
        """
        started = time.perf_counter()
        gamma_value(gamma, gram)
        if len(gram) and not math.isfinite(sum(map(float, gram.aminmax()))):
            check_finite(gram[:, None], "the Gram matrix")
        R = None
        if rank is not None and 0 < rank < width / 4 and gram.device.type == "cpu":
            R = _low_rank(gram, width, rank, scale)
        if R is not None:
            square = R @ R.T
            square.diagonal().add_(gamma)
            lower, info = torch.linalg.cholesky_ex(square)
            failed = int(info)
        else:
            lower = gram * scale
            packed.add_diagonal_(lower, width, gamma)
            failed = packed.cholesky_(lower, width)
        if failed:
            raise NumericalError(
                f"G + gamma I could not be factored with gamma = {gamma:g}: leading minor "
                f"{failed} is not positive. {_WHY_NOT_POSITIVE}"
            )
        route: Route = "dense" if R is None else "low-rank"
        return cls(gram, width, gamma, route, lower, R, time.perf_counter() - started, scale)

    def solve(self, right: Tensor) -> Tensor:
        """(G + gamma I)^-1 times a matrix."""
        if self.low_rank is None:
            return packed.cholesky_solve(self.lower, self.width, right)
        R = self.low_rank
        return (right - R.T @ torch.cholesky_solve(R @ right, self.lower)) / self.gamma

    def report(self, W: Tensor, right: Tensor) -> Report:
        """Condition, residual and seconds of a solution."""
        scale = float(right.norm())
        residual = float((self._applied(W) - right).norm()) / scale if scale else 0.0
        return Report(self.gamma, self.route, self._condition(), residual, self.seconds)

    def _applied(self, right: Tensor) -> Tensor:
        return packed.times(self.gram, self.width, right) * self.scale + self.gamma * right

    def _condition(self, rounds: int = 8) -> float:
        start = torch.ones((self.width, 1), dtype=torch.float64, device=self.gram.device)
        start[1::2] = -0.5  # fixed, and not orthogonal to what non-negative features give
        largest = smallest = start / start.norm()
        for _ in range(rounds):
            largest = self._applied(largest)
            largest = largest / (top := largest.norm())
            smallest = self.solve(smallest)
            smallest = smallest / (bottom := smallest.norm())
        return float(top * bottom)


def _low_rank(gram: Tensor, width: int, rank: int, scale: float) -> Tensor | None:
    """R with R^T R = scale G by pivoted Cholesky; None where G is not of the promised rank or not
    positive semidefinite.
    """
    found = pivoted.factor(gram, width, rank)
    if found is None:
        return None
    R = found[0]
    probe = torch.ones((width, 1), dtype=torch.float64)
    probe[1::2] = -0.5
    product = packed.times(gram, width, probe)
    if float((R.T @ (R @ probe) - product).norm()) > 1e-9 * packed.norm(gram, width):
        return None
    return R * math.sqrt(scale)


def as_gram(square: Array) -> Tensor:
    """A full symmetric matrix as the packed form the solver takes."""
    return packed.pack(as_tensor(square), torch.float64)
