"""Joint training: one network on all data of all tasks at once. The upper bound; not federated.

See docs/methods/joint.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, final

from pydantic import Field

from fcil.methods.parts import federated
from fcil.methods.parts.inference import NetworkPredictor
from fcil.protocol import Ask, Memory, Mergeable, Predictor, Shard, State, World
from fcil.settings import Block
from fcil.training import cross_entropy


class Config(Block):
    """Settings; rates, batch and augmentation are those of `first_stage`."""

    epochs: Annotated[int, Field(ge=1)] | None = None
    """Passes over all data; empty = rounds x epochs of the first stage, the federated budget."""


@final
@dataclass(frozen=True)
class Joint:
    """Centralised training; an epoch is an ask, the optimiser is never restarted."""

    config: Config

    Config = Config
    pools_data = True

    def start(self, world: World) -> State:
        """An untrained network with a head for all classes."""
        federated.refuse_rotation(world, "joint training")
        classes = len(world.seen(len(world.tasks) - 1))
        return {"model": federated.initial(world, classes), "epoch": 0, "steps": 0}

    def asks(self, world: World, task: int) -> int:
        """How many asks a task takes."""
        return self._epochs(world) if task == len(world.tasks) - 1 else 0

    def ask(self, world: World, state: State, task: int) -> Ask | None:
        """Nothing before the last task, then one epoch after another."""
        epoch, epochs = state["epoch"], self._epochs(world)
        if task < len(world.tasks) - 1 or epoch >= epochs:
            return None
        scheduled = world.settings.first_stage.model_copy(update={"rounds": epochs})
        settings = world.settings.model_copy(update={"first_stage": scheduled})
        asked = federated.ask(replace(world, settings=settings), state["model"], 0, epoch)
        return replace(asked, task=task, clients=None, pooled=True, first_stage=False)

    def answer(
        self, world: World, ask: Ask, client: int, shard: Shard, memory: Memory
    ) -> tuple[Mergeable, Memory]:
        """One epoch; the holder of the data keeps the momentum."""
        return federated.answer(
            world, replace(ask, task=0), 0, shard, loss=cross_entropy, epochs=1, memory=memory
        )

    def absorb(
        self, world: World, state: State, ask: Ask, uploads: Iterator[tuple[int, Mergeable]]
    ) -> State:
        """The network after one more epoch."""
        model, steps = federated.averaged(uploads, ask.payload)
        return {"model": model, "epoch": ask.round + 1, "steps": state["steps"] + steps}

    def predictor(self, world: World, state: State) -> Predictor | None:
        """None before the network has been trained."""
        return NetworkPredictor(world, state["model"]) if state["epoch"] else None

    def report(self, world: World, state: State) -> Mapping[str, Any]:
        """What the record holds of this task."""
        return {"gradient_steps": state["steps"]}

    def _epochs(self, world: World) -> int:
        stage = world.settings.first_stage
        return self.config.epochs or federated.rounds(world) * stage.epochs
