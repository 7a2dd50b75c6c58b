"""Pivoted Cholesky of a packed positive semidefinite matrix: its rank, and a factor that thin."""

from __future__ import annotations

import torch
from scipy.linalg import lapack
from torch import Tensor

from fcil.stats import packed

_BLOCK = 64
_NOISE = 8
"""Diagonal entries below this many roundings a column of the largest are taken for nothing."""
_NEAR = 2.0**-10
"""Pivots of one block are at least this share of the largest that is left; small ones taken early
would magnify the rounding of large ones."""


def factor(gram: Tensor, width: int, most: int) -> tuple[Tensor, Tensor] | None:
    """(R, order) with R^T R = G, R of rank(G) rows; None where the rank exceeds `most`.

    `order` names all columns, pivots first: with its columns in that order R is upper trapezoidal.
    Pivots are taken in blocks of 64 with the largest diagonal left, so that rank^2 * width
    operations in large products do it, on the matrix's own device and without unpacking it. An
    indefinite matrix is not recognised; the caller compares R^T R with G.
    """
    left = packed.diagonal(gram, width)
    highest = float(left.max()) if width else 0.0
    least = _NOISE * width * torch.finfo(left.dtype).eps * highest
    R = gram.new_empty((min(most, width), width))
    pivots = torch.zeros(0, dtype=torch.int64, device=gram.device)
    while (top := float(left.max()) if width else 0.0) > least:
        rank = len(pivots)
        if rank >= len(R):
            return None
        tried = left.topk(min(_BLOCK, len(R) - rank)).indices
        rest = packed.rows_of(gram, width, tried).addmm_(R[:rank, tried].T, R[:rank], alpha=-1)
        lower, order, found, _ = lapack.dpstrf(
            rest[:, tried].cpu().numpy(), lower=1, tol=max(least, top * _NEAR)
        )
        if not found:  # rounding alone was left of them
            left[tried] = 0
            continue
        taken = torch.from_numpy(order[:found].astype("int64") - 1).to(gram.device)
        L = torch.from_numpy(lower[:found, :found]).to(gram.device)
        rows = torch.linalg.solve_triangular(L, rest[taken], upper=False)
        pivots = torch.cat([pivots, tried[taken]])
        rows[:, pivots[:rank]] = 0
        rows[:, pivots[rank:]] = L.tril().T
        R[rank : rank + found] = rows
        left -= rows.square_().sum(0)
        left[pivots] = 0
    free = torch.ones(width, dtype=torch.bool, device=gram.device)
    free[pivots] = False
    return R[: len(pivots)], torch.cat([pivots, free.nonzero()[:, 0]])
