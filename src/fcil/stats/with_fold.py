"""Moments and those of a held-out fold of the same rows: what choosing gamma by the data needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcil.errors import DataError
from fcil.stats.features import Array, Features, as_tensor
from fcil.stats.moments import Moments, check_same_map

SLOTS = 16
"""Parts into which a class's held-out rows are cut."""
TOGETHER = 3
"""Rows of one client and class that go into a part at a time, so that few stand alone."""


@dataclass(frozen=True, eq=False)
class MomentsWithFold:
    """The moments of all rows, and of those that are held out while gamma is chosen.

    The fold's classes are finer: its rows of class c stand in columns 16 c to 16 c + 15, so that
    the fold holds means over a few rows each, and they can be classified.
    """

    total: Moments
    fold: Moments

    kind = "moments-with-fold"
    outlines = True

    @classmethod
    def of(
        cls,
        rows: Features,
        labels: Array,
        slots: NDArray[np.int64],
        classes: Iterable[int] | None = None,
    ) -> Self:
        """Of some rows and the slot of each; those of slot -1 are not held out."""
        y = as_tensor(labels).to(rows.values.device, torch.int64)
        slot = torch.from_numpy(slots).to(y.device)
        out = slot >= 0
        fold = Moments.of(rows.chosen(out), SLOTS * y[out] + slot[out])
        rest = Moments.of(rows.chosen(~out), y[~out], classes)
        return cls(replace(rest, clipped=rows.clipped) + coarse(fold), fold)

    def __add__(self, other: Self) -> Self:
        return type(self)(self.total + other.total, self.fold + other.fold)

    def __sub__(self, other: Self) -> Self:
        return type(self)(self.total - other.total, self.fold - other.fold)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MomentsWithFold):
            return NotImplemented
        return self.total == other.total and self.fold == other.fold

    __hash__ = None  # type: ignore[assignment]

    def to_parts(
        self, encoding: str, *, outline: bool = False
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain values and tensors of a message."""
        meta: dict[str, Any] = {}
        tensors: dict[str, Tensor] = {}
        for name in ("total", "fold"):
            part: Moments = getattr(self, name)
            meta[name], parts = part.to_parts(encoding, outline=outline)
            tensors.update({f"{name}.{key}": tensor for key, tensor in parts.items()})
        return {**meta, "encoding": meta["total"]["encoding"]}, tensors

    @classmethod
    def from_parts(cls, meta: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """The value a message holds."""
        parts = []
        for name in ("total", "fold"):
            start = f"{name}."
            inside = {k.removeprefix(start): t for k, t in tensors.items() if k.startswith(start)}
            parts.append(Moments.from_parts(meta[name], inside))
        total, fold = parts
        check_same_map(total, fold)
        known = dict(zip(total.classes, total.counts.tolist(), strict=True))
        held = coarse(fold)
        counts = zip(held.classes, held.counts.tolist(), strict=True)
        if any(count > known.get(c, 0) for c, count in counts):
            raise DataError("The message holds out rows that it does not count.")
        return cls(total, fold)


def coarse(fold: Moments) -> Moments:
    """A fold's moments by class."""
    classes = sorted({c // SLOTS for c in fold.classes})
    member = torch.zeros((len(fold.classes), len(classes)), dtype=torch.float64)
    for at, c in enumerate(fold.classes):
        member[at, classes.index(c // SLOTS)] = 1.0
    member = member.to(fold.cross.device)
    counts = (fold.counts.double() @ member).to(torch.int64)
    return replace(fold, classes=tuple(classes), cross=fold.cross @ member, counts=counts)
