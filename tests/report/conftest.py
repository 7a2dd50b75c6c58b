"""Records like those of the embedded data set, and a browser to look at pages with."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from fcil import metrics
from fcil.record import Record

METHODS: dict[str, dict[str, Any]] = {
    "stsa": {"projection": 1250, "gamma": "0.003r", "predict": "linear"},
    "stsa-e": {
        "projection": 1250,
        "gamma": "0.003r",
        "predict": "linear",
        "units": 10,
        "count": "holders",
        "min_cell": 1,
    },
    "fedavg": {"loss": "masked", "rounds": 20},
    "joint": {"epochs": 40},
}
HEIGHT = {"stsa": (97.5, 1.6, 0.8), "stsa-e": (97.0, 1.9, 1.0), "fedavg": (97.8, 4.0, 16.0)}


def make_record(
    method: str = "stsa", seed: int = 0, tasks: int = 5, clients: int = 5, **changes: Any
) -> Record:
    """A plausible record on digits, two classes a task; `changes` replace fields."""
    draw = random.Random(f"{method}/{seed}")
    split = random.Random(f"split/{seed}")
    order = list(range(2 * tasks))
    split.shuffle(order)
    task_classes = [order[2 * t : 2 * t + 2] for t in range(tasks)]
    holdings = []
    for _ in range(tasks):
        shares = [[split.gammavariate(0.5, 1) for _ in range(clients)] for _ in range(2)]
        holdings.append(
            [[int(144 * share[k] / sum(share)) for share in shares] for k in range(clients)]
        )
    matrix: list[list[float | None]]
    if method == "joint":
        matrix = [[None] * (t + 1) for t in range(tasks - 1)]
        matrix.append([draw.uniform(96, 99.5) for _ in range(tasks)])
    else:
        top, drop, fade = HEIGHT[method]
        matrix = [
            [max(0.0, top - drop * s - fade * (t - s) - draw.uniform(0, 2)) for s in range(t + 1)]
            for t in range(tasks)
        ]
    sums = method.startswith("stsa")
    up = {"stsa": 310_000, "stsa-e": 61_000, "fedavg": 9_400_000, "joint": 0}[method]
    statistics = [
        {
            "hash": hashlib.sha256(f"{method}/{seed}/{t}".encode()).hexdigest(),
            "exact": True,
            "clipped": 3 * t,
            "rows": 287 * (t + 1),
        }
        for t in range(tasks if sums else 0)
    ]
    solver = [
        {
            "gamma": 812.5 * (t + 1),
            "condition": 1.3e4,
            "residual": 2.1e-13,
            "seconds": 0.021,
            "route": "cholesky" if t else "low-rank",
        }
        for t in range(tasks if sums else 0)
    ]
    fields: dict[str, Any] = {
        "recipe": f"demo-{method}",
        "config": {
            "seed": seed,
            "data": {"name": "digits", "root": None, "size": None},
            "tasks": {"count": tasks, "first_classes": None},
            "clients": {"count": clients, "beta": 0.5, "fraction": 1.0, "seeding": "named"},
            "backbone": {"name": "small-cnn", "weights": None, "stem": "auto"},
            "first_stage": {
                "kind": "fedavg",
                "rounds": 20,
                "epochs": 2,
                "batch": 128,
                "lr": 0.04,
                "momentum": 0.9,
                "weight_decay": 5e-4,
                "schedule": "constant",
                "milestones": [0.5, 0.75],
                "head": "linear",
                "rotation": False,
                "augment": "standard",
                "average": "uniform",
                "precision": "auto",
            },
            "features": {"layers": ["last"], "pool": 1, "views": ["plain"], "bits": 8},
            "method": {"name": method, **METHODS[method]},
            "upload": {"encoding": "auto"},
            "engine": "in-process",
        },
        "versions": {"fcil": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "numpy": "2.4.1"},
        "device": "Intel(R) Xeon(R) Platinum 8488C",
        "started": f"2026-11-19T21:4{seed}:07Z",
        "seed": seed,
        "fingerprint": hashlib.sha256(f"map/{seed}".encode()).hexdigest(),
        "matrix": matrix,
        "A_avg": metrics.average_accuracy(matrix),
        "A_T": metrics.final_accuracy(matrix),
        "F_T": metrics.forgetting(matrix),
        "F_T_all": metrics.forgetting_all_stages(matrix),
        "curve": metrics.curve(matrix),
        "overall": [v and v - draw.uniform(0, 0.3) for v in metrics.curve(matrix)],
        "task_classes": task_classes,
        "class_names": [[str(label) for label in classes] for classes in task_classes],
        "holdings": holdings,
        "bytes": {
            "up": [
                [int(up * draw.uniform(0.9, 1.1)) for _ in range(clients)] for _ in range(tasks)
            ],
            "down": [[up // 40 * (t + 1)] * clients for t in range(tasks)],
            "first_stage": {
                "up": [0 if method == "joint" else 9_400_000] * clients,
                "down": [0 if method == "joint" else 9_500_000] * clients,
            },
        },
        "seconds": {
            "first_stage": 0.0 if method == "joint" else draw.uniform(8, 9),
            "extract": draw.uniform(0.4, 0.5) if sums else 0.0,
            "statistics": draw.uniform(0.1, 0.2) if sums else 0.0,
            "solve": draw.uniform(0.08, 0.12) if sums else 0.0,
            "evaluate": draw.uniform(0.05, 0.2),
            **({} if sums else {"train": draw.uniform(30, 50)}),
        },
        "gradient_steps": [480] + [0] * (tasks - 1) if sums else [480] * tasks,
        "statistics": statistics,
        "solver": solver,
        "notes": ["7 of 250 cells hold a single image: it travels as it is."]
        if method == "stsa-e"
        else [],
        "estimate_error": {
            "frobenius": draw.uniform(0.02, 0.03),
            "trace_bias": draw.uniform(-0.01, 0.01),
        }
        if method == "stsa-e"
        else None,
    }
    return Record(**{**fields, **changes})


@pytest.fixture
def record() -> Callable[..., Record]:
    """Builds one record."""
    return make_record


@pytest.fixture(scope="session")
def demo() -> list[Record]:
    """Four methods, three seeds each."""
    return [make_record(method, seed) for method in METHODS for seed in range(3)]
