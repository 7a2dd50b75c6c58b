"""Moments: the sums G = X^T X, C = X^T Y and the class counts. The upload of STSA."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from fcil.errors import DataError, FingerprintMismatch, UsageError
from fcil.stats import gram_codec, packed
from fcil.stats.digest import digest
from fcil.stats.features import Array, Features, as_tensor
from fcil.stats.grid import Grid
from fcil.stats.headers import MomentsHeader


@dataclass(frozen=True, eq=False)
class Moments:
    """Additive second moments of labelled features; an exact value on an integer grid.

    `+` and `-` never round while the sums stay below 2^53, so any split, order or removal gives
    the same bits; `exact` says whether that still holds, and once lost it stays lost.
    """

    map: str
    """Fingerprint of the feature map."""
    grid: Grid
    classes: tuple[int, ...]
    """Class ids of the columns, ascending."""
    gram: Tensor
    """G in packed form (`packed`), float64, in units of step^2."""
    cross: Tensor
    """C, width x classes, float64, in units of step."""
    counts: Tensor
    """Rows by class, int64."""
    exact: bool = True
    clipped: int = 0
    """Feature values that lay outside the grid."""

    kind = "moments"
    outlines = True

    def __post_init__(self) -> None:
        if self.exact and (self.grid.real or not packed.within_exact_range(self.gram, self.width)):
            object.__setattr__(self, "exact", False)

    @classmethod
    def of(
        cls, rows: Features | Array, labels: Array, classes: Iterable[int] | None = None
    ) -> Self:
        """The moments of some rows. `classes` declares columns beyond the labels that occur."""
        features = rows if isinstance(rows, Features) else Features.given(rows)
        y = as_tensor(labels).to(features.values.device, torch.int64)
        if y.shape != (len(features),):
            raise UsageError(
                f"{len(features)} rows of features need as many labels, not {y.shape}."
            )
        ids = sorted({*(classes or ()), *torch.unique(y).tolist()})
        columns = torch.tensor(ids, device=y.device, dtype=torch.int64)
        index = torch.searchsorted(columns, y)
        return cls(
            map=features.map,
            grid=features.grid,
            classes=tuple(ids),
            gram=packed.gram(features.values),
            cross=class_sums(features.values, index, len(ids)).T.contiguous(),
            counts=torch.bincount(index, minlength=len(ids)),
            clipped=features.clipped,
        )

    @classmethod
    def zero(cls, map: str, grid: Grid, width: int, device: torch.device | None = None) -> Self:
        """The moments of no rows at all."""
        return cls(
            map=map,
            grid=grid,
            classes=(),
            gram=packed.zeros(width, device),
            cross=torch.zeros((width, 0), dtype=torch.float64, device=device),
            counts=torch.zeros(0, dtype=torch.int64, device=device),
        )

    @property
    def width(self) -> int:
        """M."""
        return int(self.cross.shape[0])

    @property
    def rows(self) -> int:
        """How many rows were summed."""
        return int(self.counts.sum())

    @property
    def step(self) -> float:
        """G is in units of step^2, C in units of step."""
        return self.grid.step

    def __add__(self, other: Self) -> Self:
        return self._combine(other, 1)

    def __sub__(self, other: Self) -> Self:
        return self._combine(other, -1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Moments):
            return NotImplemented
        a, b = self.present(), other.present()
        return (a.map, a.grid, a.classes, a.width) == (b.map, b.grid, b.classes, b.width) and all(
            torch.equal(x, y)
            for x, y in ((a.gram, b.gram), (a.cross, b.cross), (a.counts, b.counts))
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def hash(self) -> str:
        """SHA-256 of what the moments say; equal on every machine for equal exact moments."""
        here = self.present()
        return digest(
            f"{here.map} {here.grid} {here.width} {here.classes}",
            (here.counts, here.cross.T, here.gram),
            whole=self.exact,
        )

    def present(self) -> Self:
        """The same moments without the columns of classes that have no row."""
        keep = (self.counts != 0) | (self.cross != 0).any(0)
        if bool(keep.all()):
            return self
        return replace(
            self,
            classes=tuple(c for c, kept in zip(self.classes, keep.tolist(), strict=True) if kept),
            cross=self.cross[:, keep].contiguous(),
            counts=self.counts[keep],
        )

    def on(self, classes: Sequence[int]) -> Self:
        """The same moments with columns for exactly these classes, which must hold all present."""
        target = tuple(sorted(classes))
        if target == self.classes:
            return self
        here = self.present()
        if not set(here.classes) <= set(target):
            raise UsageError(
                f"Classes {set(here.classes) - set(target)} hold rows and need columns."
            )
        return here._spread(target)

    def gram_matrix(self) -> Tensor:
        """G as a full matrix in real units."""
        return packed.unpack(self.gram, self.width) * self.step**2

    def to(self, device: torch.device | str) -> Self:
        """The same value in the memory of another device."""
        moved = {name: getattr(self, name).to(device) for name in ("gram", "cross", "counts")}
        return replace(self, **moved)

    def _combine(self, other: Self, sign: int) -> Self:
        check_same_map(self, other)
        union = tuple(sorted({*self.classes, *other.classes}))
        a, b = self._spread(union), other._spread(union)
        return replace(
            self,
            classes=union,
            gram=torch.add(a.gram, b.gram, alpha=sign),
            cross=torch.add(a.cross, b.cross, alpha=sign),
            counts=torch.add(a.counts, b.counts, alpha=sign),
            exact=self.exact and other.exact,
            clipped=self.clipped + sign * other.clipped,
        )

    def _spread(self, classes: tuple[int, ...]) -> Self:
        if classes == self.classes:
            return self
        at = [classes.index(c) for c in self.classes]
        cross = self.cross.new_zeros((self.width, len(classes)))
        counts = self.counts.new_zeros(len(classes))
        cross[:, at], counts[at] = self.cross, self.counts
        return replace(self, classes=classes, cross=cross, counts=counts)

    def to_parts(
        self, encoding: str, *, outline: bool = False
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain values and tensors of a message; see `gram_codec` for encodings and outlines."""
        name, tensors = gram_codec.encode(self, encoding, outline=outline)
        tensors["counts"] = self.counts
        meta = {
            "map": self.map,
            "grid": self.grid.asdict(),
            "classes": self.classes,
            "width": self.width,
            "clipped": self.clipped,
            "encoding": name,
            "exact": self.exact and name not in gram_codec.LOSSY,
        }
        return meta, tensors

    @classmethod
    def from_parts(cls, meta: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """The value a message holds."""
        header = MomentsHeader.of(meta)
        grid, classes = header.grid.grid(), tuple(header.classes)
        gram, cross = gram_codec.decode(header.encoding, tensors, header.width, len(classes), grid)
        counts = tensors["counts"]
        if counts.dtype != torch.int64 or counts.shape != (len(classes),):
            raise DataError(f"The message counts rows of {len(classes)} classes otherwise.")
        return cls(
            map=header.map,
            grid=grid,
            classes=classes,
            gram=gram,
            cross=cross,
            counts=counts,
            exact=header.exact,
            clipped=header.clipped,
        )


def class_sums(values: Tensor, index: Tensor, groups: int) -> Tensor:
    """Sums of rows by group, groups x width, float64.

    A product with the membership matrix: unlike scattered additions it gives the same bits on a
    card in every run, for real numbers too.
    """
    member = torch.zeros((groups, len(index)), dtype=torch.float64, device=values.device)
    member[index, torch.arange(len(index), device=values.device)] = 1.0
    return member @ values.double()


def check_same_map(a: Any, b: Any) -> None:
    """Refuse to combine statistics of different feature maps."""
    if (a.map, a.grid, a.width) == (b.map, b.grid, b.width):
        return
    raise FingerprintMismatch(
        f"These statistics come from different feature maps: {a.map[:12]} (width {a.width}, "
        f"{a.grid}) and {b.map[:12]} (width {b.width}, {b.grid}). Their sums would mean nothing. "
        "Most likely one client kept a network from before the first stage ended, or used another "
        "seed or projection width; let it recompute with the current map."
    )
