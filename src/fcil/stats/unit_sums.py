"""Class sums by unit, and the Gram matrix estimated from them. The upload of STSA-E."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from fcil.errors import DataError, Refused, UsageError
from fcil.stats import bits, packed
from fcil.stats.digest import digest
from fcil.stats.features import Array, Features, as_tensor
from fcil.stats.grid import Grid
from fcil.stats.headers import UnitSumsHeader
from fcil.stats.moments import check_same_map, class_sums

Count = Literal["holders", "all"]


@dataclass(frozen=True, eq=False)
class UnitSums:
    """Sum and count of each (unit, class) cell that holds a row: a keyed union.

    Units are random parts of a client's rows. `+` puts disjoint contributions together, `-` takes
    a contribution out again; the order never shows.
    """

    map: str
    grid: Grid
    classes: tuple[int, ...]
    """Class ids that were asked for, ascending."""
    declared: tuple[tuple[int, int, int], ...]
    """(client, task, number of its units), empty units included."""
    keys: Tensor
    """Cells x (client, task, unit, class), int64, in ascending order."""
    sums: Tensor
    """Cells x width, float64, in units of step."""
    counts: Tensor
    """Rows by cell, int64."""
    clipped: int = 0
    withheld: int = 0
    """Rows of cells that stayed below `min_cell` and were not uploaded."""

    kind = "unit-sums"
    outlines = True

    @classmethod
    def of(
        cls,
        rows: Features | Array,
        labels: Array,
        *,
        units: int,
        rng: np.random.Generator,
        client: int = 0,
        task: int = 0,
        classes: Sequence[int] = (),
        min_cell: int = 1,
    ) -> Self:
        """One client's cells: its rows are shuffled and cut into `units` consecutive parts.

        A cell below `min_cell` is merged into the class's next cell; a class with fewer rows than
        that in all is withheld. The merging looks at counts only, never at values, so that the
        estimate stays unbiased.
        """
        if units < 1 or min_cell < 1:
            raise UsageError(f"units = {units} and min_cell = {min_cell} must be at least 1.")
        features = rows if isinstance(rows, Features) else Features.given(rows)
        device = features.values.device
        y = as_tensor(labels).to("cpu", torch.int64).numpy()
        if y.shape != (len(features),):
            raise UsageError(
                f"{len(features)} rows of features need as many labels, not {y.shape}."
            )
        unit = _assign(len(y), units, rng)
        ids, cells = _cells(y, unit, min_cell)
        kept = cells >= 0
        index = torch.from_numpy(cells[kept]).to(device)
        values = features.values[torch.from_numpy(kept.nonzero()[0]).to(device)]
        keys = torch.tensor([[client, task, u, c] for u, c in ids], dtype=torch.int64)
        return cls(
            map=features.map,
            grid=features.grid,
            classes=tuple(sorted({*classes, *y.tolist()})),
            declared=((client, task, units),),
            keys=keys.view(-1, 4).to(device),
            sums=class_sums(values, index, len(ids)),
            counts=torch.bincount(index, minlength=len(ids)),
            clipped=features.clipped,
            withheld=int((~kept).sum()),
        )

    @classmethod
    def zero(cls, map: str, grid: Grid, width: int, device: torch.device | None = None) -> Self:
        """No contribution at all."""
        return cls(
            map=map,
            grid=grid,
            classes=(),
            declared=(),
            keys=torch.zeros((0, 4), dtype=torch.int64, device=device),
            sums=torch.zeros((0, width), dtype=torch.float64, device=device),
            counts=torch.zeros(0, dtype=torch.int64, device=device),
        )

    @property
    def width(self) -> int:
        """M."""
        return int(self.sums.shape[1])

    @property
    def contributors(self) -> frozenset[int]:
        """Clients whose cells these are."""
        return frozenset(client for client, _, _ in self.declared)

    @property
    def single(self) -> int:
        """Cells of one row: each uploads that row's features in the clear."""
        return int((self.counts == 1).sum())

    def __add__(self, other: Self) -> Self:
        check_same_map(self, other)
        mine = {d[:2] for d in self.declared}
        if twice := sorted(mine & {d[:2] for d in other.declared}):
            raise Refused(
                f"Client {twice[0][0]} has already contributed to task {twice[0][1]}. Adding it "
                "again would count its rows twice; take the old contribution out first."
            )
        return self._sorted(
            torch.cat([self.keys, other.keys]),
            torch.cat([self.sums, other.sums]),
            torch.cat([self.counts, other.counts]),
            declared=tuple(sorted((*self.declared, *other.declared))),
            classes=tuple(sorted({*self.classes, *other.classes})),
            clipped=self.clipped + other.clipped,
            withheld=self.withheld + other.withheld,
        )

    def __sub__(self, other: Self) -> Self:
        check_same_map(self, other)
        gone = {d[:2] for d in other.declared}
        leaving = self.part(gone)
        if leaving != other:
            raise Refused(
                "What is to be taken out is not in these sums as it stands there: another upload "
                "of the same client, or one that never came."
            )
        rest = self.part({d[:2] for d in self.declared} - gone)
        return replace(
            rest, clipped=self.clipped - other.clipped, withheld=self.withheld - other.withheld
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UnitSums):
            return NotImplemented
        same = (self.map, self.grid, self.declared) == (other.map, other.grid, other.declared)
        return same and all(
            torch.equal(getattr(self, name), getattr(other, name))
            for name in ("keys", "counts", "sums")
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def hash(self) -> str:
        """SHA-256 of what the sums say; equal on every machine for equal exact sums."""
        return digest(
            f"{self.map} {self.grid} {self.declared}",
            (self.keys, self.counts, self.sums),
            whole=not self.grid.real,
        )

    def part(self, contributions: set[tuple[int, int]]) -> Self:
        """The cells of some (client, task) contributions."""
        pairs = [tuple(pair) for pair in self.keys[:, :2].tolist()]
        chosen = torch.tensor([pair in contributions for pair in pairs], dtype=torch.bool)
        chosen = chosen.to(self.keys.device)
        return replace(
            self,
            declared=tuple(d for d in self.declared if d[:2] in contributions),
            keys=self.keys[chosen],
            sums=self.sums[chosen],
            counts=self.counts[chosen],
        )

    def rows(self) -> Tensor:
        """The sums in the smallest form that holds them: integers where they are some."""
        return self.sums if self.grid.real else self.sums.to(torch.int64)

    def class_moments(self) -> tuple[tuple[int, ...], Tensor, Tensor]:
        """Class ids that hold rows, their sums (width x classes) and counts."""
        ids, index = torch.unique(self.keys[:, 3], return_inverse=True)
        # Integer sums are exact in any order; real ones are summed by a fixed product.
        sums = class_sums(self.sums, index, len(ids)).T.contiguous()
        counts = torch.zeros(len(ids), dtype=torch.int64, device=ids.device)
        return tuple(ids.tolist()), sums, counts.index_add(0, index, self.counts)

    def to(self, device: torch.device | str) -> Self:
        """The same value in the memory of another device."""
        return replace(self, **{n: getattr(self, n).to(device) for n in ("keys", "sums", "counts")})

    def to_parts(
        self, encoding: str, *, outline: bool = False
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain values and tensors of a message; `full` is the published dense float32 form.

        An outline leaves bit-packed data out, of which it has the length alone.
        """
        meta = {
            "map": self.map,
            "grid": self.grid.asdict(),
            "classes": self.classes,
            "declared": self.declared,
            "width": self.width,
            "clipped": self.clipped,
            "withheld": self.withheld,
        }
        if encoding == "full":
            return {**meta, "encoding": "full"}, {"cells": self._dense()}
        if encoding not in ("auto", "exact", "packed"):
            raise UsageError(
                f"Class sums by unit have no {encoding!r} encoding; there is auto, exact, packed "
                "and full."
            )
        tensors = {"keys": self.keys, "counts": self.counts}
        if self.grid.real:
            return {**meta, "encoding": "real"}, {**tensors, "sums": self.sums}
        parts = bits.outline(self.sums) if outline else bits.pack(self.sums)
        packed_sums = {f"sums.{name}": t for name, t in parts.items()}
        return {**meta, "encoding": "exact"}, {**tensors, **packed_sums}

    @classmethod
    def from_parts(cls, meta: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """The value a message holds."""
        header = UnitSumsHeader.of(meta)
        declared = tuple((c, t, u) for c, t, u in header.declared)
        classes, width = tuple(header.classes), header.width
        if header.encoding == "full":
            keys, sums, counts = _from_dense(tensors["cells"].double(), declared, classes)
        else:
            keys, counts = tensors["keys"], tensors["counts"]
            if header.encoding == "real":
                sums = tensors["sums"].double()
            else:
                parts = {name[5:]: t for name, t in tensors.items() if name.startswith("sums.")}
                sums = bits.unpack(parts, len(keys) * width).double().view(-1, width)
        _check_cells(keys, sums, counts, width, declared, classes)
        return cls(
            map=header.map,
            grid=header.grid.grid(),
            classes=classes,
            declared=declared,
            keys=keys,
            sums=sums,
            counts=counts,
            clipped=header.clipped,
            withheld=header.withheld,
        )

    def _dense(self) -> Tensor:
        """Units x classes x (width + 1) of one contribution, counts last, empty cells included."""
        if len(self.declared) != 1:
            raise Refused("Only one client's class sums have the published dense form.")
        cells = self.sums.new_zeros((self.declared[0][2], len(self.classes), self.width + 1))
        column = torch.tensor(
            [self.classes.index(c) for c in self.keys[:, 3].tolist()], dtype=torch.int64
        )
        cells[self.keys[:, 2], column.to(self.keys.device)] = torch.cat(
            [self.sums, self.counts[:, None].double()], 1
        )
        return cells.float()

    def _sorted(self, keys: Tensor, sums: Tensor, counts: Tensor, **changes: Any) -> Self:
        order = np.lexsort(keys.cpu().numpy().T[::-1])
        at = torch.from_numpy(order).to(keys.device)
        return replace(self, keys=keys[at], sums=sums[at], counts=counts[at], **changes)


def estimate_gram(sums: UnitSums, count: Count = "holders", shrink: float = 0.0) -> Tensor:
    """The Gram matrix estimated from class sums by unit, packed, in units of step^2.

    For a class with n rows in K_i units, means m_k, n_k rows each:

        G_i = S S^T / n + (n - 1) / (K_i - 1) * sum_k n_k (m_k - m)(m_k - m)^T

    `holders` takes K_i = the units that hold the class, which makes the expectation exactly G;
    `all` takes every unit, as published, which shrinks the scatter. A class held by one unit says
    nothing about its scatter and takes the pooled one of all classes. `shrink` moves every class's
    scatter toward the pooled one. All of it is a weight on each row of one product Z^T Z.

    The scatter is an estimate, off by percents, so its products are float32, at half the time; what
    is no estimate - the means, and cells of one row each - keeps full precision.
    """
    if not 0 <= shrink <= 1:
        raise UsageError(f"method.shrink = {shrink} must lie between 0 and 1.")
    if len(sums.counts) == 0:
        return packed.zeros(sums.width, sums.sums.device)
    if count == "holders" and sums.single == len(sums.counts):
        return packed.gram(sums.rows())
    ids, index = torch.unique(sums.keys[:, 3], return_inverse=True)
    groups = len(ids)
    n_k = sums.counts.double()
    n = n_k.new_zeros(groups).index_add_(0, index, n_k)
    S = class_sums(sums.sums, index, groups)
    holders = torch.bincount(index, minlength=groups).double()
    if count == "holders":
        scatter, mean = _unbiased_weights(n, holders, shrink)
    else:
        units = float(sum(units for _, _, units in sums.declared))
        scatter, mean = _published_weights(n, units)
    weight = (scatter[index] * n_k).sqrt()
    member = torch.nn.functional.one_hot(index, groups) * -weight[:, None]
    centred = torch.empty_like(sums.sums, dtype=torch.float32)
    torch.mul(sums.sums, (weight / n_k)[:, None], out=centred)
    centred.addmm_(member.float(), (S / n[:, None]).float())
    return packed.gram(centred) + packed.gram(S * mean.sqrt()[:, None])


def chain(before: str, hash: str) -> str:
    """One hash for a sequence of tasks' class sums."""
    return hashlib.sha256(f"{before}{hash}".encode()).hexdigest() if before else hash


def _unbiased_weights(n: Tensor, holders: Tensor, shrink: float) -> tuple[Tensor, Tensor]:
    """By class: the weight of its between-unit scatter, and of S S^T."""
    free = holders - 1
    own = torch.where(free > 0, (1 - shrink) * (n - 1) / free.clamp(min=1), 0.0)
    lent = torch.where(free > 0, shrink * (n - 1), n - 1).sum()
    pooled = lent / free.sum() if bool(free.sum() > 0) else lent * 0
    return torch.where(free > 0, own + pooled, 0.0), 1 / n


def _published_weights(n: Tensor, units: float) -> tuple[Tensor, Tensor]:
    """The reference's coefficients, clamped at zero, in centred form."""
    if units < 2:
        return torch.zeros_like(n), 1 / n
    a = ((n - 1) / (units - 1)).clamp(min=0)
    b = ((n - units) / (n * (units - 1))).clamp(min=0)
    return a, (a / n - b).clamp(min=0)


def _assign(rows: int, units: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Unit of each row: a random order cut into consecutive parts, the last takes the remainder."""
    unit = np.empty(rows, dtype=np.int64)
    size = rows // units
    part = np.full(rows, units - 1) if size == 0 else np.minimum(np.arange(rows) // size, units - 1)
    unit[rng.permutation(rows)] = part
    return unit


def _cells(
    labels: np.ndarray[Any, Any], unit: np.ndarray[Any, Any], min_cell: int
) -> tuple[list[tuple[int, int]], np.ndarray[Any, Any]]:
    """(unit, class) of each cell in ascending order, and each row's cell; -1 = withheld."""
    pairs, inverse, counts = np.unique(
        np.stack([labels, unit], 1), axis=0, return_inverse=True, return_counts=True
    )
    target = np.arange(len(pairs))
    last_full: dict[int, int] = {}
    open_cells: dict[int, list[int]] = {}
    held: dict[int, int] = {}
    for cell, (label, _) in enumerate(pairs.tolist()):
        waiting = open_cells.setdefault(label, [])
        waiting.append(cell)
        held[label] = held.get(label, 0) + int(counts[cell])
        if held[label] >= min_cell:
            target[waiting] = cell
            last_full[label], open_cells[label], held[label] = cell, [], 0
    for label, waiting in open_cells.items():
        target[waiting] = last_full.get(label, -1)
    merged = target[inverse.reshape(-1)]
    kept = np.unique(merged[merged >= 0])
    kept = kept[np.lexsort((pairs[kept, 0], pairs[kept, 1]))] if len(kept) else kept
    place = np.full(len(pairs) + 1, -1)
    place[kept] = np.arange(len(kept))
    return [(int(pairs[c, 1]), int(pairs[c, 0])) for c in kept], place[merged]


def _from_dense(
    cells: Tensor, declared: tuple[tuple[int, int, int], ...], classes: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    ((client, task, units),) = declared
    if cells.ndim != 3 or cells.shape[:2] != (units, len(classes)):
        raise DataError(f"The message's cells are not {units} units x {len(classes)} classes.")
    unit, column = cells[:, :, -1].nonzero(as_tuple=True)
    ids = torch.tensor(classes, device=cells.device, dtype=torch.int64)[column]
    keys = torch.stack([torch.full_like(unit, client), torch.full_like(unit, task), unit, ids], 1)
    chosen = cells[unit, column]
    return keys, chosen[:, :-1], chosen[:, -1].to(torch.int64)


def _check_cells(
    keys: Tensor,
    sums: Tensor,
    counts: Tensor,
    width: int,
    declared: tuple[tuple[int, int, int], ...],
    classes: tuple[int, ...],
) -> None:
    """Refuse cells that contradict each other or what the header declares."""
    whole = keys.dtype == counts.dtype == torch.int64 and keys.ndim == 2 and counts.ndim == 1
    fits = whole and keys.shape == (len(counts), 4) and sums.shape == (len(counts), width)
    if not fits or bool((counts < 1).any()):
        raise DataError("The message's cells, keys and counts do not fit together.")
    rows = [tuple(key) for key in keys.tolist()]
    units = {(client, task): count for client, task, count in declared}
    known = set(classes)
    if rows != sorted(set(rows)) or not all(
        0 <= unit < units.get((client, task), 0) and label in known
        for client, task, unit, label in rows
    ):
        raise DataError("The message holds cells that its header does not declare, or one twice.")
