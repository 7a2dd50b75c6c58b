"""What class sums, which travel anyway, say of the Gram matrix: the part bit packing leaves out.

With Q_c = round(2^k S_c / sqrt(n_c)) the prediction is floor(Q^T Q / 4^k), which is near
sum_c S_c S_c^T / n_c, the Gram matrix of rows that all equal the mean of their class. k is such
that no sum in Q^T Q reaches 2^53; scaling, root, quotient and rounding are those of IEEE 754, so
that every machine computes the same integers, whatever the order of its sums.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fcil.stats import packed

_EXACT = 2**53
_SPARE = 52
"""Exponent that the largest sum of Q^T Q may reach before rounding."""
FARTHEST = 60
"""Largest |k|."""


def shift(cross: Tensor, counts: Tensor) -> int:
    """The largest k that keeps Q^T Q exact."""
    energy = cross.square().div_(counts.clamp(min=1)).sum(1)
    peak = float(energy.max()) if len(energy) else 0.0
    return max(-FARTHEST, min(FARTHEST, (_SPARE - math.frexp(peak)[1]) // 2))


def gram(cross: Tensor, counts: Tensor, k: int) -> Tensor | None:
    """The prediction, packed; None where these are not sums of rows or k is too large."""
    if not bool(((counts > 0) | ((counts == 0) & (cross == 0).all(0))).all()):
        return None
    Q = (cross.T * 2.0**k).div_(counts.clamp(min=1).double().sqrt()[:, None]).round_()
    if len(Q) == 0 or not float(Q.square().sum(0).max()) < _EXACT:
        return None
    return packed.gram(Q).mul_(4.0**-k).floor_()


def residual(values: Tensor, cross: Tensor, counts: Tensor, k: int) -> Tensor | None:
    """G less its prediction, where that is an integer float64 holds."""
    expected = gram(cross, counts, k)
    if expected is None:
        return None
    rest = torch.sub(values, expected, out=expected)
    return rest if packed.within_exact_range(rest, cross.shape[0]) else None
