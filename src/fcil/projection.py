"""The shared random matrix: the same bits from a seed on every platform, never uploaded.

Each entry is (number of ones among 64 random bits - 32) / 4: mean 0, variance exactly 1, and as
close to a normal deviate as 64 coin tosses are. No logarithm or table enters, so there is nothing
a platform could compute differently; and being multiples of 1/4, products with integers are exact.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fcil import seeds
from fcil.errors import UsageError

UNIT = 0.25
"""Entries are integers of this size."""


def projection(inputs: int, width: int, seed: int) -> Tensor:
    """The matrix R in integers of `UNIT`, inputs x width, int8."""
    if inputs < 1 or width < 1:
        raise UsageError(f"A projection from {inputs} to {width} features is not possible.")
    return _draw(inputs, width, seed)


@lru_cache(maxsize=2)
def _draw(inputs: int, width: int, seed: int) -> Tensor:
    # One stream per matrix size would do, but drawing rows in order lets a wider network's matrix
    # begin with a narrower one's rows, which makes ablations over the layers comparable.
    ones = np.bitwise_count(seeds.philox(seed, "projection", width).random_raw(inputs * width))
    return torch.from_numpy(ones.astype(np.int8) - 32).view(inputs, width)


def fingerprint(inputs: int, width: int, seed: int) -> str:
    """SHA-256 of the matrix's integers, row by row."""
    data = projection(inputs, width, seed).numpy()
    return hashlib.sha256(f"{inputs} {width} ".encode() + data.tobytes()).hexdigest()
