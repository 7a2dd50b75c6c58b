"""Tables of the results page; every number leads to its records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from fcil.record import Record
from fcil.report import groups, paper
from fcil.report.groups import Spread, up_mib
from fcil.report.markdown import Piece, code, plain, table
from fcil.report.provenance import ERRORS
from fcil.report.scenarios import COLUMNS, TITLES, cell
from fcil.report.stored import FAMILIES, Stored, among, seconds_after, shared
from fcil.report.sweeps import Sweep
from fcil.report.tables import amount, percent

NUMBERS: Mapping[str, Callable[[Record], float | None]] = {
    "A_T": lambda record: record.A_T,
    "A_avg": lambda record: record.A_avg,
    "F_T": lambda record: record.F_T,
}
"""Accuracies and forgetting of a record by name."""
PLUS = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
WIDTH = "method.projection"
CLOCK = ("first_stage", "extract", "statistics", "solve", "evaluate")
"""Parts of a run in the order in which they happen."""


def main(data: str, number: str, members: Sequence[Stored]) -> Piece:
    """Methods and families by column, with what the paper prints."""
    columns = [at for at in COLUMNS if any(at in row for row in paper.RESNET18[data].values())]
    rows: list[list[str]] = []
    for method, title in TITLES.items():
        cells = {at: cell(members, data, method, at) for at in columns}
        there = dict.fromkeys(found.family for at in columns for found in cells[at])
        families = list(dict.fromkeys([*(f for f in FAMILIES if f in there), *there]))
        if not families:
            continue
        printed = [paper.printed(data, method, at) for at in columns]
        if any(printed):
            values = [getattr(value, number) if value else None for value in printed]
            rows.append([Piece(f"**{title}**"), "the paper", *map(_two, values)])
        for family in families:
            first = family == families[0] and not any(printed)
            row: list[str] = [Piece(f"**{title}**") if first else "", code(family)]
            for at in columns:
                inside = [s for s in cells[at] if s.family == family]
                row.append(_cell(inside, NUMBERS[number], bold=number == "A_T"))
            rows.append(row)
    return table(["method", "recipes", *(COLUMNS[at] for at in columns)], rows, words=2)


def printed(data: str) -> Piece:
    """All that the paper prints for ResNet-18 on a data set."""
    methods = paper.RESNET18[data]
    columns = [at for at in COLUMNS if any(at in cells for cells in methods.values())]
    rows: list[list[str]] = []
    for method, cells in methods.items():
        row = [method]
        for at in columns:
            found = cells.get(at)
            row.append(" / ".join(map(_two, found)) if found else groups.DASH)
        rows.append(row)
    return table(["the paper", *(COLUMNS[at] for at in columns)], rows)


def compared(
    members: Sequence[Stored],
    keys: Iterable[str],
    more: Mapping[str, Callable[[Stored, tuple[int, ...]], str]] | None = None,
    forgetting: bool = True,
) -> Piece:
    """Groups side by side: A_T, costs, and the settings among `keys` in which they differ.

    Over the seeds that all of them have, where there are such.
    """
    names = [key for key in differing(members) if among(key, keys)]
    seeds = shared(members)
    short = ["M" if name == WIDTH else name.rpartition(".")[2].replace("_", " ") for name in names]
    rows: list[list[str]] = []
    for member in members:
        tree = groups.flat(member.config)
        row: list[str] = [_what(member, names)]
        row += [_setting(tree[key]) if key in tree else groups.DASH for key in names]
        row += [of(member, seeds) for of in (more or {}).values()]
        row += [_value(member, NUMBERS["A_T"], seeds, bold=True)]
        row += [_spread(member.value(NUMBERS["F_T"], seeds))] if forgetting else []
        row += [amount(member.value(of, seeds).mean) for of in (up_mib, seconds_after)]
        rows.append(row)
    numbers = ["A_T", "F_T"] if forgetting else ["A_T"]
    head = ["recipe", *short, *(more or {}), *numbers, "MiB up", "after s"]
    return table(head, rows, words=1 + len(names))


def swept(sweep: Sweep, buckets: Sequence[Sequence[Stored]]) -> Piece:
    """A row a series, a column a value; in each cell A_T and the upload."""
    values = sorted({sweep.value(member) for bucket in buckets for member in bucket})
    rows: list[list[str]] = []
    for bucket in buckets:
        first, seeds = bucket[0], shared(bucket)
        rest = {k: v for k, v in first.changes.items() if k not in (sweep.key, *sweep.free)}
        label = f"{code(first.family)} {TITLES.get(first.method, first.method)}"
        row: list[str] = [Piece("<br>".join([label, *_assigned(rest)]))]
        for value in values:
            texts = []
            for member in bucket:
                if sweep.value(member) == value:
                    texts.append(_value(member, NUMBERS["A_T"], seeds, bold=True))
                    texts.append(Piece(f"{amount(member.value(up_mib, seeds).mean)} MiB"))
            row.append(Piece("<br>".join(texts)) if texts else groups.DASH)
        rows.append(row)
    return table([sweep.label, *(f"{value:,}" for value in values)], rows)


def estimates(members: Sequence[Stored]) -> Piece:
    """Error of STSA-E's estimate of G, where it was measured."""
    head = ["recipe", "beta", "units counted", "K_D", *ERRORS.values(), "A_T"]
    rows: list[list[str]] = []
    for member in members:
        method, clients = member.config["method"], member.config["clients"]
        row: list[str] = [_what(member, ("method.count", "method.units", "clients.beta"))]
        row += [f"{clients['beta']:g}", str(method.get("count")), str(method.get("units"))]
        row += [_small(member.value(_error(name))) for name in ERRORS]
        rows.append([*row, _value(member, NUMBERS["A_T"])])
    return table(head, rows, words=4)


def held_out(members: Iterable[Stored]) -> list[Piece]:
    """Held-out error by gamma after the last task, a table for each set of gammas tried."""
    tried: dict[tuple[float, ...], list[list[str]]] = {}
    for member in members:
        curves = {}
        for record in member.group.records:
            last = record.solver[-1] if record.solver else {}
            if last.get("curve"):
                curves[record.seed] = {float(gamma): float(error) for gamma, error in last["curve"]}
        if not curves:
            continue
        gammas = tuple(sorted(set.intersection(*map(set, curves.values()))))
        errors = [fmean(curve[gamma] for curve in curves.values()) for gamma in gammas]
        texts = [_small(Spread(error, None)) for error in errors]
        least = errors.index(min(errors))
        texts[least] = Piece(f"**{texts[least]}**")
        label = Piece(f"{_what(member, ())} {member.linked(curves)}")
        tried.setdefault(gammas, []).append([label, *texts])
    return [table(["gamma", *(f"{g:g}" for g in gammas)], rows) for gammas, rows in tried.items()]


def costs(
    members: Sequence[Stored], numbers: Sequence[str] = ("A_T",), parts: Sequence[str] = CLOCK
) -> Piece:
    """Some numbers, bytes and parts of the time, a row a group."""
    rows: list[list[str]] = []
    for member in members:
        first, *others = numbers
        row: list[str] = [_what(member, ()), _value(member, NUMBERS[first], bold=True)]
        row += [_spread(member.value(NUMBERS[name])) for name in others]
        sizes = (up_mib, *map(_seconds, parts), seconds_after)
        rows.append([*row, *(amount(member.value(of).mean) for of in sizes)])
    titles = [f"{part.replace('_', ' ')} s" for part in parts]
    return table(["recipe", *numbers, "MiB up", *titles, "after s"], rows)


def runs(members: Sequence[Stored]) -> Piece:
    """Every group: its recipe, its changes, seeds, costs and where it ran."""
    head = ["recipe", "changed settings", "A_T", "MiB up", "MiB down", "first stage s", "after s"]
    rows: list[list[str]] = []
    for member in members:
        records = member.group.records
        row: list[str] = [code(member.recipe), Piece("<br>".join(_assigned(member.changes)))]
        row.append(_value(member, NUMBERS["A_T"]))
        for of in (up_mib, groups.down_mib, groups.seconds_first, seconds_after):
            row.append(amount(member.value(of).mean))
        commits = dict.fromkeys(record.versions.get("commit", groups.DASH) for record in records)
        rows.append([*row, f"{member.group.device}, {', '.join(commits)}"])
    return table([*head, "device, commit"], rows, words=2)


def differing(members: Sequence[Stored]) -> list[str]:
    """Dotted keys, the seed aside, in which some groups differ."""
    return groups.differing([member.group for member in members])


def gamma_used(member: Stored, seeds: Iterable[int]) -> str:
    """The ridge of the last solve, over some seeds."""
    return amount(member.value(_last_gamma, seeds).mean)


def _error(name: str) -> Callable[[Record], float | None]:
    return lambda record: (record.estimate_error or {}).get(name)


def _seconds(part: str) -> Callable[[Record], float]:
    return lambda record: record.seconds.get(part, 0.0)


def _last_gamma(record: Record) -> float | None:
    gamma = record.solver[-1].get("gamma") if record.solver else None
    return None if gamma is None else float(gamma)


def _cell(
    inside: Sequence[Stored], of: Callable[[Record], float | None], bold: bool = False
) -> Piece:
    """One group, or several on lines of their own with what tells them apart."""
    if not inside:
        return Piece(groups.DASH)
    texts = []
    for stored in inside:
        text = _value(stored, of, bold=bold)
        if len(inside) > 1:
            tree = groups.flat(stored.config)
            apart = differing(inside)
            said = [f"{key}={groups.setting(tree.get(key))}" for key in apart]
            text = Piece(f"{text} {plain(', '.join([*said, stored.group.device]))}")
        texts.append(text)
    return Piece("<br>".join(texts))


def _value(
    stored: Stored,
    of: Callable[[Record], float | None],
    seeds: Iterable[int] = (),
    bold: bool = False,
) -> Piece:
    seeds = tuple(seeds)
    mean, plus, spread = _spread(stored.value(of, seeds)).partition(PLUS)
    return Piece(f"{f'**{mean}**' if bold else mean}{plus}{spread} {stored.linked(seeds)}")


def _spread(value: Spread) -> str:
    """A percentage that is not broken across lines."""
    return percent(value, PLUS)


def _what(stored: Stored, shown: Iterable[str]) -> Piece:
    """A group's recipe and those of its changes that no column shows."""
    rest = {key: value for key, value in stored.changes.items() if key not in tuple(shown)}
    return Piece("<br>".join([code(stored.recipe), *_assigned(rest)]))


def _assigned(changes: Mapping[str, Any]) -> list[Piece]:
    return [code(f"{key}={groups.setting(value)}") for key, value in changes.items()]


def _setting(value: Any) -> str:
    """A setting's value in words, for a column under its name."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, int | float) else groups.setting(value)


def _two(value: float | None) -> str:
    return groups.DASH if value is None else f"{value:.2f}"


def _small(spread: Spread) -> str:
    if spread.mean is None:
        return groups.DASH
    more = "" if spread.deviation is None else f" ± {spread.deviation:.2g}"
    return f"{spread.mean:.3g}{more}"
