"""The contracts: what a method, an engine and an upload are. Signatures and prose, no algorithms.

A run is a conversation. The server asks (`Ask`), clients answer with an upload (`Additive` or
`Collected`), the server absorbs the answers into its `State` and may ask again. A method says what
is asked, answered and absorbed; an engine carries the messages and knows no method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from fcil.settings import Block, Settings
from fcil.stats.codec import Value

State = Mapping[str, Any]
"""What the server needs for its next step: nested dictionaries of tensors, statistics and JSON
values, so that any checkpoint can be written and read without the method's code."""

Memory = Mapping[str, Any]
"""What one client keeps between two asks, in the same form. Statistics methods keep nothing."""


@dataclass(frozen=True)
class DataSpec:
    """What everybody may know about the data before seeing any of it."""

    name: str
    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int


@dataclass(frozen=True)
class World:
    """What server and clients agree on before anything starts."""

    settings: Settings
    spec: DataSpec
    tasks: tuple[tuple[int, ...], ...]
    """Class ids of each task; ids are positions in the class order."""
    device: torch.device
    clock: Callable[[str], AbstractContextManager[None]]
    """`with world.clock("extract"):` adds to the record's seconds; the innermost name counts."""

    @property
    def seed(self) -> int:
        """The run's one seed."""
        return self.settings.seed

    def seen(self, task: int) -> tuple[int, ...]:
        """Class ids of all tasks up to and including one."""
        return tuple(c for classes in self.tasks[: task + 1] for c in classes)


class Shard(Protocol):
    """What one holder may see at one time: images, labels, and features made of them."""

    @property
    def images(self) -> Tensor:
        """Pixels, uint8, rows x channels x height x width."""

    @property
    def labels(self) -> Tensor:
        """Class ids, int64."""

    def __len__(self) -> int: ...

    def features(self, source: FeatureSource) -> Tensor:
        """Answers of a frozen source, one a row; each image goes through it once in a run."""


class FeatureSource(Protocol):
    """A frozen map from images to vectors."""

    @property
    def fingerprint(self) -> str:
        """Equal for two sources exactly when they are the same map."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image's answer: (views, width) or (width,)."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the answer."""

    @property
    def batch(self) -> int:
        """Images a call takes, always exactly so many."""

    def __call__(self, batch: Tensor, /) -> Tensor:
        """uint8 images (batch, C, H, W) to their answers."""


@dataclass(frozen=True)
class Ask:
    """What the server asks of its clients; travels down."""

    stage: str
    """Names what is asked: `train`, `calibrate`, `statistics`, or a method's own word."""
    task: int
    round: int = 0
    clients: tuple[int, ...] | None = None
    """Who is asked; None = everybody."""
    pooled: bool = False
    """Ask one holder of all data up to this task (bounds only; refused where data cannot move)."""
    first_stage: bool = False
    """Counted under the first stage in bytes and seconds."""
    counted: bool = True
    """False: a measurement of a simulation, in no byte count (how far an estimate is off)."""
    payload: Mapping[str, Tensor] = field(default_factory=dict)
    lasting: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors a client keeps once it has them (a frozen network): sent only to those without."""
    values: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Mergeable(Value, Protocol):
    """An upload: a frozen value that travels and can be put together with others of its kind."""

    def __add__(self, other: Self, /) -> Self:
        """Put together; the order never matters."""


@runtime_checkable
class Additive(Mergeable, Protocol):
    """A sum. May be folded on arrival, masked, subtracted again."""

    def __sub__(self, other: Self, /) -> Self:
        """Take out what was added."""


@runtime_checkable
class Collected(Mergeable, Protocol):
    """A keyed union: the server sees individual contributions, so secure sums cannot cover it."""

    @property
    def contributors(self) -> frozenset[int]:
        """Whose contributions these are."""


class Predictor(Protocol):
    """A classifier over the classes seen so far."""

    def __call__(self, shard: Shard) -> Tensor:
        """Class ids, int64, one a row."""


@runtime_checkable
class Method(Protocol):
    """A federated class-incremental method: pure functions over explicit state.

    The state machine must be resumable: `ask` decides from the state alone what comes next.
    """

    Config: type[Block]
    """The keys of the `method` block; the class is called with one of these."""

    pools_data: bool
    """Whether it asks one holder of all data: a bound, refused where data cannot move."""

    def start(self, world: World) -> State:
        """The server's state before the first task."""

    def asks(self, world: World, task: int) -> int:
        """How many asks a task takes; for progress only."""

    def ask(self, world: World, state: State, task: int) -> Ask | None:
        """What is asked next in this task; None when the task is done."""

    def answer(
        self, world: World, ask: Ask, client: int, shard: Shard, memory: Memory
    ) -> tuple[Mergeable, Memory]:
        """A client's answer, and what it keeps."""

    def absorb(
        self, world: World, state: State, ask: Ask, uploads: Iterator[tuple[int, Mergeable]]
    ) -> State:
        """The state after the answers, which come in order of client."""

    def predictor(self, world: World, state: State) -> Predictor | None:
        """The classifier after a task; None where the method has none yet."""

    def report(self, world: World, state: State) -> Mapping[str, Any]:
        """What the record holds after this task, all optional: of the task `gradient_steps`,
        `statistics`, `solver`; of the run so far `fingerprint`, `estimate_error`, `notes`."""


@runtime_checkable
class AnswersTogether(Protocol):
    """A method that can answer for several clients of one process faster than one by one."""

    def answers(
        self, world: World, ask: Ask, shards: Mapping[int, Shard]
    ) -> Iterator[tuple[int, Mergeable]] | None:
        """What `answer` would give for each, in order of client, for asks that need no memory;
        None where one by one is as good."""


@runtime_checkable
class SharesFirstStage(Protocol):
    """A method whose first stage is the same computation as another method's or setting's."""

    def trained(self, world: World, state: State) -> State | None:
        """What the first stage alone decided, once it is over."""

    def adopt(self, world: World, state: State, trained: State) -> State:
        """The starting state, as if it had trained this itself."""


class Engine(Protocol):
    """Carries asks down and uploads up; knows no method."""

    def exchange(self, ask: Ask) -> Iterator[tuple[int, Mergeable]]:
        """Answers in order of client, one at a time."""
