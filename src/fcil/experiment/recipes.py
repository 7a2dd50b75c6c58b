"""Recipes: complete settings by name. A variant takes its base and changes a line or two.

| family           | what                                                                         |
|------------------|------------------------------------------------------------------------------|
| `digits-`        | the demo: four methods on data that ship with scikit-learn, in seconds       |
| `published-`     | ResNet-18 cells of the paper's Tables 1 and 4 and its ablations, as stated   |
| `published-code-`| the same cells with the settings of the paper's code, where it differs       |
| `best-`          | the most that the paper's own width, M = 5000, gives on its network          |
| `wide-`          | the most at all: the network read without a random layer, patches beside it  |
| `patches-`       | patches alone: nothing is trained; `patches-cpu` is made for two cores       |

The paper is arXiv 2506.01327. A family is a function that yields its entries; a new one is
written beside these and named in `FAMILIES`. `data.root` is the user's to give.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from fcil.errors import UnknownName

Tree = dict[str, Any]
"""Settings as nested dictionaries, for `fcil.settings.build`."""


class Entry(NamedTuple):
    """One recipe."""

    name: str
    line: str
    """What it is, in one line."""
    settings: Tree


def names() -> list[str]:
    """All recipes, in order of family."""
    return list(_entries())


def recipe(name: str) -> Tree:
    """The settings of a recipe; the caller may change them."""
    return copy.deepcopy(_find(name).settings)


def describe(name: str) -> str:
    """One line that says what a recipe is."""
    return _find(name).line


def _find(name: str) -> Entry:
    entries = _entries()
    if name not in entries:
        raise UnknownName("recipe", name, entries)
    return entries[name]


@cache
def _entries() -> dict[str, Entry]:
    return {entry.name: entry for family in FAMILIES for entry in family()}


def changed(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> Tree:
    """A copy of a tree with values set by dotted key.

    >>> changed({"tasks": {"count": 10}}, {"tasks.count": 11, "tasks.first_classes": 50})
    {'tasks': {'count': 11, 'first_classes': 50}}
    """
    result: Tree = copy.deepcopy(dict(tree))
    for key, value in changes.items():
        *blocks, last = key.split(".")
        at = result
        for block in blocks:
            at = at.setdefault(block, {})
        at[last] = value
    return result


def digits() -> Iterator[Entry]:
    """Four methods on the embedded digits: five tasks of two classes, five skewed clients."""
    base: Tree = {
        "data": {"name": "digits"},
        "tasks": {"count": 5},
        "clients": {"count": 5, "beta": 0.5},
        "backbone": {"name": "small-cnn"},
        # No augmentation: a digit's mirror image is another sign.
        "first_stage": {"rounds": 5, "epochs": 2, "batch": 32, "lr": 0.04, "augment": "none"},
    }
    stsa = changed(base, {"method": {"name": "stsa", "projection": 1000}})
    estimate = {"method.name": "stsa-e", "method.units": 10, "method.measure_error": True}
    variants = {
        "stsa": stsa,
        "stsa-e": changed(stsa, estimate),
        "fedavg": changed(base, {"method": {"name": "fedavg"}}),
        "joint": changed(base, {"method": {"name": "joint"}}),
    }
    for method, tree in variants.items():
        yield Entry(f"digits-{method}", f"{_TITLES[method]} on digits, in seconds", tree)


def published() -> Iterator[Entry]:
    """The paper's cells and ablations, each setting as the paper states it.

    Where it states none: a linear head in the first stage, as in all its ResNet baselines;
    uniform averaging, as in its code; the joint bound and fine-tuning as noted at `_joint` and
    `_fedavg`. Prediction is the paper's linear rule, STSA-E counts all units, features stay real
    numbers, statistics travel as dense float32 and every task's partition starts from the seed.
    """
    methods = {"stsa": _stsa, "stsa-e": _stsa_e, "fedavg": _fedavg}
    yield from _cells("published", "the paper's settings", _cifar100(), methods)
    yield from _cells("published", "the paper's settings", _tiny_imagenet(), methods)
    for base, epochs in ((_cifar100(), 200), (_tiny_imagenet(), 100)):
        data = base["data"]["name"]
        line = f"{_TITLES['joint']} on {_TITLES[data]}, ResNet-18: the upper bound"
        yield Entry(f"published-{data}-joint", line, _joint(base, epochs))
    yield from _large_first_task("published", "the paper's settings", _cifar100(), methods)
    name = "published-cifar100-joint-large-first-task"
    line = f"{_TITLES['joint']} on CIFAR-100, ResNet-18, 50 classes, then 10 x 5: the upper bound"
    yield Entry(name, line, _larger(_joint(_cifar100(), 200)))
    yield from _ablations()


def published_code() -> Iterator[Entry]:
    """The cells with what the paper's public code does otherwise.

    A cosine head, a cosine schedule on CIFAR-100, weight decay 5e-4 everywhere, float32 on every
    device, and the cosine rule in prediction; its fine-tuning keeps the linear head at a constant
    rate of 0.01. M, gamma and K_D are the paper's: what is committed there belongs to a ViT run.
    """
    other = {"first_stage.head": "cosine", "first_stage.weight_decay": 5e-4}
    other["first_stage.precision"] = "float32"
    cifar100 = changed(_cifar100(), {**other, "first_stage.schedule": "cosine"})
    methods = {
        "stsa": lambda base: changed(_stsa(base), {"method.predict": "cosine"}),
        "stsa-e": lambda base: changed(_stsa_e(base), {"method.predict": "cosine"}),
        "fedavg": _code_fedavg,
    }
    how = "settings of the paper's code"
    yield from _cells("published-code", how, cifar100, methods)
    yield from _cells("published-code", how, changed(_tiny_imagenet(), other), methods)
    yield from _large_first_task("published-code", how, cifar100, methods)


def best() -> Iterator[Entry]:
    """The paper's network, width and budget of rounds; a better first stage and reading.

    Rotation labels and strong augmentation in the first stage; all four stages on a 2 x 2 grid
    instead of the last one's mean; each image and its mirror image averaged; gamma chosen by the
    data; exact sums.
    """
    how = "M = 5000, the most the paper's width gives"
    yield from _ladder("best", how, _best(_cifar100()))
    yield from _sweeps("best", _best(_cifar100()), widths=(0, 1250, 2500, 5000, 10000))
    yield from _by_bits("best", _best(_cifar100()))


def wide() -> Iterator[Entry]:
    """The same network, read without a random layer, and 1024 patch filters beside it."""
    how = "the network's stages beside patches"
    yield from _ladder("wide", how, _wide(_cifar100()))
    yield from _sweeps("wide", _wide(_cifar100()))
    yield from _by_bits("wide", _wide(_cifar100()))


def patches() -> Iterator[Entry]:
    """No gradient step anywhere: patches of two public photographs are the whole network."""
    yield from _ladder("patches", "3072 patch filters, nothing trained", _patches(_cifar100()))
    yield from _by_bits("patches", _patches(_cifar100()))
    small = changed(_by_data(_patches(_cifar100()), "stsa"), {"features.patches": 1024})
    line = "STSA on CIFAR-100, 1024 patch filters, nothing trained: minutes on two cores"
    yield Entry("patches-cpu", line, small)


def _cifar100() -> Tree:
    """CIFAR-100 at beta 0.5. A constant rate is what the paper's text implies here."""
    return {
        "seed": 0,
        "data": {"name": "cifar100"},
        "tasks": {"count": 10},
        "clients": {"count": 5, "beta": 0.5, "fraction": 1.0, "seeding": "published"},
        "backbone": {"name": "resnet18", "stem": "small"},
        "first_stage": {
            "kind": "fedavg",
            "rounds": 100,
            "epochs": 2,
            "batch": 128,
            "lr": 0.04,
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "schedule": "constant",
            "head": "linear",
            "rotation": False,
            "augment": "standard",
            "average": "uniform",
        },
        "features": {"layers": ["last"], "pool": 1, "views": ["plain"], "bits": 0},
        "upload": {"encoding": "full"},
    }


def _tiny_imagenet() -> Tree:
    """Tiny-ImageNet at beta 0.5: the rate falls tenfold at rounds 50 and 75 of 100."""
    return changed(
        _cifar100(),
        {
            "data.name": "tiny-imagenet",
            "backbone.stem": "large",
            "first_stage.lr": 0.1,
            "first_stage.weight_decay": 2e-4,
            "first_stage.augment": "crop-flip",
            "first_stage.schedule": "step",
            "first_stage.milestones": [0.5, 0.75],
        },
    )


def _stsa(base: Tree) -> Tree:
    method = {"name": "stsa", "projection": 5000, "gamma": 1e4, "predict": "linear"}
    return changed(base, {"method": method})


def _stsa_e(base: Tree) -> Tree:
    return changed(
        _stsa(base), {"method.name": "stsa-e", "method.units": 50, "method.count": "all"}
    )


def _fedavg(base: Tree) -> Tree:
    """Not in the paper's tables; trained as its text says for ResNet-18, with the masked loss of
    the code base it grew from."""
    return changed(base, {"method": {"name": "fedavg", "loss": "masked"}})


def _code_fedavg(base: Tree) -> Tree:
    rate = {"first_stage.lr": 0.01, "first_stage.schedule": "constant"}
    return changed(_fedavg(base), {**rate, "first_stage.head": "linear"})


def _joint(base: Tree, epochs: int) -> Tree:
    """Neither paper nor code says how the bound was trained: this is our specification.

    Rate 0.1, falling along a cosine on CIFAR-100 and in steps on Tiny-ImageNet.
    """
    schedule = "cosine" if base["data"]["name"] == "cifar100" else "step"
    stage = {"first_stage.lr": 0.1, "first_stage.schedule": schedule}
    return changed(base, {"method": {"name": "joint", "epochs": epochs}, **stage})


def _larger(tree: Tree) -> Tree:
    """Fifty classes first, then ten tasks of five."""
    return changed(tree, {"tasks.count": 11, "tasks.first_classes": 50})


def _cells(
    family: str, how: str, base: Tree, methods: Mapping[str, Callable[[Tree], Tree]]
) -> Iterator[Entry]:
    """Table 1: every method at every skew."""
    data = base["data"]["name"]
    for method, of in methods.items():
        for beta in (1, 0.5, 0.1):
            line = f"{_TITLES[method]} on {_TITLES[data]}, ResNet-18, beta {beta}: {how}"
            tree = changed(of(base), {"clients.beta": beta})
            yield Entry(f"{family}-{data}-{method}-beta{beta}", line, tree)


def _large_first_task(
    family: str, how: str, base: Tree, methods: Mapping[str, Callable[[Tree], Tree]]
) -> Iterator[Entry]:
    """Table 4. It does not restate beta; 0.5 is taken."""
    for method, of in methods.items():
        name = f"{family}-cifar100-{method}-large-first-task"
        line = f"{_TITLES[method]} on CIFAR-100, ResNet-18, 50 classes, then 10 x 5: {how}"
        yield Entry(name, line, _larger(of(base)))


_BY_DATA: Tree = {"method.gamma": "auto", "upload.encoding": "auto"}
_BITS = 10
"""Eight cost patches a point: with little ridge the rounding of wide maps shows."""
_UNBIASED: Tree = {"method.count": "holders"}


def _best(base: Tree) -> Tree:
    stage = {"first_stage.rotation": True, "first_stage.augment": "strong"}
    reading = {"features.layers": [1, 2, 3, 4], "features.pool": 2}
    views = {"features.views": ["plain", "mirror"], "features.bits": _BITS}
    return changed(base, {**stage, **reading, **views})


def _wide(base: Tree) -> Tree:
    return changed(_best(base), {"features.patches": 1024})


def _patches(base: Tree) -> Tree:
    reading = {"features.views": ["plain", "mirror"], "features.bits": _BITS}
    return changed(base, {"first_stage.kind": "none", **reading, "features.patches": 3072})


def _by_data(base: Tree, method: str) -> Tree:
    """A method with what holds for `best`, `wide` and `patches` alike."""
    tree = changed({"stsa": _stsa, "stsa-e": _stsa_e}[method](base), _BY_DATA)
    tree = changed(tree, _UNBIASED) if method == "stsa-e" else tree
    wide = base["features"].get("patches", 0) > 0
    return changed(tree, {"method.projection": 0}) if wide else tree


def _ladder(family: str, how: str, base: Tree) -> Iterator[Entry]:
    """Every skew and the large first task."""
    methods = {name: lambda tree, name=name: _by_data(tree, name) for name in ("stsa", "stsa-e")}
    yield from _cells(family, how, base, methods)
    yield from _large_first_task(family, how, base, methods)


def _sweeps(family: str, base: Tree, widths: tuple[int, ...] = ()) -> Iterator[Entry]:
    """Width of the random layer, clients, dummy clients, at beta 0.5."""
    for method in ("stsa", "stsa-e"):
        for width in widths:
            changes: Tree = {"method.projection": width}
            yield _variant(family, base, method, f"m{width}", f"M = {width}", changes)
    for clients, units in _CLIENTS:
        count: Tree = {"clients.count": clients}
        yield _variant(family, base, "stsa", f"k{clients}", f"K = {clients}", count)
        what = f"K = {clients}, K_D = {units}"
        both = {**count, "method.units": units}
        yield _variant(family, base, "stsa-e", f"k{clients}-kd{units}", what, both)
    for units in _UNITS:
        # Three units or fewer leave none to hold out.
        gamma: Tree = {} if units >= 5 else {"method.gamma": "0.003r"}
        measured = {"method.units": units, "method.measure_error": True, **gamma}
        yield _variant(family, base, "stsa-e", f"kd{units}", f"K_D = {units}", measured)
    counted: Tree = {"method.count": "all", "method.measure_error": True}
    yield _variant(family, base, "stsa-e", "all", "all units counted, as published", counted)


def _by_bits(family: str, base: Tree) -> Iterator[Entry]:
    """Real numbers, and integers of some sizes."""
    for bits in (0, 4, 6, 8, 9, 10, 12):
        changes: Tree = {"features.bits": bits}
        what = f"features of {bits} bits" if bits else "features as real numbers"
        yield _variant(family, base, "stsa", f"bits{bits}", what, changes)


def _variant(family: str, base: Tree, method: str, suffix: str, what: str, changes: Tree) -> Entry:
    line = f"{_TITLES[method]} on CIFAR-100, as `{family}`, beta 0.5, {what}: ablation"
    tree = changed(_by_data(base, method), changes)
    return Entry(f"{family}-cifar100-{method}-{suffix}", line, tree)


_CLIENTS = ((5, 50), (10, 25), (25, 10), (50, 5), (100, 5))
"""K, and K_D with it."""
_UNITS = (1, 2, 5, 10, 25, 50)


def _ablations() -> Iterator[Entry]:
    """Figures 5 and 6 on CIFAR-100 at beta 0.5: width M, clients K, dummy clients K_D."""

    def entry(method: str, suffix: str, what: str, changes: Tree) -> Entry:
        tree = {"stsa": _stsa, "stsa-e": _stsa_e}[method](_cifar100())
        line = f"{_TITLES[method]} on CIFAR-100, ResNet-18, beta 0.5, {what}: ablation"
        return Entry(f"published-cifar100-{method}-{suffix}", line, changed(tree, changes))

    for method in ("stsa", "stsa-e"):
        for width in (0, 1250, 2500, 5000, 10000):  # 0: the network's own 512, no random layer
            yield entry(method, f"m{width}", f"M = {width}", {"method.projection": width})
    for clients, units in _CLIENTS:
        count = {"clients.count": clients}
        yield entry("stsa", f"k{clients}", f"K = {clients}", count)
        what = f"K = {clients}, K_D = {units}"
        both = {**count, "method.units": units}
        yield entry("stsa-e", f"k{clients}-kd{units}", what, both)
    for units in _UNITS:
        measured = {"method.units": units, "method.measure_error": True}
        yield entry("stsa-e", f"kd{units}", f"K_D = {units}", measured)
    unbiased = {"method.count": "holders", "method.measure_error": True}
    yield entry("stsa-e", "holders", "units that hold the class counted", unbiased)


_TITLES = {
    "stsa": "STSA",
    "stsa-e": "STSA-E",
    "fedavg": "FedAvg fine-tuning",
    "joint": "Joint training",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "Tiny-ImageNet",
}

FAMILIES: tuple[Callable[[], Iterator[Entry]], ...] = (
    digits,
    published,
    published_code,
    best,
    wide,
    patches,
)
"""Where recipes come from, in the order in which they are listed."""
