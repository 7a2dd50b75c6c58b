"""The `fcil` command: arguments in, text out. Each command imports what it needs."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import click
import typer

from fcil.errors import FcilError, Interrupted, UnknownName, UsageError

if TYPE_CHECKING:
    from fcil.record import Record
    from fcil.report.stored import Book
    from fcil.settings import Settings

app = typer.Typer(
    help="Federated class-incremental learning by exact sums.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Look at data sets and fetch them.", no_args_is_help=True)
app.add_typer(data, name="data")

Out = Annotated[Path | None, typer.Option(help="Folder for what the command writes.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output, and nothing else.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting.")
]

DEMO = ("digits-stsa", "digits-stsa-e", "digits-fedavg", "digits-joint")


@app.callback()
def _options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error was raised; at any place.")
    ] = False,
) -> None:
    """Federated class-incremental learning by exact sums."""


@app.command()
def demo(out: Out = None, device: Device = "auto") -> None:
    """STSA, STSA-E, FedAvg fine-tuning and the joint bound side by side on built-in data."""
    import torch

    from fcil.record import FILE

    # Networks this small gain nothing from more threads, lose much on a busy machine, and give the
    # same numbers on any number of cores.
    torch.set_num_threads(1)
    folder = out or Path("fcil-demo")
    records = []
    for name in DEMO:
        (folder / name / FILE).unlink(missing_ok=True)  # of an earlier demo
        settings, recipe = _experiment(name, [])
        records.append(_run(settings, recipe, folder / name, resume=True, device=device))
    _say(_tables().compare(records, "text"))
    page = _write_page(records, [folder / name for name in DEMO], folder / "report.html")
    _say(f"The report page is {page}.")


@app.command()
def run(
    experiment: Annotated[str, typer.Argument(help="A recipe, a TOML file or a record.json.")],
    assignments: Set = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option(help="Go on with an unfinished run.")] = False,
    device: Device = "auto",
    as_json: AsJson = False,
    checkpoint_every: Annotated[
        float, typer.Option(min=0, help="Seconds between checkpoints inside a task.")
    ] = 30.0,
    share: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps first stages for runs that begin alike."),
    ] = None,
) -> None:
    """Carry out one run and write its record."""
    settings, recipe = _experiment(experiment, assignments or [])
    folder = out or Path("runs") / f"{recipe}-seed{settings.seed}"
    record = _run(
        settings,
        recipe,
        folder,
        resume=resume,
        device=device,
        quiet=as_json,
        checkpoint_every=checkpoint_every,
        shared=share,
    )
    if as_json:
        _say(record.to_json())
        return
    _say(_tables().compare([record], "text"))
    for note in record.notes:
        _say(f"Note: {note}", err=True)
    _say(f"The record is {folder / 'record.json'}.")


@app.command()
def measure(
    recipes: Annotated[list[str], typer.Argument(help="Names of recipes.")],
    seeds: Annotated[str, typer.Option(help="Seeds with commas between.")] = "0,1,2",
    assignments: Set = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs' folders.")] = Path("results"),
    share: Annotated[
        Path | None, typer.Option(help="Folder that keeps first stages; else OUT/first-stages.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Carry out many runs in one process; finished ones are left alone, first stages are shared."""
    from fcil.experiment.measure import Done, measure

    def tell(done: Done) -> None:
        if done.record is None:
            _say(f"{done.folder}: {done.failure}", err=True)
            return
        seconds = sum(s for name, s in done.record.seconds.items() if name != "first_stage")
        _say(f"{done.folder}: A_T {done.record.A_T:.2f}, {seconds:.1f} s after the first stage")

    numbers = [int(seed) for seed in seeds.split(",") if seed.strip().isdecimal()]
    if not numbers or len(numbers) != len(seeds.split(",")):
        raise UsageError(f"--seeds {seeds} is no list of seeds: write 0,1,2.")
    shared = share or out / "first-stages"
    series = measure(
        recipes, numbers, assignments or [], out=out, shared=shared, device=device, listener=tell
    )
    failed = [done.failure for done in series if done.failure is not None]
    if failed:
        _say(f"{len(failed)} of {len(series)} runs failed.", err=True)
        raise failed[0]


@app.command("list")
def list_(
    kind: Annotated[
        str, typer.Argument(help="methods, datasets, backbones, first-stages, recipes")
    ],
    as_json: AsJson = False,
) -> None:
    """What there is, one line each."""
    from fcil import registry
    from fcil.experiment import recipes

    if kind == "recipes":
        found = {name: recipes.describe(name) for name in recipes.names()}
    elif kind in registry.KINDS:
        found = {name: _first_line(registry.find(kind, name)) for name in registry.names(kind)}
    else:
        raise UnknownName("list of", kind, [*registry.KINDS, "recipes"])
    if as_json:
        _say(json.dumps(found, indent=1))
        return
    width = max(map(len, found))
    for name, line in found.items():
        _say(f"{name:<{width}}  {line}")


@data.command("check")
def data_check(
    name: str,
    root: Annotated[Path | None, typer.Option(help="Folder that holds the files.")] = None,
) -> None:
    """What was found of a data set, and what is missing."""
    from fcil.data.check import check
    from fcil.errors import DataError

    findings = check(name, root)
    for finding in findings:
        _say(f"{'ok     ' if finding.ok else 'MISSING'} {finding.subject}: {finding.message}")
    if bad := [finding for finding in findings if not finding.ok]:
        raise DataError(f"{name} cannot be read from {root}: {len(bad)} problems, listed above.")


@data.command("get")
def data_get(
    name: str, root: Annotated[Path, typer.Option(help="Folder to put the files in.")]
) -> None:
    """Fetch a data set from its official address; resumable and verified."""
    from fcil.data.download import get

    with _bar("fetching") as advance:
        paths = get(name, root, progress=lambda done, total: advance(done, total or 0, name))
    for path in paths:
        _say(str(path))


@data.command("show")
def data_show(
    experiment: str,
    out: Annotated[Path, typer.Option(help="The page to write.")],
    assignments: Set = None,
) -> None:
    """Draw who holds what: clients x classes, per task."""
    from fcil.experiment.plan import plan
    from fcil.record import write_atomically
    from fcil.report.page import holdings_page

    settings, recipe = _experiment(experiment, assignments or [])
    laid = plan(settings)
    title = f"Who holds what: {recipe}, seed {settings.seed}"
    page = holdings_page(title, laid.task_classes, laid.class_names, laid.holdings)
    _say(f"The page is {write_atomically(out, page.encode())}.")


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...")],
    format: Annotated[str, typer.Option(help="text, markdown, csv or latex")] = "text",
) -> None:
    """One row a group of runs: mean and spread over seeds."""
    _say(_tables().compare(_records(folders), format))


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...")],
    out: Annotated[Path, typer.Option(help="The page to write.")],
) -> None:
    """One self-contained page."""
    _say(f"The report page is {_write_page(_records(folders), _found(folders), out)}.")


@app.command("results")
def results_(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...")],
    out: Annotated[Path, typer.Option(help="The Markdown page to write; figures beside it.")],
) -> None:
    """A Markdown page of tables and figures beside the paper's, from records alone."""
    from fcil.record import Record, write_atomically
    from fcil.report.results_page import pages

    found = {path.absolute(): Record.read(path) for path in _found(folders)}
    files = pages(found, _book(), out.absolute(), folders)
    for path, text in files.items():
        write_atomically(path, text.encode())
    _say(f"The page is {out}, with {len(files) - 1} figures in {out.with_suffix('')}.")
    for path in sorted(out.with_suffix("").glob("*.svg")):
        if path.absolute() not in files:
            _say(f"Note: {path} is no part of the page any more.", err=True)


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(help="One benchmark; all when left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """The benchmarks: ours against a naive or the published way, in one run."""
    from fcil import bench as benchmarks

    results = {}
    for each in [name] if name else benchmarks.names():
        results[each] = benchmarks.measure(each)
        if not as_json:
            _say(benchmarks.line(each, results[each]))
    if as_json:
        _say(json.dumps(results, indent=1))


def main() -> NoReturn:
    """Entry point: every error on purpose is one paragraph and its exit code."""
    debug = "--debug" in sys.argv
    try:
        app([word for word in sys.argv[1:] if word != "--debug"], standalone_mode=False)
        code = 0
    except FcilError as why:
        if debug:
            raise
        _say(f"fcil: {why}", err=True)
        code = why.exit_code
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.ClickException as why:
        why.show()
        code = UsageError.exit_code
    except (KeyboardInterrupt, click.Abort):
        _say("fcil: stopped before anything was begun.", err=True)
        code = Interrupted.exit_code
    sys.exit(code)


def _experiment(name: str, assignments: list[str]) -> tuple[Settings, str]:
    from fcil import settings
    from fcil.experiment import recipes

    path = Path(name)
    if path.suffix in (".toml", ".json") or path.is_dir():
        tree, recipe = settings.load(path / "record.json" if path.is_dir() else path)
    else:
        tree, recipe = recipes.recipe(name), name
    return settings.build(settings.override(tree, assignments)), recipe


def _run(
    settings: Settings,
    recipe: str,
    folder: Path,
    *,
    resume: bool,
    device: str,
    quiet: bool = False,
    checkpoint_every: float = 30.0,
    shared: Path | None = None,
) -> Record:
    from fcil.experiment.run import run as carry_out

    with contextlib.nullcontext(None) if quiet else _bar(recipe) as listener:
        return carry_out(
            settings,
            recipe=recipe,
            out=folder,
            resume=resume,
            device=device,
            listener=listener,
            checkpoint_every=checkpoint_every,
            shared=shared,
        )


@contextlib.contextmanager
def _bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar with the remaining time, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        bar = progress.add_task(title, total=None)

        def advance(done: int, total: int, what: str) -> None:
            progress.update(bar, completed=done, total=total or None, description=f"{title} {what}")

        yield advance


def _records(folders: list[Path]) -> list[Record]:
    from fcil.record import Record

    return [Record.read(path) for path in _found(folders)]


def _found(folders: list[Path]) -> list[Path]:
    """Record files in folders, at any depth."""
    from fcil.errors import DataError
    from fcil.record import FILE

    paths = []
    for folder in folders:
        here = [folder] if folder.is_file() else sorted(folder.rglob(FILE))
        if not here:
            raise DataError(f"There is no {FILE} in {folder}: no run has ended there.")
        paths += here
    return paths


def _write_page(records: list[Record], sources: list[Path], path: Path) -> Path:
    from fcil.record import write_atomically
    from fcil.report.page import page

    return write_atomically(path, page(records, sources).encode())


def _book() -> Book:
    """All recipes with every setting that is not the method's own."""
    from fcil.experiment import recipes
    from fcil.report.stored import Book
    from fcil.settings import Settings

    return Book(
        recipes={
            name: Settings.model_validate(recipes.recipe(name)).model_dump(mode="json")
            for name in recipes.names()
        },
        defaults=Settings().model_dump(mode="json"),
    )


def _tables() -> Any:
    from fcil.report import tables

    return tables


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().partition("\n")[0]


def _say(text: str, *, err: bool = False) -> None:
    typer.echo(text.rstrip(), err=err)
