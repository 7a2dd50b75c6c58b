"""Network parameters as weighted sums: what federated averaging uploads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from fcil.errors import Refused
from fcil.stats.headers import ParametersHeader


@dataclass(frozen=True, eq=False)
class Parameters:
    """sum(w * theta) and sum(w): an average that has not been divided yet."""

    total: Mapping[str, Tensor]
    weight: float
    steps: int = 0
    """Gradient steps behind it."""

    kind = "parameters"

    @classmethod
    def of(cls, theta: Mapping[str, Tensor], weight: float = 1.0, steps: int = 0) -> Self:
        """One client's parameters; a weight of 1 leaves every bit as it is."""
        return cls({k: t * weight if weight != 1 else t for k, t in theta.items()}, weight, steps)

    def __add__(self, other: Self) -> Self:
        if self.total.keys() != other.total.keys():
            odd = sorted(self.total.keys() ^ other.total.keys())
            raise Refused(f"These networks differ in their parameters: {', '.join(odd[:5])}.")
        total = {k: t.double() + other.total[k].double() for k, t in self.total.items()}
        return type(self)(total, self.weight + other.weight, self.steps + other.steps)

    def mean(self, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The average, in the types of `like`; counters are truncated."""
        return {k: (t.double() / self.weight).to(like[k].dtype) for k, t in self.total.items()}

    def to_parts(self, encoding: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain values and tensors of a message."""
        return {"weight": self.weight, "steps": self.steps}, dict(self.total)

    @classmethod
    def from_parts(cls, meta: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """The value a message holds."""
        header = ParametersHeader.of(meta)
        return cls(tensors, header.weight, header.steps)
