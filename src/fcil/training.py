"""The one local training loop, its learning rates and its losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
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
_DONE = object()


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


@dataclass(frozen=True)
class Job:
    """One holder's training: what it starts from, what it sees, which random numbers it draws."""

    weights: Mapping[str, Tensor]
    images: Tensor
    labels: Tensor
    seed: int
    lr: float


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
    lane = Lane(model, spec, plan, loss, generator)
    lane.start(momentum or {})
    for _ in lane.steps(images, labels):
        pass
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    steps = lane.finish()
    return LocalResult(steps, lane.momentum() if steps else dict(momentum or {}))


def train_together(
    lanes: Sequence[Lane], jobs: Sequence[Job]
) -> Iterator[tuple[int, nn.Module, int]]:
    """Train one model a job, as many at a time as there are lanes; each as if it were alone.

    Yields (place of the job, trained model, gradient steps) as jobs end; the model is the lane's,
    to be read before going on. The longest jobs start first. On a card every lane has a stream of
    its own, and one step of each is sent there in turn, so that small kernels run side by side.
    """
    waiting = sorted(range(len(jobs)), key=lambda at: (-len(jobs[at].labels), at))
    active: dict[Lane, tuple[int, Iterator[None]]] = {}
    while waiting or active:
        for lane in lanes:
            if lane not in active and waiting:
                at = waiting.pop(0)
                active[lane] = at, lane.work(jobs[at])
        for lane, (at, work) in list(active.items()):
            if next(work, _DONE) is _DONE:
                del active[lane]
                yield at, lane.model, lane.finish()


class Lane:
    """A model in training with its optimiser, in a fixed place in memory.

    On a card a whole step - augmentation, both passes, update - is captured as a graph the second
    time a size of batch comes up and replayed from then on: some 400 small kernels then cost the
    processor one call. A replay computes what the plain step does, bit for bit; `graphs = False`
    keeps to the plain one.
    """

    def __init__(
        self,
        model: nn.Module,
        spec: DataSpec,
        plan: LocalPlan,
        loss: Loss,
        generator: Generator | None = None,
        graphs: bool = False,
    ) -> None:
        # Convolutions are faster with channels last, on processors too.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model, self.spec, self.plan, self.loss = model.train(), spec, plan, loss
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.device = self.weights[0].device
        self.generator = generator or Generator(self.device)
        on_card = self.device.type == "cuda"
        self.low = uses_bfloat16(plan.precision, self.device)
        self.stream = _stream(self.device) if graphs and on_card else None
        rate = torch.tensor(plan.lr, device=self.device) if on_card else plan.lr
        self.optimiser = torch.optim.SGD(
            self.weights, rate, plan.momentum, weight_decay=plan.weight_decay, fused=on_card
        )
        if plan.momentum:
            for weight in self.weights:
                self.optimiser.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        self.pool = torch.cuda.graph_pool_handle() if self.stream is not None else None
        self._graphs: dict[int, _Graph | None] = {}
        self._losses: list[Tensor] = []

    def start(self, momentum: Mapping[str, Tensor]) -> None:
        """Forget the last job; go on from this momentum, or from none."""
        self._losses = []
        for name, weight in self.model.named_parameters():
            buffer = self.optimiser.state[weight].get("momentum_buffer")
            if buffer is not None and name in momentum:
                buffer.copy_(momentum[name])
            elif buffer is not None:
                buffer.zero_()

    def work(self, job: Job) -> Iterator[None]:
        """Train on a job, pausing after each step has been sent to the device."""
        self.generator.manual_seed(job.seed)
        group = self.optimiser.param_groups[0]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(job.lr)
        else:
            group["lr"] = job.lr
        steps = self._prepared(job)
        while True:
            with self._lane():
                if next(steps, _DONE) is _DONE:
                    break
            yield
        if self.stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def steps(self, images: Tensor, labels: Tensor) -> Iterator[None]:
        """The epochs over these images, one step at a time."""
        plan = self.plan
        angles = 4 if plan.rotation else 1
        samples = angles * len(images)
        smallest = samples % plan.batch or plan.batch
        single = samples > 0 and smallest == 1
        skip_single = single and not _trains_on_one(self.model, images[:1], self.spec)
        for _ in range(plan.epochs):
            order = torch.randperm(samples, generator=self.generator, device=self.device)
            rows, turns = order // angles, order % angles
            for at in range(0, samples, plan.batch):
                chosen = slice(at, min(at + plan.batch, samples))
                if skip_single and chosen.stop - chosen.start == 1:
                    continue
                batch = (images[rows[chosen]], labels[rows[chosen]], turns[chosen])
                self._losses.append(self._step(*batch))
                yield

    def finish(self) -> int:
        """How many steps were made; complains about the first loss that is not finite."""
        _check(self._losses, self.plan, self.optimiser.param_groups[0]["lr"])
        return len(self._losses)

    def momentum(self) -> dict[str, Tensor]:
        """Copies of the optimiser's momentum by name of parameter."""
        buffers = {
            name: self.optimiser.state[weight].get("momentum_buffer")
            for name, weight in self.model.named_parameters()
        }
        return {
            name: buffer.clone(memory_format=torch.contiguous_format)
            for name, buffer in buffers.items()
            if buffer is not None
        }

    def _prepared(self, job: Job) -> Iterator[None]:
        self.start({})
        self.model.load_state_dict(dict(job.weights), strict=False)
        yield from self.steps(job.images, job.labels)

    @contextmanager
    def _lane(self) -> Iterator[None]:
        """This lane's stream, after what was asked of the device before."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            yield

    def _step(self, images: Tensor, labels: Tensor, turns: Tensor) -> Tensor:
        """One gradient step; its loss."""
        size = len(images)
        if self.stream is None or size not in self._graphs:
            self._graphs[size] = None  # this first step warms up what a capture must not allocate
            return self.plain_step(images, labels, turns)
        graph = self._graphs[size]
        if graph is None:
            graph = _Graph(self, images, labels, turns)
            self._graphs[size] = graph
        return graph(images, labels, turns)

    def plain_step(self, images: Tensor, labels: Tensor, turns: Tensor) -> Tensor:
        """One gradient step, launched kernel by kernel; its loss."""
        plan = self.plan
        x, y = augment(images, plan.augment, self.generator), labels
        if plan.rotation:  # after the mirror image, which would turn a left turn into a right
            x, y = rotate(x, turns), 4 * labels + turns
        x = normalise(x, self.spec).contiguous(memory_format=torch.channels_last)
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.low, cache_enabled=False
        ):
            logits = self.model(x)
        value = self.loss(logits.float(), y)
        gradients = torch.autograd.grad(value, self.weights, allow_unused=True)
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        self.optimiser.step()
        return value.detach()


class _Graph:
    """A lane's step for one size of batch, captured on the lane's stream."""

    def __init__(self, lane: Lane, *batch: Tensor) -> None:
        self.batch = [part.clone() for part in batch]
        self.graph = torch.cuda.CUDAGraph()
        self.graph.register_generator_state(lane.generator)
        # One pool a lane: its graphs never run side by side, and share what they work in.
        self.graph.capture_begin(lane.pool, capture_error_mode="thread_local")
        try:
            self.loss = lane.plain_step(*self.batch)
        finally:
            self.graph.capture_end()

    def __call__(self, *batch: Tensor) -> Tensor:
        for mine, given in zip(self.batch, batch, strict=True):
            mine.copy_(given)
        self.graph.replay()
        return self.loss.clone()


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


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


@cache
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


def _check(losses: list[Tensor], plan: LocalPlan, lr: float | Tensor) -> None:
    """Complain about the first loss that is not finite; waits for the device once."""
    if not losses:
        return
    finite = torch.stack(losses).isfinite().tolist()
    if not all(finite):
        each = len(losses) // plan.epochs
        epoch, batch = divmod(finite.index(False), each)
        raise NumericalError(
            f"The training loss was not finite in epoch {epoch + 1}, batch {batch + 1} of {each}. "
            f"Most likely the learning rate {float(lr):g} is too high for this network and data: "
            "lower `first_stage.lr`."
        )


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
