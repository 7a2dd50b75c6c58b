"""Which rule chooses gamma from held-out sums, and the accuracy each loses against the best gamma.

    FCIL_TEST_DATA=DIR python experiments/gamma_rule.py

DIR/cifar100 holds all of CIFAR-100 as `tests/conftest.py` describes. Fixed features - whitened
patches (256 filters, stride 2), random ReLU features of the pixels, and the digits - are summed
exactly and as STSA-E's estimates over five clients, and a tenth of them held out. Every rule looks
at half decades from 1e-5 to 1 and takes the vertex of the parabola through its best three; `choose`
is the package's own search. Accuracy is measured at quarter decades on all test images of the
classes seen and taken between them by interpolation, so that "best" is the best of a noisy curve: a
test image is 0.1 points with 10 classes, 0.01 with 100. Its output is in results/gamma/rule.txt.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fcil import held_out, patches, ridge, settings
from fcil.data import partition, readers
from fcil.errors import NumericalError
from fcil.protocol import DataSpec
from fcil.stats import packed
from fcil.stats.features import Features
from fcil.stats.grid import Grid
from fcil.stats.moments import Moments
from fcil.stats.unit_sums import UnitSums, estimate_gram
from fcil.stats.with_fold import SLOTS, MomentsWithFold, coarse

SHARE, CLIENTS, BETA = 0.1, 5, 0.5
STEPS = range(-20, 1)  # quarter decades
FILTERS = 256
Sums = tuple[Moments, Moments]
Rows = tuple[Tensor, Tensor]


def squared(P: Tensor, Q: Tensor, n: Tensor) -> float:
    """Squared error against one-hot labels."""
    return float(n.sum() - 2 * P.trace() + Q.trace())


def scaled(P: Tensor, Q: Tensor, n: Tensor) -> float:
    """Squared error at the best scale of the scores."""
    return 1 - float(P.trace() ** 2 / (n.sum() * Q.trace()))


def centred(P: Tensor, Q: Tensor, n: Tensor) -> float:
    """The same after each row's scores lose their mean."""
    H = torch.eye(len(n), dtype=P.dtype) - 1 / len(n)
    return 1 - float((H @ P).trace() ** 2 / (n.sum() * (H @ Q @ H).trace()))


def pairs(P: Tensor, Q: Tensor, n: Tensor) -> Tensor:
    """How often output j beats the right output c, were scores normal: j x c."""
    mu = P / n
    S = (Q - (mu * n) @ mu.T) / (n.sum() - len(n))
    apart = (S.diagonal() + S.diagonal()[:, None] - 2 * S).clamp(min=1e-300).sqrt()
    return torch.special.ndtr(-(mu.diagonal() - mu) / apart).fill_diagonal_(0)


def pair(P: Tensor, Q: Tensor, n: Tensor) -> float:
    """Mean over all pairs of classes."""
    return float(pairs(P, Q, n).mean())


def worst(P: Tensor, Q: Tensor, n: Tensor) -> float:
    """Mean over classes of the worst pair."""
    return float(pairs(P, Q, n).amax(0).mean())


def normal(P: Tensor, Q: Tensor, n: Tensor, own_spread: float = 1.0) -> float:
    """Share of rows that would be wrong if scores within a class were normal.

    Means by class, covariance pooled; the own output spreads `own_spread` times as far as the
    pooled one says. Given its score the others are taken to be independent.
    """
    mu = P / n
    S = (Q - (mu * n) @ mu.T) / (n.sum() - len(n))
    own = S.diagonal().clamp(min=1e-12 * float(S.diagonal().max()))
    slope = S / own
    lead = mu.diagonal() - mu
    change = own_spread * own.sqrt() * (1 - slope)
    left = (own[:, None] - slope.square() * own).clamp(min=1e-12 * float(own.max())).sqrt()
    nodes = torch.linspace(-6, 6, 97, dtype=torch.float64)
    weights = (-nodes.square() / 2).exp()
    right = torch.zeros_like(n)
    for node, weight in zip(nodes.tolist(), (weights / weights.sum()).tolist(), strict=True):
        beaten = torch.special.log_ndtr((lead + node * change) / left)
        right += weight * (beaten.sum(0) - beaten.diagonal()).exp()
    return float(((1 - right) * n).sum() / n.sum())


RULES: dict[str, Callable[[Tensor, Tensor, Tensor], float]] = {
    "scaled": scaled,
    "centred": centred,
    "pairs": pair,
    "worst": worst,
    "normal": normal,
    "normal, own twice": partial(normal, own_spread=2.0),
}


def rules_of(W: Tensor, fold: Moments, classes: Sequence[int], predict: str) -> dict[str, float]:
    """All rules' scores of one W; the fold has the finer classes of `MomentsWithFold`."""
    scores = W / W.norm(dim=0) if predict == "cosine" else W
    sums = coarse(fold)
    P, P_raw = scores.T @ sums.cross, W.T @ sums.cross
    Q, Q_raw = (V.T @ packed.times(sums.gram, sums.width, V) for V in (scores, W))
    rows = sums.counts.double()
    found = {"squared": squared(P_raw, Q_raw, rows)}
    found |= {name: rule(P, Q, rows) for name, rule in RULES.items()}
    found["hard cells"] = hard(scores, fold, classes)
    found["cells"] = held_out.cell_error(scores, fold, classes)
    for share, soft in ((0.0, 0.5), (1.0, 0.0), (1.0, 0.3)):
        name = f"cells, {share:g} of the spread, soft {soft:g}"
        found[name] = spread(scores, fold, classes, Q, share, soft)
    return found


def spread(
    scores: Tensor, fold: Moments, classes: Sequence[int], Q: Tensor, share: float, soft: float
) -> float:
    """Share of rows that would be wrong if they lay around their cell's mean as normally as rows
    do around their class's, by `share` of that spread: the nearest of the other classes decides."""
    sums = coarse(fold)
    rows = sums.counts.double()
    mu = scores.T @ sums.cross / rows
    S = (Q - (mu * rows) @ mu.T) / (rows.sum() - len(rows))
    apart = (S.diagonal() + S.diagonal()[:, None] - 2 * S).clamp(min=0)
    cells = (fold.cross / fold.counts).T @ scores
    own = torch.tensor([classes.index(c // SLOTS) for c in fold.classes])
    margins = cells.gather(1, own[:, None]) - cells
    nearest = margins.scatter(1, own[:, None], math.inf).amin(1)
    left = 1 - 1 / fold.counts.double()[:, None]
    wide = share * left * apart[own] + (soft * nearest.std()) ** 2
    z = (margins / wide.clamp(min=1e-300).sqrt()).scatter(1, own[:, None], math.inf).amin(1)
    return float((torch.special.ndtr(-z) * fold.counts).sum() / fold.counts.sum())


def hard(scores: Tensor, fold: Moments, classes: Sequence[int]) -> float:
    """Share of the fold whose cells' means fall into a wrong class."""
    best = ((fold.cross / fold.counts).T @ scores).argmax(1)
    own = torch.tensor([classes.index(c // SLOTS) for c in fold.classes])
    return float(((best != own) * fold.counts).sum() / fold.counts.sum())


def picked(xs: list[float], ys: list[float]) -> float:
    """Where a rule's curve is least."""
    at = int(np.argmin(ys))
    if at in (0, len(ys) - 1):
        return xs[at]
    below, here, above = ys[at - 1 : at + 2]
    bend = below - 2 * here + above
    return xs[at] + (0.5 * (xs[1] - xs[0]) * (below - above) / bend if bend > 0 else 0)


def compare(name: str, sums: Sums, test: Rows, losses: dict[str, list[float]]) -> None:
    """Two lines of the table: one for each way to predict."""
    total, fold = sums
    train = total - coarse(fold)
    means = [float(packed.diagonal(m.gram, m.width).mean()) for m in (total, train)]
    steps: list[float] = []
    right: dict[str, list[float]] = {"linear": [], "cosine": []}
    scores: dict[str, list[dict[str, float]]] = {"linear": [], "cosine": []}
    for step in STEPS:
        multiple = 10 ** (step / 4)
        try:
            W, trial = (
                ridge.Factor.of(m.gram, m.width, multiple * mean).solve(m.cross)
                for m, mean in zip((total, train), means, strict=True)
            )
        except NumericalError:  # an estimate's rounding: gamma too small to be used
            continue
        steps.append(step / 4)
        for predict in right:
            head = ridge.Head(W, total.classes, "cosine" if predict == "cosine" else "linear")
            predicted = head.predict(test[0])
            right[predict].append(100 * float((predicted == test[1]).double().mean()))
            scores[predict].append(
                rules_of(trial, fold, total.classes, predict) if step % 2 == 0 else {}
            )
    for predict, accuracy in right.items():
        own = held_out.choose(total, fold, rule="cosine" if predict == "cosine" else "linear")
        halves = [x for x, found in zip(steps, scores[predict], strict=True) if found]
        curves = [found for found in scores[predict] if found]
        chosen = {rule: picked(halves, [found[rule] for found in curves]) for rule in curves[0]}
        chosen["choose"] = math.log10(own.multiple)
        if predict == "cosine":
            linear = held_out.choose(total, fold)
            chosen["choose, by linear scores"] = math.log10(linear.multiple)
        best = max(accuracy)
        line = []
        for rule, x in chosen.items():
            lost = best - float(np.interp(x, steps, accuracy))
            losses.setdefault(f"{len(total.classes):3} classes {predict} {rule}", []).append(lost)
            line.append(f"{rule} {x:.2f} ({lost:.2f})")
        at = steps[accuracy.index(best)]
        print(f"{name} {predict:6} best {best:5.2f} at {at:.2f} | {', '.join(line)}")
        shown = [f"{x:g}: {value:.2f}" for x, value in zip(steps, accuracy, strict=True)]
        print(f"    accuracy {', '.join(shown)} | {len(own.curve)} factorisations", flush=True)


def exact(values: Tensor, labels: Tensor, task: int, rng: np.random.Generator) -> Sums:
    """A task's moments: of all rows, and of the fold."""
    nothing = Moments.zero("given", Grid(8, 0), values.shape[1])
    found = MomentsWithFold(nothing, nothing)
    shares = partition.dirichlet(labels.numpy(), CLIENTS, BETA, np.random.RandomState(task))
    for share in shares:
        rows = Features(values[share], Grid(8, 0))
        slots = held_out.slots(labels[share], SHARE, rng)
        found = found + MomentsWithFold.of(rows, labels[share], slots)
    return found.total, found.fold


def estimates(
    values: Tensor, labels: Tensor, task: int, rng: np.random.Generator, units: int
) -> Sums:
    """The same as STSA-E estimates them from five clients with label skew."""
    shares = partition.dirichlet(labels.numpy(), CLIENTS, BETA, np.random.RandomState(task))
    sums = UnitSums.zero("given", Grid(8, 0), values.shape[1])
    for client, share in enumerate(shares):
        rows = Features(values[share], Grid(8, 0))
        one = UnitSums.of(rows, labels[share], units=units, rng=rng, client=client, task=task)
        sums = sums + one
    training, fold = held_out.parts(sums, SHARE)
    held = estimated(fold)
    classes, cross, counts = held_out.cells(fold).class_moments()
    return estimated(training) + held, replace(held, classes=classes, cross=cross, counts=counts)


def estimated(sums: UnitSums) -> Moments:
    """Moments with an estimated G."""
    classes, cross, counts = sums.class_moments()
    return Moments(sums.map, sums.grid, classes, estimate_gram(sums), cross, counts, exact=False)


def setting(
    name: str, train: Rows, test: Rows, units: int, stages: set[int], losses: dict[str, list[float]]
) -> None:
    """Ten classes a task; a comparison at each stage."""
    rng = np.random.default_rng(0)
    sums: Sums | None = None
    for task in range((int(train[1].max()) + 10) // 10):
        rows = (train[1] // 10 == task).nonzero()[:, 0]
        values, labels = train[0][rows], train[1][rows]
        new = (
            estimates(values, labels, task, rng, units)
            if units
            else exact(values, labels, task, rng)
        )
        sums = new if sums is None else (sums[0] + new[0], sums[1] + new[1])
        seen = 10 * (task + 1)
        if seen in stages:
            chosen = test[1] < seen
            how = f"{units} units" if units else "exact"
            one = f"{name:22} {how:8} {seen:3} classes"
            compare(one, sums, (test[0][chosen].double(), test[1][chosen]), losses)


def whitened_patches(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """The patch map with public filters, and a constant."""
    spec = DataSpec("cifar100", 3, 32, (0.0,) * 3, (1.0,) * 3, 100)
    features = settings.Features(patches=FILTERS, stride=2)
    dictionary = patches.public_dictionary(3, FILTERS, 0)
    phi = patches.PatchMap(dictionary, spec, features, torch.device("cpu"))

    def mapped(images: Tensor) -> Tensor:
        values = torch.cat([phi(batch) for batch in images.split(phi.batch)])
        return torch.cat([values, torch.ones(len(values), 1)], 1)

    return mapped(train), mapped(test)


def random_relu(train: Tensor, test: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """ReLU of random combinations of standardised pixels."""
    generator = torch.Generator().manual_seed(0)
    first = train[:5000].float().flatten(1)
    R = torch.randn(first.shape[1], width, generator=generator) / math.sqrt(first.shape[1])
    mean, spread = first.mean(), first.std()

    def mapped(images: Tensor) -> Tensor:
        batches = [((b.float().flatten(1) - mean) / spread) @ R for b in images.split(1000)]
        return torch.cat(batches).relu()

    return mapped(train), mapped(test)


def on_grid(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """Both in 8 bits, up to the value one in ten thousand exceeds."""
    step = float(np.quantile(train[:2000].numpy(), 0.9999)) / 255
    first, second = ((v / step).round().clamp(0, 255).to(torch.uint8) for v in (train, test))
    return first, second


def tiles(folder: Path, part: str, files: int) -> Tensor:
    """All images of a part."""
    found = []
    for number in range(files):
        with Image.open(folder / f"{part}{number:03}.webp") as mosaic:
            pixels = np.asarray(mosaic).reshape(250, 32, 2, 32, 3)
        found.append(pixels.transpose(0, 2, 4, 1, 3).reshape(500, 3, 32, 32))
    return torch.from_numpy(np.concatenate(found))


def first_of_each(labels: Tensor, count: int) -> Tensor:
    """The first rows of each class."""
    return torch.cat([(labels == c).nonzero()[:count, 0] for c in range(int(labels.max()) + 1)])


def time_factorisations(width: int = 2000) -> None:
    """How long an eigendecomposition takes beside a Cholesky factor."""
    rows = torch.randn(2 * width, width, dtype=torch.float64)
    square = rows.T @ rows
    for name, call in (("cholesky", torch.linalg.cholesky), ("eigh", torch.linalg.eigh)):
        taken = []
        for _ in range(3):
            started = time.perf_counter()
            call(square)
            taken.append(time.perf_counter() - started)
        threads = torch.get_num_threads()
        print(f"{name} of {width} x {width}, {threads} threads: {min(taken):.3f} s")


def main() -> None:
    """Print the table."""
    time_factorisations()
    losses: dict[str, list[float]] = {}
    digits = readers.load("digits")
    images = [torch.from_numpy(i) for i in (digits.train_images, digits.test_images)]
    y, y_test = torch.from_numpy(digits.train_labels), torch.from_numpy(digits.test_labels)
    maps = {"digits, pixels": [i.flatten(1) for i in images]}
    maps["digits, random ReLU"] = list(on_grid(*random_relu(images[0], images[1], 1000)))
    for name, (train, test) in maps.items():
        for units in (0, 10):
            setting(name, (train, y), (test, y_test), units, {10}, losses)
    folder = Path(os.environ["FCIL_TEST_DATA"]) / "cifar100"
    with np.load(folder / "labels.npz", allow_pickle=False) as file:
        place = np.argsort(np.random.RandomState(0).permutation(100))
        y, y_test = (torch.from_numpy(place[file[f"y_{part}"]]) for part in ("train", "test"))
    images = [tiles(folder, "train", 100), tiles(folder, "test", 20)]
    for name, made, all_units in (
        ("patches", whitened_patches(images[0], images[1]), (0, 50, 10)),
        ("random ReLU", random_relu(images[0], images[1], 2000), (0, 50)),
    ):
        train, test = on_grid(*made)
        for count in (500, 100):
            rows = first_of_each(y, count)
            for units in all_units:
                both = (train[rows], y[rows]), (test, y_test)
                setting(f"{name}, {count} a class", *both, units, {10, 50, 100}, losses)
    print("points lost: mean, largest, share of settings with at most 0.3")
    for rule, lost in sorted(losses.items()):
        few = np.mean(np.array(lost) <= 0.3)
        print(f"{rule:45} {np.mean(lost):.2f} {np.max(lost):.2f} {few:.2f}")


if __name__ == "__main__":
    main()
