"""First stages kept for runs that begin alike: STSA, STSA-E and every width share one network.

What is kept is named by a hash of everything that decides it: the settings of the first stage, the
images and labels of the first task and who holds them, the device, the versions and this package's
own source. A run that takes one computes what it would have computed itself.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fcil.experiment import checkpoint
from fcil.experiment.plan import Plan
from fcil.protocol import World


@dataclass(frozen=True)
class FirstStage:
    """The outcome of a first stage, and what it cost."""

    trained: dict[str, Any]
    """The parts of a method's state that `SharesFirstStage.trained` gives."""
    up: list[int]
    down: list[int]
    """Bytes by client."""
    seconds: float
    started: str
    """When the run that trained it began."""


def name(world: World, plan: Plan) -> str:
    """Equal for two runs exactly when their first stages are the same computation."""
    settings, device = world.settings, world.device
    weights = settings.backbone.weights
    parts = {
        "source": _source(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "processor",
        "threads": torch.get_num_threads() if device.type == "cpu" else 0,
        "seed": settings.seed,
        "spec": asdict(world.spec),
        "classes": len(world.tasks[0]),
        "clients": [settings.clients.count, settings.clients.fraction],
        "backbone": settings.backbone.model_dump(mode="json"),
        "weights": hashlib.sha256(Path(weights).read_bytes()).hexdigest() if weights else "",
        "first_stage": settings.first_stage.model_dump(mode="json"),
    }
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for rows in plan.rows[0]:
        digest.update(f"{len(rows)} ".encode())
        digest.update(plan.train_labels[rows].tobytes())
        digest.update(plan.data.train_images[rows].tobytes())
    return digest.hexdigest()[:32]


def load(folder: Path, named: str, device: torch.device) -> FirstStage | None:
    """What is kept under a name; None where nothing is."""
    tree = checkpoint.load(folder / named, device)
    return FirstStage(**tree) if tree is not None else None


def save(folder: Path, named: str, stage: FirstStage) -> None:
    """Keep a first stage."""
    checkpoint.save(folder / named, {key: getattr(stage, key) for key in stage.__annotations__})


_DECIDING = (
    "training.py",
    "images.py",
    "seeds.py",
    "nets/*.py",
    "methods/parts/federated.py",
    "stats/parameters.py",
)
"""Source that decides what training computes."""


@cache
def _source() -> str:
    """SHA-256 of that source: another version may train otherwise."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(path for pattern in _DECIDING for path in root.glob(pattern)):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
