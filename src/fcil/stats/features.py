"""Rows of features together with the grid they lie on and the map that made them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fcil.errors import NumericalError, UsageError
from fcil.stats.grid import Grid

Array = Tensor | np.ndarray


@dataclass(frozen=True, eq=False)
class Features:
    """phi(x) of some rows: integers in steps of the grid, or real numbers."""

    values: Tensor
    """N x M."""
    grid: Grid = field(default_factory=Grid)
    map: str = "given"
    """Fingerprint of the feature map; statistics of different maps cannot be added."""
    clipped: int = 0
    """How many values lay outside the grid."""

    @classmethod
    def given(cls, rows: Array, name: str = "given") -> Features:
        """A user's own real-valued features, used as they are."""
        values = as_tensor(rows).double()
        if values.ndim != 2:
            raise UsageError(f"Features are rows x width, not of shape {tuple(values.shape)}.")
        check_finite(values, "the features given")
        return cls(values, map=name)

    @property
    def width(self) -> int:
        """M."""
        return int(self.values.shape[1])

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def chosen(self, rows: Tensor) -> Features:
        """Some of the rows. What was clipped is counted with all of them, so not here."""
        return replace(self, values=self.values[rows], clipped=0)

    def real(self) -> Tensor:
        """The values in their own unit, float64."""
        return self.values.double() * self.grid.step


def as_tensor(values: Array) -> Tensor:
    """A tensor over the same memory where possible."""
    if isinstance(values, Tensor):
        return values
    whole = np.require(values, requirements=["C", "W"])  # a tensor over read-only memory would lie
    return torch.from_numpy(whole)


def check_finite(values: Tensor, what: str) -> None:
    """Refuse NaN and infinity, naming where they are."""
    if torch.isfinite(values).all():
        return
    bad = (~torch.isfinite(values)).nonzero()
    raise NumericalError(
        f"{len(bad)} values of {what} are not finite, the first in row {int(bad[0][0])}. "
        "The input holds NaN or infinity, or a network overflowed (training that diverged); "
        "nothing was added to any statistic."
    )
