"""What STSA and STSA-E share: train a network on the first task, freeze it, agree on a grid, then
one statistics ask a task and one ridge solve. They differ in the statistic alone.

State: `model` (what travels while training), `network` (the frozen backbone), `dictionary` (how
far the making of patch filters is), `extractor` (all frozen tensors), `frozen` (their
fingerprint), `round`, `reach`, `tasks` (statistics absorbed so far), `steps`, `total` (running
moments), `fold` (those held out, where gamma is chosen by the data), `multiple` (gamma over the
mean diagonal, last chosen), `head` (W), and what the record wants: `solver`, `hash`, `exact`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from torch import Tensor

from fcil import held_out, ridge
from fcil.features import (
    JoinedMap,
    MappedSources,
    Sources,
    frozen_sources,
    network_part,
    reads_network,
    sources_fingerprint,
    width_of,
    with_patches,
)
from fcil.memory import check_width
from fcil.methods.parts import dictionary, federated
from fcil.methods.parts.folding import folded
from fcil.protocol import Ask, Mergeable, Shard, State, World
from fcil.settings import Block
from fcil.stats.extent import Extent, Reach
from fcil.stats.features import Features
from fcil.stats.moments import Moments
from fcil.training import cross_entropy

AUTO = "auto"


def _checked(gamma: float | str) -> float | str:
    try:
        return gamma if gamma == AUTO else ridge.check_gamma(gamma)
    except ValueError as why:
        raise ValueError(
            f"{why}: give a number, a multiple of the mean diagonal such as 0.003r, or auto"
        ) from None


Gamma = Annotated[float | str, AfterValidator(_checked)]


class Config(Block):
    """Settings of both methods."""

    projection: Annotated[int, Field(ge=0)] = 5000
    """Width M of the random ReLU layer on the network; 0 = none."""
    predict: Literal["linear", "cosine"] = "linear"
    """`cosine` brings each class's weights to length one, as the reference code does."""
    gamma: Gamma = "0.003r"
    """The ridge: a number, "0.003r" = so many times the Gram's mean diagonal, or `auto` = chosen
    by the statistics of rows that each client holds out."""
    gamma_fold: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    """`auto`: share of the rows that is held out while gamma is chosen."""

    @property
    def chooses(self) -> bool:
        """Whether gamma is chosen by the data."""
        return self.gamma == AUTO


def start(world: World, config: Config) -> State:
    """An untrained network and no statistics."""
    dictionary.check(world)
    width = width_of(world, config.projection)
    widest = "features.patches" if world.settings.features.patches else "method.projection"
    check_width(width, world.device, folds=config.chooses, what=widest)
    state: State = {
        "model": {},
        "network": {},
        "dictionary": None,
        "extractor": None,
        "frozen": None,
        "round": 0,
        "steps": 0,
        "reach": None,
        "tasks": 0,
        "total": None,
        "fold": None,
        "multiple": None,
    }
    if reads_network(world.settings):
        angles = 4 if world.settings.first_stage.rotation else 1
        state = {**state, "model": federated.initial(world, angles * len(world.tasks[0]))}
    return state if _rounds(world) else _freeze(world, state)


class FirstStage:
    """The first stage as a simulation may treat it: clients together, and runs together."""

    def answers(
        self, world: World, ask: Ask, shards: Mapping[int, Shard]
    ) -> Iterator[tuple[int, Mergeable]] | None:
        """Several clients' training at once, where that is faster."""
        if ask.stage != "train":
            return None
        return federated.answers(world, ask, shards, loss=cross_entropy)

    def trained(self, world: World, state: State) -> State | None:
        """The network, once it is frozen; None before, or without a first stage."""
        if not _rounds(world) or state["round"] < _rounds(world):
            return None
        network = network_part(state["extractor"] or state["network"])
        return {"network": network, "round": state["round"], "steps": state["steps"]}

    def adopt(self, world: World, state: State, trained: State) -> State:
        """The starting state with a network that another run trained in the same way."""
        return _extracting(world, {**state, **trained, "model": {}})


def asks(world: World, task: int) -> int:
    """How many asks a task takes."""
    once = _rounds(world) + dictionary.asks(world) + _calibrates(world)
    return 1 + (once if task == 0 else 0)


def ask(world: World, config: Config, state: State, task: int) -> Ask | None:
    """Training rounds, patch filters, how far features reach, then each task's statistics."""
    if state["round"] < _rounds(world):
        return federated.ask(world, state["model"], 0, state["round"])
    if state["extractor"] is None:
        return dictionary.ask(world, state["dictionary"])
    values = map_values(config, state)
    if _calibrates(world) and state["reach"] is None:
        return Ask("calibrate", task, lasting=state["extractor"], values=values)
    if state["tasks"] <= task:
        values["classes"] = list(world.tasks[task])
        return Ask("statistics", task, lasting=state["extractor"], values=values)
    return None


def map_values(config: Config, state: State) -> dict[str, Any]:
    """What an ask says of the feature map: which network, how wide, on which grid."""
    return {"network": state["frozen"], "width": config.projection, "reach": state["reach"]}


def answer(world: World, ask: Ask, client: int, shard: Shard) -> Mergeable | None:
    """The answer to all asks but the method's own statistics."""
    if ask.stage == "train":
        return federated.answer(world, ask, client, shard, loss=cross_entropy)[0]
    if ask.stage in dictionary.STAGES:
        return dictionary.answer(world, ask, client, shard)
    if ask.stage == "calibrate":
        sources = frozen_sources(world, ask.lasting, ask.values["network"])
        real = sources.joined(ask.values["width"], world.seed, 0, Reach())
        return real.extent(_vectors(world, sources, shard))
    return None


def phi(world: World, ask: Ask, shard: Shard) -> Features:
    """The shard's features on the agreed grid."""
    sources = frozen_sources(world, ask.lasting, ask.values["network"])
    vectors = _vectors(world, sources, shard)
    return feature_map(world, sources, ask.values)(vectors)


def absorb(world: World, state: State, ask: Ask, uploads: Iterator[tuple[int, Mergeable]]) -> State:
    """The state after training, a step toward patch filters, or calibration."""
    if ask.stage == "train":
        model, steps = federated.averaged(uploads, state["model"])
        trained = {
            **state,
            "model": model,
            "round": ask.round + 1,
            "steps": state["steps"] + steps,
        }
        return _freeze(world, trained) if ask.round + 1 == _rounds(world) else trained
    if ask.stage in dictionary.STAGES:
        return _extracting(
            world,
            {**state, "dictionary": dictionary.absorb(world, state["dictionary"], ask, uploads)},
        )
    return {**state, "reach": list(folded(uploads, Extent).reach())}


def _rounds(world: World) -> int:
    return federated.rounds(world) if reads_network(world.settings) else 0


def _calibrates(world: World) -> bool:
    """Whether the grid depends on the features: not for real numbers of a single source."""
    features = world.settings.features
    return features.bits > 0 or (features.patches > 0 and reads_network(world.settings))


def _freeze(world: World, state: State) -> State:
    """The state once no weight changes any more: the head is dropped."""
    network: dict[str, Tensor] = {}
    if state["model"]:
        whole = federated.load(world, state["model"]).state_dict()
        network = {name: t.detach().clone() for name, t in federated.backbone_part(whole).items()}
    return _extracting(world, {**state, "model": {}, "network": network})


def _extracting(world: World, state: State) -> State:
    """The state with the whole extractor named, as soon as all of it is there."""
    extractor: Mapping[str, Tensor] = state["network"]
    if world.settings.features.patches:
        found = dictionary.finished(world, state["dictionary"])
        if found is None:
            return state
        extractor = with_patches(extractor, found)
    name = sources_fingerprint(world, extractor)
    return {**state, "network": {}, "dictionary": None, "extractor": extractor, "frozen": name}


def solved(
    world: World,
    config: Config,
    state: State,
    total: Moments,
    fold: Moments | None,
    *,
    hash: str,
    exact: bool,
) -> State:
    """The state after a task's statistics: the total, and the head that follows from it."""
    gamma, multiple, chosen = config.gamma, state["multiple"], {}
    with world.clock("solve"):
        if fold is not None:
            choice = held_out.choose(total, fold, start=multiple, rule=config.predict)
            gamma, multiple = choice.gamma, choice.multiple
            chosen = {"multiple": multiple, "curve": choice.curve, "border": choice.border}
        head = ridge.solve(total, gamma, rule=config.predict)
    assert head.report is not None
    return {
        **state,
        "tasks": state["tasks"] + 1,
        "total": total,
        "fold": fold,
        "multiple": multiple,
        "head": head.weights,
        "solver": {**head.report.asdict(), **chosen},
        "hash": hash,
        "exact": exact,
    }


@dataclass(frozen=True)
class RidgePredictor:
    """Test images -> phi -> ridge scores."""

    source: MappedSources
    head: ridge.Head

    def __call__(self, shard: Shard) -> Tensor:
        """Class ids, one a row."""
        values = shard.features(self.source)
        return self.head.predict(Features(values, self.source.phi.grid, self.source.fingerprint))


def predictor(world: World, config: Config, state: State) -> RidgePredictor:
    """The classifier after the statistics of a task."""
    head = ridge.Head(state["head"], state["total"].present().classes, config.predict)
    return RidgePredictor(mapped(world, config, state), head)


def mapped(world: World, config: Config, state: State) -> MappedSources:
    """Images to phi, as agreed."""
    sources = frozen_sources(world, state["extractor"], state["frozen"])
    return MappedSources(sources.all, feature_map(world, sources, map_values(config, state)))


def report(world: World, state: State) -> dict[str, Any]:
    """What the record holds of the last task."""
    moments: Moments = state["total"]
    sources = frozen_sources(world, state["extractor"], state["frozen"])
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
        "notes": [sources.patches.note] if sources.patches and sources.patches.note else [],
    }


def feature_map(world: World, sources: Sources, values: Mapping[str, Any]) -> JoinedMap:
    """The map that an ask's values name."""
    reach = Reach(*values["reach"]) if values["reach"] is not None else Reach()
    return sources.joined(values["width"], world.seed, world.settings.features.bits, reach)


def _vectors(world: World, sources: Sources, shard: Shard) -> list[Tensor]:
    with world.clock("extract"):
        return [shard.features(source) for source in sources.all]
