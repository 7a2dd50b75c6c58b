"""Static charts as SVG and HTML for `style.CSS`; no scripts, and never colour alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fcil.report.colours import DASHES, LIGHT, SHAPES
from fcil.report.markup import Markup, element

Number = float | None

Item = TypeVar("Item")
Scale = Callable[[float], float]
"""From a value to a place on the picture."""
OUTLINES: dict[str, list[tuple[float, float]]] = {
    "square": [(-3, -3), (3, -3), (3, 3), (-3, 3)],
    "triangle": [(0, -4.2), (4, 3), (-4, 3)],
    "diamond": [(0, -4.4), (4.4, 0), (0, 4.4), (-4.4, 0)],
    "cross": [(-4, -1.3), (-1.3, -1.3), (-1.3, -4), (1.3, -4), (1.3, -1.3), (4, -1.3),
              (4, 1.3), (1.3, 1.3), (1.3, 4), (-1.3, 4), (-1.3, 1.3), (-4, 1.3)],
}  # fmt: skip
"""Markers other than circles, around their middle."""


@dataclass(frozen=True)
class Series:
    """One line of a chart; None where it has no value."""

    label: str
    look: int
    """Picks colour, dash and marker."""
    mean: Sequence[Number]
    low: Sequence[Number]
    high: Sequence[Number]


@dataclass(frozen=True)
class Bar:
    """One horizontal bar."""

    label: str
    look: int
    value: float
    text: str
    """The value as it is written beside the bar."""


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers at equal distance that enclose a range.

    >>> ticks(41.3, 96.0)
    [40.0, 60.0, 80.0, 100.0]
    """
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(span / wanted))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= span / wanted * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, max(last, first + 1) + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten that enclose a positive range.

    >>> decades(0.3, 42.0)
    [0.1, 1.0, 10.0, 100.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**i for i in range(first, max(last, first + 1) + 1)]


def key(look: int) -> Markup:
    """A short piece of a series' line, to stand beside its name."""
    line = element("path", d="M0 7H34", class_=f"line c{_colour(look)}", **_dash(look))
    picture = (line, _marker(look, 17, 7))
    return element(
        "svg", *picture, viewBox="0 0 34 14", width=34, height=14, aria_hidden="true", class_="key"
    )


def legend(series: Sequence[Series]) -> Markup:
    """Look, name and last value of each line."""
    items = [element("li", element("b", "after the last task", class_="soft"))]
    for line in series:
        last = next((value for value in reversed(line.mean) if value is not None), None)
        value = "" if last is None else element("b", f"{last:.1f}")
        items.append(element("li", key(line.look), element("span", line.label), value))
    return element("ul", *items, class_="legend")


def line_chart(title: str, series: Sequence[Series], x_label: str, y_label: str) -> Markup:
    """Lines over steps counted from 1, each with the band between its least and greatest value."""
    width, height, left, right, top, bottom = 420, 250, 40, 12, 22, 38
    steps = max(len(line.mean) for line in series)
    known = [v for line in series for v in (*line.mean, *line.low, *line.high) if v is not None]
    rungs = ticks(min(known), max(known)) if known else [0.0, 1.0]

    def x(step: int) -> float:
        return left + (width - left - right) * (step + 0.5) / steps

    def y(value: float) -> float:
        share = (value - rungs[0]) / (rungs[-1] - rungs[0])
        return height - bottom - share * (height - top - bottom)

    parts = [element("text", y_label, x=0, y=9, class_="axis")]
    for rung in rungs:
        parts.append(element("path", d=path([(left, y(rung)), (width, y(rung))]), class_="grid"))
        parts.append(
            element("text", f"{rung:g}", x=left - 7, y=y(rung) + 4, text_anchor="end", class_="n")
        )
    every = math.ceil(steps / 12)
    parts += [
        element("text", str(step + 1), x=x(step), y=height - 20, text_anchor="middle")
        for step in range(every - 1, steps, every)
    ]
    middle = (left + width - right) / 2
    parts.append(
        element("text", x_label, x=middle, y=height - 3, text_anchor="middle", class_="axis")
    )
    for line in series:
        band = [
            None if low is None or high is None else (x(i), y(low), y(high))
            for i, (low, high) in enumerate(zip(line.low, line.high, strict=True))
        ]
        for run in runs(band):
            if len(run) == 1:
                at, below, above = run[0]
                shape = element("path", d=path([(at, below), (at, above)]), class_="whisker")
            else:
                edge = [(at, above) for at, _, above in run]
                edge += [(at, below) for at, below, _ in reversed(run)]
                shape = element("path", d=f"{path(edge)}Z", class_="band")
            parts.append(element("g", shape, class_=f"c{_colour(line.look)}"))
    for line in reversed(series):  # the first one lies on top
        points = [None if v is None else (x(i), y(v)) for i, v in enumerate(line.mean)]
        for points_run in runs(points):
            parts.append(
                element(
                    "path",
                    d=path(points_run),
                    class_=f"line c{_colour(line.look)}",
                    **_dash(line.look),
                )
            )
            parts += [_marker(line.look, *point) for point in points_run]
    return picture(title, width, height, parts, "chart")


def bars(title: str, rows: Sequence[Bar], log: bool | None = None) -> Markup:
    """Horizontal bars with their values; `log` None takes a log scale past a factor of 100."""
    positive = [bar.value for bar in rows if bar.value > 0]
    if log is None:
        log = bool(positive) and max(positive) > 100 * min(positive)
    if not positive:
        marks = [0.0, 1.0]
    elif log:
        marks = decades(min(positive), max(positive))
    else:
        marks = ticks(0, max(positive), 4)

    def share(value: float) -> float:
        if log:
            if value <= 0:
                return 0.0
            return math.log10(value / marks[0]) / math.log10(marks[-1] / marks[0])
        return value / marks[-1]

    body = []
    for bar in rows:
        fill = element(
            "i", class_=f"c{_colour(bar.look)}", style=f"width:{100 * share(bar.value):.2f}%"
        )
        track = element("div", *_rules(marks, share), fill, class_="track")
        body.append(
            element(
                "tr",
                element("th", bar.label, scope="row"),
                element("td", track),
                element("td", bar.text, class_="n"),
            )
        )
    if positive:
        every = math.ceil((len(marks) - 1) / 4)
        shown = marks[::every]
        scale = element(
            "div",
            *(
                element("span", f"{mark:g}", style=f"left:{100 * share(mark):.2f}%")
                for mark in shown
            ),
            class_="scale",
        )
        body.append(
            element("tr", element("td"), element("td", scale), element("td"), aria_hidden="true")
        )
    caption = element("caption", title, element("small", " (log scale)") if log else "")
    return element("table", caption, *body, class_="bars")


def _colour(look: int) -> int:
    return look % len(LIGHT)


def _dash(look: int) -> Mapping[str, str | None]:
    return {"stroke_dasharray": DASHES[look % len(DASHES)]}


def _marker(look: int, x: float, y: float) -> Markup:
    shape = SHAPES[look % len(SHAPES)]
    colour = f"mark c{_colour(look)}"
    if shape in ("circle", "ring"):
        return element("circle", cx=x, cy=y, r=3.4, class_=f"{colour} {shape}")
    outline = OUTLINES[shape]
    return element("path", d=f"{path([(x + a, y + b) for a, b in outline])}Z", class_=colour)


def path(points: Sequence[tuple[float, float]]) -> str:
    """Straight lines from point to point, as an SVG path."""
    return "M" + "L".join(f"{x:.4g} {y:.4g}" for x, y in points)


def runs(items: Sequence[Item | None]) -> list[list[Item]]:
    """Stretches without a gap."""
    runs: list[list[Item]] = [[]]
    for item in items:
        if item is None:
            runs.append([])
        else:
            runs[-1].append(item)
    return [run for run in runs if run]


def _rules(marks: Sequence[float], share: Callable[[float], float]) -> list[Markup]:
    return [element("u", style=f"left:{100 * share(mark):.2f}%") for mark in marks]


def picture(
    title: str, width: float, height: float, parts: Sequence[Markup], class_: str
) -> Markup:
    """An SVG picture with its title for those who cannot see it."""
    return element(
        "svg",
        element("title", title),
        *parts,
        role="img",
        aria_label=title,
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        class_=class_,
    )
