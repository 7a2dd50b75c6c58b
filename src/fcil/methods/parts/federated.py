"""Federated training of a classifier: what is asked, how a client answers, how it is averaged.

Only what trains travels: parameters with a gradient, and buffers (BatchNorm's statistics).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fcil import registry, seeds
from fcil.errors import NumericalError, UsageError
from fcil.methods.parts.folding import folded
from fcil.nets.backbone import build_backbone
from fcil.nets.heads import Classifier, CosineHead, LinearHead
from fcil.protocol import Ask, Memory, Mergeable, Shard, World
from fcil.recent import Recent
from fcil.stats.parameters import Parameters
from fcil.training import (
    Job,
    Lane,
    LocalPlan,
    Loss,
    learning_rate,
    local_sgd,
    train_together,
)

_LANES = 8
"""Clients trained side by side on a card, at most."""
_HEAD = 1
"""Second word of the training stream for drawing head rows; rounds come after it."""


def refuse_rotation(world: World, method: str) -> None:
    """For methods that classify with the trained head itself."""
    if world.settings.first_stage.rotation:
        raise UsageError(
            f"{method} classifies with its own head, which rotation labels would replace: set "
            "first_stage.rotation = false."
        )


def rounds(world: World) -> int:
    """Training rounds of one task."""
    stage = world.settings.first_stage
    return int(registry.find("first-stages", stage.kind)().rounds(stage))


def initial(world: World, outputs: int) -> dict[str, Tensor]:
    """What travels of a freshly initialised classifier, on the world's device."""
    return travelling(_build(world, outputs).to(world.device))


def grown(
    world: World, tensors: Mapping[str, Tensor], task: int, outputs: int
) -> dict[str, Tensor]:
    """The same classifier with head rows for more outputs."""
    model = load(world, tensors)
    head: LinearHead | CosineHead = copy.deepcopy(model.head)
    head.grow(outputs, _head_generator(world, task))
    return travelling(Classifier(model.backbone, head))


def travelling(model: Classifier) -> dict[str, Tensor]:
    """Copies of what trains and of the buffers."""
    named = [(k, p) for k, p in model.named_parameters() if p.requires_grad]
    return {
        k: t.detach().clone(memory_format=torch.contiguous_format)
        for k, t in [*named, *model.named_buffers()]
    }


def backbone_part(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The backbone's tensors of a classifier, under their own names."""
    prefix = "backbone."
    return {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}


def load(world: World, tensors: Mapping[str, Tensor]) -> Classifier:
    """A classifier holding these tensors. The object is shared: use it before loading the next."""
    model = _model(world, len(tensors["head.weight"]))
    missing, unexpected = model.load_state_dict(dict(tensors), strict=False)
    fixed = {k for k, p in model.named_parameters() if not p.requires_grad}
    if unexpected or set(missing) - fixed:
        raise UsageError(f"Weights do not fit the network: {[*unexpected, *missing][:5]}.")
    return model


def ask(world: World, tensors: Mapping[str, Tensor], task: int, round: int, **values: Any) -> Ask:
    """The ask for one round of training."""
    stage = world.settings.first_stage
    return Ask(
        stage="train",
        task=task,
        round=round,
        clients=_chosen(world, task, round),
        first_stage=task == 0,
        payload=tensors,
        values={"lr": learning_rate(stage, round), **values},
    )


def answer(
    world: World,
    ask: Ask,
    client: int,
    shard: Shard,
    *,
    loss: Loss,
    epochs: int | None = None,
    memory: Memory | None = None,
) -> tuple[Parameters, Memory]:
    """One client's training. With `memory`, momentum is taken from it and handed on."""
    model = load(world, ask.payload)
    generator = torch.Generator(world.device)
    generator.manual_seed(_seed(world, ask, client))
    result = local_sgd(
        model,
        shard.images,
        shard.labels,
        spec=world.spec,
        plan=_plan(world, ask, epochs),
        loss=loss,
        generator=generator,
        momentum=memory,
    )
    upload = _upload(world, model, len(shard), result.steps)
    return upload, (result.momentum if memory is not None else {})


def answers(
    world: World, ask: Ask, shards: Mapping[int, Shard], *, loss: Loss
) -> Iterator[tuple[int, Parameters]] | None:
    """What `answer` gives for each client, trained side by side; None where that gains nothing."""
    if world.device.type != "cuda":
        return None
    return _answers(world, ask, shards, loss)


def _answers(
    world: World, ask: Ask, shards: Mapping[int, Shard], loss: Loss
) -> Iterator[tuple[int, Parameters]]:
    lanes = _lanes(world, ask, loss, min(len(shards), _LANES))
    clients = sorted(shards)
    jobs = [
        Job(
            weights=ask.payload,
            images=shards[client].images,
            labels=shards[client].labels,
            seed=_seed(world, ask, client),
            lr=ask.values["lr"],
        )
        for client in clients
    ]
    done: dict[int, Parameters] = {}
    for at, model, steps in train_together(lanes, jobs):
        done[at] = _upload(world, model, len(jobs[at].labels), steps)
    for at, client in enumerate(clients):
        yield client, done.pop(at)


def _lanes(world: World, ask: Ask, loss: Loss, count: int) -> list[Lane]:
    """Lanes for networks of this shape, the last ones kept: what they captured is worth a round."""
    outputs, stage = len(ask.payload["head.weight"]), world.settings.first_stage
    plan = _plan(world, ask, None)
    key = (world.spec, world.settings.backbone, stage, outputs, world.device, loss, count)

    def build() -> list[Lane]:
        first = _build(world, outputs).to(world.device)
        models = [first, *(copy.deepcopy(first) for _ in range(count - 1))]
        return [Lane(m, world.spec, plan, loss, graphs=True) for m in models]

    return _laid.of(key, build)


def _plan(world: World, ask: Ask, epochs: int | None) -> LocalPlan:
    stage = world.settings.first_stage
    return LocalPlan(
        epochs=epochs or stage.epochs,
        batch=stage.batch,
        lr=ask.values["lr"],
        momentum=stage.momentum,
        weight_decay=stage.weight_decay,
        augment=stage.augment,
        rotation=stage.rotation,
        precision=stage.precision,
    )


def _seed(world: World, ask: Ask, client: int) -> int:
    return seeds.integer(world.seed, "training", ask.task, 2 + ask.round, client)


def _upload(world: World, model: Any, rows: int, steps: int) -> Parameters:
    weighted = world.settings.first_stage.average == "samples"
    return Parameters.of(travelling(model), float(rows) if weighted else float(rows > 0), steps)


def averaged(
    uploads: Iterable[tuple[int, Mergeable]], like: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], int]:
    """The average of the clients' parameters, and the gradient steps behind it."""
    total = folded(uploads, Parameters)
    if total.weight == 0:
        raise UsageError("No client had a single image to train on in this round.")
    mean = total.mean(like)
    if not all(bool(torch.isfinite(t).all()) for t in mean.values() if t.is_floating_point()):
        raise NumericalError(
            "The averaged network holds NaN or infinity: training diverged on some client. Lower "
            "`first_stage.lr`."
        )
    return mean, total.steps


def _chosen(world: World, task: int, round: int) -> tuple[int, ...] | None:
    count, fraction = world.settings.clients.count, world.settings.clients.fraction
    asked = max(math.floor(fraction * count + 1e-9), 1)
    if asked == count:
        return None
    rng = seeds.generator(world.seed, "training", task, 2 + round)
    return tuple(sorted(rng.choice(count, asked, replace=False).tolist()))


def _head_generator(world: World, task: int) -> torch.Generator:
    return torch.Generator().manual_seed(seeds.integer(world.seed, "training", task, _HEAD))


def _build(world: World, outputs: int) -> Classifier:
    """A classifier drawn from the seed, on the processor."""
    body = build_backbone(
        world.spec, world.settings.backbone, seeds.integer(world.seed, "training")
    )
    registry.find("first-stages", world.settings.first_stage.kind)().prepare(body)
    kind = CosineHead if world.settings.first_stage.head == "cosine" else LinearHead
    return Classifier(body, kind(body.widths[-1], outputs, _head_generator(world, 0)))


def _model(world: World, outputs: int) -> Classifier:
    """A classifier of this shape to load tensors into.

    Building and drawing one costs more than a small client's training, so the last is kept.
    """
    stage, body = world.settings.first_stage, world.settings.backbone
    key = (world.spec, body, stage.kind, stage.head, world.seed, outputs, world.device)
    return _built.of(key, lambda: _build(world, outputs).to(world.device))


_built: Recent[Any, Classifier] = Recent(1)
_laid: Recent[Any, list[Lane]] = Recent(1)
