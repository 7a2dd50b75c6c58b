"""The record of one run: everything a table, a figure or a repetition needs. Standard library only.

`record.json` lies in the run's folder. It is written whole or not at all.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Self

from fcil.errors import DataError

SCHEMA = 1
FILE = "record.json"
CLOCK = ("started", "seconds", "solver", "first_stage_of")
"""Fields that hold times: they differ between two otherwise identical runs."""


@dataclasses.dataclass(kw_only=True)
class Record:
    """One finished run; the fields are the file's keys."""

    recipe: str
    """Name of the recipe or file the run came from."""
    config: dict[str, Any]
    """Complete settings: `fcil run record.json` repeats the run from them."""
    versions: dict[str, str]
    device: str
    """The card's or processor's own name."""
    started: str
    seed: int
    fingerprint: str
    """Of the whole feature map: network weights, layers, views, projection, grid."""
    matrix: list[list[float | None]]
    """Lower-triangular accuracies in percent, row t = after task t."""
    A_avg: float | None
    A_T: float | None
    F_T: float | None
    """The paper's definition: best stage among all but the last."""
    F_T_all: float | None
    """Best stage among all."""
    curve: list[float | None]
    """Mean of each row of the matrix."""
    overall: list[float | None]
    """Top-1 over all test images seen so far, after each task."""
    task_classes: list[list[int]]
    """Raw labels of each task, in the order in which the run numbers its classes."""
    class_names: list[list[str]]
    holdings: list[list[list[int]]]
    """Training images by task, client and class of the task."""
    bytes: dict[str, Any]
    """`up` and `down` by task and client, `first_stage` apart, measured on encoded messages."""
    seconds: dict[str, float]
    gradient_steps: list[int]
    """By task, summed over clients."""
    statistics: list[dict[str, Any]]
    """By task: `hash` of the total, `exact`, `clipped`; empty for methods without statistics."""
    solver: list[dict[str, Any]]
    """By task: the report of the ridge solve."""
    notes: list[str]
    """Warnings a reader of the numbers must know."""
    estimate_error: dict[str, float] | None = None
    """STSA-E with the exact Gram at hand: `frobenius` (relative) and `trace_bias` (signed)."""
    first_stage_of: str = ""
    """When the run began whose first stage this one took over, with its seconds; mostly empty."""
    schema: int = SCHEMA

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False) + "\n"

    def outcome(self) -> dict[str, Any]:
        """Every field but the clock's: equal for two runs that computed the same."""
        fields = dataclasses.asdict(self)
        for name in CLOCK:
            del fields[name]
        return fields

    def write(self, folder: Path) -> Path:
        """Write `record.json` into a folder, whole or not at all."""
        return write_atomically(folder / FILE, self.to_json().encode())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a record from its file or from the folder that holds it."""
        path = path / FILE if path.is_dir() else path
        try:
            fields = json.loads(path.read_text())
        except FileNotFoundError:
            raise DataError(
                f"There is no record at {path}. A run writes it when it ends; an unfinished run "
                "goes on with `fcil run ... --resume`."
            ) from None
        except (UnicodeDecodeError, json.JSONDecodeError) as why:
            raise DataError(f"{path} is not a record: {why}.") from why
        if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
            found = fields.get("schema") if isinstance(fields, dict) else None
            raise DataError(f"{path} has record schema {found!r}; this version reads {SCHEMA}.")
        known = {field.name for field in dataclasses.fields(cls)}
        missing = sorted(known - set(fields) - {"estimate_error", "first_stage_of"})
        if missing:
            raise DataError(f"{path} lacks {', '.join(missing)}: it was cut or written by hand.")
        return cls(**{name: value for name, value in fields.items() if name in known})


def write_atomically(path: Path, content: bytes) -> Path:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path
