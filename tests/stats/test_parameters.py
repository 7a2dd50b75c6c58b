"""Weighted averages of network parameters."""

from __future__ import annotations

import pytest
import torch

from fcil.errors import Refused
from fcil.stats.parameters import Parameters


def theta(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((2, 3), value), "seen": torch.tensor(int(value))}


def test_the_average_is_weighted_and_keeps_types() -> None:
    total = Parameters.of(theta(1.0), 3.0, 5) + Parameters.of(theta(9.0), 1.0, 7)
    mean = total.mean(theta(0.0))
    assert torch.equal(mean["w"], torch.full((2, 3), 3.0))
    assert mean["seen"].dtype == torch.int64 and int(mean["seen"]) == 3
    assert (total.weight, total.steps) == (4.0, 12)


def test_one_client_of_weight_one_comes_back_bit_for_bit() -> None:
    drawn = {"w": torch.randn(50, generator=torch.Generator().manual_seed(0))}
    assert torch.equal(Parameters.of(drawn).mean(drawn)["w"], drawn["w"])


def test_other_networks_are_refused() -> None:
    with pytest.raises(Refused, match="seen"):
        Parameters.of(theta(1.0)) + Parameters.of({"w": torch.zeros(2, 3)})
