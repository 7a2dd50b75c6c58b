"""The pages: a report of some runs, and who holds what; self-contained, nothing fetched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from fcil.record import Record
from fcil.report import charts, groups, provenance, results, tables
from fcil.report.document import Section, document
from fcil.report.groups import Group
from fcil.report.markup import Markup, element, joined
from fcil.report.tables import counted


def page(records: Sequence[Record], sources: Sequence[Path] = ()) -> str:
    """The report of some runs; `sources` are the records' files, to say how to run them again."""
    members = groups.groups(records)
    scenarios = groups.by_scenario(members)
    looks = {name: look for look, name in enumerate(dict.fromkeys(g.short for g in members))}

    def each(draw: Callable[[Sequence[Group]], Markup]) -> Markup:
        """A drawing for every scenario, named where there are several."""
        parts: list[Markup] = []
        for scenario, inside in scenarios.items():
            if len(scenarios) > 1:
                parts.append(element("h3", tables.scenario_text(scenario)))
            parts.append(draw(inside))
        return joined(*parts)

    accuracy = each(lambda inside: results.accuracy(inside, looks))
    matrices = each(lambda inside: results.matrices(inside, looks))
    cost = each(lambda inside: results.cost(inside, looks))
    sections = [
        Section("result", "Result", "Result", results.result(members, looks)),
        Section("notes", "Notes", "Before reading the numbers", results.notes(members)),
        Section("accuracy", "Accuracy", "Accuracy as tasks arrive", accuracy),
        Section("matrix", "Task by task", "Task by task", matrices),
        Section("cost", "Bytes and seconds", "Bytes and seconds", cost, sheet=True),
        Section(
            "holdings", "Who held what", "Who held what", each(provenance.holdings), sheet=True
        ),
        Section("estimate", "Estimate", "Error of the estimate", provenance.estimate(members)),
        Section("exact", "Exactness", "Exactness of the sums", provenance.exactness(members)),
        Section("runs", "Runs", "What was run", provenance.runs(members), sheet=True),
        Section("settings", "Settings", "Settings", provenance.settings(members)),
        Section("again", "Run it again", "Run it again", provenance.again(sources)),
    ]
    facts = [counted(len(members), "run group"), counted(len(records), "run")]
    if len(scenarios) == 1:
        facts.insert(0, tables.scenario_text(members[0].scenario))
    data = dict.fromkeys(scenario[0] for scenario in scenarios)
    return document(f"Class-incremental learning on {', '.join(data)}", facts, sections)


def holdings_page(
    title: str,
    task_classes: Sequence[Sequence[int]],
    class_names: Sequence[Sequence[str]],
    holdings: Sequence[Sequence[Sequence[int]]],
) -> str:
    """Who holds what: images by task, client and class of the task, as a picture and in numbers."""
    clients = max((len(task) for task in holdings), default=0)
    totals = [sum(sum(task[client]) for task in holdings) for client in range(clients)]
    cells = [count for task in holdings for client in task for count in client]
    empty = f"{cells.count(0):,} of {len(cells):,} pairs of a client and a class hold no image."
    bars = [charts.Bar(f"client {i}", 0, count, f"{count:,}") for i, count in enumerate(totals)]
    numbers = provenance.holdings_numbers(task_classes, class_names, holdings)
    what = "Rows are clients, columns classes in the order of the run; the area of a circle is the "
    what += "number of training images."
    picture = joined(
        element("p", what, class_="soft"),
        provenance.holdings_picture(class_names, holdings),
        element("p", empty, class_="soft"),
    )
    sections = [
        Section("picture", "Picture", "Who holds what", picture),
        Section("clients", "Clients", "Images by client", charts.bars("", bars, log=False)),
        Section("numbers", "Numbers", "Images by task, client and class", numbers, sheet=True),
    ]
    facts = [
        counted(len(holdings), "task"),
        counted(sum(map(len, task_classes)), "class", "classes"),
        counted(clients, "client"),
        counted(sum(totals), "training image"),
    ]
    return document(title, facts, sections)
