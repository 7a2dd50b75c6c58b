import dataclasses
import subprocess
import sys
from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fcil.errors import NumericalError
from fcil.images import normalise
from fcil.nets.backbone import build_backbone
from fcil.nets.heads import Classifier, LinearHead
from fcil.nets.resnet import ResNet18
from fcil.protocol import DataSpec
from fcil.settings import Backbone, FirstStage
from fcil.training import (
    Job,
    Lane,
    LocalPlan,
    LocalResult,
    cross_entropy,
    learning_rate,
    local_sgd,
    masked_cross_entropy,
    train_together,
)

SPEC = DataSpec("digits", 1, 8, (0.3,), (0.35,), 10)
PLAN = LocalPlan(
    epochs=1,
    batch=32,
    lr=0.05,
    momentum=0.9,
    weight_decay=5e-4,
    augment="standard",
    rotation=False,
    precision="auto",
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def digits() -> tuple[Tensor, Tensor]:
    found = load_digits()
    images = torch.from_numpy(found.images * 255 / 16).round().to(torch.uint8)
    return images[:, None], torch.from_numpy(found.target).long()


def small(outputs: int = 10) -> Classifier:
    return Classifier(build_backbone(SPEC, Backbone(), 1), LinearHead(128, outputs, seeded(2)))


def train(
    model: nn.Module,
    count: int = 200,
    *,
    generator: torch.Generator | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    momentum: dict[str, Tensor] | None = None,
    plan: LocalPlan = PLAN,
    **changes: object,
) -> LocalResult:
    images, labels = digits()
    return local_sgd(
        model,
        images[:count],
        labels[:count],
        spec=SPEC,
        plan=dataclasses.replace(plan, **changes),  # type: ignore[arg-type]
        loss=loss,
        generator=generator or seeded(),
        momentum=momentum,
    )


def weights(model: nn.Module) -> Tensor:
    return torch.cat([value.flatten().double() for value in model.state_dict().values()])


def test_it_learns_digits() -> None:
    images, labels = digits()
    model = small()
    result = train(model, 1400, epochs=3, augment="none")
    assert result.steps == 3 * 44
    with torch.no_grad():
        found = model.eval()(normalise(images[1400:], SPEC)).argmax(1)
    assert (found == labels[1400:]).float().mean().item() > 0.9


def test_one_call_of_many_epochs_is_many_calls_of_one() -> None:
    once, often, restarted = small(), small(), small()
    assert train(once, epochs=3).steps == 21
    generator, generator2 = seeded(), seeded()
    momentum: dict[str, Tensor] | None = None
    for _ in range(3):
        momentum = train(often, generator=generator, momentum=momentum).momentum
        train(restarted, generator=generator2)
    assert torch.equal(weights(once), weights(often))
    assert not torch.equal(weights(once), weights(restarted))


def test_it_is_torchs_sgd_on_the_mean_loss_of_shuffled_batches() -> None:
    images, labels = digits()
    model, reference = small(), small()
    train(model, 70, epochs=2, augment="none", precision="float32")
    optimiser = torch.optim.SGD(
        reference.parameters(), PLAN.lr, PLAN.momentum, weight_decay=PLAN.weight_decay
    )
    generator = seeded()
    for _ in range(2):
        order = torch.randperm(70, generator=generator)
        for start in range(0, 70, 32):
            chosen = order[start : start + 32]
            optimiser.zero_grad()
            x = (images[chosen].float() / 255 - 0.3) / 0.35
            nn.functional.cross_entropy(reference(x), labels[chosen]).backward()
            optimiser.step()
    torch.testing.assert_close(weights(model), weights(reference), rtol=1e-4, atol=1e-5)


PROBE = """
import sys; sys.path.insert(0, {folder!r})
import hashlib, test_training as t
model = t.small()
t.train(model, augment="strong")
print(hashlib.sha256(t.weights(model).numpy().tobytes()).hexdigest())
"""


def test_two_processes_give_the_same_bits() -> None:
    code = PROBE.format(folder=__file__.rpartition("/")[0])
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout) == 65


def test_bits_depend_on_the_generator_and_not_on_torchs_own() -> None:
    one, two, other = small(), small(), small()
    train(one)
    torch.manual_seed(123)
    state = torch.get_rng_state()
    train(two)
    assert torch.equal(torch.get_rng_state(), state)
    train(other, generator=seeded(1))
    assert torch.equal(weights(one), weights(two))
    assert not torch.equal(weights(one), weights(other))


class Spy(nn.Module):
    """Keeps what it is trained on; its logits do not depend on it."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(outputs))
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.append(x)
        return self.logits.expand(len(x), -1)


@given(count=st.integers(1, 30), batch=st.integers(1, 40), rotation=st.booleans())
def test_every_image_is_seen_once_an_epoch_under_its_label(
    count: int, batch: int, rotation: bool
) -> None:
    images, labels = digits()
    angles = 4 if rotation else 1
    spy = Spy(10 * angles)
    asked: list[Tensor] = []

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        asked.append(y)
        return cross_entropy(logits, y)

    result = train(spy, count, loss=loss, batch=batch, augment="none", rotation=rotation)
    sizes = [len(y) for y in asked]
    assert result.steps == len(sizes) == -(-count * angles // batch)
    assert all(size == batch for size in sizes[:-1])
    shown = torch.cat(spy.seen) * 0.35 + 0.3
    assert len(shown) == count * angles
    left = [
        (angles * int(labels[i]) + k, torch.rot90(images[i, 0], k))
        for i in range(count)
        for k in range(angles)
    ]
    for picture, label in zip(shown, torch.cat(asked).tolist(), strict=True):
        pixels = (picture[0] * 255).round().to(torch.uint8)
        match = next(
            place
            for place, (wanted, turned) in enumerate(left)
            if wanted == label and torch.equal(turned, pixels)
        )
        del left[match]
    assert not left


def test_rotated_labels_survive_the_mirror_image() -> None:
    spec = DataSpec("arrow", 1, 8, (0.0,), (1.0,), 1)
    arrow = torch.zeros(64, 1, 8, 8, dtype=torch.uint8)
    arrow[:, :, 0, 3:5] = 255  # a mark at the top, the same in its mirror image
    spy = Spy(4)
    asked: list[Tensor] = []

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        asked.append(y)
        return cross_entropy(logits, y)

    local_sgd(
        spy,
        arrow,
        torch.zeros(64, dtype=torch.long),
        spec=spec,
        plan=dataclasses.replace(PLAN, rotation=True, batch=64),
        loss=loss,
        generator=seeded(),
    )
    for picture, label in zip(torch.cat(spy.seen), torch.cat(asked).tolist(), strict=True):
        marked = (picture[0] > 0).nonzero().float()
        if len(marked):  # a crop may have cut the mark off
            down, right = (marked.mean(0) - 3.5).tolist()
            where = [-down, -right, down, right].index(max(-down, -right, down, right))
            assert where == label  # top, left, bottom, right after 0 to 3 quarter turns


def test_frozen_parameters_stay() -> None:
    model = small()
    model.head.requires_grad_(False)
    before = model.head.weight.clone()
    momentum = train(model).momentum
    assert torch.equal(model.head.weight, before)
    assert set(momentum) == {name for name, w in model.named_parameters() if w.requires_grad}


def test_momentum_is_none_without_momentum_and_tensors_have_the_usual_layout() -> None:
    assert (
        train(small(), momentum=None, plan=dataclasses.replace(PLAN, momentum=0.0)).momentum == {}
    )
    model = small()
    result = train(model)
    for value in (*model.state_dict().values(), *result.momentum.values()):
        assert value.is_contiguous()


def test_an_empty_client_takes_no_step() -> None:
    model = small()
    before = weights(model)
    assert train(model, 0) == LocalResult(0, {})
    assert torch.equal(weights(model), before)


def test_a_single_image_is_skipped_only_where_it_cannot_be_normalised() -> None:
    assert train(small(), 33).steps == 2  # maps of 2x2 at the end: it can
    narrow = Classifier(ResNet18(1), LinearHead(512, 10, seeded()))  # 1x1 on 8 pixels: it cannot
    tracked = narrow.backbone.bn1.num_batches_tracked
    assert train(narrow, 5, batch=4).steps == 1
    assert tracked.item() == 1
    assert not narrow.backbone.bn1._forward_pre_hooks
    before = weights(narrow)
    assert train(narrow, 1).steps == 0
    assert torch.equal(weights(narrow), before)
    assert train(narrow, 1, rotation=True, loss=lambda logits, _: logits.sum()).steps == 1


def test_a_loss_that_is_not_finite_names_epoch_and_batch() -> None:
    calls = iter(range(100))

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(logits, y) * (float("nan") if next(calls) == 9 else 1.0)

    with pytest.raises(NumericalError, match=r"epoch 2, batch 3 of 7.*learning rate 0\.05"):
        train(small(), epochs=3, loss=loss)


def test_bfloat16_trains_close_to_float32() -> None:
    low, full = small(), small()
    train(low, precision="bfloat16")
    train(full, precision="float32")
    assert {value.dtype for value in low.parameters()} == {torch.float32}
    gap = (weights(low) - weights(full)).norm() / (weights(full) - weights(small())).norm()
    assert 0 < gap.item() < 0.3


def test_masked_loss_leaves_old_rows_alone() -> None:
    model = small()
    images, labels = digits()
    new = labels >= 6
    old = model.head.weight[:6].clone()
    local_sgd(
        model,
        images[new][:100],
        labels[new][:100],
        spec=SPEC,
        plan=dataclasses.replace(PLAN, weight_decay=0.0),
        loss=masked_cross_entropy(6),
        generator=seeded(),
    )
    assert torch.equal(model.head.weight[:6], old)
    assert model.head.bias[:6].count_nonzero() == 0
    logits = torch.randn(7, 10, requires_grad=True)
    y = torch.tensor([6, 7, 8, 9, 6, 7, 8])
    masked_cross_entropy(6)(logits, y).backward()
    assert logits.grad is not None
    assert logits.grad[:, :6].count_nonzero() == 0
    picked = logits[torch.arange(7), y] - logits[:, 6:].logsumexp(1)
    torch.testing.assert_close(masked_cross_entropy(6)(logits, y), -picked.mean())
    assert torch.equal(masked_cross_entropy(0)(logits, y), cross_entropy(logits, y))


@given(rounds=st.integers(1, 120), lr=st.floats(1e-3, 1))
def test_schedules_are_torchs_own_stepped_once_a_round(rounds: int, lr: float) -> None:
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    schedulers = torch.optim.lr_scheduler
    cosine = FirstStage(rounds=rounds, lr=lr, schedule="cosine")
    step = FirstStage(rounds=rounds * 4, lr=lr, schedule="step")
    constant = FirstStage(rounds=rounds, lr=lr)
    want = schedulers.CosineAnnealingLR(optimiser, rounds)
    for now in range(rounds):
        assert learning_rate(constant, now) == lr
        assert learning_rate(cosine, now) == pytest.approx(want.get_last_lr()[0], rel=1e-6)
        optimiser.step()
        want.step()
    other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    falls = schedulers.MultiStepLR(other, [2 * rounds, 3 * rounds])
    for now in range(4 * rounds):
        assert learning_rate(step, now) == pytest.approx(falls.get_last_lr()[0])
        other.step()
        falls.step()


def test_step_falls_at_the_published_rounds_and_rounds_up_in_between() -> None:
    stage = FirstStage(rounds=100, lr=0.1, schedule="step")
    rates = [learning_rate(stage, now) for now in (0, 49, 50, 74, 75, 99)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    odd = FirstStage(rounds=100, lr=1, schedule="step", milestones=(0.07, 0.555))
    assert [
        now for now in range(1, 100) if learning_rate(odd, now) < learning_rate(odd, now - 1)
    ] == [7, 56]


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_clients_trained_together_are_trained_as_if_alone(lanes: int) -> None:
    images, labels = digits()
    start = {k: t.clone() for k, t in small().state_dict().items()}
    shares = [slice(0, 40), slice(40, 210), slice(210, 211), slice(211, 300)]
    jobs = [
        Job(start, images[rows], labels[rows], seed=at, lr=0.01 * (at + 1))
        for at, rows in enumerate(shares)
    ]
    found = {}
    # Twice over the same lanes: nothing of an earlier job may stay behind.
    many = [
        Lane(small(), SPEC, dataclasses.replace(PLAN, epochs=2), cross_entropy)
        for _ in range(lanes)
    ]
    for _ in range(2):
        for at, model, steps in train_together(many, jobs):
            found[at] = steps, {k: t.clone() for k, t in model.state_dict().items()}
    assert sorted(found) == [0, 1, 2, 3]
    for at, rows in enumerate(shares):
        alone = small()
        plan = dataclasses.replace(PLAN, epochs=2, lr=0.01 * (at + 1))
        result = local_sgd(
            alone,
            images[rows],
            labels[rows],
            spec=SPEC,
            plan=plan,
            loss=cross_entropy,
            generator=seeded(at),
        )
        steps, weights = found[at]
        assert steps == result.steps
        assert all(torch.equal(t, weights[k]) for k, t in alone.state_dict().items())
