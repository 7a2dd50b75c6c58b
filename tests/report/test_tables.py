"""The comparison in its four forms, on numbers computed by hand."""

from __future__ import annotations

import copy
import csv
import io
import re
import subprocess
import sys

import pytest

from fcil.errors import UnknownName
from fcil.report import tables


@pytest.fixture
def three(record):
    """Three seeds: A_avg 80, 82, 84 (deviation 2); A_T 60, 60, 63 (deviation sqrt 3)."""
    values = [(80.0, 60.0, 5.0), (82.0, 60.0, 6.0), (84.0, 63.0, 10.0)]
    return [record("stsa", seed, A_avg=a, A_T=t, F_T=f) for seed, (a, t, f) in enumerate(values)]


def test_mean_and_sample_deviation(three):
    text = tables.compare(three)
    assert "82.00 ±2.00" in text
    assert "61.00 ±1.73" in text
    assert "7.00 ±2.65" in text
    assert "digits · 5 tasks · 5 clients · beta 0.5" in text


def test_one_seed_has_no_spread(three):
    row = tables.compare(three[:1]).splitlines()[3]
    assert "80.00" in row
    assert "±" not in row


def test_undefined_is_a_dash(record):
    markdown = tables.compare([record("joint", s) for s in range(3)], "markdown")
    cells = [cell.strip() for cell in markdown.splitlines()[2].strip("|").split("|")]
    by_title = dict(zip(tables.HEAD, cells, strict=True))
    assert by_title["A_avg"] == by_title["F_T"] == tables.DASH
    assert re.fullmatch(r"\d\d\.\d\d ± \d\.\d\d", by_title["A_T"])


def test_text_keeps_to_its_width_and_lines_up(demo, record):
    config = copy.deepcopy(demo[0].config)
    config["tasks"]["count"] = 20
    longest = record("stsa", 0, config=config, recipe="a-very-long-recipe-name-" * 4)
    text = tables.compare([*demo, longest])
    assert max(map(len, text.splitlines())) <= tables.WIDTH
    rows = [line for line in text.splitlines() if re.search(r"\d\.\d\d ±", line)]
    assert len(rows) == 4
    assert len({len(row) for row in rows}) == 1
    assert text.count("method (recipe)") == 2, "a block for each scenario"


def test_csv_round_trip(three, record):
    odd = record("joint", 0, recipe='quote " comma , line\nbreak')
    rows = list(csv.DictReader(io.StringIO(tables.compare([*three, odd], "csv"))))
    assert [row["method"] for row in rows] == ["stsa", "joint"]
    assert float(rows[0]["A_T_mean"]) == 61.0
    assert float(rows[0]["A_T_sd"]) == pytest.approx(3**0.5)
    assert rows[0]["seeds"] == "3"
    assert rows[0]["device"] == three[0].device
    assert (rows[0]["data"], rows[0]["T"], rows[0]["K"], rows[0]["beta"]) == (
        "digits",
        "5",
        "5",
        "0.5",
    )
    assert rows[1]["recipe"] == odd.recipe
    assert rows[1]["A_avg_mean"] == rows[1]["A_T_sd"] == ""


def test_markdown_escapes(three, record):
    odd = record("joint", 0, recipe="a|b*c_d<e>`f`\\")
    lines = tables.compare([*three, odd], "markdown").splitlines()
    assert "(a\\|b\\*c\\_d\\<e\\>\\`f\\`\\\\)" in lines[3]
    bars = {len(re.findall(r"(?<!\\)\|", line)) for line in lines[:4]}
    assert bars == {len(tables.HEAD) + 1}


def test_latex_escapes(three, record):
    odd = record("joint", 0, recipe="50%_a&b#c{d}$e~f^g\\h")
    latex = tables.compare([*three, odd], "latex")
    assert r"50\%\_a\&b\#c\{d\}\$e\textasciitilde{}f\textasciicircum{}g\textbackslash{}h" in latex
    assert r"82.00 $\pm$ 2.00" in latex
    assert "A\\_avg" in latex
    body = latex.split("\\midrule\n")[1].split("\\bottomrule")[0].splitlines()
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {len(tables.HEAD) - 1}
    assert body[1].count(" -- ") == 2


def test_says_what_was_left_out(record):
    old = record("stsa", 0, started="2020-01-01T00:00:00Z")
    assert "1 older record of the same seed left out" in tables.compare([old, record("stsa", 0)])


def test_unknown_format_names_the_nearest(three):
    with pytest.raises(UnknownName, match="markdown"):
        tables.compare(three, "markdwn")


def test_reports_import_nothing_heavy():
    code = (
        "import sys, fcil.report.page, fcil.report.tables; "
        "bad = {'torch', 'numpy', 'plotly', 'matplotlib', 'pydantic', 'rich'} & set(sys.modules); "
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
