"""The pages: well formed, closed to scripts and to the network, complete."""

from __future__ import annotations

import copy
import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fcil.report import groups
from fcil.report.page import holdings_page, page

VOID = {"meta", "link", "br"}
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;"


class Checker(HTMLParser):
    """Collects what a page holds and insists on balanced tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), f"attribute twice in {tag}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"closes {tag} that nobody opened"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def assert_closed(text: str) -> None:
    """No script, no handler, no address a browser would fetch, and a policy that says so."""
    checked = Checker(text)
    for tag, attributes in checked.tags:
        assert tag not in {"script", "img", "iframe", "object", "embed", "base", "form"}, tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "src", "srcset", "action", "xlink:href"):
                assert value == "data:," or value.startswith("#"), (tag, name, value)
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    assert "@import" not in text
    policies = [a["content"] for t, a in checked.tags if t == "meta" and "http-equiv" in a]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def evil_record(record):
    """Every text of a record is an attack."""
    plain = record("stsa-e", 0)
    config = copy.deepcopy(plain.config)
    config["data"]["name"] = config["method"]["gamma"] = config["method"]["name"] = EVIL
    config["method"][EVIL] = EVIL
    return dataclasses.replace(
        plain,
        recipe=EVIL,
        config=config,
        device=EVIL,
        started=EVIL,
        fingerprint=EVIL,
        versions={EVIL: EVIL},
        class_names=[[EVIL, "\udcff"] for _ in plain.class_names],
        notes=[EVIL],
        seconds={**plain.seconds, EVIL: 1.0},
        statistics=[{**total, "hash": EVIL, EVIL: EVIL} for total in plain.statistics],
        solver=[{**solve, "route": EVIL} for solve in plain.solver],
        estimate_error={EVIL: 0.1},
    )


def test_demo_page_is_well_formed_and_closed(demo):
    assert_closed(page(demo))


def test_page_of_one_record(record):
    assert_closed(page([record("joint", 0)]))


def test_hostile_text_stays_text(record):
    text = page([evil_record(record), record("stsa", 0)], sources=[Path(f"/tmp/{EVIL}")])
    assert_closed(text)
    text.encode()
    assert EVIL in Checker(text).words
    held = holdings_page(EVIL, [[0, 1]], [[EVIL, "b"]], [[[1, 2], [3, 4]]])
    assert_closed(held)
    assert EVIL in Checker(held).words


def test_every_number_appears(demo):
    text = Checker(page(demo)).words
    for record in demo:
        for value in (record.A_avg, record.A_T, record.F_T, record.F_T_all):
            assert value is None or f"{value:.2f}" in text
        for way in ("up", "down"):
            assert f"{sum(map(sum, record.bytes[way])):,}" in text
            assert f"{sum(record.bytes['first_stage'][way]):,}" in text
        assert f"{sum(record.gradient_steps):,}" in text
        for said in (record.started, record.fingerprint, record.device, *record.notes):
            assert said in text
        for total in record.statistics:
            assert total["hash"] in text
        for error in (record.estimate_error or {}).values():
            assert f"{error:.4g}" in text
        for name, version in record.versions.items():
            assert f"{name} {version}" in text
    for group in groups.groups(demo):
        for key, value in groups.flat(group.config).items():
            if key != "seed":
                assert key in text
                assert groups.setting(value) in text


def test_matrix_shows_the_mean_over_seeds(record):
    low = record("stsa", 0, matrix=[[90.0], [70.0, 60.0]], curve=[90.0, 65.0])
    high = record("stsa", 1, matrix=[[94.0], [73.0, 61.0]], curve=[94.0, 67.0])
    text = page([low, high])
    shown = re.findall(r'class="h\d+">([\d.]+)<', text.split('id="matrix"')[1].split("</table>")[0])
    assert shown == ["92.0", "71.5", "60.5"]


def test_bands_reach_from_the_least_to_the_greatest(record):
    curves = ([90.0, 60.0], [94.0, 70.0], [92.0, 80.0])
    matrix = [[90.0], [60.0, 60.0]]
    text = page([record("stsa", i, curve=c, matrix=matrix) for i, c in enumerate(curves)])
    rungs = {
        float(label): float(y) - 4
        for y, label in re.findall(r'y="([\d.]+)" text-anchor="end" class="n">(\d+)<', text)
    }
    (edge,) = re.findall(r'd="M([^"]+)Z" class="band"', text)
    heights = [float(point.split()[1]) for point in edge.split("L")]
    assert heights[1] == pytest.approx(rungs[80], abs=0.1)
    assert heights[2] == pytest.approx(rungs[60], abs=0.1)
    assert heights[0] < heights[3], "94 above 90"


def test_bytes_by_task_are_those_of_their_direction(record):
    sizes = {"up": 3 * 2**20, "down": 7 * 2**20}
    traffic = {way: [[size * (t + 1)] * 5 for t in range(5)] for way, size in sizes.items()}
    first = {"up": [0] * 5, "down": [0] * 5}
    words = Checker(page([record("stsa", 0, bytes={**traffic, "first_stage": first})])).words
    assert "MiB a client sends, by task task 1 2 3 4 5 stsa 3.00 6.00 9.00 12.0 15.0" in words
    assert "MiB a client receives, by task task 1 2 3 4 5 stsa 7.00 14.0 21.0 28.0 35.0" in words


def test_notes_and_estimate_only_where_there_are_any(record):
    without = page([record("stsa", 0)])
    assert 'id="notes"' not in without
    assert 'id="estimate"' not in without
    assert 'href="#notes"' not in without
    page_with = page([record("stsa-e", 0)])
    assert 'id="notes"' in page_with
    assert 'id="estimate"' in page_with


def test_inexact_totals_are_counted(record):
    statistics = copy.deepcopy(record("stsa", 0).statistics)
    statistics[2]["exact"] = False
    words = Checker(page([record("stsa", 0, statistics=statistics)])).words
    assert "4 of 5 totals exact" in words


def test_says_how_to_run_again(demo):
    assert "fcil run path/record.json" in page(demo)
    named = page(demo, sources=[Path("runs/a b/record.json")])
    assert "fcil run &#x27;runs/a b/record.json&#x27;" in named


def test_scenarios_are_kept_apart(demo, record):
    config = copy.deepcopy(demo[0].config)
    config["clients"]["beta"] = 0
    text = page([*demo, record("stsa", 0, config=config)])
    assert_closed(text)
    assert text.count("digits · 5 tasks · 5 clients · IID") == 4
    assert text.count('class="chart"') == 2


def test_links_lead_somewhere(demo):
    checked = Checker(page(demo))
    anchors = {a["id"] for _, a in checked.tags if "id" in a}
    links = {a["href"].removeprefix("#") for tag, a in checked.tags if tag == "a"}
    assert links == anchors


def test_holdings_page_has_all_counts_and_totals():
    text = holdings_page(
        "digits & co",
        [[7, 2], [4]],
        [["seven", "two"], ["four"]],
        [[[11, 0], [5, 23]], [[37], [0]]],
    )
    assert_closed(text)
    words = Checker(text).words
    assert "2 tasks · 3 classes · 2 clients · 76 training images" in words
    assert "2 of 6 pairs" in words
    cells = re.findall(r'<td class="(?:h\d+|total)">([\d,]+)</td>', text)
    assert cells == ["11", "0", "11", "5", "23", "28", "16", "23", "39", "37", "37", "0", "0",
                     "37", "37"]  # fmt: skip
    assert "two (2)" in words
    assert "48" in words, "client 0 holds 11 + 37"


def test_many_classes_are_cut_into_tables_that_fit_on_paper():
    counts = [[list(range(1, 46)), [1] * 45]]
    text = holdings_page("wide", [list(range(45))], [[str(i) for i in range(45)]], counts)
    tables = text.split('<table class="heat')[1:]
    assert [table.count('class="h') - table.count('class="heat') for table in tables] == [
        40,
        40,
        10,
    ]
    totals = [re.findall(r'<td class="total">([\d,]+)</td>', table) for table in tables]
    assert [len(found) for found in totals] == [20, 20, 8]
    assert totals[0][:2] == ["2", "3"]
    assert totals[2][:2] == ["1,035", "45"]
    assert totals[2][-1] == "1,080"


@pytest.mark.parametrize("holdings", [[], [[]]])
def test_holdings_page_of_nothing(holdings):
    assert_closed(holdings_page("empty", [[] for _ in holdings], [[] for _ in holdings], holdings))
