"""How far features reach: what a federation's common grid is chosen from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from fcil.stats.headers import ExtentHeader

_LOWEST, _BINS = -64, 128
BEYOND = 3e-3
"""Share of the values other than zero that may lie beyond the grid. The largest few of a network's
features can be ten times the rest; a grid that reached them would be too coarse for all others."""


class Reach(NamedTuple):
    """Ends of the grids as powers of two: of what the network gives, of phi, and of patches."""

    source: int = 0
    mapped: int = 0
    signed: bool = False
    patches: int = 0


@dataclass(frozen=True)
class Extent:
    """How many values lie between successive powers of two; additive, so that who holds what
    never shows in the grid.
    """

    source: tuple[int, ...] = (0,) * _BINS
    """Of what the network gives: values with 2^(e-1) <= |v| < 2^e at place e + 64."""
    mapped: tuple[int, ...] = (0,) * _BINS
    """Of phi."""
    negative: int = 0
    """Negative values of phi."""
    patches: tuple[int, ...] = (0,) * _BINS
    """Of the patch map."""

    kind = "extent"

    @classmethod
    def of(cls, source: Tensor, mapped: Tensor) -> Self:
        """The extent of some values."""
        return cls(_counts(source), _counts(mapped), int((mapped < 0).sum()))

    @classmethod
    def of_patches(cls, values: Tensor) -> Self:
        """The extent of what a patch map gives."""
        return cls(patches=_counts(values))

    def __add__(self, other: Self) -> Self:
        return self._combine(other, 1)

    def __sub__(self, other: Self) -> Self:
        return self._combine(other, -1)

    def reach(self, beyond: float = BEYOND) -> Reach:
        """The grids: the network's values all fit, of phi's at most this share does not."""
        return Reach(
            _end(self.source, 0.0),
            _end(self.mapped, beyond),
            self.negative > 0,
            _end(self.patches, beyond),
        )

    def to_parts(self, encoding: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain values of a message."""
        parts = {
            "source": self.source,
            "mapped": self.mapped,
            "negative": self.negative,
            "patches": self.patches,
        }
        return parts, {"none": torch.zeros(0, dtype=torch.uint8)}

    @classmethod
    def from_parts(cls, meta: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """The value a message holds."""
        header = ExtentHeader.of(meta)
        return cls(
            tuple(header.source), tuple(header.mapped), header.negative, tuple(header.patches)
        )

    def _combine(self, other: Self, sign: int) -> Self:
        def each(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(x + sign * y for x, y in zip(a, b, strict=True))

        return type(self)(
            each(self.source, other.source),
            each(self.mapped, other.mapped),
            self.negative + sign * other.negative,
            each(self.patches, other.patches),
        )


def _counts(values: Tensor) -> tuple[int, ...]:
    exponents = torch.frexp(values[values != 0]).exponent.long()
    places = (exponents - _LOWEST).clamp(0, _BINS - 1)
    return tuple(torch.bincount(places, minlength=_BINS).tolist())


def _end(counts: tuple[int, ...], beyond: float) -> int:
    """Smallest e such that at most this share of the values is 2^e or more; 0 without values."""
    allowed, above = beyond * sum(counts), 0
    for place in range(_BINS - 1, -1, -1):
        above += counts[place]
        if above > allowed:
            return place + _LOWEST
    return 0
