"""What a width needs, against a real solve; what there is, against files as systems write them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fcil import memory
from fcil.errors import UsageError
from fcil.memory import bytes_free, bytes_needed, check_width

CPU = torch.device("cpu")
GIB = 2**30

SOLVE = """
import resource, sys, torch
torch.set_num_threads(1)
from fcil import ridge
from fcil.stats import packed
from fcil.stats.grid import Grid
from fcil.stats.moments import Moments

def peak():
    return 1024 * int(next(l.split()[1] for l in open("/proc/self/status") if l[:5] == "VmHWM"))

def sums(width):
    diagonal = packed.zeros(width)
    packed.add_diagonal_(diagonal, width, 1000.0)
    cross = torch.ones((width, 4), dtype=torch.float64)
    return Moments("map", Grid(8), (0, 1, 2, 3), diagonal, cross, torch.full((4,), width))

ridge.solve(sums(64) + sums(64), 1.0)
before, width = peak(), int(sys.argv[1])
total, upload = sums(width), sums(width)
upload.to_parts("exact")
total = total + upload
ridge.solve(total, 1.0)
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_encoding_adding_and_solving_take_what_the_formula_says() -> None:
    width = 3000
    done = subprocess.run(
        [sys.executable, "-c", SOLVE, str(width)], capture_output=True, text=True, check=True
    )
    needed = bytes_needed(width, folds=False)
    assert 0.75 * needed < int(done.stdout) < 1.25 * needed


def test_a_fold_needs_its_own_sums() -> None:
    triangle = 8 * 5000 * 5001 // 2
    assert bytes_needed(5000, folds=False) == 3 * triangle + 8 * 2500**2
    assert bytes_needed(5000, folds=True) == 6 * triangle
    assert bytes_needed(0, folds=True) == 0


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system that says 64 GiB are to be had and knows no control groups."""
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "groups")
    (tmp_path / "proc" / "self").mkdir(parents=True)
    available = f"MemTotal: 999 kB\nMemAvailable:   {64 * 2**20} kB\nMemFree: 5 kB\n"
    (tmp_path / "proc" / "meminfo").write_text(available)
    return tmp_path


def group(root: Path, path: str, files: dict[str, object]) -> None:
    folder = root / "groups" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")


def test_without_groups_the_system_decides(system: Path) -> None:
    assert bytes_free(CPU) == 64 * GIB


def test_a_system_that_says_nothing_refuses_nothing(system: Path) -> None:
    (system / "proc" / "meminfo").unlink()
    assert bytes_free(CPU) is None
    check_width(10**6, CPU, folds=True, what="x")


def test_version_2_groups_and_their_parents(system: Path) -> None:
    (system / "proc" / "self" / "cgroup").write_text("0::/user/job\n")
    group(system, "user/job", {"memory.max": "max", "memory.current": 5})
    assert bytes_free(CPU) == 64 * GIB
    stat = f"anon 7\ninactive_file {GIB}\nactive_file 3"
    group(system, "user", {"memory.max": 8 * GIB, "memory.current": 3 * GIB, "memory.stat": stat})
    assert bytes_free(CPU) == 6 * GIB
    group(system, "user/job", {"memory.max": 2 * GIB, "memory.current": GIB})
    assert bytes_free(CPU) == GIB
    group(system, "user/job", {"memory.current": 3 * GIB})
    assert bytes_free(CPU) == 0


def test_a_group_seen_from_inside_a_container(system: Path) -> None:
    (system / "proc" / "self" / "cgroup").write_text("0::/\n")
    group(system, "", {"memory.max": 3 * GIB, "memory.current": GIB})
    assert bytes_free(CPU) == 2 * GIB


@pytest.mark.parametrize("path", ["job", "elsewhere/not/mounted"])
def test_version_1_groups(system: Path, path: str) -> None:
    (system / "proc" / "self" / "cgroup").write_text(
        f"7:cpu,cpuacct:/cpu\n4:memory:/{path}\n0::/\n"
    )
    unlimited = {"memory.limit_in_bytes": 2**63 - 4096, "memory.usage_in_bytes": 9}
    group(system, "memory/job", unlimited)
    group(system, "memory", unlimited)
    assert bytes_free(CPU) == 64 * GIB
    stat = "inactive_file 1\ntotal_inactive_file 1024"
    files = {"memory.limit_in_bytes": 4 * GIB, "memory.usage_in_bytes": GIB, "memory.stat": stat}
    group(system, "memory/job" if path == "job" else "memory", files)
    assert bytes_free(CPU) == 3 * GIB + 1024


def test_what_does_not_fit_is_refused_with_its_bytes(system: Path) -> None:
    fits = next(w for w in range(60_000, 90_000) if bytes_needed(w + 1, False) > 64 * GIB)
    check_width(fits, "cpu", folds=False, what="method.projection")
    with pytest.raises(UsageError) as refusal:
        check_width(80_000, "cpu", folds=False, what="method.projection")
    message = str(refusal.value)
    assert refusal.value.exit_code == 2
    for part in ("method.projection", "80,000", "83.4 GiB", "has 64.0 GiB", f"width {fits:,}"):
        assert part in message, message
    with pytest.raises(UsageError, match="held-out fold"):
        check_width(fits, "cpu", folds=True, what="method.projection")


def test_a_card_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    card = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 5 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 4 * GIB)
    assert bytes_free(card) == 3 * GIB
    with pytest.raises(UsageError, match=r"the card has 3\.0 GiB free.*--device cpu"):
        check_width(40_000, "cuda", folds=False, what="method.projection")
