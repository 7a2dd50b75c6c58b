"""The ridge chosen by the data, from sums alone: what a held-out fold says of each gamma.

Clients leave a share of their rows out of what a trial W is solved from and sum them apart, a few
rows of a class to a cell. The server solves W for a few values of gamma from the rest and looks how
well it classifies the cells' means; the fold then goes back in before the solve that counts. No
round is added.

Squared error is known exactly from such sums and is the wrong judge: with many classes it asks for
far more ridge than accuracy does. Whether a cell's mean falls into the right class is what accuracy
asks, of a few images at a time. `experiments/gamma_rule.py` compares the rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcil import ridge
from fcil.errors import NumericalError, UsageError
from fcil.stats import packed
from fcil.stats.features import Array, as_tensor
from fcil.stats.moments import Moments
from fcil.stats.unit_sums import UnitSums
from fcil.stats.with_fold import SLOTS, TOGETHER, coarse

START = 0.003
"""Multiple of the mean diagonal where the first search begins."""
PER_DECADE = 2
LOWEST, HIGHEST = -7 * PER_DECADE, 0
"""The range searched, 1e-7 to 1, in steps of half a decade."""
_SPREAD = 5
"""Slots between the first units of two clients."""
LEAST_ROWS = 5
"""Held-out rows a class must have on average; its mean scores say nothing otherwise."""
RESTORED = 0.5
"""Share of the variance of rows around their cell's mean that is put back. With all of it the last
stage of wide maps gets too much ridge, with none of it the first stages, and estimates, too little.
"""
_NO_SPREAD = 1e-300
"""Keeps scores that never vary from dividing by zero."""
SOFT = 0.3
"""Softness of a cell beside the spread of its rows, in deviations of the cells' margins: a hard
count of some hundred cells is too rough a curve to find its lowest point."""


@dataclass(frozen=True)
class Choice:
    """The ridge that a held-out fold asks for, and how it was found."""

    gamma: float
    """The ridge for the solve on all rows."""
    multiple: float
    """The same as a multiple of the mean diagonal of G; where the next search should start."""
    curve: list[list[float]]
    """[multiple, expected error on the fold] of every ridge that was tried, ascending."""
    border: bool
    """The best lies at the end of the range, or beside a ridge too small to factor G with."""


def choose(
    total: Moments,
    fold: Moments,
    *,
    start: float | None = None,
    rule: Literal["linear", "cosine"] = "linear",
) -> Choice:
    """The gamma for a solve on `total`, by the error on the fold's cells of what the rest gives.

    `fold` has the finer classes of `MomentsWithFold`; `total` holds its rows too and the rest is
    their difference, so that estimated moments must be put together as training + fold.

    What is searched and chosen is a multiple of the mean diagonal: G grows with the rows, so that a
    plain number found on the rest would be too small for the total, and one task's no start for the
    next.

    The search goes downhill from `start` (the previous task's choice) in half decades until both
    neighbours are no better and ends at the vertex of the parabola through the three: one
    factorisation a step, three or four where the start is good. An eigendecomposition would give
    all ridges at once and takes as long as some fourteen Cholesky factors (2000 x 2000 on two
    cores: 0.55 s against 0.038 s, results/gamma/rule.txt).
    """
    classes = total.present().classes
    _check_fold(total, fold, len(classes))
    rest = (total - coarse(fold)).on(classes)
    if rest.rows == 0 or bool((rest.counts < 0).any()):
        raise UsageError(
            f"The held-out fold has {fold.rows} rows and the total {total.rows}, which leaves "
            "nothing to train on: the fold is not a part of the total, or takes all of it. Let "
            "method.gamma_fold hold out a smaller share."
        )
    trials = _Trials(rest, fold.present(), rule)
    at, border = _downhill(trials, START if start is None else start)
    errors = trials.errors
    aside = 0.0 if border else _vertex(errors[at - 1], errors[at], errors[at + 1])
    multiple = _multiple(at + aside)
    curve = [[_multiple(k), error] for k, error in sorted(errors.items()) if error < math.inf]
    return Choice(multiple * _mean_diagonal(total) * total.step**2, multiple, curve, border)


def cell_error(
    W: Tensor, fold: Moments, classes: Sequence[int], rule: Literal["linear", "cosine"] = "linear"
) -> float:
    """Share of the fold's rows that W puts into a wrong class, as far as its cells tell.

    A cell's rows are taken to lie around its mean normally, with `RESTORED` of the variance that
    rows have within classes, known for all classes together only; the class that comes nearest to
    beating the right one decides. Without that spread an estimated G, which puts noise into the
    scores of single rows, would look better than it is.

    Column j of W belongs to `classes[j]`; its scale does not matter.
    """
    if len(classes) == 1:
        return 0.0
    scores = W / W.norm(dim=0).clamp(min=torch.finfo(W.dtype).tiny) if rule == "cosine" else W
    cells = (fold.cross / fold.counts).T @ scores
    own = torch.tensor([[classes.index(c // SLOTS)] for c in fold.classes], device=cells.device)
    margins = cells.gather(1, own) - cells
    nearest = margins.scatter(1, own, math.inf).amin(1)
    hidden = RESTORED * (1 - 1 / fold.counts.double())[:, None]
    hidden = hidden * _apart(scores, fold, classes)[own[:, 0]]
    spread = (hidden + (SOFT * nearest.std()) ** 2).clamp(min=_NO_SPREAD).sqrt()
    wrong = torch.special.ndtr(-(margins / spread).scatter(1, own, math.inf).amin(1))
    return float((wrong * fold.counts).sum() / fold.counts.sum())


def _apart(scores: Tensor, fold: Moments, classes: Sequence[int]) -> Tensor:
    """Variance within classes of the difference of every two outputs, pooled."""
    sums = coarse(fold).on(classes)
    rows = sums.counts.double()
    means = scores.T @ sums.cross / rows.clamp(min=1)
    second = scores.T @ packed.times(sums.gram, sums.width, scores)
    freedom = (rows.sum() - (rows > 0).sum()).clamp(min=1)
    within = (second - (means * rows) @ means.T) / freedom
    own = within.diagonal()
    return (own + own[:, None] - 2 * within).clamp(min=0)


def slots(labels: Array, share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """The part of the fold that each of a client's rows goes to; -1 for rows that are not held out.

    Of each class a random `share` is held out, rounded up or down at random, so that every row has
    the same chance, also one that is its class's only one here, and clients need not agree on
    anything. Rows go into random parts a few at a time, so that few stand alone in one.
    """
    _check_share(share)
    y = as_tensor(labels).cpu().numpy()
    found = np.full(len(y), -1, dtype=np.int64)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        held = rows[: int(share * len(rows) + rng.random())]
        groups = max(1, len(held) // TOGETHER)
        for group in np.array_split(held, groups):
            found[group] = rng.integers(SLOTS)
    return found


def fold_units(units: int, share: float) -> int:
    """How many of a client's units are held out: about `share` of them, two in each part at least.

    >>> [fold_units(units, 0.1) for units in (4, 10, 25, 50)]
    [2, 2, 3, 5]
    """
    _check_share(share)
    if units < 4:
        raise UsageError(
            f"method.units = {units} leaves no fold to choose gamma by: the scatter within a class "
            "shows between units, so that training and fold need two each. Take at least 4 units, "
            "or give method.gamma as a number."
        )
    return min(max(2, math.floor(share * units + 0.5)), units - 2)


def cells(fold: UnitSums) -> UnitSums:
    """A fold of units with the finer classes of `MomentsWithFold`: units share a class's slots."""
    keys = fold.keys.clone()
    keys[:, 3] = SLOTS * keys[:, 3] + (keys[:, 0] * _SPREAD + keys[:, 2]) % SLOTS
    return replace(fold, keys=keys)


def parts(sums: UnitSums, share: float) -> tuple[UnitSums, UnitSums]:
    """Class sums by unit as (training, fold): the first units of every client are the fold.

    Both are class sums of their own, with their units counted from zero and only those declared,
    and `estimate_gram` is as unbiased for each part's rows as for all. Values clipped and rows
    withheld cannot be told apart and stay with training.
    """
    limits = {(client, task): fold_units(units, share) for client, task, units in sums.declared}
    limit = torch.tensor(
        [limits[client, task] for client, task in sums.keys[:, :2].tolist()], dtype=torch.int64
    ).to(sums.keys.device)
    held_out = sums.keys[:, 2] < limit
    keys = sums.keys.clone()
    keys[:, 2] -= torch.where(held_out, 0, limit)

    def part(chosen: Tensor, declared: list[tuple[int, int, int]]) -> UnitSums:
        return replace(
            sums,
            declared=tuple(declared),
            keys=keys[chosen],
            sums=sums.sums[chosen],
            counts=sums.counts[chosen],
        )

    training = part(~held_out, [(c, t, units - limits[c, t]) for c, t, units in sums.declared])
    fold = part(held_out, [(c, t, limits[c, t]) for c, t, _ in sums.declared])
    return training, replace(fold, clipped=0, withheld=0)


class _Trials:
    """Held-out error by ridge, in steps of the search; each is factored once."""

    def __init__(
        self,
        train: Moments,
        fold: Moments,
        rule: Literal["linear", "cosine"],
    ) -> None:
        self._train, self._fold, self._rule = train, fold, rule
        self._diagonal = _mean_diagonal(train)
        self.errors: dict[int, float] = {}

    def __call__(self, at: int) -> float:
        """The error; infinite outside the range and where rounding leaves G no Cholesky factor.

        Exact moments are positive whatever the ridge, so that a failure there is one. Estimated and
        real ones are not below the rounding of their products.
        """
        if not LOWEST <= at <= HIGHEST:
            return math.inf
        if at not in self.errors:
            train = self._train
            # In units of steps, which spares a copy of G: only the scale of W depends on them.
            gamma = _multiple(at) * self._diagonal
            try:
                W = ridge.Factor.of(train.gram, train.width, gamma, rank=train.rows).solve(
                    train.cross
                )
            except NumericalError:
                if train.exact or at == HIGHEST:
                    raise
                self.errors[at] = math.inf
            else:
                self.errors[at] = cell_error(W, self._fold, train.classes, self._rule)
        return self.errors[at]


def _downhill(trials: _Trials, start: float) -> tuple[int, bool]:
    """The step whose neighbours are no better, and whether one of them cannot be used at all."""
    if not (math.isfinite(start) and start > 0):
        raise UsageError(f"The search for gamma cannot start at {start} times the mean diagonal.")
    at = min(max(round(math.log10(start) * PER_DECADE), LOWEST), HIGHEST)
    while trials(at) == math.inf:
        at += 1
    # Downward first: the more rows there are, the less ridge they need.
    for way in (-1, 1):
        while trials(at + way) < trials(at):
            at += way
    return at, math.inf in (trials(at - 1), trials(at + 1))


def _vertex(below: float, here: float, above: float) -> float:
    """Where the parabola through three equally spaced points is least, from the middle one."""
    bend = below - 2 * here + above
    return 0.5 * (below - above) / bend if bend > 0 else 0.0


def _multiple(at: float) -> float:
    return math.pow(10.0, at / PER_DECADE)


def _mean_diagonal(moments: Moments) -> float:
    return float(packed.diagonal(moments.gram, moments.width).mean())


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise UsageError(f"method.gamma_fold = {share} must lie between 0 and 1, both excluded.")


def _check_fold(total: Moments, fold: Moments, classes: int) -> None:
    if fold.rows == 0:
        raise UsageError(
            "No rows were held out, so there is nothing to choose gamma by. Let method.gamma_fold "
            "hold out a larger share, or give method.gamma as a number."
        )
    if fold.rows < LEAST_ROWS * classes:
        raise UsageError(
            f"The held-out fold has {fold.rows} of {total.rows} rows for {classes} classes, fewer "
            f"than {LEAST_ROWS} a class: too few to choose gamma by. Let method.gamma_fold hold "
            "out a larger share, take fewer clients or units, or give method.gamma as a number."
        )
