"""The hash of tensors: by value, not by type, place or pieces."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from fcil.stats import digest as module
from fcil.stats.digest import digest


def documented(text: str, kind: str, data: bytes) -> str:
    total = hashlib.sha256(f"{text} {kind}".encode())
    for at in range(0, max(len(data), 1), 2**23):
        total.update(hashlib.sha256(data[at : at + 2**23]).digest())
    return total.hexdigest()


@pytest.mark.parametrize("length", [0, 1, 2**21 - 1, 2**21, 2**21 + 1, 5_000_000])
def test_pieces_of_8_mib(length: int) -> None:
    values = np.random.default_rng(0).integers(0, 2**32, length)
    found = digest("a", [torch.from_numpy(values).double()], whole=True)
    assert found == documented("a", "uint32", values.astype("<u4").tobytes())


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0, 2**32 - 1], "uint32"),
        ([0, 2**32], "int64"),
        ([-1, 5], "int64"),
        ([2**53 - 1, -(2**53) + 1], "int64"),
    ],
)
def test_the_value_alone_decides_the_type(values: list[int], kind: str) -> None:
    data = np.array(values).astype("<u4" if kind == "uint32" else "<i8").tobytes()
    for dtype in (torch.int64, torch.float64):
        tensor = torch.tensor(values, dtype=torch.int64).to(dtype)
        assert digest("t", [tensor], whole=True) == documented("t", kind, data)


def test_real_numbers_are_hashed_as_they_are_but_for_the_sign_of_zero() -> None:
    values = np.array([0.5, -0.0, 3.0])
    data = (values + 0.0).tobytes()
    assert digest("t", [torch.from_numpy(values)], whole=False) == documented("t", "float64", data)
    counts = torch.tensor([4, 5])
    assert digest("t", [counts], whole=False) == digest("t", [counts], whole=True)


def test_strides_threads_and_pieces_of_their_own_do_not_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensor = torch.arange(600, dtype=torch.float64).view(20, 30)
    plain = digest("t", [tensor, tensor.T], whole=True)
    assert plain == digest("t", [tensor.clone(), tensor.T.contiguous()], whole=True)
    assert plain != digest("t", [tensor.T, tensor], whole=True)
    monkeypatch.setattr(module, "_THREADS", 1)
    assert plain == digest("t", [tensor, tensor.T], whole=True)


@pytest.mark.parametrize("place", [0, 2**21 - 1, 2**21, 2**22 + 5])
def test_every_number_counts(place: int) -> None:
    values = torch.zeros(2**22 + 6, dtype=torch.float64)
    before = digest("t", [values], whole=True)
    values[place] = 1
    assert digest("t", [values], whole=True) != before
