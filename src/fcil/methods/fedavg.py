"""FedAvg fine-tuning: every task trains on from the last network; nothing protects old classes.

The lower bound, and the base every weight-averaging method is checked against. See
docs/methods/fedavg.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

from fcil.methods.parts import federated
from fcil.methods.parts.inference import NetworkPredictor
from fcil.protocol import Ask, Memory, Mergeable, Predictor, Shard, State, World
from fcil.settings import Block
from fcil.training import Loss, cross_entropy, masked_cross_entropy


class Config(Block):
    """Settings; rounds, rates and augmentation are those of `first_stage`."""

    loss: Literal["masked", "plain"] = "masked"
    """`masked`: only the current task's outputs enter the softmax; `plain`: all seen ones."""


@final
@dataclass(frozen=True)
class FedAvg:
    """Federated averaging, task after task."""

    config: Config

    Config = Config
    pools_data = False

    def start(self, world: World) -> State:
        """An untrained network with a head for the first task."""
        federated.refuse_rotation(world, "fedavg fine-tuning")
        model = federated.initial(world, len(world.tasks[0]))
        return {"model": model, "task": 0, "round": 0, "steps": 0}

    def asks(self, world: World, task: int) -> int:
        """How many asks a task takes."""
        return federated.rounds(world)

    def ask(self, world: World, state: State, task: int) -> Ask | None:
        """The same rounds in every task."""
        fresh = state["task"] < task
        round = 0 if fresh else state["round"]
        if round >= federated.rounds(world):
            return None
        outputs, known = len(world.seen(task)), len(world.seen(task - 1)) if task else 0
        model = state["model"]
        if fresh:
            model = federated.grown(world, model, task, outputs)
        return federated.ask(world, model, task, round, known=known)

    def answer(
        self, world: World, ask: Ask, client: int, shard: Shard, memory: Memory
    ) -> tuple[Mergeable, Memory]:
        """A client's trained network; it keeps nothing."""
        return federated.answer(world, ask, client, shard, loss=self._loss(ask))[0], memory

    def answers(
        self, world: World, ask: Ask, shards: Mapping[int, Shard]
    ) -> Iterator[tuple[int, Mergeable]] | None:
        """Several clients' training at once."""
        return federated.answers(world, ask, shards, loss=self._loss(ask))

    def _loss(self, ask: Ask) -> Loss:
        masked = self.config.loss == "masked" and ask.values["known"]
        return masked_cross_entropy(ask.values["known"]) if masked else cross_entropy

    def absorb(
        self, world: World, state: State, ask: Ask, uploads: Iterator[tuple[int, Mergeable]]
    ) -> State:
        """The averaged network."""
        model, steps = federated.averaged(uploads, ask.payload)
        before = state["steps"] if state["task"] == ask.task else 0
        return {"model": model, "task": ask.task, "round": ask.round + 1, "steps": before + steps}

    def predictor(self, world: World, state: State) -> Predictor:
        """The network with its head over all classes seen so far."""
        return NetworkPredictor(world, state["model"])

    def report(self, world: World, state: State) -> Mapping[str, Any]:
        """What the record holds of this task."""
        return {"gradient_steps": state["steps"]}
