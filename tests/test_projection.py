"""The random matrix: the same bits everywhere, with the moments it promises."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from math import comb

import numpy as np
import pytest
import torch

from fcil import projection as module
from fcil import seeds
from fcil.errors import UsageError
from fcil.projection import UNIT, fingerprint, projection

COMMITTED = {
    (512, 5000, 0): "dac5e1e9a06c059b33d0c82fc35aebe7df724582b25746b7600ced7096448ff4",
    (768, 1250, 0): "5ef1e4bbffc4dc9363cef89a6863c325ff86d8dc32946498bf82154fef5ed57b",
    (64, 100, 7): "7393845659653fed45d9e7591af9ecd7c6db37652bcd142889fe4f0bc26886b2",
}
"""Published: a change here changes every result and every fingerprint ever recorded."""


@pytest.mark.parametrize("size", COMMITTED)
def test_the_committed_fingerprint(size: tuple[int, int, int]) -> None:
    assert fingerprint(*size) == COMMITTED[size]


def test_the_same_bits_in_another_process() -> None:
    program = "from fcil.projection import fingerprint; print(fingerprint(64, 100, 7))"
    environment = {**os.environ, "PYTHONHASHSEED": "3", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == COMMITTED[64, 100, 7]


@pytest.mark.parametrize(("inputs", "width", "seed"), [(3, 5, 0), (20, 31, 123)])
def test_entries_count_the_ones_of_philox_words(inputs: int, width: int, seed: int) -> None:
    key = hashlib.sha256(f"fcil/{seed}/projection/{width}".encode()).digest()[:16]
    words = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(inputs * width)
    ones = [bin(int(word)).count("1") for word in words]
    R = projection(inputs, width, seed)
    assert R.dtype == torch.int8 and R.shape == (inputs, width)
    assert R.flatten().tolist() == [count - 32 for count in ones]
    digest = hashlib.sha256(f"{inputs} {width} ".encode())
    digest.update(bytes((count - 32) % 256 for count in ones))
    assert fingerprint(inputs, width, seed) == digest.hexdigest()


def test_nothing_else_that_is_drawn_changes_it() -> None:
    before = projection(40, 60, 5).clone()
    module._draw.cache_clear()
    np.random.seed(99)
    torch.manual_seed(99)
    seeds.generator(5, "partition").random(1000)
    seeds.philox(5, "projection", 61).random_raw(7)
    projection(41, 61, 5)
    projection(40, 60, 6)
    assert torch.equal(projection(40, 60, 5), before)


def test_a_wider_network_begins_with_the_rows_of_a_narrower_one() -> None:
    assert torch.equal(projection(30, 17, 1), projection(80, 17, 1)[:30])


def test_other_seeds_and_widths_give_other_matrices() -> None:
    prints = {fingerprint(*size) for size in [(20, 30, 0), (20, 30, 1), (20, 31, 0), (30, 20, 0)]}
    assert len(prints) == 4


def test_entries_have_mean_zero_variance_one_and_the_binomial_shape() -> None:
    R = projection(512, 5000, 0).double().numpy() * UNIT
    count = R.size
    assert abs(R.mean()) < 5 / np.sqrt(count)
    kurtosis = 3 - 2 / 64
    assert abs((R**2).mean() - 1) < 5 * np.sqrt((kurtosis - 1) / count)
    values, found = np.unique(R / UNIT, return_counts=True)
    for value, times in zip(values.astype(int), found, strict=True):
        chance = comb(64, value + 32) / 2**64
        assert abs(times - count * chance) <= 5.5 * np.sqrt(count * chance) + 5


def test_rows_and_columns_are_not_correlated() -> None:
    R = projection(300, 400, 2).double() * UNIT
    for A in (R, R.T):
        off = A @ A.T / A.shape[1] - torch.eye(len(A), dtype=torch.float64)
        assert float(off.abs().max()) < 6.5 / np.sqrt(A.shape[1])
        assert float(off.sum()) / len(A) < 1.0


@pytest.mark.parametrize(("inputs", "width"), [(0, 5), (5, 0), (-1, 5), (5, -1)])
def test_sizes_below_one_are_refused(inputs: int, width: int) -> None:
    with pytest.raises(UsageError, match=f"{inputs} to {width}"):
        projection(inputs, width, 0)
