"""The engine that plays all clients itself."""

from __future__ import annotations

import pytest
import torch

from fcil import registry
from fcil.engines.in_process import InProcess, Traffic
from fcil.protocol import Ask
from fcil.shards import ImageSource
from fcil.stats import codec
from small import make, sources, world_of


def engine(name: str = "stsa", *assignments: str) -> InProcess:
    settings = make(*assignments, method=name)
    world, plan = world_of(settings)
    method = registry.find("methods", name)(settings.method_config())
    rows = [[torch.from_numpy(r) for r in task] for task in plan.rows]
    return InProcess(world, method, sources(plan)[0], rows, Traffic.none(5, 3))


def test_bytes_are_those_of_the_encoded_messages() -> None:
    """Counted without putting the bytes together, and equal to having done so."""
    made = engine("stsa", "first_stage.kind=none")
    state = made.method.start(made.world)
    ask = made.method.ask(made.world, state, 0)
    assert ask is not None
    for client, upload in made.exchange(ask):
        assert made.traffic.up[0][client] == len(codec.encode(upload))
        values = {"stage": ask.stage, "task": ask.task, "round": ask.round, **ask.values}
        sent = codec.Message(values, dict(ask.lasting)).to_bytes()
        assert made.traffic.down[0][client] == len(sent)


def test_uncounted_asks_leave_no_trace() -> None:
    made = engine("stsa", "first_stage.kind=none")
    state = made.method.start(made.world)
    ask = made.method.ask(made.world, state, 0)
    assert ask is not None
    quiet = Ask(ask.stage, 0, counted=False, lasting=ask.lasting, values=ask.values)
    assert len(list(made.exchange(quiet))) == 3
    assert made.traffic == Traffic.none(5, 3)


def test_answers_come_one_at_a_time() -> None:
    """A server that folds on arrival never holds two uploads."""
    made = engine("stsa", "first_stage.kind=none")
    ask = made.method.ask(made.world, made.method.start(made.world), 0)
    assert ask is not None
    answers = made.exchange(ask)
    next(answers)
    assert made.traffic.up[0][1:] == [0, 0]


@pytest.mark.parametrize("name", ["stsa", "stsa-e", "fedavg"])
def test_clients_answered_together_answer_as_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fcil.methods.parts import federated

    made = engine(name, "clients.fraction=0.7")
    state = made.method.start(made.world)
    asked: list[tuple[int, ...] | None] = []

    def side_by_side(world, ask, shards, *, loss):
        asked.append(tuple(shards))
        return federated._answers(world, ask, shards, loss)

    for _ in range(2):  # the second round trains in lanes that the first one left behind
        ask = made.method.ask(made.world, state, 0)
        assert ask is not None and ask.stage == "train"
        before = [*made.traffic.first_up]
        alone = dict(made.exchange(ask))
        once = [*made.traffic.first_up]
        with monkeypatch.context() as patch:
            patch.setattr(federated, "answers", side_by_side)
            together = list(made.exchange(ask))
        assert [client for client, _ in together] == sorted(alone)
        for client, upload in together:
            assert upload.steps == alone[client].steps > 0
            assert all(torch.equal(t, alone[client].total[k]) for k, t in upload.total.items())
        twice = [2 * b - a for a, b in zip(before, once, strict=True)]
        assert made.traffic.first_up == twice
        state = made.method.absorb(made.world, state, ask, iter(together))
    assert len(asked) == 2 and all(len(clients or ()) == 2 for clients in asked)


def test_a_rows_features_do_not_depend_on_its_company() -> None:
    made = engine("stsa", "first_stage.kind=none")
    from fcil.features import frozen_sources

    state = made.method.start(made.world)
    network = frozen_sources(made.world, state["extractor"], state["frozen"]).network
    images, labels = made.source.images, made.source.labels
    everything = torch.arange(len(images))
    together = ImageSource(images, labels).features(network, everything, everything)
    generator = torch.Generator().manual_seed(0)
    apart = ImageSource(images, labels)
    for rows in torch.randperm(len(images), generator=generator).split(97):
        assert torch.equal(apart.features(network, rows, rows), together[rows])


def test_each_image_is_seen_once() -> None:
    class Counting:
        fingerprint, shape, dtype, batch = "counting", (1, 2), torch.float32, 8
        seen = 0

        def __call__(self, batch: torch.Tensor) -> torch.Tensor:
            self.seen += len(batch)
            return batch.float().flatten(1)[:, None, :2]

    images = torch.arange(64, dtype=torch.uint8).view(32, 1, 1, 2)
    source, counting = ImageSource(images, torch.zeros(32)), Counting()
    rows = torch.arange(32)
    for _ in range(3):
        assert torch.equal(source.features(counting, rows[:16], rows), images[:16].float()[:, 0])
    assert counting.seen == 32


def test_old_sources_are_let_go() -> None:
    class Named:
        shape, dtype, batch = (1,), torch.float32, 4

        def __init__(self, name: str) -> None:
            self.fingerprint = name

        def __call__(self, batch: torch.Tensor) -> torch.Tensor:
            return batch.float().flatten(1)[:, :1]

    source = ImageSource(torch.zeros(4, 1, 1, 1, dtype=torch.uint8), torch.zeros(4))
    rows = torch.arange(4)
    for name in "abcab":
        source.features(Named(name), rows, rows)
    assert list(source._features) == ["a", "b"]


def test_a_network_that_overflows_is_named_by_layer_and_batch() -> None:
    from fcil.errors import NumericalError
    from fcil.features import frozen_sources

    made = engine("stsa", "first_stage.kind=none")
    state = made.method.start(made.world)
    broken = {name: t.clone() for name, t in state["extractor"].items()}
    last = [name for name in broken if broken[name].ndim == 4][-1]
    broken[last][0, 0, 0, 0] = float("nan")
    network = frozen_sources(made.world, broken, "broken").network
    rows = torch.arange(len(made.source.images))
    with pytest.raises(NumericalError, match=r"Batch 1 of \d+: .*layer 3") as raised:
        made.source.features(network, rows, rows)
    assert raised.value.exit_code == 5
