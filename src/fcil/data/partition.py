"""Who holds what: the Dirichlet partition of the literature, draw for draw.

It uses NumPy's legacy generator, whose stream is frozen, so that a seed gives the same clients
here, in published code, and in every version of NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fcil import seeds
from fcil.data.dataset import Labels
from fcil.errors import UsageError

Rows = NDArray[np.int64]


def dirichlet(
    labels: Labels,
    clients: int,
    beta: float,
    rng: np.random.RandomState,
    *,
    tries: int = 1000,
    least: int = 1,
) -> list[Rows]:
    """Deal rows to clients with label skew: one array of rows for each client.

    Every class is dealt in proportions drawn from a symmetric Dirichlet distribution; a client
    that holds its even share of all rows gets no more. When a client ends with fewer than `least`
    rows, all is drawn again. `beta` = 0 deals evenly and at random instead.
    """
    if clients < 1 or not (math.isfinite(beta) and beta >= 0):
        raise UsageError(
            f"{clients} clients with beta = {beta} are not possible: there must be at least one "
            "client and beta must be 0 (even shares) or a positive number."
        )
    if clients * least > len(labels):
        raise UsageError(
            f"{clients} clients cannot share {len(labels)} images: each needs at least {least}. "
            "Take fewer clients (clients.count), fewer tasks or more data."
        )
    if beta == 0:
        shares: list[Rows] = np.array_split(rng.permutation(len(labels)), clients)
        return shares
    for _ in range(tries):
        held = _deal(labels, clients, beta, rng)
        if held is not None and min(map(len, held)) >= least:
            for rows in held:
                rng.shuffle(rows)
            return held
    raise UsageError(
        f"In {tries} draws with beta = {beta}, no way was found to give each of {clients} clients "
        f"at least {least} of {len(labels)} images. Take fewer clients (clients.count), a larger "
        "beta (clients.beta; 0 = even shares) or fewer tasks."
    )


def plan(
    labels: Labels,
    tasks: Sequence[Sequence[int]],
    clients: int,
    beta: float,
    seed: int,
    seeding: Literal["named", "published"] = "named",
) -> tuple[tuple[Rows, ...], ...]:
    """Rows of the training set by task and client; `labels` are class ids.

    `named` gives each task a stream of its own; `published` starts each from the seed itself, as
    the reference code does, so that tasks with equal class sizes get equal proportions.
    """
    dealt = []
    for task, classes in enumerate(tasks):
        rows = np.flatnonzero(np.isin(labels, classes))
        start = seed if seeding == "published" else seeds.integer(seed, "partition", task)
        try:
            shares = dirichlet(labels[rows], clients, beta, np.random.RandomState(start))
        except UsageError as why:
            raise UsageError(f"Task {task + 1} of {len(tasks)}: {why}") from None
        dealt.append(tuple(rows[share] for share in shares))
    return tuple(dealt)


def holdings(
    rows: Sequence[Sequence[Rows]], labels: Labels, tasks: Sequence[Sequence[int]]
) -> list[list[list[int]]]:
    """Training images by task, client and class of the task."""
    return [
        [[int((labels[share] == label).sum()) for label in classes] for share in shares]
        for shares, classes in zip(rows, tasks, strict=True)
    ]


def _deal(
    labels: Labels, clients: int, beta: float, rng: np.random.RandomState
) -> list[Rows] | None:
    """One draw; None when the proportions underflow, as they do at a tiny beta."""
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    held = np.zeros(clients, dtype=np.int64)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        rng.shuffle(rows)
        shares = rng.dirichlet(np.repeat(beta, clients))
        shares[held >= len(labels) / clients] = 0
        total = shares.sum()
        if not total > 0:
            return None
        cuts = (np.cumsum(shares / total) * len(rows)).astype(np.int64)[:-1]
        for client, part in enumerate(np.split(rows, cuts)):
            parts[client].append(part)
            held[client] += len(part)
    return [np.concatenate(part) for part in parts]
