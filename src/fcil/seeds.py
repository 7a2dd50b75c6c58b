"""Named random streams: every random choice of a run is drawn from one seed by name.

A stream depends on the seed, its name and where it is used (task, round, client), and on nothing
that happened before: training longer cannot change a projection or a partition.

The raw bits come from Philox, a counter-based generator whose output NumPy guarantees on every
platform and in every version.
"""

from __future__ import annotations

import hashlib

import numpy as np

STREAMS = ("projection", "partition", "units", "training", "order")


def _key(seed: int, stream: str, *where: int) -> bytes:
    if stream not in STREAMS:
        raise ValueError(f"no random stream is called {stream!r}; there is {', '.join(STREAMS)}")
    text = "/".join(map(str, ("fcil", seed, stream, *where)))
    return hashlib.sha256(text.encode()).digest()


def philox(seed: int, stream: str, *where: int) -> np.random.Philox:
    """The bit generator of a stream: `random_raw` gives the same bits on every platform."""
    return np.random.Philox(key=int.from_bytes(_key(seed, stream, *where)[:16], "little"))


def generator(seed: int, stream: str, *where: int) -> np.random.Generator:
    """A NumPy generator over a stream."""
    return np.random.Generator(philox(seed, stream, *where))


def integer(seed: int, stream: str, *where: int) -> int:
    """A 32-bit integer of a stream, to seed a generator of another library."""
    return int.from_bytes(_key(seed, stream, *where)[:4], "little")


def class_order(seed: int, classes: int) -> tuple[int, ...]:
    """Raw label at each position of the class order.

    NumPy's legacy generator seeded with the run's seed itself, as the literature does, so that a
    seed names the same order in published tables and here.

    >>> class_order(0, 100)[:10]
    (26, 86, 2, 55, 75, 93, 16, 73, 54, 95)
    """
    return tuple(int(label) for label in np.random.RandomState(seed).permutation(classes))
