"""How fast the first stage's training steps are on a card, and whether a replayed step computes
what the plain one does.

    python experiments/first_stage_speed.py [--out FILE.json]

Random images of CIFAR-100's shape, ResNet-18, batches of 128, five clients of 1,000 images. Every
way trains the same clients from the same weights; `equal` compares the trained weights with those
of the plain way bit for bit.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from fcil.experiment.run import device_name, fix_arithmetic, versions
from fcil.nets.backbone import build_backbone
from fcil.nets.heads import Classifier, LinearHead
from fcil.protocol import DataSpec
from fcil.settings import Backbone
from fcil.training import Job, Lane, LocalPlan, cross_entropy, train_together

SPEC = DataSpec("random", 3, 32, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), 100)
CLIENTS, ROWS, CLASSES = 5, 1000, 10


def lanes_of(count: int, plan: LocalPlan, graphs: bool) -> list[Lane]:
    """Lanes over copies of one network."""
    body = build_backbone(SPEC, Backbone(name="resnet18"), 0)
    outputs = CLASSES * (4 if plan.rotation else 1)
    first = Classifier(body, LinearHead(512, outputs, torch.Generator().manual_seed(1))).cuda()
    models = [copy.deepcopy(first) for _ in range(count)]
    return [Lane(model, SPEC, plan, cross_entropy, graphs=graphs) for model in models]


def jobs_of(lane: Lane) -> list[Job]:
    """The clients: uneven, as in a skewed partition."""
    weights = {k: t.clone() for k, t in lane.model.state_dict().items()}
    generator = torch.Generator("cuda").manual_seed(2)
    jobs = []
    for client in range(CLIENTS):
        rows = ROWS + 100 * (client - CLIENTS // 2)
        images = torch.randint(
            256, (rows, 3, 32, 32), generator=generator, device="cuda", dtype=torch.uint8
        )
        labels = torch.randint(CLASSES, (rows,), generator=generator, device="cuda")
        jobs.append(Job(weights, images, labels, seed=client, lr=0.04))
    return jobs


def round_of(lanes: list[Lane], jobs: list[Job]) -> dict[int, dict[str, torch.Tensor]]:
    """One round; the trained weights by client."""
    return {
        at: {k: t.clone() for k, t in model.state_dict().items()}
        for at, model, _ in train_together(lanes, jobs)
    }


def measure(augment: Any, rotation: bool, rounds: int) -> dict[str, Any]:
    """Images a second of each way, and whether it computes what the plain way does."""
    plan = LocalPlan(2, 128, 0.04, 0.9, 5e-4, augment, rotation, "auto")
    seen = CLIENTS * ROWS * plan.epochs * (4 if rotation else 1)
    truth: dict[int, dict[str, torch.Tensor]] | None = None
    result: dict[str, Any] = {}
    for name, count, graphs in (
        ("plain", 1, False),
        ("graphs", 1, True),
        ("graphs, 2 lanes", 2, True),
        ("graphs, 5 lanes", 5, True),
    ):
        lanes = lanes_of(count, plan, graphs)
        jobs = jobs_of(lanes[0])
        found = round_of(lanes, jobs)  # captures
        found = round_of(lanes, jobs)
        truth = truth or found
        equal = all(
            torch.equal(t, truth[at][k])
            for at, weights in found.items()
            for k, t in weights.items()
        )
        times = []
        for _ in range(1 if name == "plain" else rounds):
            torch.cuda.synchronize()
            start = time.perf_counter()
            round_of(lanes, jobs)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        middle = sorted(times)[len(times) // 2]
        result[name] = {
            "images_per_s": round(seen / middle),
            "seconds_a_round": round(middle, 4),
            "equal": equal,
            "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        }
        print(augment, rotation, name, result[name], flush=True)
        del lanes, jobs
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return result


def kernels(limit: int = 25) -> list[dict[str, Any]]:
    """Where the time of one round goes, by kernel."""
    plan = LocalPlan(2, 128, 0.04, 0.9, 5e-4, "standard", False, "auto")
    lanes = lanes_of(1, plan, graphs=True)
    jobs = jobs_of(lanes[0])
    for _ in range(2):
        round_of(lanes, jobs)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        round_of(lanes, jobs)
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)[:limit]
    return [
        {"kernel": e.key[:110], "calls": e.count, "ms": round(e.self_device_time_total / 1e3, 2)}
        for e in rows
    ]


def main() -> None:
    """Measure and print; write where told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    fix_arithmetic()
    result = {
        "device": device_name(torch.device("cuda")),
        "versions": versions(),
        "standard": measure("standard", False, given.rounds),
        "strong, rotation": measure("strong", True, given.rounds),
        "kernels of a round, one lane": kernels(),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
