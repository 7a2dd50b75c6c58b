"""Many runs in one process: data are read once, first stages trained once, finished runs kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fcil import settings
from fcil.data import readers
from fcil.data.dataset import Dataset
from fcil.errors import FcilError
from fcil.experiment import recipes
from fcil.experiment.run import run
from fcil.record import FILE, Record
from fcil.settings import Settings


class Done(NamedTuple):
    """One run of a series."""

    folder: Path
    record: Record | None
    """None where it failed."""
    failure: FcilError | None = None


def measure(
    names: Sequence[str],
    seeds: Sequence[int],
    assignments: Sequence[str],
    *,
    out: Path,
    shared: Path | None = None,
    device: str = "auto",
    listener: Callable[[Done], None] = lambda done: None,
) -> list[Done]:
    """Run recipes at seeds into `out/RECIPE-seedS`; what is finished there stays as it is.

    A run that fails does not keep the others from running. All settings are checked first.
    """
    planned = [
        (
            name,
            settings.build(settings.override(recipes.recipe(name), [*assignments, f"seed={seed}"])),
        )
        for seed in seeds
        for name in names
    ]
    series = []
    for name, made in planned:
        folder = out / f"{name}-seed{made.seed}"
        done = _one(name, made, folder, shared, device)
        listener(done)
        series.append(done)
    return series


def _one(name: str, made: Settings, folder: Path, shared: Path | None, device: str) -> Done:
    options: dict[str, Any] = {"device": device, "shared": shared, "resume": True}
    try:
        finished = (folder / FILE).exists()
        data = None if finished else _read(made.data.name, made.data.root, made.data.size)
        return Done(folder, run(made, recipe=name, out=folder, dataset=data, **options))
    except FcilError as why:
        return Done(folder, None, why)


@lru_cache(maxsize=1)
def _read(name: str, root: str | None, size: int | None) -> Dataset:
    return readers.load(name, Path(root) if root else None, size)
