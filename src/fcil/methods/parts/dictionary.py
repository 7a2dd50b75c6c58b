"""Making patch filters federatedly: which asks it takes, how a client answers, what follows.

State: None before anything was asked; then `whitening` (mean and matrix, from the clients' sums)
and `centres` with their `round`, or `pieces`. Public and random filters take no ask at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fcil import seeds
from fcil.errors import DataError, Refused
from fcil.methods.parts.folding import folded
from fcil.patches import (
    SIDE,
    CentreSums,
    Dictionary,
    PatchSums,
    Whitening,
    gaussian_dictionary,
    initial_centres,
    next_centres,
    public_dictionary,
    raw_patches,
    whitening,
)
from fcil.protocol import Ask, Mergeable, Shard, World
from fcil.stats.parameters import Parameters

ROUNDS = 10
"""Of k-means."""
STRIDE = 3
"""Pixels between the patches that k-means looks at: neighbours say nearly the same."""
_PIECES = 4
"""Word of the draw of places, within the stream "projection"."""
STAGES = ("patch-sums", "patch-centres", "patch-pieces")
_Made = Mapping[str, Any] | None


def check(world: World) -> None:
    """Refuse filters that are pieces of clients' images, unless they are asked for by name."""
    features = world.settings.features
    if features.patches and features.dictionary == "task1-patches":
        if features.allow_raw_patches:
            return
        raise Refused(
            "features.dictionary = task1-patches sends pieces of clients' images to the server "
            "and from there to everybody. Take task1-kmeans, which sends sums, or public; or set "
            "features.allow_raw_patches = true where this is permitted."
        )


def asks(world: World) -> int:
    """How many asks the filters take."""
    features = world.settings.features
    if not features.patches:
        return 0
    return {"task1-kmeans": 1 + ROUNDS, "task1-patches": 2}.get(features.dictionary, 0)


def ask(world: World, state: _Made) -> Ask:
    """The next ask; there is one as long as `finished` gives nothing."""
    if state is None:
        return Ask("patch-sums", 0)
    if world.settings.features.dictionary == "task1-patches":
        return Ask("patch-pieces", 0)
    known = {**state["whitening"], "centres": state["centres"]}
    return Ask("patch-centres", 0, round=state["round"], payload=known)


def answer(world: World, ask: Ask, client: int, shard: Shard) -> Parameters:
    """A client's sums, or its share of the pieces."""
    if ask.stage == "patch-sums":
        return Parameters.of(PatchSums.of(shard.images).tensors())
    if ask.stage == "patch-centres":
        white = Whitening(ask.payload["mean"], ask.payload["matrix"])
        return Parameters.of(
            CentreSums.of(shard.images, white, ask.payload["centres"], STRIDE).tensors()
        )
    # Everybody fills its own rows of one table, so that the tables add up to all pieces.
    table = torch.zeros((world.settings.features.patches, _dim(world)), dtype=torch.float64)
    table = table.to(world.device)
    mine = table[client :: world.settings.clients.count]
    if len(shard):
        rng = seeds.generator(world.seed, "projection", _PIECES, client)
        mine += raw_patches(shard.images, len(mine), rng)
    return Parameters.of({"pieces": table})


def absorb(
    world: World, state: _Made, ask: Ask, uploads: Iterator[tuple[int, Mergeable]]
) -> dict[str, Any]:
    """The state after the answers."""
    total = folded(uploads, Parameters).total
    if ask.stage == "patch-sums":
        white = whitening(PatchSums.from_tensors(total))
        centres = initial_centres(world.settings.features.patches, _dim(world), world.seed)
        made = {"mean": white.mean, "matrix": white.matrix}
        return {"whitening": made, "centres": centres.to(world.device), "round": 0}
    assert state is not None
    if ask.stage == "patch-centres":
        centres = next_centres(CentreSums.from_tensors(total), state["centres"])
        return {**state, "centres": centres, "round": ask.round + 1}
    if bool((total["pieces"] == 0).all(1).any()):
        raise DataError(
            "A client of the first task has no image to cut pieces from, so some filters are "
            "missing. Take features.dictionary = task1-kmeans."
        )
    return {**state, "pieces": total["pieces"]}


def finished(world: World, state: _Made) -> Dictionary | None:
    """The filters, once all that they need has been answered."""
    features, channels = world.settings.features, world.spec.channels
    if features.dictionary == "public":
        return public_dictionary(channels, features.patches, world.seed)
    if features.dictionary == "gaussian":
        return gaussian_dictionary(channels, features.patches, world.seed)
    if state is None:
        return None
    white = Whitening(**state["whitening"])
    if "pieces" in state:
        return Dictionary.fold(white(state["pieces"]), white)
    return Dictionary.fold(state["centres"], white) if state["round"] == ROUNDS else None


def _dim(world: World) -> int:
    return world.spec.channels * SIDE**2
