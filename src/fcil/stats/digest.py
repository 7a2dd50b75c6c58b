"""One hash of some tensors, made in pieces by several threads at once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

_PIECE = 2**23
"""Bytes hashed at a time."""
_THREADS = 16
_UINT32 = 2**32
_BYTES = {"uint32": "<u4", "int64": "<i8", "float64": "<f8"}


def digest(text: str, tensors: Sequence[Tensor], *, whole: bool) -> str:
    """SHA-256 over a text and the SHA-256 of every 8 MiB of the tensors' bytes.

    Numbers that are whole are hashed as little-endian uint32 where all of a tensor lie in
    [0, 2^32), else as int64; the text is followed by the types, so that the value alone decides.
    Other numbers are hashed as float64. Pieces are copied from a card one by one.
    """
    flat = [tensor.flatten() for tensor in tensors]
    types = [_type(tensor, whole) for tensor in flat]
    total = hashlib.sha256(f"{text} {' '.join(types)}".encode())
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        for found in pool.map(_hashed, *zip(*_pieces(flat, types), strict=True)):
            total.update(found)
    return total.hexdigest()


def _type(tensor: Tensor, whole: bool) -> str:
    if tensor.is_floating_point() and not whole:
        return "float64"
    if not len(tensor):
        return "uint32"
    low, high = tensor.aminmax()
    return "uint32" if bool(low >= 0) and bool(high < _UINT32) else "int64"


def _pieces(flat: list[Tensor], types: list[str]) -> Iterator[tuple[Tensor, str]]:
    for tensor, kind in zip(flat, types, strict=True):
        length = _PIECE // (4 if kind == "uint32" else 8)
        for piece in torch.split(tensor, length):
            yield piece, kind


def _hashed(piece: Tensor, kind: str) -> bytes:
    if piece.is_cuda:
        piece = _fetched(piece, kind)
    numbers = piece.numpy()  # converted by NumPy, in this thread alone
    if kind == "float64":
        numbers = numbers + 0.0  # no negative zero
    return hashlib.sha256(np.ascontiguousarray(numbers, _BYTES[kind]).data).digest()


def _fetched(piece: Tensor, kind: str) -> Tensor:
    """A copy from a card, by way of memory it can write to itself."""
    if kind == "uint32":  # half the bytes on their way
        piece = piece.to(torch.int64).to(torch.int32)
    here = torch.empty(piece.shape, dtype=piece.dtype, pin_memory=True).copy_(piece)
    return here.view(torch.uint32) if kind == "uint32" else here
