"""What every registered method must satisfy; a new one is found here by itself."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from fcil import registry
from fcil.protocol import Additive, Ask, Collected, Memory, Mergeable, Method, State
from fcil.shards import ImageSource, Rows
from fcil.stats import codec
from small import make, shard, sources, world_of

NAMES = registry.names("methods")
METHODS = pytest.mark.parametrize("name", NAMES)


class Bench:
    """A world in which asks can be answered in any order."""

    def __init__(self, name: str, *assignments: str) -> None:
        self.settings = make(*assignments, method=name)
        self.world, self.plan = world_of(self.settings)
        self.train, self.test = sources(self.plan)
        self.method: Method = registry.find("methods", name)(self.settings.method_config())
        self.memory: dict[int, Memory] = {}

    def answers(self, ask: Ask) -> list[tuple[int, Mergeable]]:
        found = []
        for client in [-1] if ask.pooled else sorted(ask.clients or range(3)):
            rows = self._pooled(ask) if ask.pooled else self._held(ask.task, client)
            upload, self.memory[client] = self.method.answer(
                self.world, ask, client, rows, self.memory.get(client, {})
            )
            found.append((client, upload))
        return found

    def _held(self, task: int, client: int) -> Rows:
        return shard(self.train, self.plan.rows[task][client])

    def _pooled(self, ask: Ask) -> Rows:
        return shard(self.train, list(range(len(self.train))))

    def play(self, tasks: int, *, reverse: bool = False) -> State:
        state = self.method.start(self.world)
        for task in range(tasks):
            while (ask := self.method.ask(self.world, state, task)) is not None:
                answers = self.answers(ask)
                state = self.method.absorb(
                    self.world, state, ask, iter(answers[::-1] if reverse else answers)
                )
        return state

    def predicted(self, state: State, tasks: int) -> torch.Tensor | None:
        predictor = self.method.predictor(self.world, state)
        if predictor is None:
            return None
        rows = (self.test.labels < len(self.world.seen(tasks - 1))).nonzero()[:, 0]
        return predictor(shard(self.test, rows))


def same(a: Any, b: Any) -> bool:
    """Equality of state trees, bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a if k != "solver")
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@METHODS
def test_is_a_method(name: str) -> None:
    assert isinstance(Bench(name).method, Method)


@METHODS
def test_same_seed_same_state(name: str) -> None:
    assert same(Bench(name).play(2), Bench(name).play(2))


@METHODS
def test_order_of_clients_does_not_show(name: str) -> None:
    forward, backward = Bench(name), Bench(name)
    a, b = forward.play(2), backward.play(2, reverse=True)
    if name in ("stsa", "stsa-e"):  # after a first stage averaged in another order: same network?
        assert a["reach"] == b["reach"]
        assert a["hash"] == b["hash"] or a["frozen"] != b["frozen"]
    x, y = forward.predicted(a, 2), backward.predicted(b, 2)
    assert (x is None) == (y is None)
    if x is not None and y is not None:
        assert (x == y).float().mean() > 0.98  # floating-point averages may differ in a last bit


@METHODS
def test_uploads_survive_the_wire(name: str) -> None:
    bench = Bench(name, *(["tasks.count=1"] if name == "joint" else []))
    state, seen = bench.method.start(bench.world), set()
    while (ask := bench.method.ask(bench.world, state, 0)) is not None:
        answers = bench.answers(ask)
        for _, upload in answers:
            message = codec.to_message(upload)
            data = message.to_bytes()
            assert len(data) == message.size
            back = codec.decode(data)
            assert codec.encode(back) == data
            assert isinstance(back, Mergeable)
        seen.add(ask.stage)
        state = bench.method.absorb(bench.world, state, ask, iter(answers))
    assert seen


@METHODS
def test_states_are_trees_of_plain_values(name: str) -> None:
    def check(node: Any) -> None:
        if isinstance(node, dict):
            assert all(isinstance(key, str) for key in node)
            for value in node.values():
                check(value)
        elif isinstance(node, list | tuple):
            for value in node:
                check(value)
        else:
            assert (
                node is None
                or isinstance(node, torch.Tensor | str | int | float | bool)
                or getattr(node, "kind", None) in codec.KINDS
            )

    check(dict(Bench(name).play(1)))


@METHODS
def test_expected_number_of_asks(name: str) -> None:
    bench = Bench(name)
    state, counted = bench.method.start(bench.world), []
    for task in range(5):
        counted.append(0)
        while (ask := bench.method.ask(bench.world, state, task)) is not None:
            counted[-1] += 1
            state = bench.method.absorb(bench.world, state, ask, iter(bench.answers(ask)))
    assert counted == [bench.method.asks(bench.world, task) for task in range(5)]


@pytest.mark.parametrize("name", ["stsa", "stsa-e"])
def test_forgetting_a_client_is_never_having_had_it(name: str) -> None:
    bench = Bench(name, "first_stage.kind=none")
    state = bench.method.start(bench.world)
    for stage in ("calibrate", "statistics"):
        ask = bench.method.ask(bench.world, state, 0)
        assert ask is not None and ask.stage == stage
        answers = [upload for _, upload in bench.answers(ask)]
        if stage == "calibrate":
            state = bench.method.absorb(bench.world, state, ask, iter(enumerate(answers)))
    assert isinstance(answers[0], Additive)
    assert isinstance(answers[0], Collected) == (name == "stsa-e")
    a, b, c = answers
    assert (a + b + c - b) == a + c
    assert (a + b + c - b).hash == (c + a).hash  # type: ignore[attr-defined]


def test_statistics_methods_train_nothing_after_the_first_task() -> None:
    bench = Bench("stsa")
    state = bench.method.start(bench.world)
    frozen: dict[str, torch.Tensor] = {}
    for task in range(3):
        while (ask := bench.method.ask(bench.world, state, task)) is not None:
            assert task == 0 or ask.stage == "statistics"
            state = bench.method.absorb(bench.world, state, ask, iter(bench.answers(ask)))
        if task == 0:
            frozen = {k: t.clone() for k, t in state["extractor"].items()}
        assert same(frozen, dict(state["extractor"]))
        assert bench.method.report(bench.world, state).get("gradient_steps") == (
            state["steps"] if task == 0 else 0
        )


def test_head_equals_one_shot_ridge_on_pooled_features() -> None:
    from fcil import ridge
    from fcil.features import FeatureMap, frozen_sources
    from fcil.stats.extent import Reach

    bench = Bench("stsa", "method.gamma=2.5")
    state = bench.play(5)
    network = frozen_sources(bench.world, state["extractor"], state["frozen"]).network
    assert network is not None
    phi = FeatureMap.on_grid(network.fingerprint, network.width, 100, 0, 8, Reach(*state["reach"]))
    everything = shard(bench.train, list(range(len(bench.train))))
    X = phi(everything.features(network)).real()
    Y = torch.nn.functional.one_hot(everything.labels).double()
    augmented = torch.cat([X, 2.5**0.5 * torch.eye(100, dtype=torch.float64)])
    W = torch.linalg.lstsq(augmented, torch.cat([Y, torch.zeros(100, 10).double()])).solution
    assert torch.allclose(state["head"], W, rtol=1e-8, atol=1e-10)
    assert torch.equal(state["total"].gram_matrix(), X.T @ X)
    pooled = ridge.solve(state["total"], 2.5)
    assert torch.equal(pooled.weights, state["head"])


def test_no_old_data_is_asked_for() -> None:
    class Watched(ImageSource):
        asked: ClassVar[set[int]] = set()

        def features(self, source: Any, rows: Any, together: Any) -> Any:
            Watched.asked |= set(together.tolist())
            return super().features(source, rows, together)

    bench = Bench("stsa", "first_stage.kind=none")
    bench.train = Watched(bench.train.images, bench.train.labels)
    state = bench.method.start(bench.world)
    for task in range(3):
        Watched.asked = set()
        while (ask := bench.method.ask(bench.world, state, task)) is not None:
            state = bench.method.absorb(bench.world, state, ask, iter(bench.answers(ask)))
        mine = {int(row) for client in bench.plan.rows[task] for row in client}
        assert Watched.asked == mine
