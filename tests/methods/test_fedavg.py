"""Fine-tuning against centralised training written here in the plainest way."""

from __future__ import annotations

import pytest
import torch

from fcil import registry, seeds
from fcil.errors import UsageError
from fcil.images import augment, normalise
from fcil.methods.fedavg import FedAvg
from fcil.methods.joint import Joint
from fcil.methods.parts import federated
from fcil.stats.parameters import Parameters
from fcil.training import cross_entropy
from small import make, shard, sources, world_of

ONE = ("clients.count=1", "clients.beta=0", "tasks.count=1", "first_stage.epochs=1")


def test_one_client_equals_centralised_training_with_restarts() -> None:
    settings = make(*ONE, "first_stage.rounds=3", method="fedavg")
    world, plan = world_of(settings)
    held = shard(sources(plan)[0], plan.rows[0][0][:100])
    method = FedAvg(FedAvg.Config())
    state = method.start(world)
    while (ask := method.ask(world, state, 0)) is not None:
        upload, _ = method.answer(world, ask, 0, held, {})
        state = method.absorb(world, state, ask, iter([(0, upload)]))

    model = federated.load(world, federated.initial(world, 10)).train()
    for epoch in range(3):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        generator = torch.Generator().manual_seed(seeds.integer(0, "training", 0, 2 + epoch, 0))
        for rows in torch.randperm(100, generator=generator).split(32):
            pixels = normalise(augment(held.images[rows], "standard", generator), world.spec)
            optimiser.zero_grad()
            cross_entropy(model(pixels), held.labels[rows]).backward()
            optimiser.step()
    for name, tensor in federated.travelling(model).items():
        assert torch.allclose(tensor, state["model"][name], atol=1e-5), name


def test_joint_without_momentum_equals_one_client_bit_for_bit() -> None:
    """Without momentum there is no optimiser state that a restart could lose."""
    plain = ("first_stage.momentum=0", "first_stage.rounds=2")
    world, plan = world_of(make(*ONE, *plain, method="fedavg"))
    held = shard(sources(plan)[0], plan.rows[0][0][:100])
    finetuning, joint = FedAvg(FedAvg.Config()), Joint(Joint.Config())
    states = []
    for method in (finetuning, joint):
        state, memory = method.start(world), {}
        while (ask := method.ask(world, state, 0)) is not None:
            upload, memory = method.answer(world, ask, 0, held, memory)
            state = method.absorb(world, state, ask, iter([(0, upload)]))
        states.append(state["model"])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_joint_carries_momentum_over_epochs() -> None:
    world, plan = world_of(make(*ONE, "first_stage.rounds=2", method="joint"))
    held = shard(sources(plan)[0], plan.rows[0][0][:100])
    method = Joint(Joint.Config(epochs=2))
    state = method.start(world)
    first = method.ask(world, state, 0)
    assert first is not None
    upload, memory = method.answer(world, first, -1, held, {})
    assert memory and all(t.abs().sum() > 0 for t in memory.values())
    state = method.absorb(world, state, first, iter([(-1, upload)]))
    second = method.ask(world, state, 0)
    assert second is not None
    kept, _ = method.answer(world, second, -1, held, memory)
    fresh, _ = method.answer(world, second, -1, held, {})
    name = "backbone." + next(iter(federated.backbone_part(state["model"])))
    assert isinstance(kept, Parameters) and isinstance(fresh, Parameters)
    assert not torch.equal(kept.total[name], fresh.total[name])


@pytest.mark.parametrize("name", ["fedavg", "joint"])
def test_rotation_labels_are_refused_where_the_head_classifies(name: str) -> None:
    world, _ = world_of(make("first_stage.rotation=true", method=name))
    method = registry.find("methods", name)(world.settings.method_config())
    with pytest.raises(UsageError, match="rotation = false"):
        method.start(world)


def test_average_of_copies_is_the_copy() -> None:
    world, _ = world_of(make(method="fedavg"))
    model = federated.initial(world, 4)
    uploads = [(client, Parameters.of(model)) for client in range(3)]
    mean, _ = federated.averaged(iter(uploads), model)
    assert all(torch.equal(mean[name], model[name]) for name in model)


def test_samples_weigh_where_asked() -> None:
    a, b = {"w": torch.tensor([1.0])}, {"w": torch.tensor([5.0])}
    total = Parameters.of(a, 3.0) + Parameters.of(b, 1.0)
    assert torch.equal(total.mean(a)["w"], torch.tensor([2.0]))


def test_head_grows_by_rows_and_keeps_the_old_ones() -> None:
    world, _ = world_of(make(method="fedavg"))
    small = federated.initial(world, 2)
    large = federated.grown(world, small, 1, 4)
    assert large["head.weight"].shape[0] == 4
    assert torch.equal(large["head.weight"][:2], small["head.weight"])
    assert large["head.weight"][2:].abs().sum() > 0
    assert torch.equal(large["head.bias"][2:], torch.zeros(2))
    assert all(torch.equal(large[k], small[k]) for k in small if not k.startswith("head."))


def test_initialisation_ignores_what_ran_before() -> None:
    world, plan = world_of(make(method="fedavg"))
    before = federated.initial(world, 2)
    method = FedAvg(FedAvg.Config())
    ask = method.ask(world, method.start(world), 0)
    assert ask is not None
    method.answer(world, ask, 0, shard(sources(plan)[0], plan.rows[0][0]), {})
    torch.manual_seed(123)
    after = federated.initial(world, 2)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_client_without_images_weighs_nothing() -> None:
    world, plan = world_of(make(method="fedavg"))
    source = sources(plan)[0]
    method = FedAvg(FedAvg.Config())
    state = method.start(world)
    ask = method.ask(world, state, 0)
    assert ask is not None
    empty, _ = method.answer(world, ask, 0, shard(source, torch.zeros(0, dtype=torch.int64)), {})
    full, _ = method.answer(world, ask, 1, shard(source, plan.rows[0][1]), {})
    both = method.absorb(world, state, ask, iter([(0, empty), (1, full)]))
    alone = method.absorb(world, state, ask, iter([(1, full)]))
    assert all(torch.equal(both["model"][n], alone["model"][n]) for n in alone["model"])
