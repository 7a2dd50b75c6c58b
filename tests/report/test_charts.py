"""Scales, colours and shapes of the charts against the numbers they stand for."""

from __future__ import annotations

import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fcil.report import charts, colours, grids
from fcil.report.charts import Bar, Series

FINITE = st.integers(-(10**9), 10**9).map(lambda n: n / 1000)


@given(FINITE, FINITE)
def test_ticks_are_round_equally_spaced_and_enclose(one, other):
    low, high = sorted((one, other))
    marks = charts.ticks(low, high)
    step = marks[1] - marks[0]
    tolerance = 1e-6 * step
    assert marks[0] <= low + tolerance
    assert marks[-1] >= high - tolerance
    assert all(math.isclose(b - a, step, rel_tol=1e-6) for a, b in itertools.pairwise(marks))
    mantissa = step / 10 ** math.floor(math.log10(step) + 1e-9)
    assert any(math.isclose(mantissa, m, rel_tol=1e-6) for m in (1, 2, 5, 10))
    assert 2 <= len(marks) <= 8


@given(st.floats(1e-6, 1e9), st.floats(1e-6, 1e9))
def test_decades_enclose(one, other):
    low, high = sorted((one, other))
    marks = charts.decades(low, high)
    assert marks[0] <= low * (1 + 1e-9)
    assert marks[-1] >= high * (1 - 1e-9)
    assert all(math.isclose(b / a, 10) for a, b in itertools.pairwise(marks))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_numbers_are_readable_on_every_shade(theme):
    rules = re.findall(r"\.h(\d+)\{background:#(\w{6});color:#(\w{6})\}", colours.css(theme))
    assert [int(level) for level, _, _ in rules] == list(range(colours.LEVELS))

    def rgb(text):
        return tuple(int(text[i : i + 2], 16) for i in (0, 2, 4))

    assert min(colours.contrast(rgb(back), rgb(ink)) for _, back, ink in rules) >= 4.5


def test_contrast_of_known_pairs():
    assert colours.contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert colours.contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(("palette", "paper"), [("LIGHT", "ffffff"), ("DARK", "14171a")])
def test_series_stand_out_from_the_paper(palette, paper):
    def rgb(text):
        return tuple(int(text.lstrip("#")[i : i + 2], 16) for i in (0, 2, 4))

    assert min(colours.contrast(rgb(c), rgb(paper)) for c in getattr(colours, palette)) >= 3


def test_looks_differ_in_more_than_colour():
    looks = [(colours.DASHES[i % 5], colours.SHAPES[i % 6]) for i in range(12)]
    assert len(colours.DASHES) == 5
    assert len(colours.SHAPES) == 6
    assert len(set(looks)) == 12


def test_line_chart_places_points_and_skips_gaps():
    line = Series("a & b", 0, [None, 20.0, 80.0], [None, 10.0, 80.0], [None, 30.0, 80.0])
    lone = Series("end", 1, [None, None, 50.0], [None, None, 40.0], [None, None, 60.0])
    svg = charts.line_chart("title <x>", [line, lone], "after task", "percent")
    assert "<title>title &lt;x&gt;</title>" in svg
    dots = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    (x1, y1), (x2, y2) = [(float(x), float(y)) for x, y in dots]
    ticks = {
        float(label): float(y) - 4
        for y, label in re.findall(r'y="([\d.]+)" text-anchor="end" class="n">(\d+)<', svg)
    }
    assert y1 == pytest.approx(ticks[20], abs=0.02)
    assert y2 == pytest.approx(ticks[80], abs=0.02)
    assert x1 < x2
    assert svg.count('class="band"') == 1
    assert svg.count('class="whisker"') == 1


def test_legend_names_each_line_and_its_last_value():
    html = charts.legend([Series("a<b", 0, [90.0, 81.25], [0, 0], [0, 0])])
    assert "a&lt;b" in html
    assert "81.2" in html


def widths(html):
    return [float(w) for w in re.findall(r"width:([\d.]+)%", html)]


def test_bars_are_in_proportion():
    html = charts.bars("t", [Bar("a", 0, 2.0, "2"), Bar("b", 1, 6.0, "6"), Bar("c", 2, 0.0, "0")])
    assert "log scale" not in html
    a, b, c = widths(html)
    assert b / a == pytest.approx(3, rel=1e-3)
    assert c == 0
    assert b <= 100


def test_bars_far_apart_take_a_log_scale():
    rows = [Bar(n, i, v, n) for i, (n, v) in enumerate((("a", 0.1), ("b", 10.0), ("c", 1000.0)))]
    html = charts.bars("t", rows)
    assert "log scale" in html
    a, b, c = widths(html)
    assert c - b == pytest.approx(b - a, abs=0.02)
    assert "log scale" not in charts.bars("t", rows, log=False)


def test_bars_without_any_value():
    assert widths(charts.bars("t", [Bar("a", 0, 0.0, "0")])) == [0.0]


def test_heat_table_shades_by_share_and_sums():
    html = grids.heat_table(
        "c", "", ["x", "y"], [("r", [0, 50]), ("s", [100, None])], 100, 0, ([50, 100], [100, 50])
    )
    assert '<td class="h0">0</td>' in html
    assert f'<td class="h{colours.LEVELS - 1}">100</td>' in html
    assert '<td class="none">-</td>' in html
    assert re.findall(r'<td class="total">(\d+)</td>', html) == ["50", "100", "100", "50", "150"]


def test_area_of_a_circle_is_the_number_of_images():
    (svg,) = grids.holdings_matrices([["cat", "<b>"]], [[[100, 25], [0, 400]]])
    radii = [float(r) for r in re.findall(r' r="([\d.]+)"', svg)]
    assert len(radii) == 3, "nothing is drawn where there is nothing"
    assert radii[0] ** 2 / radii[1] ** 2 == pytest.approx(4, rel=0.01)
    assert radii[2] ** 2 / radii[0] ** 2 == pytest.approx(4, rel=0.01)
    assert "client 1, &lt;b&gt;: 400" in svg
    assert "<b>" not in svg
