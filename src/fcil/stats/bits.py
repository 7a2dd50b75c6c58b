"""Lossless packing of integers into as few bits as each block of 128 needs."""

from __future__ import annotations

import torch
from torch import Tensor

from fcil.errors import DataError

_BLOCK = 128
_GROUP = 8


def pack(values: Tensor) -> dict[str, Tensor]:
    """Integers (any tensor type) to bytes.

    Each block of 128 takes the width of its largest value, in whole bytes plus the bits that are
    left over. Negative values are folded in (0, -1, 1, -2, ... become 0, 1, 2, 3, ...).
    """
    flat = values.flatten().to(torch.int64)
    signed = bool((flat < 0).any())
    if signed:
        flat = torch.where(flat < 0, -2 * flat - 1, 2 * flat)
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % _BLOCK)).view(-1, _BLOCK)
    widths = _bit_length(blocks.amax(1)) if len(blocks) else blocks.new_zeros(0)
    parts = []
    for width in torch.unique(widths).tolist():
        chosen = blocks[widths == width]
        whole = [(chosen >> (8 * byte)) & 255 for byte in range(width // 8)]
        parts += [plane.to(torch.uint8).flatten() for plane in whole]
        if rest := width % 8:
            groups = ((chosen >> (width - rest)) & (2**rest - 1)).view(-1, _GROUP)
            joined = (groups << _shifts(rest, flat.device)).sum(1)
            parts.append(_bytes_of(joined)[:, :rest].flatten())
    data = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.uint8, device=flat.device)
    return {
        "data": data,
        "widths": widths.to(torch.uint8),
        "signed": torch.tensor([signed], dtype=torch.uint8),
    }


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
    for width in torch.unique(widths).tolist():
        where = widths == width
        count = int(where.sum())
        chosen = values.new_zeros((count, _BLOCK))
        for byte in range(width // 8):
            piece, at = data[at : at + count * _BLOCK], at + count * _BLOCK
            chosen |= piece.view(count, _BLOCK).to(torch.int64) << (8 * byte)
        if rest := width % 8:
            taken = count * _BLOCK // _GROUP * rest
            piece, at = data[at : at + taken], at + taken
            joined = torch.zeros(
                (count * _BLOCK // _GROUP, 8), dtype=torch.uint8, device=data.device
            )
            joined[:, :rest] = piece.view(-1, rest)
            groups = (joined.view(torch.int64) >> _shifts(rest, data.device)) & (2**rest - 1)
            chosen |= groups.view(count, _BLOCK) << (width - rest)
        values[where] = chosen
    flat = values.flatten()[:length]
    if int(parts["signed"]):
        flat = torch.where(flat % 2 == 1, -(flat + 1) // 2, flat // 2)
    return flat


def _bit_length(values: Tensor) -> Tensor:
    """Bits needed for each non-negative integer, by doubling comparison (exact, unlike log2)."""
    length = torch.zeros_like(values)
    rest = values.clone()
    for step in (32, 16, 8, 4, 2, 1):
        big = rest >= 2**step
        length += big * step
        rest = torch.where(big, rest >> step, rest)
    return length + (rest > 0)


def _shifts(width: int, device: torch.device) -> Tensor:
    return torch.arange(_GROUP, device=device) * width


def _bytes_of(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.uint8).view(-1, 8)
