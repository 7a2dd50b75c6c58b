"""Symmetric matrices in half the memory: Gram matrices, products, Cholesky factors and solves.

A symmetric M x M matrix [[A, S], [S^T, B]] with A of side h = ceil(M/2) is kept as one vector of
M (M + 1) / 2 numbers: the rectangle that holds A's lower triangle beside B's upper one, then S.
Unlike row-wise packing this needs no loop over rows: everything is a handful of matrix products
and block copies, on a processor or a card (LAPACK calls its variant "rectangular full packed").
A Cholesky factor [[L, 0], [S^T, K]] is kept the same way, with K^T in B's place.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_LEAF = 320
"""Triangles are worked on in square tiles; those on the diagonal are at most this wide."""
_LEAF_CARD = 1024
"""The same on a card, where a launch costs more than what a larger tile computes in vain."""
_STRIP_CARD = 4096
"""On a card, the widest tile that is read and not multiplied out."""
_FLOAT32_EXACT = 2**24
_FLOAT32_ROWS = 1024
"""Real float32 rows multiplied at a time: rounding then stays near that of a single product."""
_FLOAT64_EXACT = 2**53
_FLOAT64_ROWS = 16384
"""Integer rows turned into float64 at a time."""
_FAST_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}
"""Cards, by compute capability, that multiply float64 at half of float32's speed or better."""


def size(width: int) -> int:
    """Length of the packed form."""
    return width * (width + 1) // 2


def zeros(width: int, device: torch.device | str | None = None) -> Tensor:
    """A packed zero matrix."""
    return torch.zeros(size(width), dtype=torch.float64, device=device)


def pack(square: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The packed form of a symmetric matrix."""
    width = square.shape[0]
    packed = square.new_empty(size(width), dtype=dtype)
    lower_A, upper_B, S = _blocks(packed, width)
    h = S.shape[0]
    _copy_lower(lower_A, square[:h, :h])
    _copy_lower(upper_B.T, square[h:, h:].T)
    S.copy_(square[:h, h:])
    return packed


def unpack(packed: Tensor, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """The full symmetric matrix."""
    square = packed.new_empty((width, width), dtype=dtype)
    lower_A, upper_B, S = _blocks(packed, width)
    h = S.shape[0]
    for out, lower in ((square[:h, :h], lower_A), (square[h:, h:], upper_B.T)):
        for rows, columns in _tiles(lower):
            if rows == columns:
                out[rows, rows] = _symmetric(lower[rows, rows])
            else:
                out[rows, columns] = lower[rows, columns]
                out[columns, rows] = lower[rows, columns].T
    square[:h, h:] = S
    square[h:, :h] = S.T
    return square


def diagonal(packed: Tensor, width: int) -> Tensor:
    """The diagonal, as a copy."""
    lower_A, upper_B, _ = _blocks(packed, width)
    return torch.cat([lower_A.diagonal(), upper_B.diagonal()])


def add_diagonal_(packed: Tensor, width: int, value: float) -> None:
    """Add a number to every diagonal entry, in place."""
    lower_A, upper_B, _ = _blocks(packed, width)
    lower_A.diagonal().add_(value)
    upper_B.diagonal().add_(value)


def rows_of(packed: Tensor, width: int, index: Tensor) -> Tensor:
    """Some rows of the full matrix, len(index) x width."""
    lower_A, upper_B, S = _blocks(packed, width)
    h = S.shape[0]
    found = packed.new_empty((len(index), width))
    place = torch.arange(width, device=packed.device)
    a, b = index[index < h], index[index >= h] - h
    below = place[:h] <= a[:, None]
    beside = place[: width - h] >= b[:, None]
    found[index < h] = torch.cat([torch.where(below, lower_A[a], lower_A[:, a].T), S[a]], 1)
    found[index >= h] = torch.cat([S[:, b].T, torch.where(beside, upper_B[b], upper_B[:, b].T)], 1)
    return found


def norm(packed: Tensor, width: int) -> float:
    """The Frobenius norm of the full matrix."""
    off_diagonal_twice = 2 * packed.norm() ** 2 - diagonal(packed, width).norm() ** 2
    return float(off_diagonal_twice.sqrt())


def times(packed: Tensor, width: int, right: Tensor) -> Tensor:
    """The symmetric matrix times a matrix, without unpacking it whole."""
    lower_A, upper_B, S = _blocks(packed, width)
    h = S.shape[0]
    top, bottom = right[:h], right[h:]
    return torch.cat(
        [
            (S @ bottom).add_(_times_lower(lower_A, top)),
            (S.T @ top).add_(_times_lower(upper_B.T, bottom)),
        ]
    )


def gram(rows: Tensor) -> Tensor:
    """X^T X of the rows, packed, in float64.

    Integers are multiplied in float32 as many rows at a time as provably stay exact: every partial
    sum is bounded by the largest diagonal entry, so rows whose squares add up to less than 2^24 in
    every column cannot round. That is twice as fast as float64 (which cards that are as fast in
    float64 take) and gives the same bits whatever the order, blocking or device. Real numbers are
    multiplied in the precision they come in, with float32 products added up in float64 every 1024
    rows.
    """
    width = rows.shape[1]
    packed = zeros(width, rows.device)
    lower_A, upper_B, S = _blocks(packed, width)
    h = S.shape[0]
    for chunk in _exact_chunks(rows):
        left, right = chunk[:, :h], chunk[:, h:]
        _add_product(S, left, right)
        _add_lower(lower_A, left)
        _add_lower(upper_B.T, right)
    return packed


def within_exact_range(packed: Tensor, width: int) -> bool:
    """Whether every entry is an integer float64 holds exactly, given that all terms were.

    In a sum of Gram matrices no entry exceeds the largest of the diagonal; in a difference one
    can, so all are looked at.
    """
    if width == 0:
        return True
    low, high = packed.aminmax()
    return bool(high < _FLOAT64_EXACT) and bool(low > -_FLOAT64_EXACT)


def cholesky_(packed: Tensor, width: int) -> int:
    """Put a positive matrix's Cholesky factor in its place; the most ever held beside it is a
    quarter of the full square.

    0, or how many rows lead to the first minor that is not positive.
    """
    lower_A, upper_B, S = _blocks(packed, width)
    h = S.shape[0]
    L, failed = torch.linalg.cholesky_ex(lower_A)
    if int(failed):
        return int(failed)
    _copy_lower(lower_A, L)
    torch.linalg.solve_triangular(L, S, upper=False, out=S)
    del L
    _add_lower(upper_B.T, S, sign=-1)
    K, failed = torch.linalg.cholesky_ex(upper_B.T)
    if int(failed):
        return h + int(failed)
    _copy_lower(upper_B.T, K)
    return 0


def cholesky_solve(factor: Tensor, width: int, right: Tensor) -> Tensor:
    """What the matrix of a packed Cholesky factor turns into `right`."""
    L, K, S = _blocks(factor, width)
    h = S.shape[0]
    found = right.clone()
    top, bottom = found[:h], found[h:]
    _substitute(L, top)
    bottom.addmm_(S.T, top, alpha=-1)
    _substitute(K.T, bottom)
    _substitute_back(K.T, bottom)
    top.addmm_(S, bottom, alpha=-1)
    _substitute_back(L, top)
    return found


def _blocks(packed: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Views of A (lower triangle), B (upper triangle) and S inside a packed vector."""
    h = (width + 1) // 2
    rest = width - h
    split = h * (rest + 1)
    triangles = packed[:split].view(h, rest + 1)
    return triangles[:, :h], triangles[:rest, 1:], packed[split:].view(h, rest)


def _tiles(lower: Tensor, card: int = _LEAF_CARD) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of the tiles that make up a lower triangle; equal ones lie on its diagonal
    and reach above it.
    """
    leaf = card if lower.is_cuda else _LEAF
    waiting = [(0, lower.shape[0])]
    while waiting:
        start, stop = waiting.pop()
        if stop - start <= leaf:
            yield slice(start, stop), slice(start, stop)
            continue
        middle = (start + stop + 1) // 2
        waiting += [(start, middle), (middle, stop)]
        yield slice(middle, stop), slice(start, middle)


def _symmetric(tile: Tensor) -> Tensor:
    return tile.tril() + tile.tril(-1).T


def _copy_lower(out: Tensor, square: Tensor) -> None:
    """Copy a lower triangle into a view, leaving the view's upper triangle alone."""
    for rows, columns in _tiles(out):
        if rows == columns:
            lower = square[rows, rows].tril()
            above = torch.ones_like(lower, dtype=torch.bool).triu(1)
            out[rows, rows] = torch.where(above, out[rows, rows], lower.to(out.dtype))
        else:
            out[rows, columns] = square[rows, columns]


def _add_lower(out: Tensor, rows: Tensor, sign: int = 1) -> None:
    """Add the lower triangle of rows^T rows to a view, leaving its upper triangle alone."""
    for here, there in _tiles(out):
        if here == there:
            part = rows[:, here]
            out[here, here].add_((part.T @ part).tril_(), alpha=sign)
        else:
            _add_product(out[here, there], rows[:, here], rows[:, there], sign)


def _add_product(out: Tensor, left: Tensor, right: Tensor, sign: int = 1) -> None:
    """Add left^T right."""
    if left.dtype == out.dtype:
        out.addmm_(left.T, right, alpha=sign)
    else:
        out.add_(left.T @ right, alpha=sign)


def _times_lower(lower: Tensor, right: Tensor) -> Tensor:
    """The symmetric matrix of a lower triangle times a matrix."""
    product = torch.zeros_like(right)
    for rows, columns in _tiles(lower, _STRIP_CARD):
        if rows == columns:
            product[rows].addmm_(_symmetric(lower[rows, rows]), right[rows])
        else:
            product[rows].addmm_(lower[rows, columns], right[columns])
            product[columns].addmm_(lower[rows, columns].T, right[rows])
    return product


def _substitute(lower: Tensor, right: Tensor) -> None:
    """Solve L X = right in place."""
    for start, stop in _strips(lower):
        tile = lower[start:stop, start:stop].contiguous()
        right[start:stop] = torch.linalg.solve_triangular(tile, right[start:stop], upper=False)
        right[stop:].addmm_(lower[stop:, start:stop], right[start:stop], alpha=-1)


def _substitute_back(lower: Tensor, right: Tensor) -> None:
    """Solve L^T X = right in place."""
    for start, stop in reversed(_strips(lower)):
        tile = lower[start:stop, start:stop].contiguous()
        right[start:stop] = torch.linalg.solve_triangular(tile.T, right[start:stop], upper=True)
        right[:start].addmm_(lower[start:stop, :start].T, right[start:stop], alpha=-1)


def _strips(lower: Tensor) -> list[tuple[int, int]]:
    side, leaf = lower.shape[0], _STRIP_CARD if lower.is_cuda else _LEAF
    return [(start, min(start + leaf, side)) for start in range(0, side, leaf)]


def _exact_chunks(rows: Tensor) -> Iterator[Tensor]:
    """The rows as float32 or float64 pieces whose products are exact for integer rows."""
    if rows.is_floating_point():
        size = _FLOAT32_ROWS if rows.dtype == torch.float32 else max(len(rows), 1)
        if len(rows):
            yield from torch.split(rows, size)
        return
    if _prefers_float64(rows.device):
        for piece in torch.split(rows, _FLOAT64_ROWS):
            yield piece.double()
        return
    start, step = 0, 16384
    while start < rows.shape[0]:
        step = min(rows.shape[0] - start, step)
        while step > 1:
            piece = rows[start : start + step].float()
            peak = float((piece * piece).sum(0, dtype=torch.float64).max())
            if peak < _FLOAT32_EXACT:
                break
            step = max(1, min(step - 1, int(step * _FLOAT32_EXACT / peak * 0.9)))
        if step < 64 and rows.shape[0] - start > step:
            yield rows[start:].double()  # large integers: float64 is faster and exact
            return
        wide = step == 1 and float(rows[start].double().square().max()) >= _FLOAT32_EXACT
        yield rows[start : start + step].to(torch.float64 if wide else torch.float32)
        start += step


def _prefers_float64(device: torch.device) -> bool:
    """Whether float32 products may be carried out in fewer bits, or gain no time."""
    if torch.get_float32_matmul_precision() != "highest":
        return True
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in _FAST_FLOAT64
