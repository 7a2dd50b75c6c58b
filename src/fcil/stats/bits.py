"""Lossless packing of integers into as few bits as each block of 128 needs.

`widths` holds the bits of each block; `data` the blocks in ascending order of width, those of one
width in runs of at most 65,536. Of a run come the lowest byte of each number, the next byte, ...;
last the r < 8 bits left over, of which the numbers at i, i + 16, ... i + 112 of a block share r
bytes.
`signed` says that negative numbers are folded in: 0, -1, 1, -2, ... became 0, 1, 2, 3, ...
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fcil.errors import DataError

_BLOCK = 128
_GROUP = 8
_RUN = 65536
"""Blocks worked on at a time, which bounds the memory beside the values and the message."""
_ACROSS = _BLOCK // _GROUP


def pack(values: Tensor) -> dict[str, Tensor]:
    """Integers (any tensor type) to bytes: each block takes the width of its largest value."""
    blocks, tail = _cut(values)
    widths, signed = _widths(blocks, tail)
    parts = [torch.zeros(0, dtype=torch.uint8, device=values.device)]
    for width, run in _runs(widths):
        parts += _planes(_folded(_chosen(blocks, tail, run), width, signed), width)
    return _message(torch.cat(parts), widths, signed)


def outline(values: Tensor) -> dict[str, Tensor]:
    """What `pack` gives, but for the data: a tensor of its length that holds nothing."""
    widths, signed = _widths(*_cut(values))
    length = int(widths.sum()) * _BLOCK // 8
    return _message(torch.empty(length, dtype=torch.uint8, device="meta"), widths, signed)


def size(values: Tensor) -> int:
    """Bytes that `pack` makes of these integers."""
    return sum(t.numel() for t in outline(values).values())


def unpack(parts: dict[str, Tensor], length: int) -> Tensor:
    """The integers of a packed message, int64; refuses one whose sizes do not fit."""
    data, widths = parts["data"], parts["widths"].to(torch.int64)
    blocks = -(-length // _BLOCK)
    if len(widths) != blocks or len(data) != int(widths.sum()) * _BLOCK // 8 or (widths > 63).any():
        raise DataError(
            f"A packed message of {len(data)} bytes in {len(widths)} blocks does not hold {length} "
            "integers: it was cut or altered on its way. Ask for it again."
        )
    values = torch.zeros((blocks, _BLOCK), dtype=torch.int64, device=data.device)
    at = 0
    for width, run in _runs(widths):
        end = at + len(run) * width * _BLOCK // 8
        values[run] = _joined(data[at:end], len(run), width)
        at = end
    flat = values.flatten()[:length]
    if int(parts["signed"]):
        flat = (flat >> 1) ^ -(flat & 1)
    return flat


def _message(data: Tensor, widths: Tensor, signed: bool) -> dict[str, Tensor]:
    return {
        "data": data,
        "widths": widths.to(torch.uint8),
        "signed": torch.tensor([signed], dtype=torch.uint8),
    }


def _cut(values: Tensor) -> tuple[Tensor, Tensor]:
    """The whole blocks, as a view, and what is left as one block filled up, or none."""
    flat = values.flatten()
    if flat.dtype not in (torch.float64, torch.int64, torch.int32):
        flat = flat.to(torch.int64)
    whole = len(flat) // _BLOCK * _BLOCK
    tail = flat[whole:]
    if len(tail):
        tail = torch.nn.functional.pad(tail, (0, _BLOCK - len(tail)))
    return flat[:whole].view(-1, _BLOCK), tail.view(-1, _BLOCK)


def _widths(blocks: Tensor, tail: Tensor) -> tuple[Tensor, bool]:
    """Bits for each block, and whether any value is negative."""
    low, high = (torch.cat(ends) for ends in zip(_ends(blocks), _ends(tail), strict=True))
    signed = bool((low < 0).any())
    if signed:
        high = torch.maximum(2 * high, -2 * low - 1)
    return _bit_length(high), signed


def _ends(blocks: Tensor) -> tuple[Tensor, Tensor]:
    if not len(blocks):
        nothing = torch.zeros(0, dtype=torch.int64, device=blocks.device)
        return nothing, nothing
    low, high = blocks.aminmax(dim=1)
    return low.to(torch.int64), high.to(torch.int64)


def _runs(widths: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Widths above 0 in ascending order, each with the places of some of its blocks."""
    for width in torch.unique(widths).tolist():
        if width:
            for run in torch.split((widths == width).nonzero()[:, 0], _RUN):
                yield width, run


def _chosen(blocks: Tensor, tail: Tensor, run: Tensor) -> Tensor:
    """The blocks at some places, the filled up one among them."""
    if len(tail) and int(run[-1]) == len(blocks):
        return torch.cat([blocks.index_select(0, run[:-1]), tail])
    return blocks.index_select(0, run)


def _folded(values: Tensor, width: int, signed: bool) -> Tensor:
    """Non-negative integers in the smallest type that holds this width."""
    whole = values.to(torch.int32 if width < 32 else torch.int64)
    if signed:
        sign = whole >> (31 if width < 32 else 63)
        whole = (whole << 1).bitwise_xor_(sign)
    return whole


def _planes(whole: Tensor, width: int) -> list[Tensor]:
    """The bytes of some blocks of one width."""
    each = whole.element_size()
    by_byte = whole.view(torch.uint8).view(-1, each)
    parts = [by_byte[:, byte] for byte in range(width // 8)]
    if rest := width % 8:
        top = (whole >> (width - rest)).view(-1, _GROUP, _ACROSS)
        joined = torch.zeros((len(top), _ACROSS), dtype=torch.int64, device=whole.device)
        for place in range(_GROUP):
            joined |= top[:, place].to(torch.int64) << (rest * place)
        parts.append(joined.view(torch.uint8).view(-1, 8)[:, :rest].flatten())
    return parts


def _joined(data: Tensor, count: int, width: int) -> Tensor:
    """Some blocks of one width from their bytes."""
    values = torch.zeros((count, _BLOCK), dtype=torch.int64, device=data.device)
    by_byte = values.view(torch.uint8).view(-1, 8)
    for byte in range(width // 8):
        by_byte[:, byte] = data[byte * count * _BLOCK : (byte + 1) * count * _BLOCK]
    if rest := width % 8:
        left = torch.zeros((count * _ACROSS, 8), dtype=torch.uint8, device=data.device)
        left[:, :rest] = data[width // 8 * count * _BLOCK :].view(-1, rest)
        joined = left.view(torch.int64).view(count, _ACROSS)
        top = values.view(count, _GROUP, _ACROSS)
        for place in range(_GROUP):
            top[:, place] |= ((joined >> (rest * place)) & (2**rest - 1)) << (width - rest)
    return values


def _bit_length(values: Tensor) -> Tensor:
    """Bits needed for each non-negative integer."""
    length = torch.frexp(values.double()).exponent.to(torch.int64)
    # Past 2^53 the float may have been rounded up to the next power of two.
    above = (values > 0) & (values >> (length - 1).clamp(min=0) == 0)
    return length - above.to(torch.int64)
