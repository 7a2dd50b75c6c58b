"""One run: tasks -> asks -> answers -> state -> evaluation -> record. The only place where the
concrete pieces meet; methods, data sets and networks come in by name.
"""

from __future__ import annotations

import copy
import datetime
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from fcil import metrics, registry
from fcil.data.dataset import Dataset
from fcil.engines.in_process import InProcess, Traffic
from fcil.errors import Interrupted, Refused, UsageError
from fcil.experiment import checkpoint, first_stages
from fcil.experiment.plan import plan
from fcil.protocol import Ask, DataSpec, Method, SharesFirstStage, State, World
from fcil.record import FILE, Record
from fcil.settings import Settings
from fcil.shards import ImageSource, Rows

Listener = Callable[[int, int, str], None]
"""Called after every ask: done, expected in all, and a word on what was done."""


class Clock:
    """Seconds by name; where names nest, the innermost counts."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device, self._names, self._since = device, list[str](), 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Charge what happens inside to a name."""
        self._turn()
        self._names.append(name)
        try:
            yield
        finally:
            self._turn()
            self._names.pop()

    def _turn(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if self._names:
            name = self._names[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


@dataclass
class Progress:
    """What the record will hold, so far; part of the checkpoint."""

    task: int = 0
    matrix: list[list[float | None]] = field(default_factory=list)
    overall: list[float | None] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    started: str = ""
    asks: int = 0
    first_stage: str = ""


def run(
    settings: Settings,
    *,
    recipe: str = "custom",
    out: Path | None = None,
    resume: bool = False,
    device: str = "auto",
    listener: Listener | None = None,
    dataset: Dataset | None = None,
    checkpoint_every: float = 30.0,
    shared: Path | None = None,
) -> Record:
    """Carry out a run and write its record into `out`.

    Checkpoints go there too, when `checkpoint_every` seconds have passed and when stopped. With
    `resume` a run goes on from the last; the outcome is the same bit for bit.
    `shared` is a folder in which first stages are kept for runs that begin alike.
    """
    options = (device, listener, dataset, checkpoint_every, shared)
    if out is None:
        return _Run(settings, recipe, None, *options).finish()
    with checkpoint.locked(out):
        if (out / FILE).exists():
            found = Record.read(out)
            _check_same(found.config, settings, out)
            if resume:
                return found
            raise Refused(
                f"{out} already holds a finished run. Give this one its own folder with --out, "
                "delete that folder, or add --resume to see its record."
            )
        going = _Run(settings, recipe, out, *options)
        saved = checkpoint.load(out, going.world.device)
        if saved is not None and not resume:
            raise Refused(
                f"{out} holds an unfinished run. Add --resume to go on with it, or give this one "
                "its own folder with --out."
            )
        if saved is not None:
            _check_same(saved["config"], settings, out)
            going.restore(saved)
        return going.finish()


class _Run:
    def __init__(
        self,
        settings: Settings,
        recipe: str,
        out: Path | None,
        device: str,
        listener: Listener | None,
        dataset: Dataset | None,
        checkpoint_every: float,
        shared: Path | None = None,
    ) -> None:
        self.settings, self.recipe, self.out = settings, recipe, out
        self.config = settings.complete()
        self.versions = versions()  # now: the source may be edited while a long run goes on
        self.listener, self.checkpoint_every = listener, checkpoint_every
        where = choose_device(device)
        fix_arithmetic()
        self.plan = plan(settings, dataset)
        self.clock = Clock(where)
        self.world = World(settings, spec_of(self.plan.data), self.plan.tasks, where, self.clock)
        train = _source(self.plan.data.train_images, self.plan.train_labels, where)
        self.test = _source(self.plan.data.test_images, self.plan.test_labels, where)
        self.method: Method = registry.find("methods", settings.method["name"])(
            settings.method_config()
        )
        self.engine = InProcess(
            self.world,
            self.method,
            train,
            [[torch.from_numpy(r).to(where) for r in task] for task in self.plan.rows],
            Traffic.none(len(self.plan.tasks), settings.clients.count),
        )
        self.progress = Progress(
            started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        )
        self.state: State | None = None
        self.shared = shared
        self._stage = ""
        if shared is not None and isinstance(self.method, SharesFirstStage):
            self._stage = first_stages.name(self.world, self.plan)
        self._marked: dict[str, Any] | None = None
        self._saved = time.monotonic()

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.progress = Progress(**saved["progress"])
        self.clock.seconds = dict(self.progress.seconds)
        self.state = saved["state"]
        self.engine.restore(saved["engine"])
        self._mark()

    def finish(self) -> Record:
        """Everything that is left, and the record."""
        try:
            self._tasks()
        except KeyboardInterrupt:
            self._save()
            raise Interrupted(self._how_to_go_on()) from None
        record = self._record()
        if self.out is not None:
            record.write(self.out)
            (self.out / checkpoint.FILE).unlink(missing_ok=True)
        return record

    def _tasks(self) -> None:
        world, progress = self.world, self.progress
        if self.state is None:
            self.state = self._adopted(self.method.start(world))
        total = sum(self.method.asks(world, task) for task in range(len(world.tasks)))
        while progress.task < len(world.tasks):
            task = progress.task
            while (ask := self.method.ask(world, self.state, task)) is not None:
                with self.clock(_clock_name(ask)):
                    self.state = self.method.absorb(
                        world, self.state, ask, self.engine.exchange(ask)
                    )
                progress.asks += 1
                self._offer(ask)
                self._mark()
                if self.listener:
                    self.listener(progress.asks, total, f"task {task + 1}: {ask.stage}")
                self._save_sometimes()
            with self.clock("evaluate"):
                row, overall = self._evaluate(task)
            progress.matrix.append(row)
            progress.overall.append(overall)
            progress.reports.append(dict(self.method.report(world, self.state)))
            progress.task += 1
            self._mark()
            self._save_sometimes()

    def _adopted(self, state: State) -> State:
        """The starting state, its first stage over where one that begins alike is kept."""
        if self.shared is None or not isinstance(self.method, SharesFirstStage):
            return state
        kept = first_stages.load(self.shared, self._stage, self.world.device)
        if kept is None:
            return state
        self.clock.seconds["first_stage"] = kept.seconds
        self.engine.traffic.first_up, self.engine.traffic.first_down = kept.up, kept.down
        self.progress.first_stage = kept.started
        return self.method.adopt(self.world, state, kept.trained)

    def _offer(self, ask: Ask) -> None:
        """Keep the first stage once it is over."""
        if not ask.first_stage or self.shared is None:
            return
        assert self.state is not None
        if not isinstance(self.method, SharesFirstStage):
            return
        trained = self.method.trained(self.world, self.state)
        if trained is None:
            return
        stage = first_stages.FirstStage(
            dict(trained),
            self.engine.traffic.first_up,
            self.engine.traffic.first_down,
            self.clock.seconds["first_stage"],
            self.progress.started,
        )
        first_stages.save(self.shared, self._stage, stage)

    def _evaluate(self, task: int) -> tuple[list[float | None], float | None]:
        """Accuracy in percent on each task's test images so far, and over all of them."""
        assert self.state is not None
        predictor = self.method.predictor(self.world, self.state)
        if predictor is None:
            return [None] * (task + 1), None
        seen = len(self.world.seen(task))
        rows = (self.test.labels < seen).nonzero()[:, 0]
        right = predictor(Rows(self.test, rows, rows)) == self.test.labels[rows]
        labels = self.test.labels[rows]
        row: list[float | None] = []
        for classes in self.world.tasks[: task + 1]:
            here = (labels >= classes[0]) & (labels <= classes[-1])
            row.append(100 * int(right[here].sum()) / int(here.sum()))
        return row, 100 * int(right.sum()) / len(right)

    def _mark(self) -> None:
        """Note the present state as one to go on from; between marks things are half done."""
        self.progress.seconds = dict(self.clock.seconds)
        self._marked = {
            "config": self.config,
            "progress": copy.deepcopy(self.progress.__dict__),
            "state": self.state,
            "engine": self.engine.tree(),
        }

    def _save_sometimes(self) -> None:
        if time.monotonic() - self._saved >= self.checkpoint_every:
            self._save()

    def _save(self) -> None:
        """Write the last marked state."""
        if self.out is not None and self._marked is not None:
            checkpoint.save(self.out, self._marked)
        self._saved = time.monotonic()

    def _how_to_go_on(self) -> str:
        if self.out is None:
            return "Stopped. Nothing was kept, because no folder was given."
        if self._marked is None:
            return "Stopped before anything was worth keeping; run the same command again."
        return f"Stopped; the state is kept in {self.out}. The same command with --resume goes on."

    def _record(self) -> Record:
        progress = self.progress
        matrix, reports = progress.matrix, progress.reports
        errors = [r["estimate_error"] for r in reports if r.get("estimate_error")]
        return Record(
            recipe=self.recipe,
            config=self.config,
            versions=self.versions,
            device=device_name(self.world.device),
            started=progress.started,
            seed=self.settings.seed,
            fingerprint=reports[-1].get("fingerprint", ""),
            matrix=matrix,
            A_avg=metrics.average_accuracy(matrix),
            A_T=metrics.final_accuracy(matrix),
            F_T=metrics.forgetting(matrix),
            F_T_all=metrics.forgetting_all_stages(matrix),
            curve=metrics.curve(matrix),
            overall=progress.overall,
            task_classes=self.plan.task_classes,
            class_names=self.plan.class_names,
            holdings=self.plan.holdings,
            bytes=self.engine.traffic.record(),
            seconds={name: round(s, 4) for name, s in sorted(self.clock.seconds.items())},
            gradient_steps=[r.get("gradient_steps", 0) for r in reports],
            statistics=[r["statistics"] for r in reports if "statistics" in r],
            solver=[r["solver"] for r in reports if "solver" in r],
            notes=reports[-1].get("notes", []),
            estimate_error=errors[-1] if errors else None,
            first_stage_of=progress.first_stage,
        )


def _clock_name(ask: Ask) -> str:
    """The record's name for an ask's time."""
    if not ask.counted:
        return "measure"
    if ask.first_stage:
        return "first_stage"
    return "train" if ask.stage == "train" else "statistics"


def _source(images: Any, labels: Any, device: torch.device) -> ImageSource:
    return ImageSource(torch.from_numpy(images).to(device), torch.from_numpy(labels).to(device))


def spec_of(data: Dataset) -> DataSpec:
    """What everybody may know of a data set."""
    return DataSpec(data.name, data.channels, data.size, data.mean, data.std, data.classes)


def choose_device(name: str) -> torch.device:
    """`auto` takes a card where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise UsageError(f"There is no device {name!r}; there is auto, cpu and cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("This machine has no card that torch can use. Use --device cpu.")
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """The card's or processor's own name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: the platform module's answer is what there is
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Of everything that can change a number."""
    packages = {name: version(name) for name in ("fcil", "torch", "numpy", "scipy")}
    rest = {"commit": _commit(), "threads": str(torch.get_num_threads())}
    return {"python": platform.python_version(), **packages, **rest}


def _commit() -> str:
    """The source's commit: FCIL_COMMIT where that is set, else what git says, else nothing."""
    if named := os.environ.get("FCIL_COMMIT"):
        return named
    here = Path(__file__).parent
    try:
        say = subprocess.run(
            ["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""  # installed from a wheel: the version number says it all
    return say.stdout.strip()


def fix_arithmetic() -> None:
    """The same bits from the same inputs, on a card too."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def _check_same(before: dict[str, Any], settings: Settings, out: Path) -> None:
    differing = sorted(_differences(before, settings.complete()))
    if differing:
        raise Refused(
            f"{out} holds a run with other settings: {', '.join(differing[:8])} differ. A run can "
            "only go on as it began; give this one its own folder with --out."
        )


def _differences(a: Any, b: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in a.keys() | b.keys():
            yield from _differences(a.get(key), b.get(key), f"{prefix}{key}.")
    elif a != b:
        yield prefix.rstrip(".")
