"""Records to tables: one row a run group, mean and spread over its seeds."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from fcil.errors import UnknownName
from fcil.record import Record
from fcil.report.groups import (
    DASH,
    Group,
    Scenario,
    Spread,
    by_scenario,
    down_mib,
    first_stage_down_mib,
    first_stage_up_mib,
    groups,
    seconds_after,
    seconds_first,
    up_mib,
)

WIDTH = 100
"""Columns of the text form."""


HEAD = (
    "method (recipe)",
    "data",
    "T",
    "K",
    "beta",
    "seeds",
    "A_avg",
    "A_T",
    "F_T",
    "up MiB",
    "down MiB",
    "after s",
    "first s",
)
"""Titles of the columns of a full row."""
WHERE = (1, 2, 3, 4)
"""Columns that tell the scenario."""


def compare(records: Sequence[Record], format: str = "text") -> str:
    """One row a run group, as `text`, `markdown`, `csv` or `latex`."""
    if format not in FORMATS:
        raise UnknownName("table format", format, FORMATS)
    return FORMATS[format](groups(records))


def percent(value: Spread, sign: str = " ± ") -> str:
    """Two decimals with the spread; a dash where undefined.

    >>> percent(Spread(71.234, 0.456)), percent(Spread(71.234, None)), percent(Spread(None, None))
    ('71.23 ± 0.46', '71.23', '-')
    """
    if value.mean is None:
        return DASH
    return f"{value.mean:.2f}" + ("" if value.deviation is None else f"{sign}{value.deviation:.2f}")


def amount(value: float | None) -> str:
    """A size or a time with about three digits.

    >>> [amount(v) for v in (0, 0.00123, 0.5, 12.345, 1234.5, None)]
    ['0', '0.0012', '0.500', '12.3', '1,234', '-']
    """
    if value is None:
        return DASH
    if value == 0:
        return "0"
    for least, digits in ((100, 0), (10, 1), (1, 2), (0.01, 3)):
        if abs(value) >= least:
            return f"{value:,.{digits}f}"
    return f"{value:.2g}"


def scenario_text(scenario: Scenario) -> str:
    """A scenario in words.

    >>> scenario_text(("digits", 5, 10, 0.0))
    'digits · 5 tasks · 10 clients · IID'
    """
    data, tasks, clients, beta = scenario
    return " · ".join([data, counted(tasks, "task"), counted(clients, "client"), skew(beta)])


def skew(beta: float) -> str:
    """The skew in words: 0 stands for IID."""
    return f"beta {beta:g}" if beta else "IID"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number and its noun.

    >>> counted(1, "task"), counted(1200, "image")
    ('1 task', '1,200 images')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def legend(members: Sequence[Group]) -> list[str]:
    """What a reader of the numbers must know."""
    lines = [
        "A_avg, A_T, F_T in percent: mean ± sample standard deviation over seeds. MiB a client and "
        "seconds: means for a whole run; first = first stage, after = everything after it."
    ]
    devices = sorted({group.device for group in members})
    if len(devices) == 1:
        lines.append(f"Device: {devices[0]}.")
    lines += left_out(members)
    return lines


def left_out(members: Sequence[Group]) -> list[str]:
    """Says where older records of the same seed were left out."""
    return [
        f"{group.name}: {counted(group.left_out, 'older record')} of the same seed left out."
        for group in members
        if group.left_out
    ]


def _accuracies(group: Group, sign: str) -> list[str]:
    numbers = (lambda r: r.A_avg, lambda r: r.A_T, lambda r: r.F_T)
    return [percent(group.over_seeds(number), sign) for number in numbers]


def _costs(group: Group) -> list[str]:
    numbers = (up_mib, down_mib, seconds_after, seconds_first)
    return [amount(group.over_seeds(number).mean) for number in numbers]


def _text(members: Sequence[Group]) -> str:
    head = list(HEAD[5:])  # what comes before is the row's label and the block's heading
    rows = {id(g): [str(len(g.records)), *_accuracies(g, " ±"), *_costs(g)] for g in members}
    widths = [max(map(len, column)) for column in zip(head, *rows.values(), strict=True)]
    room = max(12, WIDTH - sum(widths) - 2 * len(widths))
    room = min(room, max(15, *(len(group.name) for group in members)))

    def line(label: str, cells: Sequence[str]) -> str:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return "  ".join([label.ljust(room), *padded])

    blocks = []
    for scenario, inside in by_scenario(members).items():
        lines = [scenario_text(scenario), line("method (recipe)"[:room], head)]
        lines.append("-" * len(lines[-1]))
        for group in inside:
            # A name that does not fit keeps its method in the row; the rest gets lines of its own.
            label = group.name if len(group.name) <= room else group.method
            rest = group.name.removeprefix(label).strip()
            more = textwrap.wrap(rest, WIDTH - 2, break_on_hyphens=False)
            lines += [line(label, rows[id(group)]), *(f"  {part}" for part in more)]
        blocks.append("\n".join(lines))
    known = [textwrap.fill(text, WIDTH) for text in legend(members)]
    return "\n\n".join([*blocks, "\n".join(known)]) + "\n"


def full_row(group: Group, sign: str = " ± ") -> list[str]:
    """The cells under `HEAD`."""
    data, tasks, clients, beta = group.scenario
    where = [data, str(tasks), str(clients), f"{beta:g}", str(len(group.records))]
    return [group.name, *where, *_accuracies(group, sign), *_costs(group)]


def _markdown(members: Sequence[Group]) -> str:
    def cell(text: str) -> str:
        return re.sub(r"([\\`*_\[\]<>&|~$])", r"\\\1", " ".join(text.split()))

    lines = [[cell(c) for c in HEAD], ["---", "---", *["---:"] * (len(HEAD) - 2)]]
    lines += [[cell(c) for c in full_row(group)] for group in members]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return "\n\n".join([table, *(cell(text) for text in legend(members))]) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _latex(members: Sequence[Group]) -> str:
    def cell(text: str) -> str:
        if text == DASH:
            return "--"
        return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))

    lines = ["% needs \\usepackage{booktabs}"]
    lines += [f"% {' '.join(text.split())}" for text in legend(members)]
    lines += [f"\\begin{{tabular}}{{ll{'r' * (len(HEAD) - 2)}}}", "\\toprule"]
    lines += [" & ".join(map(cell, HEAD)) + r" \\", "\\midrule"]
    lines += [" & ".join(map(cell, full_row(group))) + r" \\" for group in members]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _csv(members: Sequence[Group]) -> str:
    numbers: dict[str, Callable[[Record], float | None]] = {
        "A_avg": lambda r: r.A_avg,
        "A_T": lambda r: r.A_T,
        "F_T": lambda r: r.F_T,
        "up_mib": up_mib,
        "down_mib": down_mib,
        "first_stage_up_mib": first_stage_up_mib,
        "first_stage_down_mib": first_stage_down_mib,
        "seconds_after_first_stage": seconds_after,
        "seconds_first_stage": seconds_first,
    }
    columns = ["name", "method", "recipe", "data", "T", "K", "beta", "device", "seeds"]
    rows: list[list[Any]] = [columns + [f"{n}_{part}" for n in numbers for part in ("mean", "sd")]]
    for group in members:
        row = [group.name, group.method, group.recipe, *group.scenario, group.device]
        row.append(len(group.records))
        for number in numbers.values():
            spread = group.over_seeds(number)
            row += [spread.mean, spread.deviation]
        rows.append(row)
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


FORMATS: dict[str, Callable[[Sequence[Group]], str]] = {
    "text": _text,
    "markdown": _markdown,
    "csv": _csv,
    "latex": _latex,
}
"""Forms of a comparison by name."""
