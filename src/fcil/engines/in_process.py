"""All clients in this process, one after another, with every byte counted that would travel."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fcil.errors import Refused
from fcil.protocol import AnswersTogether, Ask, Memory, Mergeable, Method, World
from fcil.shards import ImageSource, Rows
from fcil.stats import codec, gram_codec

_POOLED = -1
"""The holder of all data, for bounds that are not federated."""


@dataclass
class Traffic:
    """Bytes of encoded messages, by task and client; the first stage apart."""

    up: list[list[int]]
    down: list[list[int]]
    first_up: list[int]
    first_down: list[int]

    @classmethod
    def none(cls, tasks: int, clients: int) -> Traffic:
        """Nothing sent yet."""
        up, down = ([[0] * clients for _ in range(tasks)] for _ in range(2))
        return cls(up, down, [0] * clients, [0] * clients)

    def add(self, ask: Ask, client: int, *, up: int = 0, down: int = 0) -> None:
        """Count one message."""
        if not ask.counted or ask.pooled:
            return
        ups, downs = (
            (self.first_up, self.first_down)
            if ask.first_stage
            else (self.up[ask.task], self.down[ask.task])
        )
        ups[client] += up
        downs[client] += down

    def record(self) -> dict[str, Any]:
        """As the record holds it."""
        first = {"up": self.first_up, "down": self.first_down}
        return {"up": self.up, "down": self.down, "first_stage": first}


@dataclass
class InProcess:
    """An engine that answers for every client itself."""

    world: World
    method: Method
    source: ImageSource
    plan: Sequence[Sequence[torch.Tensor]]
    """Rows of the source by task and client."""
    traffic: Traffic
    memories: dict[int, Memory] = field(default_factory=dict)
    """What each client keeps."""
    lasting: dict[int, list[str]] = field(default_factory=dict)
    """Names of the lasting tensors each client already has."""

    def exchange(self, ask: Ask) -> Iterator[tuple[int, Mergeable]]:
        """Answers in order of client, each as the server would decode it."""
        if ask.pooled and not self.method.pools_data:
            raise Refused("A method that does not declare pools_data asked for all data at once.")
        everybody = range(len(self.plan[ask.task]))
        asked = [_POOLED] if ask.pooled else sorted(ask.clients or everybody)
        for client in asked:
            self.traffic.add(ask, client, down=self._sent(ask, client))
        for client, upload in self._answers(ask, asked):
            message = codec.outlined(upload, self.world.settings.upload.encoding)
            self.traffic.add(ask, client, up=message.size)
            lossy = message.meta.get("encoding") in gram_codec.LOSSY
            yield client, codec.from_message(message) if lossy else upload

    def _answers(self, ask: Ask, asked: Sequence[int]) -> Iterator[tuple[int, Mergeable]]:
        """The clients' answers, side by side where the method can."""
        if isinstance(self.method, AnswersTogether) and not ask.pooled:
            shards = {client: self._shard(ask, client) for client in asked}
            together = self.method.answers(self.world, ask, shards)
            if together is not None:
                yield from together
                return
        for client in asked:
            memory = self.memories.get(client, {})
            shard = self._shard(ask, client)
            upload, kept = self.method.answer(self.world, ask, client, shard, memory)
            if kept:
                self.memories[client] = kept
            yield client, upload

    def tree(self) -> dict[str, Any]:
        """What a checkpoint must hold beside the server's state."""
        return {
            "memories": {str(c): m for c, m in self.memories.items()},
            "lasting": {str(c): list(names) for c, names in self.lasting.items()},
            "traffic": copy.deepcopy(self.traffic.__dict__),
        }

    def restore(self, tree: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.memories = {int(c): m for c, m in tree["memories"].items()}
        self.lasting = {int(c): names for c, names in tree["lasting"].items()}
        self.traffic = Traffic(**tree["traffic"])

    def _sent(self, ask: Ask, client: int) -> int:
        """Bytes of the ask for one client, lasting tensors only the first time."""
        tensors = dict(ask.payload)
        if ask.lasting:
            name = str(ask.values["network"])
            has = self.lasting.setdefault(client, [])
            if name not in has:
                has.append(name)
                tensors.update(ask.lasting)
        values = {"stage": ask.stage, "task": ask.task, "round": ask.round, **ask.values}
        return codec.Message(values, tensors).size

    def _shard(self, ask: Ask, client: int) -> Rows:
        if client == _POOLED:
            rows = torch.cat([r for task in self.plan[: ask.task + 1] for r in task])
            # One fixed order: a bound must not depend on who held what.
            rows = rows.sort().values
            return Rows(self.source, rows, rows)
        return Rows(self.source, self.plan[ask.task][client], torch.cat(list(self.plan[ask.task])))
