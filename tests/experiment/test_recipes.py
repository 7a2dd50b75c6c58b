from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fcil import settings
from fcil.data import partition, tasks
from fcil.data.dataset import Dataset
from fcil.errors import UnknownName
from fcil.experiment import recipes
from fcil.experiment.run import run
from fcil.record import Record

WIDTHS = (0, 1250, 2500, 5000, 10000)
CLIENTS = {5: 50, 10: 25, 25: 10, 50: 5, 100: 5}
UNITS = (1, 2, 5, 10, 25, 50)
LADDER = ("best", "wide", "patches")
BITS = (0, 4, 6, 8, 9, 10, 12)


def expected() -> set[str]:
    """Every cell of Tables 1 and 4 for ResNet-18, the ablations, and the demo."""
    found = {f"digits-{method}" for method in ("stsa", "stsa-e", "fedavg", "joint")}
    for family, data, method in product(
        ("published", "published-code"),
        ("cifar100", "tiny-imagenet"),
        ("stsa", "stsa-e", "fedavg"),
    ):
        found |= {f"{family}-{data}-{method}-beta{beta}" for beta in ("1", "0.5", "0.1")}
        if data == "cifar100":
            found.add(f"{family}-{data}-{method}-large-first-task")
    found |= {"published-cifar100-joint", "published-tiny-imagenet-joint"}
    found.add("published-cifar100-joint-large-first-task")
    for method in ("stsa", "stsa-e"):
        found |= {f"published-cifar100-{method}-m{width}" for width in WIDTHS}
    for clients, units in CLIENTS.items():
        found.add(f"published-cifar100-stsa-k{clients}")
        found.add(f"published-cifar100-stsa-e-k{clients}-kd{units}")
    found |= {f"published-cifar100-stsa-e-kd{units}" for units in UNITS}
    found.add("published-cifar100-stsa-e-holders")
    for family, method in product(LADDER, ("stsa", "stsa-e")):
        cells = ("beta1", "beta0.5", "beta0.1", "large-first-task")
        found |= {f"{family}-cifar100-{method}-{cell}" for cell in cells}
    for family in ("best", "wide"):
        found |= {f"{family}-cifar100-stsa-k{clients}" for clients in CLIENTS}
        found |= {f"{family}-cifar100-stsa-e-k{k}-kd{units}" for k, units in CLIENTS.items()}
        found |= {f"{family}-cifar100-stsa-e-kd{units}" for units in UNITS}
        found.add(f"{family}-cifar100-stsa-e-all")
    for family in LADDER:
        found |= {f"{family}-cifar100-stsa-bits{bits}" for bits in BITS}
    for method in ("stsa", "stsa-e"):
        found |= {f"best-cifar100-{method}-m{width}" for width in WIDTHS}
    return found | {"patches-cpu"}


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Values by dotted key."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    found = {}
    for key, value in tree.items():
        found.update(flat(value, f"{prefix}.{key}" if prefix else key))
    return found


def complete(name: str) -> dict[str, Any]:
    return flat(settings.build(recipes.recipe(name)).complete())


def difference(name: str, base: str) -> dict[str, Any]:
    """What a recipe changes of another."""
    of, to = complete(base), complete(name)
    return {key: to.get(key) for key in of.keys() | to.keys() if of.get(key) != to.get(key)}


# --- names -------------------------------------------------------------------------------


def test_every_table_cell_is_there_and_nothing_else() -> None:
    assert set(recipes.names()) == expected()


def test_no_family_takes_the_name_of_another() -> None:
    written = [entry.name for family in recipes.FAMILIES for entry in family()]
    assert written == recipes.names()


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_loads_and_says_what_it_is(name: str) -> None:
    tree = recipes.recipe(name)
    whole = complete(name)
    for key, value in flat(tree).items():
        assert whole[key] == value, key
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9.]+)+", name)
    line = recipes.describe(name)
    assert line and "\n" not in line and len(line) <= 100
    assert "data.root" not in flat(tree)


def test_descriptions_tell_recipes_apart() -> None:
    lines = [recipes.describe(name) for name in recipes.names()]
    assert len(set(lines)) == len(lines)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    for ask in (recipes.recipe, recipes.describe):
        with pytest.raises(UnknownName, match=r"'published-cifar100-stsa-beta0\.5'") as caught:
            ask("published-cifar100-stsa-beta0.05")
        assert caught.value.exit_code == 2


def test_a_recipe_is_the_callers_own() -> None:
    recipes.recipe("digits-stsa")["method"]["projection"] = 1
    assert recipes.recipe("digits-stsa")["method"]["projection"] == 1000


def test_listing_needs_neither_torch_nor_pydantic() -> None:
    code = (
        "import sys\n"
        "from fcil.experiment import recipes\n"
        "for name in recipes.names(): recipes.recipe(name), recipes.describe(name)\n"
        "assert not {'torch', 'pydantic', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- the paper's settings, written down a second time ------------------------------------

PAPER = {
    "seed": 0,
    "tasks.count": 10,
    "tasks.first_classes": None,
    "clients.count": 5,
    "clients.fraction": 1.0,
    "clients.seeding": "published",
    "backbone.name": "resnet18",
    "backbone.weights": None,
    "first_stage.kind": "fedavg",
    "first_stage.rounds": 100,
    "first_stage.epochs": 2,
    "first_stage.batch": 128,
    "first_stage.momentum": 0.9,
    "first_stage.head": "linear",
    "first_stage.rotation": False,
    "first_stage.average": "uniform",
    "features.layers": ["last"],
    "features.pool": 1,
    "features.views": ["plain"],
    "features.bits": 0,
    "upload.encoding": "full",
}
CIFAR100 = {
    "data.name": "cifar100",
    "backbone.stem": "small",
    "first_stage.lr": 0.04,
    "first_stage.weight_decay": 5e-4,
    "first_stage.schedule": "constant",
}
TINY_IMAGENET = {
    "data.name": "tiny-imagenet",
    "backbone.stem": "large",
    "first_stage.lr": 0.1,
    "first_stage.weight_decay": 2e-4,
    "first_stage.schedule": "step",
    "first_stage.milestones": [0.5, 0.75],
}
STSA = {"method.projection": 5000, "method.gamma": 1e4, "method.predict": "linear"}
STSA_E = {**STSA, "method.units": 50, "method.count": "all", "method.min_cell": 1}


@pytest.mark.parametrize(
    ("data", "method", "beta"),
    list(product(("cifar100", "tiny-imagenet"), ("stsa", "stsa-e", "fedavg"), ("1", "0.5", "0.1"))),
)
def test_published_cells_hold_the_papers_settings(data: str, method: str, beta: str) -> None:
    stated = {
        **PAPER,
        **{"cifar100": CIFAR100, "tiny-imagenet": TINY_IMAGENET}[data],
        **{"stsa": STSA, "stsa-e": STSA_E, "fedavg": {"method.loss": "masked"}}[method],
        "method.name": method,
        "clients.beta": float(beta),
    }
    found = complete(f"published-{data}-{method}-beta{beta}")
    assert {key: found[key] for key in stated} == stated


LARGER = {"tasks.count": 11, "tasks.first_classes": 50}
CODE = {
    "first_stage.head": "cosine",
    "first_stage.precision": "float32",
    "method.predict": "cosine",
}
BEST = {
    "first_stage.rotation": True,
    "first_stage.augment": "strong",
    "features.layers": [1, 2, 3, 4],
    "features.pool": 2,
    "features.views": ["plain", "mirror"],
    "features.bits": 10,
}
BY_DATA = {"method.gamma": "auto", "upload.encoding": "auto"}
VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("published-cifar100-stsa-large-first-task", "published-cifar100-stsa-beta0.5", LARGER),
    ("published-cifar100-stsa-e-large-first-task", "published-cifar100-stsa-e-beta0.5", LARGER),
    ("published-cifar100-joint-large-first-task", "published-cifar100-joint", LARGER),
    (
        "published-code-cifar100-stsa-beta0.5",
        "published-cifar100-stsa-beta0.5",
        {**CODE, "first_stage.schedule": "cosine"},
    ),
    (
        "published-code-tiny-imagenet-stsa-e-beta0.1",
        "published-tiny-imagenet-stsa-e-beta0.1",
        {**CODE, "first_stage.weight_decay": 5e-4},
    ),
    (
        "published-code-cifar100-fedavg-beta0.5",
        "published-cifar100-fedavg-beta0.5",
        {"first_stage.lr": 0.01, "first_stage.precision": "float32"},
    ),
    *(
        (f"published-cifar100-{method}-m{width}", f"published-cifar100-{method}-beta0.5", changes)
        for method in ("stsa", "stsa-e")
        for width, changes in ((w, {"method.projection": w} if w != 5000 else {}) for w in WIDTHS)
    ),
    *(
        (
            f"published-cifar100-stsa-e-k{clients}-kd{units}",
            "published-cifar100-stsa-e-beta0.5",
            {"clients.count": clients, "method.units": units} if clients != 5 else {},
        )
        for clients, units in CLIENTS.items()
    ),
    *(
        (
            f"published-cifar100-stsa-e-kd{units}",
            "published-cifar100-stsa-e-beta0.5",
            {"method.measure_error": True, **({"method.units": units} if units != 50 else {})},
        )
        for units in UNITS
    ),
    ("best-cifar100-stsa-beta0.5", "published-cifar100-stsa-beta0.5", {**BEST, **BY_DATA}),
    (
        "wide-cifar100-stsa-beta0.5",
        "published-cifar100-stsa-beta0.5",
        {**BEST, **BY_DATA, "features.patches": 1024, "method.projection": 0},
    ),
    (
        "best-cifar100-stsa-e-large-first-task",
        "published-cifar100-stsa-e-large-first-task",
        {**BEST, **BY_DATA, "method.count": "holders"},
    ),
    ("best-cifar100-stsa-beta0.1", "best-cifar100-stsa-beta0.5", {"clients.beta": 0.1}),
    ("best-cifar100-stsa-m1250", "best-cifar100-stsa-beta0.5", {"method.projection": 1250}),
    (
        "wide-cifar100-stsa-e-k10-kd25",
        "wide-cifar100-stsa-e-beta0.5",
        {"clients.count": 10, "method.units": 25},
    ),
    ("patches-cpu", "patches-cifar100-stsa-beta0.5", {"features.patches": 1024}),
]


@pytest.mark.parametrize(("name", "base", "changes"), VARIANTS)
def test_a_variant_changes_what_it_says_and_nothing_else(
    name: str, base: str, changes: dict[str, Any]
) -> None:
    assert difference(name, base) == changes


def test_the_joint_bound_has_the_settings_of_its_page() -> None:
    cifar100 = complete("published-cifar100-joint")
    tiny = complete("published-tiny-imagenet-joint")
    stage = ("lr", "schedule", "weight_decay", "batch")
    assert [cifar100[f"first_stage.{key}"] for key in stage] == [0.1, "cosine", 5e-4, 128]
    assert [tiny[f"first_stage.{key}"] for key in stage] == [0.1, "step", 2e-4, 128]
    assert (cifar100["method.epochs"], tiny["method.epochs"]) == (200, 100)
    assert (cifar100["backbone.stem"], tiny["backbone.stem"]) == ("small", "large")


def test_units_in_all_stay_the_same_when_clients_become_more() -> None:
    for clients in sorted(CLIENTS.keys() - {100}):  # two units and a half are none
        found = complete(f"published-cifar100-stsa-e-k{clients}-kd{250 // clients}")
        assert found["clients.count"] * found["method.units"] == 250


# --- runs --------------------------------------------------------------------------------

CLASSES, IMAGES = 20, 3
LONG = [name for name in recipes.names() if not name.startswith("digits-")]
LADDER_CELLS = ("beta0.5", "large-first-task", "bits0", "stsa-e-all")
"""Of the ladder's recipes those that are also run in short."""
SHORT = [
    name
    for name in LONG
    if name.startswith(("published", "patches-cpu")) or name.endswith(LADDER_CELLS)
]


@pytest.mark.parametrize(
    ("data", "clients", "beta", "first"),
    sorted(
        {
            (
                found["data.name"],
                found["clients.count"],
                found["clients.beta"],
                found["tasks.first_classes"] or 0,
            )
            for name in LONG
            for found in [complete(name)]
        }
    ),
)
def test_the_data_can_be_dealt_as_recipes_ask(
    data: str, clients: int, beta: float, first: int
) -> None:
    classes = {"cifar100": 100, "tiny-imagenet": 200}[data]
    labels = np.repeat(np.arange(classes), 500)
    cut = tasks.class_tasks(classes, 11 if first else 10, first or None)
    dealt = partition.plan(labels, cut, clients, beta, 0, "published")
    assert [len(shares) for shares in dealt] == [clients] * len(cut)
    assert sorted(np.concatenate([row for shares in dealt for row in shares])) == list(
        range(len(labels))
    )


def shortened(name: str) -> str:
    """The settings of a recipe with everything that takes long made small, as text."""
    tree = settings.build(recipes.recipe(name)).complete()
    tree["data"] = {"name": "cifar100"}
    tree["tasks"] = (
        {"count": 2, "first_classes": CLASSES // 2 + 2}
        if tree["tasks"]["first_classes"]
        else {"count": 2, "first_classes": None}
    )
    tree["clients"].update(count=min(tree["clients"]["count"], 6), beta=0.5)
    tree["first_stage"].update(rounds=1, epochs=1, batch=16, lr=0.01)
    for key, most in (("projection", 64), ("units", 3), ("epochs", 2)):
        if key in tree["method"]:
            tree["method"][key] = min(tree["method"][key], most)
    if tree["method"].get("gamma") == "auto":  # a fold of so few images says nothing
        tree["method"]["gamma"] = "0.003r"
    tree["features"]["patches"] = min(tree["features"].get("patches", 0), 4)
    tree["features"]["bits"] = 8 if tree["features"]["bits"] else 0
    tree["first_stage"]["rotation"] = False  # four times the steps; test_training has it
    return json.dumps(tree, sort_keys=True)


def short_forms() -> dict[str, str]:
    """One recipe's name for each short form; recipes may come to the same."""
    return {shortened(name): name for name in reversed(SHORT)}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Steps this small only wait for each other's threads, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def few(request: pytest.FixtureRequest) -> Dataset:
    """A few images of twenty classes: real ones where there are, else noise of the same shape."""
    if os.environ.get("FCIL_TEST_DATA"):
        whole: Dataset = request.getfixturevalue("real_cifar100")
    else:
        whole = noise()
    train, test = (first(labels, IMAGES) for labels in (whole.train_labels, whole.test_labels))
    return Dataset(
        name="few",
        train_images=whole.train_images[train],
        train_labels=whole.train_labels[train],
        test_images=whole.test_images[test],
        test_labels=whole.test_labels[test],
        class_names=whole.class_names[:CLASSES],
        mean=whole.mean,
        std=whole.std,
    )


def first(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Rows of the first images of each of the first classes."""
    return np.concatenate([np.flatnonzero(labels == c)[:count] for c in range(CLASSES)])


def noise() -> Dataset:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), IMAGES)
    images = rng.integers(0, 256, (2, len(labels), 3, 32, 32), dtype=np.uint8)
    names = tuple(map(str, range(CLASSES)))
    return Dataset("noise", images[0], labels, images[1], labels, names, (0.5,) * 3, (0.25,) * 3)


@pytest.mark.parametrize(
    "text", [pytest.param(text, id=name) for text, name in short_forms().items()]
)
def test_a_short_form_runs_on_real_images(text: str, few: Dataset) -> None:
    chosen = settings.build(json.loads(text))
    record = run(chosen, dataset=few, device="cpu")
    count = chosen.tasks.count
    method = record.config["method"]
    assert [len(row) for row in record.matrix] == list(range(1, count + 1))
    known = record.matrix[-1:] if method["name"] == "joint" else record.matrix
    assert all(value is not None and 0 <= value <= 100 for row in known for value in row)
    if "projection" in method:
        trains = chosen.first_stage.kind != "none"
        assert (record.gradient_steps[0] > 0) == trains and not any(record.gradient_steps[1:])
        if chosen.upload.encoding == "full":
            check_published_upload(record, method)
    else:
        assert record.gradient_steps[-1] > 0


def check_published_upload(record: Record, method: dict[str, Any]) -> None:
    """4 (M + c) M bytes for STSA and 4 (M + 1) c K_D for STSA-E, and a header with the counts."""
    width = method["projection"] or 512
    for classes, sent in zip(record.task_classes, record.bytes["up"], strict=True):
        c = len(classes)
        formula = 4 * (
            (width + 1) * c * method["units"] if "units" in method else (width + c) * width
        )
        assert all(formula < up < formula + 1500 for up in sent)


# --- the demo ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo() -> dict[str, Record]:
    found = [name for name in recipes.names() if name.startswith("digits-")]
    return {
        name.removeprefix("digits-"): run(
            settings.build(recipes.recipe(name)), recipe=name, device="cpu"
        )
        for name in found
    }


def test_the_demo_shows_what_statistics_are_worth(demo: dict[str, Record]) -> None:
    final = {name: record.A_T or 0.0 for name, record in demo.items()}
    assert final["stsa"] > 95 and final["stsa-e"] > 90 and final["joint"] > 96
    assert final["fedavg"] < 75 and final["joint"] >= final["stsa"] - 1
    assert (demo["fedavg"].F_T or 0) > 20 > 10 > (demo["stsa"].F_T or 0)


def test_the_demo_takes_seconds(demo: dict[str, Record]) -> None:
    steps = sum(sum(record.gradient_steps) for record in demo.values())
    assert steps < 2500  # of a small network on 32 images of 8x8: a few seconds on two cores


def test_the_demo_says_how_far_the_estimate_is_off(demo: dict[str, Record]) -> None:
    error = demo["stsa-e"].estimate_error
    assert error is not None and 0 < error["frobenius"] < 0.5
    assert any("single image" in note for note in demo["stsa-e"].notes)
