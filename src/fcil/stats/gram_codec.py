"""The encodings of (G, C) in an upload.

| name     | G                                              | lossless                        |
|----------|------------------------------------------------|---------------------------------|
| `exact`  | bit-packed integers of the triangle            | yes, integers only              |
| `packed` | the triangle in 4 or 8 bytes an entry          | yes                             |
| `factor` | triangular R with R^T R = G, when rank(G) < M  | integers: yes, checked          |
| `int16`  | D^-1/2 G D^-1/2 in int16, float32 diagonal     | no                              |
| `full`   | the whole matrix in float32, as published      | where float32 holds the entries |
| `auto`   | the smallest of the lossless ones              | yes                             |
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from scipy.linalg import lapack
from torch import Tensor

from fcil.errors import DataError, NotExact, Refused
from fcil.stats import bits, packed
from fcil.stats.grid import Grid

if TYPE_CHECKING:
    from fcil.stats.moments import Moments

LOSSY = ("int16", "full")
_UINT32 = 2**32


def encode(moments: Moments, encoding: str) -> tuple[str, dict[str, Tensor]]:
    """The encoding taken and its tensors."""
    if encoding == "auto":
        return _smallest(moments)
    return encoding, _ENCODERS[encoding](moments)


def decode(
    encoding: str, tensors: dict[str, Tensor], width: int, classes: int, grid: Grid
) -> tuple[Tensor, Tensor]:
    """(G packed, C) of an encoded message, float64."""
    if encoding not in _DECODERS:
        raise DataError(f"The message says its encoding is {encoding!r}, which nobody defined.")
    try:
        gram = _DECODERS[encoding](tensors, width, grid)
        cross = _decode_cross(tensors, width, classes)
    except (KeyError, RuntimeError) as why:
        raise DataError(f"The message does not hold what its header says: {why}.") from why
    if gram.shape != (packed.size(width),) or cross.shape != (width, classes):
        raise DataError(f"The message does not hold moments of width {width}.")
    return gram, cross


def _smallest(moments: Moments) -> tuple[str, dict[str, Tensor]]:
    if not moments.exact:
        return "packed", _packed(moments)
    best = min(("exact", _exact(moments)), ("packed", _packed(moments)), key=lambda e: _bytes(e[1]))
    rows, width = moments.rows, moments.width
    factor_bytes = 8 * (rows * width - rows * (rows - 1) // 2)
    if 0 < rows < width and factor_bytes < _bytes(best[1]):
        try:
            candidate = _factor(moments)
        except Refused:
            return best
        if _bytes(candidate) < _bytes(best[1]):
            return "factor", candidate
    return best


def _bytes(tensors: dict[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors.values())


def _exact(moments: Moments) -> dict[str, Tensor]:
    if not moments.exact:
        raise NotExact(
            "These moments are not exact integers (features.bits = 0, sums past 2^53, or a lossy "
            "upload among them), so they cannot be bit-packed. Use upload.encoding = packed."
        )
    return {
        **{f"gram.{name}": t for name, t in bits.pack(moments.gram).items()},
        **_integer_cross(moments),
    }


def _from_exact(tensors: dict[str, Tensor], width: int, grid: Grid) -> Tensor:
    return bits.unpack(_under("gram.", tensors), packed.size(width)).double()


def _packed(moments: Moments) -> dict[str, Tensor]:
    if not moments.exact:
        return {"gram": moments.gram, "cross": moments.cross}
    peak = float(moments.gram.abs().max()) if moments.width else 0.0
    fits = peak < _UINT32 and bool((moments.gram >= 0).all())
    whole = moments.gram.to(torch.int64)
    return {"gram": whole.to(torch.uint32) if fits else whole, **_integer_cross(moments)}


def _from_packed(tensors: dict[str, Tensor], width: int, grid: Grid) -> Tensor:
    return tensors["gram"].double()


def _factor(moments: Moments) -> dict[str, Tensor]:
    """Pivoted Cholesky factor of a G whose rank is below its width, as a trapezoid."""
    square = packed.unpack(moments.gram, moments.width)
    lower, pivots, rank, _ = lapack.dpstrf(square.cpu().numpy(), lower=1)
    if rank >= moments.width:
        raise Refused(
            f"G has full rank {rank}, so a triangular factor is no smaller than G. It pays with "
            "fewer rows than features; use upload.encoding = auto."
        )
    L = torch.from_numpy(lower)[:, :rank].tril()
    order = torch.from_numpy(pivots.astype("int32") - 1)
    tensors = {
        "factor": L[_trapezoid(moments.width, rank)],
        "order": order,
        **(_integer_cross(moments) if moments.exact else {"cross": moments.cross}),
    }
    if moments.exact and not torch.equal(
        _from_factor(tensors, moments.width, moments.grid), moments.gram.cpu()
    ):
        raise Refused(
            "The factor does not give back these integers exactly (entries of G are too large for "
            "float64's rounding). Use upload.encoding = auto."
        )
    return tensors


def _from_factor(tensors: dict[str, Tensor], width: int, grid: Grid) -> Tensor:
    order, entries = tensors["order"].to(torch.int64), tensors["factor"].double()
    # r columns of a trapezoid hold r * width - r (r - 1) / 2 entries: solve for r.
    root = math.isqrt(max((2 * width + 1) ** 2 - 8 * len(entries), 0))
    rank = (2 * width + 1 - root) // 2
    fits = len(order) == width and rank * width - rank * (rank - 1) // 2 == len(entries)
    if not fits or not torch.equal(order.sort().values, torch.arange(width)):
        raise DataError("The message's triangular factor has no valid shape or pivot order.")
    L = entries.new_zeros((width, rank))
    L[_trapezoid(width, rank)] = entries
    rows = torch.empty_like(L)
    rows[order] = L
    square = rows @ rows.T
    return packed.pack(square if grid.real else square.round())


def _trapezoid(width: int, rank: int) -> Tensor:
    return torch.ones((width, rank), dtype=torch.bool).tril()


def _int16(moments: Moments) -> dict[str, Tensor]:
    square = packed.unpack(moments.gram, moments.width)
    diagonal = square.diagonal().clamp(min=0)
    scale = torch.where(diagonal > 0, diagonal.rsqrt(), 0.0)
    correlation = packed.pack(square * scale[:, None] * scale)
    return {
        "correlation": (correlation * 32767).round().clamp(-32767, 32767).to(torch.int16),
        "diagonal": diagonal.float(),
        "cross": moments.cross.float(),
    }


def _from_int16(tensors: dict[str, Tensor], width: int, grid: Grid) -> Tensor:
    root = tensors["diagonal"].double().sqrt()
    square = packed.unpack(tensors["correlation"].double() / 32767, width)
    square = square * root[:, None] * root
    square.diagonal().copy_(tensors["diagonal"].double())
    return packed.pack(square)


def _full(moments: Moments) -> dict[str, Tensor]:
    square = packed.unpack(moments.gram, moments.width)
    return {"gram": square.float(), "cross": moments.cross.float()}


def _from_full(tensors: dict[str, Tensor], width: int, grid: Grid) -> Tensor:
    return packed.pack(tensors["gram"].double())


def _integer_cross(moments: Moments) -> dict[str, Tensor]:
    return {f"cross.{name}": t for name, t in bits.pack(moments.cross).items()}


def _decode_cross(tensors: dict[str, Tensor], width: int, classes: int) -> Tensor:
    if "cross" in tensors:
        return tensors["cross"].double()
    return bits.unpack(_under("cross.", tensors), width * classes).double().view(width, classes)


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}


_ENCODERS = {
    "exact": _exact,
    "packed": _packed,
    "factor": _factor,
    "int16": _int16,
    "full": _full,
}
_DECODERS = {
    "exact": _from_exact,
    "packed": _from_packed,
    "factor": _from_factor,
    "int16": _from_int16,
    "full": _from_full,
}
