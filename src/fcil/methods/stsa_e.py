"""STSA-E: clients upload class sums by unit; the server estimates G from them.

As STSA in everything else. The server must see each client's own sums, so secure summation cannot
cover this upload. See docs/methods/stsa-e.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, final

from pydantic import Field

from fcil import held_out, seeds
from fcil.errors import UsageError
from fcil.methods.parts import closed_form
from fcil.methods.parts.folding import folded
from fcil.protocol import Ask, Memory, Mergeable, Predictor, Shard, State, World
from fcil.stats import packed
from fcil.stats.moments import Moments
from fcil.stats.unit_sums import UnitSums, chain, estimate_gram


class Config(closed_form.Config):
    """STSA's settings and the estimator's."""

    units: Annotated[int, Field(ge=1)] = 50
    """Dummy clients K_D into which each client cuts its rows."""
    count: Literal["holders", "all"] = "holders"
    """Units counted for a class: those that hold it (unbiased), or all (as published)."""
    min_cell: Annotated[int, Field(ge=1)] = 1
    """Smallest number of rows whose sum may be uploaded."""
    shrink: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share by which each class's scatter is moved toward the pooled one."""
    measure_error: bool = False
    """Simulation only: also compute the exact Gram and record how far the estimate is off."""


@final
@dataclass(frozen=True)
class StsaE(closed_form.FirstStage):
    """Class sums by unit, an estimated Gram, one ridge solve."""

    config: Config

    Config = Config
    pools_data = False

    def start(self, world: World) -> State:
        """An untrained network and no statistics."""
        if world.settings.upload.encoding in ("factor", "int16"):
            raise UsageError(
                f"upload.encoding = {world.settings.upload.encoding} encodes a Gram matrix, and "
                "stsa-e uploads none: take auto, exact, packed or full."
            )
        if self.config.chooses:
            held_out.fold_units(self.config.units, self.config.gamma_fold)  # refuses too few
        estimator = {"measured": 0, "exact_gram": None, "error": None}
        return {
            **closed_form.start(world, self.config),
            **estimator,
            "cells": 0,
            "single": 0,
            "withheld": 0,
        }

    def asks(self, world: World, task: int) -> int:
        """How many asks a task takes."""
        return closed_form.asks(world, task) + self.config.measure_error

    def ask(self, world: World, state: State, task: int) -> Ask | None:
        """As STSA, and the exact Gram where its error is to be measured."""
        asked = closed_form.ask(world, self.config, state, task)
        if asked is not None or not self.config.measure_error or state["measured"] > task:
            return asked
        values = closed_form.map_values(self.config, state)
        return Ask("exact", task, counted=False, lasting=state["extractor"], values=values)

    def answer(
        self, world: World, ask: Ask, client: int, shard: Shard, memory: Memory
    ) -> tuple[Mergeable, Memory]:
        """A client's class sums by unit; it keeps nothing."""
        shared = closed_form.answer(world, ask, client, shard)
        if shared is not None:
            return shared, memory
        phi = closed_form.phi(world, ask, shard)
        if ask.stage == "exact":
            return Moments.of(phi, shard.labels), memory
        sums = UnitSums.of(
            phi,
            shard.labels,
            units=self.config.units,
            rng=seeds.generator(world.seed, "units", ask.task, client),
            client=client,
            task=ask.task,
            classes=ask.values["classes"],
            min_cell=self.config.min_cell,
        )
        return sums, memory

    def absorb(
        self, world: World, state: State, ask: Ask, uploads: Iterator[tuple[int, Mergeable]]
    ) -> State:
        """Estimate this task's Gram, add it to the total and solve."""
        if ask.stage == "exact":
            return self._measured(state, uploads)
        if ask.stage != "statistics":
            return closed_form.absorb(world, state, ask, uploads)
        sums = folded(uploads, UnitSums)
        total, fold = self._estimated(sums)
        if state["total"] is not None:
            total = state["total"] + total
            fold = fold and state["fold"] + fold
        hash = chain(state.get("hash", ""), sums.hash)
        seen = {
            "cells": state["cells"] + len(sums.counts),
            "single": state["single"] + sums.single,
            "withheld": state["withheld"] + sums.withheld,
        }
        exact = not sums.grid.real and world.settings.upload.encoding != "full"
        return closed_form.solved(
            world, self.config, {**state, **seen}, total, fold, hash=hash, exact=exact
        )

    def predictor(self, world: World, state: State) -> Predictor:
        """The ridge head over the classes seen so far."""
        return closed_form.predictor(world, self.config, state)

    def report(self, world: World, state: State) -> Mapping[str, Any]:
        """What the record holds of this task."""
        common = closed_form.report(world, state)
        return {
            **common,
            "estimate_error": state["error"],
            "notes": [*common["notes"], *self._notes(state)],
        }

    def _estimated(self, sums: UnitSums) -> tuple[Moments, Moments | None]:
        """The moments that a task's sums stand for, and those of the units held out."""
        if not self.config.chooses:
            return self._moments(sums), None
        rest, fold = held_out.parts(sums, self.config.gamma_fold)
        held = self._moments(fold)
        classes, cross, counts = held_out.cells(fold).class_moments()
        finer = replace(held, classes=classes, cross=cross, counts=counts)
        return self._moments(rest) + held, finer

    def _moments(self, sums: UnitSums) -> Moments:
        classes, cross, counts = sums.class_moments()
        return Moments(
            map=sums.map,
            grid=sums.grid,
            classes=classes,
            gram=estimate_gram(sums, self.config.count, self.config.shrink),
            cross=cross,
            counts=counts,
            exact=False,
            clipped=sums.clipped,
        )

    def _measured(self, state: State, uploads: Iterator[tuple[int, Mergeable]]) -> State:
        exact = folded(uploads, Moments, state["exact_gram"])
        truth, estimate, width = exact.gram, state["total"].gram, exact.width
        trace = packed.diagonal(truth, width).sum()
        error = {
            "frobenius": packed.norm(estimate - truth, width) / packed.norm(truth, width),
            "trace_bias": float((packed.diagonal(estimate, width).sum() - trace) / trace),
        }
        return {**state, "measured": state["measured"] + 1, "exact_gram": exact, "error": error}

    def _notes(self, state: State) -> list[str]:
        notes = []
        if state["single"]:
            notes.append(
                f"{state['single']} of {state['cells']} cells hold a single image, whose features "
                "were uploaded in the clear; method.min_cell = 2 prevents it."
            )
        if state["withheld"]:
            notes.append(
                f"{state['withheld']} images were withheld because their client holds fewer than "
                f"min_cell = {self.config.min_cell} of their class."
            )
        return notes
