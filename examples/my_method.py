"""A method outside the package: nearest class mean over frozen features (the classifier of FedNCM).

Clients upload a sum and a count for each class, once a task; the server divides and compares
directions. Nothing is solved and G is never made. docs/add-a-method.md explains it part by part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self, final

import torch
from pydantic import Field
from torch import Tensor

from fcil import ridge
from fcil.methods.parts import closed_form
from fcil.protocol import Ask, Memory, Mergeable, Predictor, Shard, State, World
from fcil.settings import Block
from fcil.stats import codec
from fcil.stats.features import Features
from fcil.stats.grid import Grid
from fcil.stats.moments import check_same_map, class_sums


@dataclass(frozen=True, eq=False)
class ClassSums:
    """What one client says about one task: a sum and a count for every class of the data set."""

    map: str
    grid: Grid
    sums: Tensor
    """Classes x width, float64, in units of the grid's step."""
    counts: Tensor
    """Rows by class, int64."""

    kind = "class-sums"

    @classmethod
    def of(cls, phi: Features, labels: Tensor, classes: int) -> Self:
        """The sums of some rows."""
        sums = class_sums(phi.values, labels, classes)
        return cls(phi.map, phi.grid, sums, torch.bincount(labels, minlength=classes))

    @property
    def width(self) -> int:
        """M."""
        return int(self.sums.shape[1])

    def __add__(self, other: Self) -> Self:
        check_same_map(self, other)
        return replace(self, sums=self.sums + other.sums, counts=self.counts + other.counts)

    def __sub__(self, other: Self) -> Self:
        check_same_map(self, other)
        return replace(self, sums=self.sums - other.sums, counts=self.counts - other.counts)

    def to_parts(self, encoding: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain values and tensors of a message: only the classes that hold rows."""
        ids = self.counts.nonzero()[:, 0]
        meta = {"map": self.map, "grid": self.grid.asdict(), "of": len(self.counts)}
        return meta, {"ids": ids, "sums": self.sums[ids], "counts": self.counts[ids]}

    @classmethod
    def from_parts(cls, meta: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """The value a message holds."""
        ids, found = tensors["ids"], tensors["sums"]
        sums = found.new_zeros((meta["of"], found.shape[1]))
        counts = tensors["counts"].new_zeros(meta["of"])
        sums[ids], counts[ids] = found, tensors["counts"]
        return cls(meta["map"], Grid(**meta["grid"]), sums, counts)


codec.KINDS[ClassSums.kind] = ClassSums  # so that messages and checkpoints can bring it back


class Config(Block):
    """Settings; the first stage and the features have blocks of their own."""

    projection: Annotated[int, Field(ge=0)] = 0
    """Width of the random ReLU layer; 0 = the network's own features."""


@final
@dataclass(frozen=True)
class NearestMean:
    """Class sums and counts, no solve: the nearest class mean by angle."""

    config: Config

    Config = Config
    pools_data = False

    def start(self, world: World) -> State:
        """An untrained network and no sums."""
        return closed_form.start(world, self._map)

    def asks(self, world: World, task: int) -> int:
        """How many asks a task takes."""
        return closed_form.asks(world, task)

    def ask(self, world: World, state: State, task: int) -> Ask | None:
        """Training and calibration in the first task, then one ask a task."""
        return closed_form.ask(world, self._map, state, task)

    def answer(
        self, world: World, ask: Ask, client: int, shard: Shard, memory: Memory
    ) -> tuple[Mergeable, Memory]:
        """A client's class sums; it keeps nothing."""
        shared = closed_form.answer(world, ask, client, shard)
        if shared is not None:
            return shared, memory
        phi = closed_form.phi(world, ask, shard)
        return ClassSums.of(phi, shard.labels, world.spec.classes), memory

    def absorb(
        self, world: World, state: State, ask: Ask, uploads: Iterator[tuple[int, Mergeable]]
    ) -> State:
        """Add the uploads to the total."""
        if ask.stage != "statistics":
            return closed_form.absorb(world, state, ask, uploads)
        total: ClassSums | None = state["total"]
        for _, upload in uploads:
            assert isinstance(upload, ClassSums)
            total = upload if total is None else total + upload
        return {**state, "tasks": state["tasks"] + 1, "total": total}

    def predictor(self, world: World, state: State) -> Predictor:
        """The mean of each class that holds rows, as a linear head under the cosine rule."""
        total: ClassSums = state["total"]
        source = closed_form.mapped(world, self._map, state)
        ids = total.counts.nonzero()[:, 0]
        means = total.sums[ids] / total.counts[ids, None]
        head = ridge.Head(means.T, tuple(ids.tolist()), rule="cosine")
        return closed_form.RidgePredictor(source, head)

    def report(self, world: World, state: State) -> Mapping[str, Any]:
        """What the record holds of this task."""
        first = state["tasks"] == 1
        return {
            "fingerprint": state["total"].map,
            "gradient_steps": state["steps"] if first else 0,
        }

    @property
    def _map(self) -> closed_form.Config:
        return closed_form.Config(projection=self.config.projection)
