"""Benchmarks as ratios: a naive or the published way against ours, both in one run.

Each benchmark gives seconds of both sides, `ratio` = baseline / ours, and what else it measured.
Both sides compute the same thing from the same input; that is checked before anything is timed.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcil import ridge
from fcil.errors import DataError, UnknownName
from fcil.stats import bits, codec, packed
from fcil.stats.features import Features
from fcil.stats.grid import Grid
from fcil.stats.moments import Moments
from fcil.stats.unit_sums import UnitSums, estimate_gram

Result = dict[str, Any]
_GRID = Grid(bits=8, exponent=-3)


def names() -> list[str]:
    """All benchmarks."""
    return sorted(_BENCHMARKS)


def measure(name: str) -> Result:
    """Run one benchmark, in a process of its own: none inherits another's heap or caches."""
    if name not in _BENCHMARKS:
        raise UnknownName("benchmark", name, _BENCHMARKS)
    result = _alone(name)
    return {**result, "ratio": round(result["baseline_s"] / result["ours_s"], 3)}


def line(name: str, result: Result) -> str:
    """One line for people."""
    rest = {k: v for k, v in result.items() if k not in ("ours_s", "baseline_s", "ratio")}
    return (
        f"{name}: ours {result['ours_s']:.4g} s, baseline {result['baseline_s']:.4g} s, "
        f"ratio {result['ratio']}  {json.dumps(rest)}"
    )


def estimator(width: int = 1250, clients: int = 5, units: int = 50, classes: int = 10) -> Result:
    """STSA-E's Gram estimate against the published accumulation, cell by cell."""
    sums = _unit_sums(width, clients, units, classes, rows=1000)

    def published() -> Tensor:
        return packed.pack(_published_estimate(sums, clients * units))

    ours = estimate_gram(sums, "all")
    _same(ours, published(), 1e-6)
    return {
        "ours_s": _seconds(lambda: estimate_gram(sums, "all"), 25),
        "baseline_s": _seconds(published, 7),
        "baseline": "published per-cell accumulation, float64",
        "width": width,
        "cells": len(sums.counts),
    }


def gram(width: int = 2500, rows: int = 4000) -> Result:
    """Packed Gram accumulation against a plain float64 product."""
    features = _features(rows, width, seed=0)
    real = features.values.double()
    _same(packed.gram(features.values), packed.pack(real.T @ real), 0)
    return {
        "ours_s": _seconds(lambda: packed.gram(features.values), 5),
        "baseline_s": _seconds(lambda: real.T @ real, 5),
        "baseline": "X.T @ X in float64, X already converted",
        "width": width,
        "rows": rows,
        "memory_share": round(packed.size(width) / width**2, 4),
    }


def update(width: int = 1000, stages: int = 10, rows: int = 2000) -> Result:
    """Ten stages of add-and-solve against refitting from all features at each stage."""
    tasks = [_features(rows, width, seed=task) for task in range(stages)]
    labels = [torch.arange(rows) % 10 + 10 * task for task in range(stages)]

    def ours() -> ridge.Head:
        total = Moments.zero(tasks[0].map, _GRID, width)
        for phi, y in zip(tasks, labels, strict=True):
            total = total + Moments.of(phi, y)
            head = ridge.solve(total, 1e3)
        return head

    def refit() -> Tensor:
        W = torch.empty(0)
        for stage in range(1, stages + 1):
            X = torch.cat([phi.real() for phi in tasks[:stage]])
            Y = torch.nn.functional.one_hot(torch.cat(labels[:stage])).double()
            G = X.T @ X + 1e3 * torch.eye(width, dtype=torch.float64)
            W = torch.linalg.solve(G, X.T @ Y)
        return W

    _same(ours().weights, refit(), 1e-6)
    return {
        "ours_s": _seconds(ours, 3),
        "baseline_s": _seconds(refit, 1),
        "baseline": "X of all tasks so far, X.T @ X and a general solve, at each stage",
        "width": width,
        "stages": stages,
    }


def encoding(width: int = 2500, rows: int = 1000) -> Result:
    """Lossless encoding of moments against torch.save of the same tensors."""
    moments = Moments.of(_features(rows, width, seed=0), torch.arange(rows) % 10)
    assert codec.decode(codec.encode(moments)) == moments

    def saved() -> bytes:
        buffer = io.BytesIO()
        torch.save({"gram": moments.gram_matrix(), "cross": moments.cross}, buffer)
        return buffer.getvalue()

    ours, theirs = len(codec.encode(moments, "exact")), len(saved())
    seconds = _seconds(lambda: codec.encode(moments, "exact"), 5)
    return {
        "ours_s": seconds,
        "baseline_s": _seconds(saved, 5),
        "baseline": "torch.save of the full float64 matrices",
        "width": width,
        "ours_bytes": ours,
        "baseline_bytes": theirs,
        "million_entries_per_s": round(packed.size(width) / seconds / 1e6, 1),
        "bytes_ratio": round(theirs / ours, 2),
    }


def server_memory(width: int = 1250, few: int = 5, many: int = 500) -> Result:
    """Peak memory of a server that folds uploads as they arrive, for few and for many clients."""
    moments = Moments.of(_features(200, width, seed=0), torch.arange(200) % 10)
    with tempfile.TemporaryDirectory() as folder:
        upload = Path(folder) / "upload"
        upload.write_bytes(codec.encode(moments))
        alone, small, large = (_server(upload, clients) for clients in (0, few, many))
    grown = (large["peak"] - alone["peak"]) / (small["peak"] - alone["peak"])
    return {
        "ours_s": large["seconds"] / many,
        "baseline_s": small["seconds"] / few,
        "baseline": f"seconds an upload with {few} clients, against {many}",
        "width": width,
        f"peak_mib_{few}": round(small["peak"] / 2**20, 1),
        f"peak_mib_{many}": round(large["peak"] / 2**20, 1),
        "peak_ratio": round(large["peak"] / small["peak"], 4),
        "peak_ratio_above_idle": round(grown, 4),
    }


def wide(width: int = 4000) -> Result:
    """The solve of a wide map on packed triangles against one on full squares, with the memory it
    takes beside the sums, and the bits an entry of an exact upload takes with and without what the
    class sums predict."""
    moments = _classes(1000, width, seed=0)
    gamma = 1e-3 * float(packed.diagonal(moments.gram, width).mean())
    _same(_solved_packed(moments, gamma), _solved_square(moments, gamma), 1e-9)
    upload = sum(t.numel() * t.element_size() for t in moments.to_parts("exact")[1].values())
    entries = packed.size(width)
    taken = {side: _alone("solve", side, str(width))["peak"] for side in ("sums", *_SOLVES)}
    return {
        "ours_s": _seconds(lambda: _solved_packed(moments, gamma), 3),
        "baseline_s": _seconds(lambda: _solved_square(moments, gamma), 3),
        "baseline": "torch.linalg.cholesky and cholesky_solve of the unpacked matrix",
        "width": width,
        "ours_mib": round((taken["packed"] - taken["sums"]) / 2**20, 1),
        "baseline_mib": round((taken["square"] - taken["sums"]) / 2**20, 1),
        "bits_an_entry": round(8 * upload / entries, 2),
        "bits_an_entry_unpredicted": round(8 * bits.size(moments.gram) / entries, 2),
    }


_BENCHMARKS: dict[str, Callable[[], Result]] = {
    "estimator": estimator,
    "gram": gram,
    "update": update,
    "encoding": encoding,
    "server-memory": server_memory,
    "wide": wide,
}


def _solved_packed(moments: Moments, gamma: float) -> Tensor:
    return ridge.Factor.of(moments.gram, moments.width, gamma).solve(moments.cross)


def _solved_square(moments: Moments, gamma: float) -> Tensor:
    square = packed.unpack(moments.gram, moments.width)
    square.diagonal().add_(gamma)
    return torch.cholesky_solve(moments.cross, torch.linalg.cholesky(square))


_SOLVES = {"packed": _solved_packed, "square": _solved_square}


def _classes(rows: int, width: int, seed: int) -> Moments:
    """Moments of non-negative features with a mean and ten classes, as patches have."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(rows) % 10
    means = torch.rand(10, width, generator=generator) * 60 + 40
    values = (means[labels] + 20 * torch.randn(rows, width, generator=generator)).round()
    features = Features(values.clamp(0, 255).to(torch.uint8), _GRID, "benchmark")
    return Moments.of(features, labels)


def _peak_of(side: str, width: int) -> dict[str, float]:
    """The peak of a process that sums and, for a side, solves."""
    moments = _classes(1000, width, seed=0)
    if side in _SOLVES:
        _SOLVES[side](moments, 1e3)
    return {"peak": _peak_memory()}


def _published_estimate(sums: UnitSums, units: int) -> Tensor:
    """The estimate as the paper writes it: one outer product for each cell and each class."""
    total = torch.zeros((sums.width, sums.width), dtype=torch.float64)
    labels = sums.keys[:, 3]
    for label in torch.unique(labels).tolist():
        cells = (labels == label).nonzero()[:, 0].tolist()
        n = float(sums.counts[cells].sum())
        first = max((n - 1) / (units - 1), 0.0)
        second = max((n - units) / (n * (units - 1)), 0.0)
        S = torch.zeros(sums.width, dtype=torch.float64)
        for cell in cells:
            C = sums.sums[cell]
            total += first * torch.outer(C, C) / float(sums.counts[cell])
            S += C
        total -= second * torch.outer(S, S)
    return total


def _features(rows: int, width: int, seed: int) -> Features:
    """Random ReLU-like features on an 8-bit grid."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, width, generator=generator).relu() * 40
    return Features(values.round().clamp(0, 255).to(torch.uint8), _GRID, "benchmark")


def _unit_sums(width: int, clients: int, units: int, classes: int, rows: int) -> UnitSums:
    total: UnitSums | None = None
    for client in range(clients):
        one = UnitSums.of(
            _features(rows, width, seed=client),
            torch.arange(rows) % classes,
            units=units,
            rng=np.random.default_rng(client),
            client=client,
        )
        total = one if total is None else total + one
    assert total is not None
    return total


def _same(ours: Tensor, baseline: Tensor, tolerance: float) -> None:
    """A benchmark of two things that differ would be worth nothing."""
    error = float((ours - baseline).norm() / baseline.norm())
    if not error <= tolerance:
        raise AssertionError(f"both sides of the benchmark differ by {error:.2e}")


def _seconds(work: Callable[[], object], repeats: int) -> float:
    """Median of some repeats, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2]


def _server(upload: Path, clients: int) -> Result:
    """Fold the same upload so many times in a process of its own; the median of three."""
    answers = [_alone("fold", str(upload), str(clients)) for _ in range(3)]
    return sorted(answers, key=lambda answer: float(answer["peak"]))[1]


def _alone(*words: str) -> Result:
    answer: Result = json.loads(
        subprocess.check_output([sys.executable, "-m", "fcil.bench", *words])
    )
    return answer


def _fold(upload: Path, clients: int) -> dict[str, float]:
    total: Moments | None = None
    started = time.perf_counter()
    for _ in range(clients):
        arrived = codec.decode(upload.read_bytes())
        total = arrived if total is None else total + arrived
    seconds = time.perf_counter() - started
    return {"peak": _peak_memory(), "seconds": seconds}


def _peak_memory() -> float:
    """Bytes this process held at most; unlike getrusage, not what its parent held at the fork."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return float(line.split()[1]) * 1024
    raise DataError("This system does not say how much memory a process held (no VmHWM).")


def _main(name: str, *words: str) -> None:
    """What a process of its own does."""
    if name == "fold":
        result: Result = _fold(Path(words[0]), int(words[1]))
    elif name == "solve":
        result = _peak_of(words[0], int(words[1]))
    else:
        result = _BENCHMARKS[name]()
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    _main(*sys.argv[1:])
