"""Small settings and worlds that tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fcil import settings
from fcil.data import readers
from fcil.experiment.plan import Plan, plan
from fcil.experiment.run import spec_of
from fcil.protocol import World
from fcil.settings import Settings
from fcil.shards import ImageSource, Rows

BASE: dict[str, Any] = {
    "data": {"name": "digits"},
    "tasks": {"count": 5},
    "clients": {"count": 3},
    "backbone": {"name": "small-cnn"},
    "first_stage": {"rounds": 2, "epochs": 1, "batch": 32, "lr": 0.05},
}
OF_METHOD: dict[str, list[str]] = {
    "stsa": ["method.projection=100"],
    "stsa-e": ["method.projection=100", "method.units=5"],
    "joint": ["method.epochs=3"],
}


def make(*assignments: str, method: str = "stsa") -> Settings:
    """Settings of a run that takes a second."""
    named = [f"method.name={method}", *OF_METHOD.get(method, [])]
    return settings.build(settings.override(BASE, [*named, *assignments]))


@contextmanager
def no_clock(name: str) -> Iterator[None]:
    """A world's clock that measures nothing."""
    yield


def world_of(made: Settings) -> tuple[World, Plan]:
    """A world over the digits, and who holds what."""
    laid = plan(made, readers.load("digits"))
    return World(made, spec_of(laid.data), laid.tasks, torch.device("cpu"), no_clock), laid


def sources(laid: Plan) -> tuple[ImageSource, ImageSource]:
    """Training and test images."""
    data = laid.data
    return (
        ImageSource(torch.from_numpy(data.train_images), torch.from_numpy(laid.train_labels)),
        ImageSource(torch.from_numpy(data.test_images), torch.from_numpy(laid.test_labels)),
    )


def shard(source: ImageSource, rows: Any) -> Rows:
    """Some rows of a source."""
    chosen = torch.as_tensor(rows)
    return Rows(source, chosen, chosen)
