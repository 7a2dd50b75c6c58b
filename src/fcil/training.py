"""The one local training loop, its learning rates and its losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from fcil.errors import NumericalError
from fcil.images import Augment, augment, normalise, rotate
from fcil.nets.backbone import uses_bfloat16
from fcil.protocol import DataSpec
from fcil.settings import FirstStage

Loss = Callable[[Tensor, Tensor], Tensor]
"""Logits (B, outputs) in float32 and labels (B,) to one number."""


@dataclass(frozen=True)
class LocalPlan:
    """How one holder trains."""

    epochs: int
    batch: int
    lr: float
    momentum: float
    weight_decay: float
    augment: Augment
    rotation: bool
    """Each image at four angles: label y at k quarter turns becomes 4 y + k."""
    precision: Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class LocalResult:
    """What local training says of itself; the trained weights are in the model."""

    steps: int
    momentum: dict[str, Tensor]
    """Momentum by name of parameter, for a caller that goes on."""


def local_sgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    spec: DataSpec,
    plan: LocalPlan,
    loss: Loss,
    generator: Generator,
    momentum: Mapping[str, Tensor] | None = None,
) -> LocalResult:
    """Train a model's parameters in place on uint8 images, all on one device.

    Plain SGD over orders, crops and colours drawn from `generator` alone; the last short batch of
    an epoch is kept. One exception: a batch of a single image that a BatchNorm would see as a
    single value a channel cannot be normalised; it is skipped and counts no step. The model is
    left in training mode.
    """
    device = images.device
    model.train()
    optimiser = torch.optim.SGD(
        [weight for weight in model.parameters() if weight.requires_grad],
        lr=plan.lr,
        momentum=plan.momentum,
        weight_decay=plan.weight_decay,
    )
    # Convolutions are faster with channels last, on processors too; callers get the usual layout.
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _hand_on(optimiser, model, momentum or {})
    low = uses_bfloat16(plan.precision, device)
    angles = 4 if plan.rotation else 1
    samples = angles * len(images)
    smallest = samples % plan.batch or plan.batch
    skip_single = samples > 0 and smallest == 1 and not _trains_on_one(model, images[:1], spec)
    steps = 0
    for epoch in range(plan.epochs):
        order = torch.randperm(samples, generator=generator, device=device)
        losses: list[Tensor] = []
        for chosen in torch.split(order, plan.batch) if samples else ():
            if skip_single and len(chosen) == 1:
                continue
            rows, turns = chosen // angles, chosen % angles
            x, y = augment(images[rows], plan.augment, generator), labels[rows]
            if plan.rotation:  # after the mirror image, which would turn a left turn into a right
                x, y = rotate(x, turns), angles * y + turns
            x = normalise(x, spec).contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=low):
                logits = model(x)
            value = loss(logits.float(), y)
            optimiser.zero_grad()
            torch.autograd.backward(value)
            optimiser.step()
            losses.append(value.detach())
        steps += len(losses)
        _check(losses, epoch, plan)
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return LocalResult(steps, _momentum(optimiser, model))


def learning_rate(stage: FirstStage, round: int) -> float:
    """The rate of a round, counted from 0; it changes between rounds only."""
    if stage.schedule == "cosine":
        return stage.lr * (1 + math.cos(math.pi * round / stage.rounds)) / 2
    if stage.schedule == "step":
        passed = sum(round >= _milestone(share, stage.rounds) for share in stage.milestones)
        return stage.lr * 0.1**passed
    return stage.lr


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean softmax cross-entropy over all outputs."""
    return functional.cross_entropy(logits, labels)


def masked_cross_entropy(known: int) -> Loss:
    """Softmax cross-entropy over the outputs from `known` on; rows of old classes get no gradient.

    Labels stay those of the whole head. With rotation labels a class has four outputs.
    """

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits[:, known:], labels - known)

    return loss


def _milestone(share: float, rounds: int) -> int:
    """First round at or past a share of all rounds, rounding noise of the product aside."""
    return math.ceil(share * rounds - 1e-9)


def _check(losses: list[Tensor], epoch: int, plan: LocalPlan) -> None:
    """Complain about the first loss of an epoch that is not finite; waits for the device once."""
    if not losses:
        return
    finite = torch.stack(losses).isfinite().tolist()
    if not all(finite):
        raise NumericalError(
            f"The training loss was not finite in epoch {epoch + 1}, batch "
            f"{finite.index(False) + 1} of {len(finite)}. Most likely the learning rate "
            f"{plan.lr:g} is too high for this network and data: lower `first_stage.lr`."
        )


def _hand_on(optimiser: torch.optim.SGD, model: nn.Module, momentum: Mapping[str, Tensor]) -> None:
    """Give an optimiser the momentum of an earlier one."""
    for name, weight in model.named_parameters():
        if weight.requires_grad and name in momentum:
            buffer = torch.empty_like(weight).copy_(momentum[name])  # in the weight's layout
            optimiser.state[weight]["momentum_buffer"] = buffer


def _momentum(optimiser: torch.optim.SGD, model: nn.Module) -> dict[str, Tensor]:
    """An optimiser's momentum by name of parameter."""
    buffers = {
        name: optimiser.state[weight].get("momentum_buffer")
        for name, weight in model.named_parameters()
        if weight in optimiser.state
    }
    return {name: buffer.contiguous() for name, buffer in buffers.items() if buffer is not None}


def _trains_on_one(model: nn.Module, image: Tensor, spec: DataSpec) -> bool:
    """Whether every BatchNorm sees more than one value a channel of a single image."""
    values: list[int] = []

    def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        values.append(inputs[0].numel() // inputs[0].shape[1])

    kinds = nn.BatchNorm1d | nn.BatchNorm2d
    norms = [part for part in model.modules() if isinstance(part, kinds) and part.training]
    hooks = [norm.register_forward_pre_hook(note) for norm in norms]
    model.eval()
    with torch.no_grad():
        model(normalise(image, spec))
    for hook in hooks:
        hook.remove()
    model.train()
    return all(value > 1 for value in values)
