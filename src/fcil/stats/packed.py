"""Symmetric matrices in half the memory, and Gram matrices computed straight into that form.

A symmetric M x M matrix [[A, S], [S^T, B]] with A of side h = ceil(M/2) is kept as one vector of
M (M + 1) / 2 numbers: the rectangle that holds A's lower triangle beside B's upper one, then S.
Unlike row-wise packing this needs no loop over rows: everything is a handful of matrix products
and block copies, on a processor or a card (LAPACK calls its variant "rectangular full packed").
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEAF = 320
"""Diagonal blocks up to this side are computed whole; larger ones are halved first."""
_FLOAT32_EXACT = 2**24
_FLOAT32_ROWS = 1024
"""Real float32 rows multiplied at a time: rounding then stays near that of a single product."""
_FLOAT64_EXACT = 2**53


def size(width: int) -> int:
    """Length of the packed form."""
    return width * (width + 1) // 2


def zeros(width: int, device: torch.device | str | None = None) -> Tensor:
    """A packed zero matrix."""
    return torch.zeros(size(width), dtype=torch.float64, device=device)


def pack(square: Tensor) -> Tensor:
    """The packed form of a symmetric matrix."""
    width = square.shape[0]
    packed = square.new_zeros(size(width))
    lower_A, upper_B, S = _blocks(packed, width)
    h = S.shape[0]
    lower_A += square[:h, :h].tril()
    upper_B += square[h:, h:].triu()
    S.copy_(square[:h, h:])
    return packed


def unpack(packed: Tensor, width: int) -> Tensor:
    """The full symmetric matrix."""
    square = packed.new_empty((width, width))
    lower_A, upper_B, S = _blocks(packed, width)
    h = S.shape[0]
    A, B = lower_A.tril(), upper_B.triu()
    square[:h, :h] = A + A.tril(-1).T
    square[h:, h:] = B + B.triu(1).T
    square[:h, h:] = S
    square[h:, :h] = S.T
    return square


def diagonal(packed: Tensor, width: int) -> Tensor:
    """The diagonal, as a copy."""
    lower_A, upper_B, _ = _blocks(packed, width)
    return torch.cat([lower_A.diagonal(), upper_B.diagonal()])


def norm(packed: Tensor, width: int) -> float:
    """The Frobenius norm of the full matrix."""
    off_diagonal_twice = 2 * packed.square().sum() - diagonal(packed, width).square().sum()
    return float(off_diagonal_twice.sqrt())


def times(packed: Tensor, width: int, right: Tensor) -> Tensor:
    """The symmetric matrix times a matrix, without unpacking it whole."""
    lower_A, upper_B, S = _blocks(packed, width)
    h = S.shape[0]
    A, B = lower_A.tril(), upper_B.triu()
    top, bottom = right[:h], right[h:]
    return torch.cat(
        [
            A @ top + A.T @ top - A.diagonal()[:, None] * top + S @ bottom,
            S.T @ top + B @ bottom + B.T @ bottom - B.diagonal()[:, None] * bottom,
        ]
    )


def gram(rows: Tensor) -> Tensor:
    """X^T X of the rows, packed, in float64.

    Integers are multiplied in float32 as many rows at a time as provably stay exact: every partial
    sum is bounded by the largest diagonal entry, so rows whose squares add up to less than 2^24 in
    every column cannot round. That is twice as fast as float64 and gives the same bits whatever
    the order, blocking or device. Real numbers are multiplied in the precision they come in, with
    float32 products added up in float64 every 1024 rows.
    """
    width = rows.shape[1]
    packed = zeros(width, rows.device)
    lower_A, upper_B, S = _blocks(packed, width)
    h = S.shape[0]
    for chunk in _exact_chunks(rows):
        left, right = chunk[:, :h], chunk[:, h:]
        S += left.T @ right
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


def _blocks(packed: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Views of A (lower triangle), B (upper triangle) and S inside a packed vector."""
    h = (width + 1) // 2
    rest = width - h
    split = h * (rest + 1)
    triangles = packed[:split].view(h, rest + 1)
    return triangles[:, :h], triangles[:rest, 1:], packed[split:].view(h, rest)


def _add_lower(out: Tensor, rows: Tensor) -> None:
    """Add the lower triangle of rows^T rows to a view, leaving its upper triangle alone."""
    side = rows.shape[1]
    if side <= _LEAF:
        out += (rows.T @ rows).tril()
        return
    half = (side + 1) // 2
    _add_lower(out[:half, :half], rows[:, :half])
    _add_lower(out[half:, half:], rows[:, half:])
    out[half:, :half] += rows[:, half:].T @ rows[:, :half]


def _exact_chunks(rows: Tensor) -> list[Tensor]:
    """The rows as float32 or float64 pieces whose products are exact for integer rows."""
    if rows.is_floating_point():
        size = _FLOAT32_ROWS if rows.dtype == torch.float32 else max(len(rows), 1)
        return list(torch.split(rows, size)) if len(rows) else []
    if torch.get_float32_matmul_precision() != "highest":
        return [rows.double()]  # float32 products may be carried out in fewer bits
    pieces: list[Tensor] = []
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
            return [*pieces, rows[start:].double()]  # large integers: float64 is faster and exact
        wide = step == 1 and float(rows[start].double().square().max()) >= _FLOAT32_EXACT
        pieces.append(rows[start : start + step].to(torch.float64 if wide else torch.float32))
        start += step
    return pieces
