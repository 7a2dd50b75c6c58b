"""Figures of the results page: accuracy task by task, against its costs, against a setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from fcil.record import Record
from fcil.report import groups, paper, stored
from fcil.report.figures import PRINTED, Band, Line, Look, Panel, figure
from fcil.report.groups import Spread
from fcil.report.scenarios import COLUMNS, TITLES, cell
from fcil.report.stored import FAMILIES, Stored
from fcil.report.sweeps import Sweep

METHODS = ("stsa", "stsa-e")
"""Methods that are drawn."""
Key = tuple[str, Look]
NONE: Band = (None, None, None)


def by_task(data: str, at: str, members: Sequence[Stored]) -> str | None:
    """Accuracy after each task, a panel a method, a line a family."""
    panels, steps = [], 0
    families: list[str] = []
    for method in METHODS:
        lines = []
        for member in cell(members, data, method, at):
            curves = [record.curve for record in member.group.records]
            values = [_band(step) for step in zip(*curves, strict=True)]
            lines.append(Line(_look(member.family), range(len(values)), values))
            families.append(member.family)
            steps = len(values)
        if lines:
            names = [str(task) for task in range(1, steps + 1)]
            panels.append(Panel(TITLES[method], "after task", lines, names))
    if not panels:
        return None
    title = f"Mean accuracy over the tasks seen so far, percent: {COLUMNS[at]}"
    return figure(title, panels, _keys(families))


def costs(data: str, at: str, members: Sequence[Stored]) -> str | None:
    """A_T against bytes and against seconds; one point a family and method."""
    shown = [member for method in METHODS for member in cell(members, data, method, at)]
    if not shown:
        return None
    marks = []
    for method in METHODS:
        value = paper.printed(data, method, at)
        if value and data == "cifar100":
            height: Band = (value.A_T, None, None)
            marks.append(Line(Look(PRINTED), [paper.UPLOAD_MIB[method]], [height]))
    sides: tuple[tuple[str, Callable[[Record], float], list[Line]], ...] = (
        ("MiB a client sends, log scale", groups.up_mib, marks),
        ("seconds, log scale", stored.seconds_after, []),
    )
    panels = [
        Panel("after the first stage", label, [*_points(shown, of), *extra])
        for label, of, extra in sides
    ]
    keys = _keys(member.family for member in shown)
    if any(member.method == "stsa-e" for member in shown):
        keys.append(("hollow: STSA-E", Look(len(FAMILIES), hollow=True)))
    if marks:
        keys.append(("the paper", Look(PRINTED)))
    title = f"A_T in percent against bytes and seconds: {COLUMNS[at]}"
    return figure(title, panels, keys)


def by_beta(data: str, members: Sequence[Stored]) -> str | None:
    """A_T against the skew, a panel a method, a line a family, and the paper's."""
    panels: list[Panel] = []
    families: list[str] = []
    places = range(len(paper.BETAS))
    names = [COLUMNS[at].removeprefix("beta ") for at in paper.BETAS]
    for method in METHODS:
        found: dict[str, list[Band]] = {}
        for place, at in enumerate(paper.BETAS):
            for member in cell(members, data, method, at):
                found.setdefault(member.family, [NONE] * len(places))[place] = _final(member)
        if found:
            lines = [Line(_look(family), places, values) for family, values in found.items()]
            printed = [paper.printed(data, method, at) for at in paper.BETAS]
            marks: list[Band] = [(cell.A_T if cell else None, None, None) for cell in printed]
            lines.append(Line(Look(PRINTED), places, marks))
            label = "beta (smaller = less even clients)"
            panels.append(Panel(TITLES[method], label, lines, names))
            families += found
    if not panels:
        return None
    keys = [*_keys(families), ("the paper", Look(PRINTED))]
    return figure("A_T in percent against beta", panels, keys)


def by_value(sweep: Sweep, buckets: Sequence[Sequence[Stored]]) -> str | None:
    """A_T against the value that a sweep changes, a panel a method, a line a family."""
    if not buckets:
        return None
    values = sorted({sweep.value(member) for bucket in buckets for member in bucket})
    panels: list[Panel] = []
    families: list[str] = []
    for method in METHODS:
        lines = []
        for bucket in buckets:
            if bucket[0].method != method:
                continue
            placed = {values.index(sweep.value(member)): member for member in bucket}
            heights = [_final(placed[place], stored.shared(bucket)) for place in sorted(placed)]
            lines.append(Line(_look(bucket[0].family), sorted(placed), heights))
            families.append(bucket[0].family)
        if lines:
            names = [f"{value:,}" for value in values]
            panels.append(Panel(TITLES[method], sweep.label, lines, names))
    return figure(f"A_T in percent against {sweep.label}", panels, _keys(families))


def _points(shown: Sequence[Stored], of: Callable[[Record], float]) -> list[Line]:
    points = []
    for member in shown:
        place = member.value(of).mean
        if place:
            look = _look(member.family, hollow=member.method == "stsa-e")
            points.append(Line(look, [place], [_final(member)]))
    return points


def _final(member: Stored, wanted: Iterable[int] = ()) -> Band:
    kept = set(wanted) or set(member.seeds)
    return _band([record.A_T for record in member.group.records if record.seed in kept])


def _band(values: Sequence[float | None]) -> Band:
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return NONE
    return Spread.of(known).mean, min(known), max(known)


def _look(family: str, hollow: bool = False) -> Look:
    order = list(FAMILIES)
    return Look(order.index(family) if family in order else len(order), hollow)


def _keys(families: Iterable[str]) -> list[Key]:
    found: Mapping[str, None] = dict.fromkeys(families)
    inside = [family for family in FAMILIES if family in found]
    return [(family, _look(family)) for family in dict.fromkeys([*inside, *found])]
