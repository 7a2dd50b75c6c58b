"""The settings of the paper's tables, told from a record's own settings and not from its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fcil.report import paper
from fcil.report.stored import Stored

COLUMNS = {
    "beta1": "beta 1",
    "beta0.5": "beta 0.5",
    "beta0.1": "beta 0.1",
    paper.LARGE: "large first task",
}
"""Columns of the main tables: the ending of the recipes there, and its words."""
MIDDLE = "beta0.5"
"""The column at which everything else is compared."""
TITLES = {"stsa": "STSA", "stsa-e": "STSA-E", "fedavg": "FedAvg fine-tuning", "joint": "Joint"}
"""Methods in the order in which they are shown."""
DATA = {"cifar100": "CIFAR-100", "tiny-imagenet": "Tiny-ImageNet", "digits": "digits"}
"""Data sets in words."""


def column(config: Mapping[str, Any]) -> str | None:
    """The column that some settings belong to: T = 10 or a large first task, K = 5.

    >>> column({"tasks": {"count": 10, "first_classes": None},
    ...         "clients": {"count": 5, "beta": 0.1, "fraction": 1.0}})
    'beta0.1'
    """
    tasks, clients = config["tasks"], config["clients"]
    if (clients["count"], clients["fraction"]) != (5, 1):
        return None
    if (tasks["count"], tasks["first_classes"]) == (11, 50):
        return paper.LARGE if clients["beta"] == 0.5 else None
    if (tasks["count"], tasks["first_classes"]) != (10, None):
        return None
    return next((at for at in paper.BETAS if at == f"beta{clients['beta']:g}"), None)


def cell(members: Sequence[Stored], data: str, method: str, at: str) -> list[Stored]:
    """Groups of a data set, method and column whose settings are those of a family's recipe."""
    return [s for s in whole(members) if (s.data, s.method, column(s.config)) == (data, method, at)]


def whole(members: Sequence[Stored]) -> Iterator[Stored]:
    """Groups whose settings are those of a recipe of the main tables."""
    for stored in members:
        start = f"-{stored.data}-{stored.method}"
        for name in stored.matches:
            ending = name.partition(start)[2]
            if ending in ("", f"-{column(stored.config)}"):  # a joint bound has no ending
                yield stored
                break
