"""How far a grid should reach: accuracy by bits and by powers of two taken off the largest value.

    python experiments/grid_reach.py data.root=DIR [KEY=VALUE]...

Trains the first stage of `published-cifar100-stsa-beta0.5` on a card and fits one ridge to all
training images for every grid. Prints A_T for nine values of gamma and how many feature values were
clipped.
Its findings are in docs/decisions/2026-11-19-reach-by-share.md, its output in results/reach.
"""

from __future__ import annotations

import sys

import torch

from fcil import ridge, settings
from fcil.experiment import recipes
from fcil.experiment.run import _Run
from fcil.features import FeatureMap, frozen_sources
from fcil.stats.extent import Reach
from fcil.stats.moments import Moments

GAMMAS = (1e2, 1e3, 1e4, 3e4, "0.0001r", "0.0003r", "0.001r", "0.003r", "0.01r")
WIDTH = 5000


def main(assignments: list[str]) -> None:
    """Train, then one line a grid."""
    tree = recipes.recipe("published-cifar100-stsa-beta0.5")
    made = settings.build(settings.override(tree, ["features.bits=8", *assignments]))
    going = _Run(made, "grid-reach", None, "auto", None, None, float("inf"))
    state = going.method.start(going.world)
    while (ask := going.method.ask(going.world, state, 0)) and ask.stage == "train":
        state = going.method.absorb(going.world, state, ask, going.engine.exchange(ask))
    network = frozen_sources(going.world, state["extractor"], state["frozen"]).network
    assert network is not None
    train, test = going.engine.source, going.test
    rows = [torch.arange(len(s), device=going.world.device) for s in (train, test)]
    vectors, unseen = (
        train.features(network, rows[0], rows[0]),
        test.features(network, rows[1], rows[1]),
    )

    def line(bits: int, reach: Reach) -> str:
        phi = FeatureMap.on_grid(network.fingerprint, network.width, WIDTH, 0, bits, reach)
        made_train, made_test = phi(vectors), phi(unseen)
        moments = Moments.of(made_train, train.labels)
        heads = [ridge.solve(moments, gamma) for gamma in GAMMAS]
        right = [(head.predict(made_test) == test.labels).float().mean() for head in heads]
        return f"{[round(100 * float(share), 2) for share in right]} {made_train.clipped}"

    real = FeatureMap.on_grid(network.fingerprint, network.width, WIDTH, 0, 0, Reach())
    largest = real.extent(vectors).reach(beyond=0)
    print("gammas", GAMMAS)
    print("real numbers", line(0, largest), "largest", largest)
    for bits in (6, 8, 10, 12):
        for less in range(5):
            reach = largest._replace(mapped=largest.mapped - less)
            print(bits, "bits, powers of two less:", less, line(bits, reach))


if __name__ == "__main__":
    main(sys.argv[1:])
