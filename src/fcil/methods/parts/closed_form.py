"""What STSA and STSA-E share: train a network on the first task, freeze it, agree on a grid, then
one statistics ask a task and one ridge solve. They differ in the statistic alone.

State: `model` (what travels while training), `network` (the frozen backbone), `frozen` (its
fingerprint), `round`, `reach`, `tasks` (statistics absorbed so far), `steps`, `total` (running
moments), `head` (W), and what the record wants: `solver`, `hash`,
`exact`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from torch import Tensor

from fcil import ridge
from fcil.features import (
    FeatureMap,
    FrozenNetwork,
    MappedNetwork,
    check_reading,
    frozen_network,
    network_fingerprint,
)
from fcil.methods.parts import federated
from fcil.methods.parts.folding import folded
from fcil.protocol import Ask, Mergeable, Shard, State, World
from fcil.settings import Block
from fcil.stats.extent import Extent, Reach
from fcil.stats.features import Features
from fcil.stats.moments import Moments
from fcil.training import cross_entropy

Gamma = Annotated[float | str, AfterValidator(ridge.check_gamma)]


class Config(Block):
    """Settings of both methods."""

    projection: Annotated[int, Field(ge=0)] = 5000
    """Width M of the random ReLU layer; 0 = none."""
    predict: Literal["linear", "cosine"] = "linear"
    """`cosine` brings each class's weights to length one, as the reference code does."""
    gamma: Gamma = "0.003r"
    """The ridge: a number, or "0.003r" = so many times the Gram's mean diagonal."""


def start(world: World) -> State:
    """An untrained network and no statistics."""
    check_reading(world)
    angles = 4 if world.settings.first_stage.rotation else 1
    state = {
        "model": federated.initial(world, angles * len(world.tasks[0])),
        "round": 0,
        "steps": 0,
        "reach": None,
        "tasks": 0,
        "total": None,
    }
    return state if federated.rounds(world) else _freeze(world, state)


def asks(world: World, task: int) -> int:
    """How many asks a task takes."""
    needs_reach = world.settings.features.bits > 0
    return 1 + (federated.rounds(world) + needs_reach if task == 0 else 0)


def ask(world: World, config: Config, state: State, task: int) -> Ask | None:
    """Training rounds, how far features reach, then each task's statistics."""
    if state["round"] < federated.rounds(world):
        return federated.ask(world, state["model"], 0, state["round"])
    values = map_values(config, state)
    if world.settings.features.bits and state["reach"] is None:
        return Ask("calibrate", task, lasting=state["network"], values=values)
    if state["tasks"] <= task:
        values["classes"] = list(world.tasks[task])
        return Ask("statistics", task, lasting=state["network"], values=values)
    return None


def map_values(config: Config, state: State) -> dict[str, Any]:
    """What an ask says of the feature map: which network, how wide, on which grid."""
    return {"network": state["frozen"], "width": config.projection, "reach": state["reach"]}


def answer(world: World, ask: Ask, client: int, shard: Shard) -> Mergeable | None:
    """The answer to all asks but the method's own statistics."""
    if ask.stage == "train":
        return federated.answer(world, ask, client, shard, loss=cross_entropy)[0]
    if ask.stage == "calibrate":
        network = _network(world, ask)
        with world.clock("extract"):
            vectors = shard.features(network)
        real = _map(world, network, ask.values["width"], bits=0, reach=Reach())
        return real.extent(vectors)
    return None


def answers(
    world: World, ask: Ask, shards: Mapping[int, Shard]
) -> Iterator[tuple[int, Mergeable]] | None:
    """Several clients' answers at once, where that is faster."""
    if ask.stage != "train":
        return None
    return federated.answers(world, ask, shards, loss=cross_entropy)


def phi(world: World, ask: Ask, shard: Shard) -> Features:
    """The shard's features on the agreed grid."""
    network = _network(world, ask)
    with world.clock("extract"):
        vectors = shard.features(network)
    return feature_map(world, network, ask.values)(vectors)


def absorb(world: World, state: State, ask: Ask, uploads: Iterator[tuple[int, Mergeable]]) -> State:
    """The state after training or calibration."""
    if ask.stage == "train":
        model, steps = federated.averaged(uploads, state["model"])
        trained = {
            **state,
            "model": model,
            "round": ask.round + 1,
            "steps": state["steps"] + steps,
        }
        return _freeze(world, trained) if ask.round + 1 == federated.rounds(world) else trained
    return {**state, "reach": list(folded(uploads, Extent).reach())}


def _freeze(world: World, state: State) -> State:
    """The state once no weight changes any more: the head is dropped, the backbone named."""
    whole = federated.load(world, state["model"]).state_dict()
    network = {name: t.detach().clone() for name, t in federated.backbone_part(whole).items()}
    name = network_fingerprint(world, network)
    return {**state, "model": {}, "network": network, "frozen": name}


def solved(
    world: World, config: Config, state: State, total: Moments, *, hash: str, exact: bool
) -> State:
    """The state after a task's statistics: the total, and the head that follows from it."""
    with world.clock("solve"):
        head = ridge.solve(total, config.gamma, rule=config.predict)
    assert head.report is not None
    return {
        **state,
        "tasks": state["tasks"] + 1,
        "total": total,
        "head": head.weights,
        "solver": head.report.asdict(),
        "hash": hash,
        "exact": exact,
    }


@dataclass(frozen=True)
class RidgePredictor:
    """Test images -> phi -> ridge scores."""

    source: MappedNetwork
    head: ridge.Head

    def __call__(self, shard: Shard) -> Tensor:
        """Class ids, one a row."""
        values = shard.features(self.source)
        return self.head.predict(Features(values, self.source.phi.grid, self.source.fingerprint))


def predictor(world: World, config: Config, state: State) -> RidgePredictor:
    """The classifier after the statistics of a task."""
    network = frozen_network(world, state["network"], state["frozen"])
    head = ridge.Head(state["head"], state["total"].present().classes, config.predict)
    return RidgePredictor(
        MappedNetwork(network, feature_map(world, network, map_values(config, state))), head
    )


def report(state: State) -> dict[str, Any]:
    """What the record holds of the last task."""
    moments: Moments = state["total"]
    return {
        "fingerprint": moments.map,
        "gradient_steps": state["steps"] if state["tasks"] == 1 else 0,
        "solver": state["solver"],
        "statistics": {
            "hash": state["hash"],
            "exact": state["exact"],
            "clipped": moments.clipped,
            "rows": moments.rows,
        },
    }


def feature_map(world: World, network: FrozenNetwork, values: Mapping[str, Any]) -> FeatureMap:
    """The map that an ask's values name."""
    reach = Reach(*values["reach"]) if values["reach"] is not None else Reach()
    return _map(world, network, values["width"], world.settings.features.bits, reach)


def _map(world: World, network: FrozenNetwork, width: int, bits: int, reach: Reach) -> FeatureMap:
    return FeatureMap.on_grid(network.fingerprint, network.width, width, world.seed, bits, reach)


def _network(world: World, ask: Ask) -> FrozenNetwork:
    return frozen_network(world, ask.lasting, ask.values["network"])
