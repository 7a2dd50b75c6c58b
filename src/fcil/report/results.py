"""Sections of a report that show what came out: result, notes, accuracy, cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from fcil.record import Record
from fcil.report import charts, grids, groups, tables
from fcil.report.document import data_table, fold, scroll
from fcil.report.groups import MIB, Group, Spread
from fcil.report.markup import Markup, element, joined
from fcil.report.tables import amount, percent

Looks = Mapping[str, int]
"""Look of each group by its short name: the same in every chart of a page."""
CLOCK = ("first_stage", "extract", "statistics", "solve", "evaluate")
"""Parts of a run in the order in which they happen."""
PANELS: dict[str, Callable[[Record], float]] = {
    "MiB a client sends after the first stage": groups.up_mib,
    "Seconds after the first stage": groups.seconds_after,
    "MiB a client receives after the first stage": groups.down_mib,
    "Seconds of the first stage": groups.seconds_first,
    "MiB a client sends in the first stage": groups.first_stage_up_mib,
    "MiB a client receives in the first stage": groups.first_stage_down_mib,
}


def result(members: Sequence[Group], looks: Looks) -> Markup:
    """The comparison table; columns that the page's heading already tells are left out."""
    several = len(groups.by_scenario(members)) > 1
    shown = [i for i in range(1, len(tables.HEAD)) if several or i not in tables.WHERE]
    kinds = ["n main" if tables.HEAD[i] == "A_T" else "n" if i > 1 else None for i in shown]
    head = [element("th", tables.HEAD[0], scope="col")]
    head += [
        element("th", tables.HEAD[i], scope="col", class_=kind)
        for i, kind in zip(shown, kinds, strict=True)
    ]
    body = []
    for group in members:
        cells = tables.full_row(group)
        rest = group.name.removeprefix(group.method).strip()
        key = charts.key(looks[group.short])
        row = [element("th", key, group.method, element("small", rest), scope="row")]
        row += [element("td", cells[i], class_=k) for i, k in zip(shown, kinds, strict=True)]
        body.append(element("tr", *row))
    table = element(
        "table",
        element("thead", element("tr", *head)),
        element("tbody", *body),
        class_="data result",
    )
    legend = [element("p", line, class_="fine") for line in tables.legend(members)]
    return joined(scroll("Result", table), *legend)


def notes(members: Sequence[Group]) -> Markup:
    """Warnings of the records, each once, with the seeds that gave it."""
    said: dict[tuple[str, str], list[int]] = {}
    for group in members:
        for record in group.records:
            for note in record.notes:
                said.setdefault((group.name, note), []).append(record.seed)
    items = []
    for (name, note), seeds in said.items():
        which = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        items.append(element("li", element("b", name), f", {which}: {note}"))
    return element("ul", *items, class_="notes") if items else Markup()


def accuracy(inside: Sequence[Group], looks: Looks) -> Markup:
    """Curves of all methods, and their numbers."""
    lines = []
    for group in inside:
        steps = list(zip(*(record.curve for record in group.records), strict=True))
        known = [[value for value in step if value is not None] for step in steps]
        lines.append(
            charts.Series(
                group.short,
                looks[group.short],
                mean=[Spread.of(step).mean for step in steps],
                low=[min(values) if values else None for values in known],
                high=[max(values) if values else None for values in known],
            )
        )
    title = "Mean accuracy over the tasks seen so far"
    overall = "Top-1 over all test images seen so far"
    picture = charts.line_chart(title, lines, "after task", f"{title}, percent")
    bands = element(
        "p",
        "Lines are means over seeds; bands reach from the least to the greatest of them.",
        class_="soft",
    )
    several = any(len(group.records) > 1 for group in inside)
    return joined(
        bands if several else "",
        element("div", picture, charts.legend(lines), class_="curve"),
        _percent_by_task(title, inside, lambda record: record.curve),
        fold(overall, _percent_by_task(overall, inside, lambda record: record.overall)),
    )


def matrices(inside: Sequence[Group], looks: Looks) -> Markup:
    """The task matrix of each group as a heat map."""
    what = element(
        "p",
        "Accuracy in percent after each task (rows) on the test images of each task (columns), "
        "predicting among all classes seen so far; mean over seeds.",
        class_="soft",
    )
    drawings = []
    for group in inside:
        stages = zip(*(record.matrix for record in group.records), strict=True)
        rows = [
            (str(t), [Spread.of(cell).mean for cell in zip(*stage, strict=True)])
            for t, stage in enumerate(stages, 1)
        ]
        names = [name for name, _ in rows]
        title = joined(charts.key(looks[group.short]), group.short)
        table = grids.heat_table(title, "after", names, rows, greatest=100)
        drawings.append(scroll(f"Task matrix of {group.short}", table))
    return joined(what, element("div", *drawings, class_="tiles"))


def cost(inside: Sequence[Group], looks: Looks) -> Markup:
    """Bytes and seconds side by side, then by part and by task."""
    drawings = []
    for title, of in PANELS.items():
        rows = []
        for group in inside:
            mean = fmean(map(of, group.records))
            rows.append(charts.Bar(group.short, looks[group.short], mean, amount(mean)))
        drawings.append(charts.bars(title, rows))
    known = (key for group in inside for record in group.records for key in record.seconds)
    parts = list(dict.fromkeys((*CLOCK, *known)))
    clock = [
        [group.short, *(amount(fmean(r.seconds.get(p, 0.0) for r in group.records)) for p in parts)]
        for group in inside
    ]
    by_task = {
        "MiB a client sends, by task": _mib("up"),
        "MiB a client receives, by task": _mib("down"),
        "Gradient steps of all clients, by task": lambda record: record.gradient_steps,
    }
    what = "Means over seeds; bytes are measured on the encoded messages."
    return joined(
        element("p", what, class_="soft"),
        element("div", *drawings, class_="grid"),
        data_table("Seconds by part", ["method", *(p.replace("_", " ") for p in parts)], clock),
        *(_amount_by_task(label, inside, of) for label, of in by_task.items()),
    )


def _mib(way: str) -> Callable[[Record], list[float]]:
    def by_task(record: Record) -> list[float]:
        clients = record.config["clients"]["count"]
        return [sum(task) / clients / MIB for task in record.bytes[way]]

    return by_task


def _percent_by_task(
    label: str, inside: Sequence[Group], of: Callable[[Record], Sequence[float | None]]
) -> Markup:
    return _by_task(label, inside, of, lambda values: percent(Spread.of(values)))


def _amount_by_task(
    label: str, inside: Sequence[Group], of: Callable[[Record], Sequence[float | None]]
) -> Markup:
    return _by_task(label, inside, of, lambda values: amount(Spread.of(values).mean))


def _by_task(
    label: str,
    inside: Sequence[Group],
    of: Callable[[Record], Sequence[float | None]],
    cell: Callable[[Sequence[float | None]], str],
) -> Markup:
    rows = []
    for group in inside:
        steps = zip(*(of(record) for record in group.records), strict=True)
        rows.append([group.short, *map(cell, steps)])
    tasks = inside[0].scenario[1]
    return data_table(label, ["task", *map(str, range(1, tasks + 1))], rows)
