"""Whether a width's sums and their solve fit into memory, asked before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from fcil.errors import UsageError
from fcil.stats import packed

_GIB = 2**30
_NUMBER = 8
"""Bytes of a float64."""
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 2**60
"""From here on a control group's limit means that there is none (version 1 writes 2^63 - 4096)."""


def bytes_needed(width: int, folds: bool) -> int:
    """The most memory a server's sums and their solve take at once.

    Sums are one packed triangle, or two with a held-out fold. Adding an upload holds three of
    them: the total, the upload and the new total. Solving holds the total, the packed factor,
    a quarter of a full square while that is made, and at most the last upload. Where clients run
    in the same process, encoding an upload holds no more than solving.
    """
    triangle, half = packed.size(width), (width + 1) // 2
    sums = (2 if folds else 1) * triangle
    return _NUMBER * max(3 * sums, 2 * sums + triangle + half * half)


def check_width(width: int, device: torch.device | str, *, folds: bool, what: str) -> None:
    """Refuse a width whose sums and solve do not fit; `what` names the setting to lower."""
    here = torch.device(device)
    needed, free = bytes_needed(width, folds), bytes_free(here)
    if free is None or needed <= free:
        return
    where = "the card" if here.type == "cuda" else "this machine"
    other = "" if here.type == "cpu" else " or --device cpu"
    fold = " and of its held-out fold" if folds else ""
    raise UsageError(
        f"{what} makes features of width {width:,}. The sums of that width{fold}, one upload and "
        f"the solve need {needed / _GIB:.1f} GiB at once, and {where} has {free / _GIB:.1f} GiB "
        f"free, which holds width {_widest(free, folds):,}. Lower {what}, take a machine with more "
        f"memory{other}, or end what else uses it."
    )


def bytes_free(device: torch.device) -> int | None:
    """Memory to be had: of a card what is free, else the smaller of what the system and the
    control groups of this process leave; None where none of them says.
    """
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    found = [*_from_system(), *_from_groups()]
    return min(found) if found else None


def _widest(free: int, folds: bool) -> int:
    low, high = 0, 2**24
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bytes_needed(middle, folds) <= free else (low, middle)
    return low


def _from_system() -> Iterator[int]:
    for line in _text(_PROC / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield 1024 * int(line.split()[1])


def _from_groups() -> Iterator[int]:
    """What each control group of this process leaves, of version 2 and 1, parents included."""
    for line in _text(_PROC / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if controllers and "memory" not in names:
            continue
        root, limit, used, idle = (
            (_CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            if controllers
            else (_CGROUPS, "memory.max", "memory.current", "")
        )
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            most, taken = _text(folder / limit).strip(), _text(folder / used).strip()
            if most.isdigit() and taken.isdigit() and int(most) < _UNLIMITED:
                reclaimed = _value(_text(folder / "memory.stat"), f"{idle}inactive_file")
                yield max(0, int(most) - int(taken) + reclaimed)
            if folder == root:
                break


def _value(text: str, name: str) -> int:
    """A number of a file of names and numbers; 0 where it is not there."""
    return next(
        (int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0
    )


def _text(path: Path) -> str:
    """A file's text; nothing where there is no such file, as on other systems."""
    return path.read_text() if path.is_file() else ""
