"""The encodings of (G, C) in an upload.

| name     | G                                              | lossless                        |
|----------|------------------------------------------------|---------------------------------|
| `exact`  | bit-packed integers of the triangle, less what | yes, integers only              |
|          | the class sums predict where that is smaller   |                                 |
| `packed` | the triangle in 4 or 8 bytes an entry          | yes                             |
| `factor` | triangular R with R^T R = G, when rank(G) < M  | integers: yes, checked          |
| `int16`  | D^-1/2 G D^-1/2 in int16, float32 diagonal     | no                              |
| `full`   | the whole matrix in float32, as published      | where float32 holds the entries |
| `auto`   | the smallest of the lossless ones              | yes                             |

An outline holds tensors of the same names, types and shapes, of which bit-packed data is not there:
enough to know a message's size, at a fraction of the time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fcil.errors import DataError, NotExact, Refused
from fcil.stats import bits, packed, pivoted, predicted
from fcil.stats.grid import Grid

if TYPE_CHECKING:
    from fcil.stats.moments import Moments

LOSSY = ("int16", "full")
_UINT32 = 2**32
_WORD = 4
"""Bytes of an entry of `packed`, at the least."""


def encode(
    moments: Moments, encoding: str, *, outline: bool = False
) -> tuple[str, dict[str, Tensor]]:
    """The encoding taken and its tensors."""
    name, tensors = (
        _smallest(moments, outline)
        if encoding == "auto"
        else (encoding, _ENCODERS[encoding](moments, outline))
    )
    if "cross" not in tensors:
        tensors |= {f"cross.{n}": t for n, t in _bits(moments.cross, outline).items()}
    return name, tensors


def decode(
    encoding: str, tensors: dict[str, Tensor], width: int, classes: int, grid: Grid
) -> tuple[Tensor, Tensor]:
    """(G packed, C) of an encoded message, float64."""
    if encoding not in _DECODERS:
        raise DataError(f"The message says its encoding is {encoding!r}, which nobody defined.")
    try:
        cross = _decode_cross(tensors, width, classes)
        if cross.shape != (width, classes):
            raise DataError(f"The message does not hold class sums of width {width}.")
        gram = _DECODERS[encoding](tensors, width, grid, cross)
    except (KeyError, RuntimeError) as why:
        raise DataError(f"The message does not hold what its header says: {why}.") from why
    if gram.shape != (packed.size(width),):
        raise DataError(f"The message does not hold moments of width {width}.")
    return gram, cross


def _smallest(moments: Moments, outline: bool) -> tuple[str, dict[str, Tensor]]:
    if not moments.exact:
        return "packed", _packed(moments, outline)
    values, marker, best = _unpredicted(moments)
    plain = None
    if _WORD * packed.size(moments.width) < best:
        plain = _packed(moments, outline)
        best = min(best, _bytes(plain))
    rows = min(moments.rows, moments.width)
    if rows > 0 and _factor_bytes(moments.width, rows) < best:
        del values  # one triangle less while the factor is checked
        try:
            return "factor", _factored(moments, rows)
        except Refused:
            values, marker, _ = _unpredicted(moments)
    if plain is not None and _bytes(plain) == best:
        return "packed", plain
    return "exact", _gram_bits(values, outline) | marker


def _bytes(tensors: dict[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors.values())


def _bits(values: Tensor, outline: bool) -> dict[str, Tensor]:
    return bits.outline(values) if outline else bits.pack(values)


def _exact(moments: Moments, outline: bool) -> dict[str, Tensor]:
    if not moments.exact:
        raise NotExact(
            "These moments are not exact integers (features.bits = 0, sums past 2^53, or a lossy "
            "upload among them), so they cannot be bit-packed. Use upload.encoding = packed."
        )
    values, marker, _ = _unpredicted(moments)
    return _gram_bits(values, outline) | marker


def _unpredicted(moments: Moments) -> tuple[Tensor, dict[str, Tensor], int]:
    """What is packed in place of G, the marker that says so, and the bytes of both."""
    k = predicted.shift(moments.cross, moments.counts)
    rest = predicted.residual(moments.gram, moments.cross, moments.counts, k)
    plain = bits.size(moments.gram)
    if rest is not None and (less := bits.size(rest) + 1) < plain:
        return rest, {"predicted": torch.tensor([k], dtype=torch.int8)}, less
    return moments.gram, {}, plain


def _gram_bits(values: Tensor, outline: bool) -> dict[str, Tensor]:
    return {f"gram.{name}": t for name, t in _bits(values, outline).items()}


def _from_exact(tensors: dict[str, Tensor], width: int, grid: Grid, cross: Tensor) -> Tensor:
    values = bits.unpack(_under("gram.", tensors), packed.size(width)).double()
    if "predicted" not in tensors:
        return values
    (k,), counts = tensors["predicted"].tolist(), tensors["counts"]
    expected = (
        predicted.gram(cross, counts, k)
        if counts.shape == cross.shape[1:] and abs(k) <= predicted.FARTHEST
        else None
    )
    if expected is None:
        raise DataError("The message's class sums and counts do not predict what it left out.")
    return values.add_(expected)


def _packed(moments: Moments, outline: bool) -> dict[str, Tensor]:
    if not moments.exact:
        return {"gram": moments.gram, "cross": moments.cross}
    low, high = moments.gram.aminmax() if moments.width else (0, 0)
    fits = bool(low >= 0) and bool(high < _UINT32)
    whole = moments.gram.to(torch.int64)
    return {"gram": whole.to(torch.int32).view(torch.uint32) if fits else whole}


def _from_packed(tensors: dict[str, Tensor], width: int, grid: Grid, cross: Tensor) -> Tensor:
    return tensors["gram"].double()


def _factor(moments: Moments, outline: bool) -> dict[str, Tensor]:
    return _factored(moments, moments.width - 1)


def _factored(moments: Moments, most: int) -> dict[str, Tensor]:
    """A pivoted Cholesky factor of at most so many rows, as a trapezoid."""
    found = pivoted.factor(moments.gram, moments.width, most)
    if found is None:
        raise Refused(
            f"G has a rank above {most}; with full rank a triangular factor is no smaller than G. "
            "It pays with fewer rows than features; use upload.encoding = auto."
        )
    R, order = found
    # A quarter, not a half: the receiver's product may round otherwise than this one.
    if moments.exact and float(packed.gram(R).sub_(moments.gram).abs_().max()) > 0.25:
        raise Refused(
            "The factor does not give back these integers exactly (entries of G are too large for "
            "float64's rounding). Use upload.encoding = auto."
        )
    trapezoid = R[:, order].T[_trapezoid(moments.width, len(R), R.device)]
    tensors = {"factor": trapezoid, "order": order.to(torch.int32)}
    return tensors if moments.exact else tensors | {"cross": moments.cross}


def _factor_bytes(width: int, rank: int) -> int:
    return 8 * (rank * width - rank * (rank - 1) // 2) + 4 * width


def _from_factor(tensors: dict[str, Tensor], width: int, grid: Grid, cross: Tensor) -> Tensor:
    order, entries = tensors["order"].to(torch.int64), tensors["factor"].double()
    # r columns of a trapezoid hold r * width - r (r - 1) / 2 entries: solve for r.
    root = math.isqrt(max((2 * width + 1) ** 2 - 8 * len(entries), 0))
    rank = (2 * width + 1 - root) // 2
    fits = len(order) == width and rank * width - rank * (rank - 1) // 2 == len(entries)
    if not fits or not torch.equal(order.sort().values, torch.arange(width, device=order.device)):
        raise DataError("The message's triangular factor has no valid shape or pivot order.")
    L = entries.new_zeros((width, rank))
    L[_trapezoid(width, rank, L.device)] = entries
    rows = torch.empty_like(L)
    rows[order] = L
    gram = packed.gram(rows.T)
    return gram if grid.real else gram.round_()


def _trapezoid(width: int, rank: int, device: torch.device) -> Tensor:
    return torch.ones((width, rank), dtype=torch.bool, device=device).tril()


def _int16(moments: Moments, outline: bool) -> dict[str, Tensor]:
    square = packed.unpack(moments.gram, moments.width)
    diagonal = square.diagonal().clamp(min=0)
    scale = torch.where(diagonal > 0, diagonal.rsqrt(), 0.0)
    correlation = packed.pack(square * scale[:, None] * scale)
    return {
        "correlation": (correlation * 32767).round().clamp(-32767, 32767).to(torch.int16),
        "diagonal": diagonal.float(),
        "cross": moments.cross.float(),
    }


def _from_int16(tensors: dict[str, Tensor], width: int, grid: Grid, cross: Tensor) -> Tensor:
    root = tensors["diagonal"].double().sqrt()
    square = packed.unpack(tensors["correlation"].double() / 32767, width)
    square = square * root[:, None] * root
    square.diagonal().copy_(tensors["diagonal"].double())
    return packed.pack(square)


def _full(moments: Moments, outline: bool) -> dict[str, Tensor]:
    square = packed.unpack(moments.gram, moments.width, torch.float32)
    return {"gram": square, "cross": moments.cross.float()}


def _from_full(tensors: dict[str, Tensor], width: int, grid: Grid, cross: Tensor) -> Tensor:
    return packed.pack(tensors["gram"], torch.float64)


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
