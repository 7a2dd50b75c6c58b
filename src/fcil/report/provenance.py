"""Sections of a report that show what it rests on: holdings, sums, settings, runs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fcil.report import grids, groups
from fcil.report.document import data_table, fold, scroll
from fcil.report.groups import Group, Spread
from fcil.report.markup import Markup, element, joined
from fcil.report.tables import counted

Holdings = Sequence[Sequence[Sequence[int]]]
"""Images by task, client and class of the task."""
COLUMNS = 20
"""Classes side by side in one table of numbers: what fits on paper."""
ERRORS = {"frobenius": "Frobenius, relative", "trace_bias": "trace, relative, signed"}
"""Names of the estimate's errors in a record, in words."""


def holdings_picture(class_names: Sequence[Sequence[str]], held: Holdings) -> Markup:
    """Clients by classes, a picture a task."""
    drawings = [
        scroll(f"Task {task}", drawing)
        for task, drawing in enumerate(grids.holdings_matrices(class_names, held), 1)
    ]
    return element("div", *drawings, class_="tiles")


def holdings_numbers(
    task_classes: Sequence[Sequence[int]], class_names: Sequence[Sequence[str]], held: Holdings
) -> Markup:
    """Clients by classes in numbers, a table a task, with totals."""
    most = max((n for task in held for client in task for n in client), default=0)
    drawings = []
    for task, (labels, names, clients) in enumerate(
        zip(task_classes, class_names, held, strict=True), 1
    ):
        columns = [
            name if name == str(label) else f"{name} ({label})"
            for label, name in zip(labels, names, strict=True)
        ]
        sums = [sum(column) for column in zip(*clients, strict=True)]
        for start in range(0, max(1, len(names)), COLUMNS):
            part = slice(start, start + COLUMNS)
            last = start + COLUMNS >= len(names)
            rows = [(f"client {i}", counts[part]) for i, counts in enumerate(clients)]
            totals = ([sum(counts) for counts in clients] if last else None, sums[part])
            title = f"Task {task}{', continued' if start else ''}"
            table = grids.heat_table(title, "", columns[part], rows, most, digits=0, totals=totals)
            drawings.append(scroll(title, table))
    return element("div", *drawings, class_="tiles")


def holdings(inside: Sequence[Group]) -> Markup:
    """Who held what in the runs of a scenario: the first seed's in full, the others' folded."""
    found: dict[str, list[tuple[Group, int]]] = {}
    for group in inside:
        for i, record in enumerate(group.records):
            text = json.dumps([record.task_classes, record.class_names, record.holdings])
            found.setdefault(text, []).append((group, i))
    parts = []
    for order, owners in enumerate(found.values()):
        group, i = owners[0]
        record = group.records[i]
        whose = list(dict.fromkeys(owner.short for owner, _ in owners))
        seeds = sorted({owner.records[at].seed for owner, at in owners})
        title = f"seed {', '.join(map(str, seeds))}"
        if len(whose) < len(inside):
            title += f" of {', '.join(whose)}"
        picture = holdings_picture(record.class_names, record.holdings)
        if order:
            parts.append(fold(f"The same for {title}", picture))
            continue
        what = "Training images by client (rows) and class (columns), classes in the order of "
        what += f"the run, {title}. The area of a circle is the number of images."
        numbers = holdings_numbers(record.task_classes, record.class_names, record.holdings)
        parts += [element("p", what, class_="soft"), picture, fold("The same in numbers", numbers)]
    return joined(*parts)


def estimate(members: Sequence[Group]) -> Markup:
    """Error of the estimated Gram against the exact one, where records hold it."""
    seeds = sorted({r.seed for group in members for r in group.records if r.estimate_error})
    if not seeds:
        return Markup()
    rows = []
    for group in members:
        known = {r.seed: r.estimate_error for r in group.records if r.estimate_error}
        for name in dict.fromkeys(name for errors in known.values() for name in errors):
            values = {seed: errors[name] for seed, errors in known.items() if name in errors}
            spread = Spread.of(values.values())
            more = "" if spread.deviation is None else f" ± {spread.deviation:.2g}"
            cells = [f"{values[seed]:.4g}" if seed in values else "" for seed in seeds]
            rows.append([group.short, ERRORS.get(name, name), f"{spread.mean:.4g}{more}", *cells])
    what = "The server knows no exact Gram here; it was computed beside the run to measure the "
    what += "estimate's relative error over the whole run."
    head = ["method", "error", "mean", *(f"seed {seed}" for seed in seeds)]
    return joined(
        element("p", what, class_="soft"),
        data_table("Estimated against exact Gram", head, rows, words=(1,)),
    )


def exactness(members: Sequence[Group]) -> Markup:
    """Whether the sums are exact, what was clipped, and by task the hash and the solve."""
    items, rows = [], []
    columns: dict[str, None] = {}
    for group in members:
        totals = []
        for record in group.records:
            totals += [total for total in record.statistics if total]
            reports = zip_longest(record.statistics, record.solver)
            for task, (total, solve) in enumerate(reports, 1):
                merged = {**(total or {}), **(solve or {})}
                if "hash" in merged:
                    merged["hash"] = element("code", str(merged["hash"]))
                if merged:
                    columns.update(dict.fromkeys(merged))
                    rows.append(([group.short, str(record.seed), str(task)], merged))
        if totals:
            exact = sum(bool(total.get("exact")) for total in totals)
            clipped = sum(total.get("clipped", 0) for total in totals)
            text = f": {exact} of {counted(len(totals), 'total')} exact, "
            items.append(
                element(
                    "li", element("b", group.short), text, counted(clipped, "value"), " clipped"
                )
            )
    if not rows:
        return Markup()
    names = [name for name in columns if name != "hash"] + ["hash"] * ("hash" in columns)
    cells = [[*head, *(_plain(values.get(name)) for name in names)] for head, values in rows]
    words = tuple(i for i, name in enumerate(names, 3) if name in ("hash", "route"))
    what = "Equal hashes of exact totals mean equal sums: such runs added up the same features, "
    what += "however these were spread over clients."
    return joined(
        element("p", what, class_="soft"),
        element("ul", *items) if items else "",
        fold(
            "Totals and solves by task",
            data_table(
                "Totals and solves by task", ["method", "seed", "task", *names], cells, words
            ),
        ),
    )


def runs(members: Sequence[Group]) -> Markup:
    """One row a run, and the machines and versions."""
    rows, origins = [], []
    places: dict[tuple[str, str], None] = {}
    for group in members:
        for record in group.records:
            accuracies = (record.A_avg, record.A_T, record.F_T, record.F_T_all)
            first = record.bytes["first_stage"]
            counts = (
                sum(map(sum, record.bytes["up"])),
                sum(map(sum, record.bytes["down"])),
                sum(first["up"]),
                sum(first["down"]),
                sum(record.gradient_steps),
            )
            row = [group.short, str(record.seed)]
            row += ["-" if value is None else f"{value:.2f}" for value in accuracies]
            row += [f"{count:,}" for count in counts]
            rows.append(row)
            origins.append([group.short, str(record.seed), record.started])
            origins[-1].append(element("code", record.fingerprint))
            versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
            places[record.device, versions] = None
    head = ["method", "seed", "A_avg", "A_T", "F_T", "F_T all", "bytes up", "bytes down"]
    head += ["first up", "first down", "gradient steps"]
    machines = [element("li", f"{device}: {versions}") for device, versions in places]
    return joined(
        data_table("Runs; bytes are those of all clients together", head, rows),
        data_table(
            "When, and with which feature map",
            ["method", "seed", "started", "feature map"],
            origins,
            words=(2, 3),
        ),
        element("h3", "Devices and versions"),
        element("ul", *machines),
    )


def settings(members: Sequence[Group]) -> Markup:
    """Complete settings: those all runs share, then those in which groups differ."""
    trees = [groups.flat(group.config) for group in members]
    apart = groups.differing(members)
    shared = {key: value for key, value in trees[0].items() if key not in {*apart, "seed"}}
    parts = []
    if apart:
        rows = [[element("code", key), *(_setting(tree, key) for tree in trees)] for key in apart]
        head = ["setting", *(group.short for group in members)]
        parts.append(data_table("Settings that differ", head, rows))
    entries = [
        element("div", element("dt", key), element("dd", groups.setting(value)))
        for key, value in shared.items()
    ]
    if apart:
        parts.append(element("h3", "Settings of all runs"))
    parts.append(element("dl", *entries, class_="settings"))
    return joined(*parts)


def again(sources: Sequence[Path]) -> Markup:
    """The commands that repeat the runs."""
    what = "A record holds its complete settings: naming it repeats the run, with the same "
    what += "numbers on the same device."
    names = [shlex.quote(str(source)) for source in sources] or ["path/record.json"]
    commands = "\n".join(f"fcil run {name}" for name in names)
    return joined(element("p", what, class_="soft"), element("pre", element("code", commands)))


def _setting(tree: Mapping[str, Any], key: str) -> str:
    return element("code", groups.setting(tree[key])) if key in tree else ""


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
