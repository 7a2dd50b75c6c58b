"""The declared grid on which features become integers."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor

from fcil.errors import NumericalError, UsageError


@dataclass(frozen=True)
class Grid:
    """Integers of `bits` bits in steps of 2^exponent; `bits = 0` stands for real numbers."""

    bits: int = 0
    exponent: int = 0
    signed: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.bits <= 16:
            raise UsageError(f"A grid has 0 to 16 bits, not {self.bits}.")

    @classmethod
    def reaching(cls, largest: float, bits: int, *, signed: bool = False) -> Self:
        """The grid whose range ends at `largest` rounded up to a power of two.

        >>> Grid.reaching(100.0, 8)
        Grid(bits=8, exponent=-1, signed=False)
        """
        return cls.ending(power_above(largest), bits, signed=signed)

    @classmethod
    def ending(cls, end: int, bits: int, *, signed: bool = False) -> Self:
        """The grid whose range ends at 2^end; without bits, real numbers."""
        return cls(bits, end - bits + signed, signed) if bits else cls()

    @property
    def real(self) -> bool:
        """No rounding: sums are floating point."""
        return self.bits == 0

    @property
    def step(self) -> float:
        """One unit of the integers."""
        return math.ldexp(1.0, self.exponent)

    @property
    def lowest(self) -> int:
        """Smallest integer."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def highest(self) -> int:
        """Largest integer."""
        return (1 << (self.bits - self.signed)) - 1

    @property
    def dtype(self) -> torch.dtype:
        """The smallest tensor type that holds the integers."""
        if self.real:
            return torch.float64
        if self.lowest == 0 and self.highest <= 255:
            return torch.uint8
        return torch.int16 if self.highest < 2**15 else torch.int32

    def round(self, in_steps: Tensor) -> tuple[Tensor, int]:
        """Integers nearest to values given in steps (halves to even), and how many were clipped."""
        nearest = in_steps.round()
        clipped = nearest.clamp(self.lowest, self.highest)
        return clipped.to(self.dtype), int((clipped != nearest).sum())

    def asdict(self) -> dict[str, Any]:
        """Plain values, for messages and fingerprints."""
        return asdict(self)


def power_above(value: float) -> int:
    """Smallest e with |value| < 2^e; 0 for zero.

    >>> [power_above(v) for v in (0.75, 1.0, 100.0, 0.0)]
    [0, 1, 7, 0]
    """
    if not math.isfinite(value):
        raise NumericalError(
            f"The largest feature is {value}, which sets no scale. A layer of the network "
            "overflowed, most often because training diverged: lower the learning rate."
        )
    return math.frexp(value)[1]
