"""Charts as SVG files of their own: white panels with a legend, readable on any background.

Such a file is shown as a picture, where no style sheet of a page reaches it, so every mark carries
its own colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fcil.report import charts
from fcil.report.colours import LIGHT, SHAPES
from fcil.report.markup import Markup, element

INK, SOFT, RULE, PAPER = "#1b1e21", "#5a6067", "#dfe2e5", "#ffffff"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
PRINTED = -1
"""Look of what the paper prints: grey and dashed."""

Band = tuple[float | None, float | None, float | None]
"""Mean, least and greatest value; None where there is none."""


@dataclass(frozen=True)
class Look:
    """How a line and its markers are drawn."""

    colour: int
    hollow: bool = False


@dataclass(frozen=True)
class Line:
    """Values over positions: places of a scale of steps, or numbers of a log scale."""

    look: Look
    at: Sequence[float]
    values: Sequence[Band]
    joined: bool = True


@dataclass(frozen=True)
class Panel:
    """One field of a figure; `steps` names the places from left to right, empty = a log scale."""

    title: str
    x_label: str
    lines: Sequence[Line]
    steps: Sequence[str] = ()


TOP, BOTTOM, LEFT, GAP, LEGEND, EDGE = 46, 46, 46, 30, 176, 16
HEIGHT = 330


def figure(title: str, panels: Sequence[Panel], legend: Sequence[tuple[str, Look]]) -> str:
    """Panels side by side on one vertical scale, with a legend to their right."""
    wide = 480 if len(panels) == 1 else 300
    width = LEFT + len(panels) * wide + (len(panels) - 1) * GAP + EDGE + LEGEND
    known = [v for p in panels for line in p.lines for band in line.values for v in band]
    heights = [v for v in known if v is not None]
    rungs = charts.ticks(min(heights), max(heights)) if heights else [0.0, 1.0]

    def y(value: float) -> float:
        share = (value - rungs[0]) / (rungs[-1] - rungs[0])
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    frame = element(
        "rect", x=0.5, y=0.5, width=width - 1, height=HEIGHT - 1, rx=6, fill=PAPER, stroke=RULE
    )
    parts = [frame, _text(title, EDGE, 19, INK, weight="600")]
    for number, panel in enumerate(panels):
        left = LEFT + number * (wide + GAP)
        parts += [
            element("path", d=charts.path([(left, y(r)), (left + wide, y(r))]), stroke=RULE)
            for r in rungs
        ]
        if number == 0:
            parts += [_text(f"{r:g}", left - 8, y(r) + 4, SOFT, "end") for r in rungs]
        parts += _panel(panel, left, wide, y)
    lined = any(len(line.at) > 1 for panel in panels for line in panel.lines)
    right = LEFT + len(panels) * wide + (len(panels) - 1) * GAP + EDGE
    for row, (label, look) in enumerate(legend):
        at = TOP + 10 + 22 * row
        if lined:
            parts.append(_line(look, [(right, at), (right + 26, at)]))
        parts += [_marker(look, right + 13, at), _text(label, right + 34, at + 4, INK)]
    svg = element(
        "svg",
        element("title", title),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        aria_label=title,
        viewBox=f"0 0 {width} {HEIGHT}",
        width=width,
        height=HEIGHT,
        font_family=FONT,
        font_size="12",
        fill="none",
    )
    return f"{svg}\n"


def _panel(panel: Panel, left: float, wide: float, y: charts.Scale) -> list[Markup]:
    bottom = HEIGHT - BOTTOM
    middle = left + wide / 2
    if panel.steps:
        marks = list(range(len(panel.steps)))
        every = math.ceil(len(marks) / 12)
        labels = [(float(i), panel.steps[i]) for i in marks if (i + 1) % every == 0]

        def x(value: float) -> float:
            return left + wide * (value + 0.5) / len(marks)
    else:
        at = [value for line in panel.lines for value in line.at if value > 0] or [1.0]
        decades = charts.decades(min(at), max(at))
        labels = [(mark, f"{mark:,g}") for mark in decades]

        def x(value: float) -> float:
            share = math.log10(value / decades[0]) / math.log10(decades[-1] / decades[0])
            return left + wide * (0.03 + 0.94 * share)

    parts = [_text(panel.title, left, TOP - 8, SOFT)]
    for mark, label in labels:
        if not panel.steps:
            rule = charts.path([(x(mark), TOP), (x(mark), bottom)])
            parts.append(element("path", d=rule, stroke=RULE))
        parts.append(_text(label, x(mark), bottom + 17, SOFT, "middle"))
    parts.append(_text(panel.x_label, middle, HEIGHT - 10, INK, "middle"))
    for line in panel.lines:
        parts += _bands(line, x, y)
    for line in reversed(panel.lines):  # the first one lies on top
        points = [
            None if mean is None else (x(at), y(mean))
            for at, (mean, _, _) in zip(line.at, line.values, strict=True)
        ]
        for run in charts.runs(points):
            if line.joined and len(run) > 1:
                parts.append(_line(line.look, run))
            parts += [_marker(line.look, *point) for point in run]
    return parts


def _bands(line: Line, x: charts.Scale, y: charts.Scale) -> list[Markup]:
    edges = [
        None if low is None or high is None else (x(at), y(low), y(high))
        for at, (_, low, high) in zip(line.at, line.values, strict=True)
    ]
    colour = _colour(line.look)
    parts = []
    for run in charts.runs(edges):
        if line.joined and len(run) > 1:
            outline = [(at, high) for at, _, high in run]
            outline += [(at, low) for at, low, _ in reversed(run)]
            shape = f"{charts.path(outline)}Z"
            parts.append(element("path", d=shape, fill=colour, fill_opacity=0.14))
        else:
            parts += [
                element("path", d=charts.path([(at, low), (at, high)]), stroke=colour)
                for at, low, high in run
            ]
    return parts


def _line(look: Look, points: Sequence[tuple[float, float]]) -> Markup:
    return element(
        "path",
        d=charts.path(points),
        stroke=_colour(look),
        stroke_width=1.5 if look.colour == PRINTED else 2,
        stroke_dasharray="5 4" if look.colour == PRINTED else None,
        stroke_linejoin="round",
    )


def _marker(look: Look, x: float, y: float) -> Markup:
    colour = _colour(look)
    if look.colour == PRINTED:
        strokes = [charts.path([(x - 4, y + end), (x + 4, y - end)]) for end in (-4, 4)]
        return element("path", d="".join(strokes), stroke=colour, stroke_width=2.2)
    fill, edge = (PAPER, colour) if look.hollow else (colour, PAPER)
    wide = 1.8 if look.hollow else 1
    shape = SHAPES[look.colour % len(SHAPES)]
    if shape in charts.OUTLINES:
        outline = charts.path([(x + a, y + b) for a, b in charts.OUTLINES[shape]])
        return element("path", d=f"{outline}Z", fill=fill, stroke=edge, stroke_width=wide)
    return element("circle", cx=x, cy=y, r=3.6, fill=fill, stroke=edge, stroke_width=wide)


def _colour(look: Look) -> str:
    return SOFT if look.colour == PRINTED else LIGHT[look.colour % len(LIGHT)]


def _text(
    text: str, x: float, y: float, fill: str, anchor: str | None = None, weight: str | None = None
) -> Markup:
    return element("text", text, x=x, y=y, fill=fill, text_anchor=anchor, font_weight=weight)
