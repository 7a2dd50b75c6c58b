"""STSA: each client uploads its moments (G, C) once a task; the server adds them and solves.

Paper: "Enhancing Federated Class-Incremental Learning via Spatial-Temporal Statistics
Aggregation", arXiv 2506.01327. See docs/methods/stsa.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from fcil import held_out, seeds
from fcil.methods.parts import closed_form
from fcil.methods.parts.folding import folded
from fcil.protocol import Ask, Memory, Mergeable, Predictor, Shard, State, World
from fcil.stats.moments import Moments
from fcil.stats.with_fold import MomentsWithFold


@final
@dataclass(frozen=True)
class Stsa(closed_form.FirstStage):
    """Additive moments, one ridge solve."""

    config: closed_form.Config

    Config = closed_form.Config
    pools_data = False

    def start(self, world: World) -> State:
        """An untrained network and no statistics."""
        return closed_form.start(world, self.config)

    def asks(self, world: World, task: int) -> int:
        """How many asks a task takes."""
        return closed_form.asks(world, task)

    def ask(self, world: World, state: State, task: int) -> Ask | None:
        """Training rounds in the first task, then one ask a task."""
        return closed_form.ask(world, self.config, state, task)

    def answer(
        self, world: World, ask: Ask, client: int, shard: Shard, memory: Memory
    ) -> tuple[Mergeable, Memory]:
        """A client's moments; it keeps nothing."""
        shared = closed_form.answer(world, ask, client, shard)
        if shared is not None:
            return shared, memory
        phi = closed_form.phi(world, ask, shard)
        if not self.config.chooses:
            return Moments.of(phi, shard.labels, ask.values["classes"]), memory
        rng = seeds.generator(world.seed, "units", ask.task, client)
        slots = held_out.slots(shard.labels, self.config.gamma_fold, rng)
        return MomentsWithFold.of(phi, shard.labels, slots, ask.values["classes"]), memory

    def absorb(
        self, world: World, state: State, ask: Ask, uploads: Iterator[tuple[int, Mergeable]]
    ) -> State:
        """Add the uploads to the total and solve."""
        if ask.stage != "statistics":
            return closed_form.absorb(world, state, ask, uploads)
        total, fold = self._sums(state, uploads)
        return closed_form.solved(
            world, self.config, state, total, fold, hash=total.hash, exact=total.exact
        )

    def _sums(
        self, state: State, uploads: Iterator[tuple[int, Mergeable]]
    ) -> tuple[Moments, Moments | None]:
        """The moments of all rows so far, and of those held out where some are."""
        if not self.config.chooses:
            return folded(uploads, Moments, state["total"]), None
        before = state["total"] and MomentsWithFold(state["total"], state["fold"])
        both = folded(uploads, MomentsWithFold, before)
        return both.total, both.fold

    def predictor(self, world: World, state: State) -> Predictor:
        """The ridge head over the classes seen so far."""
        return closed_form.predictor(world, self.config, state)

    def report(self, world: World, state: State) -> Mapping[str, Any]:
        """What the record holds of this task."""
        return closed_form.report(world, state)
