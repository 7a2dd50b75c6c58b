"""Numbers and counts on a grid: heat maps, and the picture of who holds what."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fcil.report.charts import picture
from fcil.report.colours import LEVELS
from fcil.report.document import WIDE
from fcil.report.markup import Markup, element

LETTERS = 14
"""Length at which a class name beside a picture is cut; its numbers name it in full."""


def heat_table(
    caption: str,
    corner: str,
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[float | None]]],
    greatest: float,
    digits: int = 1,
    totals: tuple[Sequence[float] | None, Sequence[float]] | None = None,
) -> Markup:
    """float | Nones on a shade between 0 and `greatest`; a row may end early, None is a dash.

    `totals` holds the sums of the rows, if they are to be shown, and of the columns.
    """

    def cell(value: float | None) -> Markup:
        if value is None:
            return element("td", "-", class_="none")
        level = round(min(max(value / greatest, 0.0), 1.0) * (LEVELS - 1)) if greatest else 0
        return element("td", f"{value:,.{digits}f}", class_=f"h{level}")

    turned = "tall" if any(len(column) > 6 for column in columns) else None
    head = [element("th", corner, scope="col")]
    head += [
        element("th", element("span", column), scope="col", class_=turned) for column in columns
    ]
    body = []
    for i, (name, values) in enumerate(rows):
        cells = [cell(value) for value in values]
        cells += [element("td")] * (len(columns) - len(cells))
        if totals and totals[0]:
            cells.append(element("td", f"{totals[0][i]:,.{digits}f}", class_="total"))
        body.append(element("tr", element("th", name, scope="row"), *cells))
    if totals:
        sums = list(totals[1])
        if totals[0]:
            head.append(element("th", "total", scope="col", class_="total"))
            sums.append(sum(totals[0]))
        cells = [element("td", f"{value:,.{digits}f}", class_="total") for value in sums]
        body.append(element("tr", element("th", "total", scope="row", class_="total"), *cells))
    return element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *body),
        class_="heat wide" if len(columns) > WIDE else "heat",
    )


def holdings_matrices(
    class_names: Sequence[Sequence[str]], holdings: Sequence[Sequence[Sequence[int]]]
) -> list[Markup]:
    """Clients by classes, a picture a task: the area of a circle is the number of images."""
    most = max((n for task in holdings for client in task for n in client), default=0)
    widest = max(map(len, class_names), default=1) or 1
    cell = min(26.0, max(6.0, 420 / widest))
    return [
        _holdings_matrix(f"task {task}", names, held, most, cell)
        for task, (names, held) in enumerate(zip(class_names, holdings, strict=True), 1)
    ]


def _holdings_matrix(
    title: str, names: Sequence[str], held: Sequence[Sequence[int]], most: int, cell: float
) -> Markup:
    left, top = 44.0, 26.0
    width, height = cell * len(names), cell * len(held)
    named = cell >= 12
    letters = min(LETTERS, max(map(len, names), default=0))
    hints = len(names) * len(held) <= 1000  # past that they would weigh more than the picture
    parts = [
        element("text", title, x=left, y=top - 9, class_="axis"),
        element("text", "client", x=left - 8, y=top - 9, text_anchor="end"),
        element("rect", x=left, y=top, width=width, height=height, rx=3, class_="tray"),
    ]
    for client in range(0, len(held), math.ceil(13 / cell)):
        y = top + cell * (client + 0.5) + 4
        parts.append(element("text", str(client), x=left - 8, y=y, text_anchor="end"))
    for client, counts in enumerate(held):
        for name, count, position in zip(names, counts, range(len(names)), strict=True):
            if count:
                hint = element("title", f"client {client}, {name}: {count:,}") if hints else ""
                parts.append(
                    element(
                        "circle",
                        hint,
                        cx=left + cell * (position + 0.5),
                        cy=top + cell * (client + 0.5),
                        r=max(0.6, cell * 0.47 * math.sqrt(count / most)),
                        class_="dot",
                    )
                )
    for position, name in enumerate(names if named else []):
        x, y = left + cell * (position + 0.5) + 4, top + height + 8
        short = name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
        turn = f"rotate(-90 {x:g} {y:g})" if letters > 2 else None
        anchor = "end" if turn else "middle"
        place = {"x": x, "y": y} if turn else {"x": x - 4, "y": y + 8}
        parts.append(element("text", short, **place, text_anchor=anchor, transform=turn))
    foot = 8 + (7.6 * letters + 6 if letters > 2 else 14) if named else 4
    return picture(
        f"Images by client and class, {title}",
        left + width + 4,
        top + height + foot,
        parts,
        "holdings",
    )
