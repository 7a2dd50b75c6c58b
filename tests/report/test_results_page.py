"""The results page: cells worked out by hand, the same bytes twice, and the committed page."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fcil import cli
from fcil.errors import UsageError
from fcil.experiment.recipes import changed
from fcil.record import Record
from fcil.report import paper
from fcil.report.figures import Line, Look, Panel, figure
from fcil.report.results_page import pages
from fcil.report.stored import Book

ROOT = Path(__file__).parents[2]
Make = Callable[..., Record]

BASE: dict[str, Any] = {
    "seed": 0,
    "data": {"name": "cifar100", "root": None, "size": None},
    "tasks": {"count": 10, "first_classes": None},
    "clients": {"count": 5, "beta": 0.5, "fraction": 1.0, "seeding": "published"},
    "backbone": {"name": "resnet18", "weights": None, "stem": "small"},
    "first_stage": {
        "kind": "fedavg", "head": "linear", "schedule": "constant", "precision": "auto",
        "weight_decay": 5e-4, "rotation": False, "augment": "standard",
    },
    "features": {
        "layers": ["last"], "pool": 1, "views": ["plain"], "bits": 0, "patches": 0, "stride": 1,
        "dictionary": "public",
    },
    "method": {"name": "stsa", "projection": 5000, "gamma": 1e4, "predict": "linear"},
    "upload": {"encoding": "full"},
    "engine": "in-process",
}  # fmt: skip
BEST = {
    "first_stage.rotation": True,
    "first_stage.augment": "strong",
    "features.layers": [2, 3, 4],
    "features.views": ["plain", "mirror"],
    "features.bits": 8,
    "method.gamma": "auto",
    "upload.encoding": "auto",
}
PATCHES = {
    "first_stage.kind": "none",
    "features.views": ["plain", "mirror"],
    "features.patches": 2048,
    "features.bits": 8,
    "method.projection": 0,
    "method.gamma": "auto",
    "upload.encoding": "auto",
}
FAMILIES: dict[str, dict[str, Any]] = {
    "published": {},
    "published-code": {"first_stage.head": "cosine", "method.predict": "cosine"},
    "best": BEST,
    "wide": {**BEST, "features.pool": 2, "features.patches": 1024, "method.projection": 0},
    "patches": PATCHES,
}
COLUMNS: dict[str, dict[str, Any]] = {
    "beta1": {"clients.beta": 1.0},
    "beta0.5": {"clients.beta": 0.5},
    "beta0.1": {"clients.beta": 0.1},
    "large-first-task": {"tasks.count": 11, "tasks.first_classes": 50},
}
ESTIMATE = {"method.name": "stsa-e", "method.units": 50, "method.count": "all"}


def recipes() -> dict[str, dict[str, Any]]:
    """The names and settings that the page expects, without those of methods it does not know."""
    found = {}
    for family, changes in FAMILIES.items():
        for method, more in (("stsa", {}), ("stsa-e", ESTIMATE)):
            tree = changed(BASE, {**changes, **more})
            start = f"{family}-cifar100-{method}"
            for ending, column in COLUMNS.items():
                found[f"{start}-{ending}"] = changed(tree, column)
            for width in (1250, 5000, 10000):
                found[f"{start}-m{width}"] = changed(tree, {"method.projection": width})
            for clients, units in ((5, 50), (10, 25), (25, 10), (100, 5)):
                both = {"clients.count": clients}
                name = f"{start}-k{clients}"
                if method == "stsa-e":
                    both["method.units"] = units
                    name += f"-kd{units}"
                found[name] = changed(tree, both)
            for units in (10, 25, 50) if method == "stsa-e" else ():
                found[f"{start}-kd{units}"] = changed(tree, {"method.units": units})
            found[f"{start}-bits4"] = changed(tree, {"features.bits": 4})
    found["patches-cpu"] = changed(BASE, {**PATCHES, "features.patches": 1024})
    return found


BOOK = Book(
    recipes=recipes(),
    defaults={block: value for block, value in BASE.items() if block != "method"},
)


@pytest.fixture
def run(record: Make) -> Make:
    """Builds the record of a recipe with a chosen A_T, with more settings changed on request."""

    def make(recipe: str, seed: int, A_T: float, **fields: Any) -> Record:
        tree = BOOK.recipes.get(recipe, BASE)
        config = changed(tree, {**fields.pop("settings", {}), "seed": seed})
        config["data"]["root"] = f"/somewhere/{seed}"
        tasks, clients = config["tasks"]["count"], config["clients"]["count"]
        name = config["method"]["name"]
        made = record(name, seed, tasks=tasks, clients=clients)
        fields = {"recipe": recipe, "config": config, "device": "a card", "A_T": A_T, **fields}
        for key, value in fields.items():
            setattr(made, key, value)
        made.estimate_error = fields.get("estimate_error")
        return made

    return make


class Rendered:
    """The page of some records."""

    def __init__(self, records: Mapping[str, Record], book: Book = BOOK) -> None:
        found = {Path("/repo/results") / path / "record.json": r for path, r in records.items()}
        self.page = Path("/repo/docs/results.md")
        self.files = pages(found, book, self.page, [Path("/repo/results")])
        self.text = self.files[self.page]

    def section(self, heading: str) -> str:
        """The text under a heading."""
        (found,) = re.findall(rf"^##+ {heading}$(.*?)(?=^##+ |\Z)", self.text, re.M | re.S)
        return str(found)

    def rows(self, heading: str) -> list[list[str]]:
        """The cells of the tables under a heading, links reduced to their text."""
        text = self.section(heading).replace("\N{NO-BREAK SPACE}", " ")
        lines = [line for line in text.splitlines() if line.startswith("|")]
        plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line) for line in lines]
        cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in plain]
        return [row for row in cells if not set("".join(row)) <= set("-: ")]


def test_cells_are_mean_spread_and_seeds(run: Make) -> None:
    page = Rendered(
        {
            "a": run("published-cifar100-stsa-beta0.5", 0, 30.0),
            "b": run("published-cifar100-stsa-beta0.5", 1, 34.0),
            "c": run("published-cifar100-stsa-large-first-task", 3, 55.5),
            "d": run("best-cifar100-stsa-e-beta1", 2, 48.25),
        }
    )
    assert page.rows("A_T") == [
        ["method", "recipes", "beta 1", "beta 0.5", "beta 0.1", "large first task"],
        ["**STSA**", "the paper", "35.14", "34.97", "31.02", "59.44"],
        ["", "`published`", "-", "**32.00** ± 2.83 (0, 1)", "-", "**55.50** (3)"],
        ["**STSA-E**", "the paper", "34.85", "34.57", "30.74", "59.36"],
        ["", "`best`", "**48.25** (2)", "-", "-", "-"],
    ]
    assert "[1](../results/b/record.json)" in page.section("A_T")
    assert page.rows("F_T")[1] == ["**STSA**", "the paper", "9.81", "9.57", "9.73", "2.69"]
    assert "fcil results results --out docs/results.md" in page.text


def test_other_settings_never_join_a_recipes_cell(run: Make) -> None:
    name = "published-cifar100-stsa-beta0.5"
    eight = {"features.bits": 8, "upload.encoding": "auto"}
    page = Rendered(
        {
            "a": run(name, 0, 30.0),
            "b": run(name, 1, 34.0),
            "c": run(name, 0, 99.0, settings=eight),
            "d": run(name, 2, 98.0, settings={"clients.beta": 0.25}),
        }
    )
    assert page.rows("A_T")[2][2:] == ["-", "**32.00** ± 2.83 (0, 1)", "-", "-"]
    bits = page.rows("Bits of a feature")
    assert bits[0][:4] == ["recipe", "bits", "encoding", r"A\_T"]
    assert [row[1:4] for row in bits[1:]] == [
        ["0", "full", "**30.00** (0)"],  # seed 1 has no fellow with eight bits
        ["8", "auto", "**99.00** (0)"],
    ]
    changes = {row[1] for row in page.rows("Every run")[1:]}
    assert changes == {"", "`features.bits=8`<br>`upload.encoding=auto`", "`clients.beta=0.25`"}


def test_a_run_counts_where_its_settings_put_it_whatever_its_name(run: Make) -> None:
    page = Rendered(
        {
            "a": run("published-cifar100-stsa-beta0.5", 0, 40.0, settings={"clients.beta": 0.1}),
            "b": run("published-cifar100-stsa-m5000", 0, 35.0),
            "c": run("mine", 0, 99.0, settings={"first_stage.lr": 1.0}),
        }
    )
    assert page.rows("A_T")[2][2:] == ["-", "**35.00** (0)", "**40.00** (0)", "-"]
    assert "No recipe of this version: `mine`" in page.text


def test_settings_newer_than_a_record_are_at_their_default(run: Make) -> None:
    old = run("published-cifar100-stsa-beta0.5", 0, 30.0)
    del old.config["features"]["patches"], old.config["method"]["predict"]
    new = run("published-cifar100-stsa-beta0.5", 1, 34.0)
    other = run("published-cifar100-stsa-beta0.5", 1, 90.0, settings={"features.patches": 8})
    rows = Rendered({"a": old, "b": new, "c": other}).rows("A_T")
    assert rows[2][3] == "**32.00** ± 2.83 (0, 1)"


def test_devices_stay_apart_in_a_cell(run: Make) -> None:
    name = "published-cifar100-stsa-beta0.5"
    page = Rendered({"a": run(name, 0, 30.0), "b": run(name, 1, 40.0, device="another")})
    assert page.rows("A_T")[2][3] == "**30.00** (0) a card<br>**40.00** (1) another"


def test_of_one_seed_the_younger_record_counts(run: Make) -> None:
    name = "published-cifar100-stsa-beta0.5"
    old = run(name, 0, 30.0, started="2026-01-01T00:00:00+00:00")
    new = run(name, 0, 31.0, started="2026-02-01T00:00:00+00:00")
    page = Rendered({"new": new, "old": old})
    assert page.rows("A_T")[2][3] == "**31.00** (0)"
    assert "../results/new/record.json" in page.text and "results/old" not in page.text
    assert "1 older record" in page.text


def test_sweeps_are_rows_by_value_over_shared_seeds(run: Make) -> None:
    start = "published-cifar100-stsa"
    up = {"up": [[2**20] * 5] * 10, "down": [[0] * 5] * 10}
    up["first_stage"] = {"up": [0] * 5, "down": [0] * 5}  # type: ignore[assignment]
    page = Rendered(
        {
            "a": run(f"{start}-beta0.5", 0, 35.0, bytes=up),
            "b": run(f"{start}-beta0.5", 1, 99.0, bytes=up),
            "c": run(f"{start}-m1250", 0, 31.0, bytes=up),
            "d": run(f"{start}-m10000", 0, 36.5, bytes=up),
            "e": run(f"{start}-e-k10-kd25", 0, 33.0),
            "h": run(f"{start}-e-k100-kd5", 0, 22.0),
            "i": run(f"{start}-bits4", 0, 20.0),
            "f": run(f"{start}-e-beta0.5", 0, 34.0),
            "g": run(f"{start}-e-kd10", 0, 32.0),
        }
    )
    assert page.rows("Width M of the random layer") == [
        ["M (0 = no random layer)", "1,250", "5,000", "10,000"],
        ["`published` STSA", *(f"**{A}** (0)<br>10.0 MiB" for A in ("31.00", "35.00", "36.50"))],
    ]
    clients = page.rows("Clients K")
    assert clients[0] == ["K", "5", "10", "100"]
    found = [cell.partition("<br>")[0] for cell in clients[1][1:]]
    assert found == ["**34.00** (0)", "**33.00** (0)", "**22.00** (0)"]
    units = page.rows("Dummy clients of a client, K_D")
    assert units[0][1:] == ["10", "50"]
    assert [cell[:13] for cell in units[1][1:]] == ["**32.00** (0)", "**34.00** (0)"]
    ladder = page.section("What each rung of the ladder adds")
    assert "m1250" not in ladder and "bits4" not in ladder


def test_the_ladder_lists_the_settings_that_differ(run: Make) -> None:
    mirror = {"features.views": ["plain", "mirror"]}
    page = Rendered(
        {
            "a": run("published-cifar100-stsa-beta0.5", 0, 35.0),
            "b": run("published-cifar100-stsa-beta0.5", 0, 37.0, settings=mirror),
            "c": run("best-cifar100-stsa-beta0.5", 0, 50.0),
            "d": run("best-cifar100-stsa-beta0.1", 0, 45.0),
            "e": run("best-cifar100-stsa-beta0.5", 0, 44.0, settings={"method.gamma": 7.0}),
        }
    )
    rows = page.rows("What each rung of the ladder adds")
    assert rows[0][1:5] == ["rotation", "augment", "layers", "views"]
    assert [row[5] for row in rows[1:]] == ["**35.00** (0)", "**37.00** (0)", "**50.00** (0)"]
    assert rows[2][1:5] == ["no", "standard", "last", "plain, mirror"]
    assert rows[3][3] == "2, 3, 4"
    assert "also differ in `features.bits`" in page.section("What each rung of the ladder adds")


def test_the_ridge_shows_settings_and_held_out_errors(run: Make) -> None:
    solver = [{"gamma": 1.0}, {"gamma": 250.0, "curve": [[1e-3, 0.5], [1e-2, 0.25]]}]
    page = Rendered(
        {
            "a": run("best-cifar100-stsa-beta0.5", 0, 50.0, solver=solver),
            "b": run("best-cifar100-stsa-beta0.5", 0, 49.0, settings={"method.gamma": 1e4}),
        }
    )
    rows = page.rows("The ridge")
    assert rows[0][1:4] == ["gamma", "gamma of the last solve", r"A\_T"]
    assert sorted(row[1:4] for row in rows[1:3]) == [
        ["10000", "8,125", "**49.00** (0)"],
        ["auto", "250", "**50.00** (0)"],
    ]
    assert rows[3] == ["gamma", "0.001", "0.01"]
    assert rows[4] == ["`best-cifar100-stsa-beta0.5` (0)", "0.5", "**0.25**"]


def test_estimate_errors_survive_a_younger_record_without(run: Make) -> None:
    name = "published-cifar100-stsa-e-beta0.5"
    wrong = {"frobenius": 0.125, "trace_bias": -0.0625}
    right = {"frobenius": 0.03125, "trace_bias": 0.0}
    measure = {"method.measure_error": True}
    page = Rendered(
        {
            "a": run(name, 0, 34.0, settings=measure, estimate_error=wrong, started="2026"),
            "b": run(name, 0, 34.0, started="2027"),
            "c": run(
                name,
                0,
                35.0,
                settings={**measure, "method.count": "holders"},
                estimate_error=right,
            ),
        }
    )
    rows = page.rows("Error of STSA-E's estimate")
    assert sorted(row[1:6] for row in rows[1:]) == [
        ["0.5", "all", "50", "0.125", "-0.0625"],
        ["0.5", "holders", "50", "0.0312", "0"],
    ]
    assert page.rows("A_T")[2][3] == "**34.00** (0)"


def test_the_published_method_and_its_code(run: Make) -> None:
    page = Rendered({"a": run("published-code-cifar100-stsa-beta0.5", 0, 29.5)})
    said = page.section("The published method and its code")
    assert "`published-cifar100-stsa-beta0.5`: no record yet." in said
    assert "`published-code-cifar100-stsa-beta0.5`: 29.50 ([0](../results/a/record.json))." in said
    both = Rendered(
        {
            "a": run("published-code-cifar100-stsa-beta0.5", 0, 29.5),
            "b": run("published-cifar100-stsa-beta0.5", 0, 35.0),
        }
    )
    rows = both.rows("The published method and its code")
    assert rows[0][1:3] == ["head", "predict"]
    assert [row[1:3] for row in rows[1:]] == [["linear", "linear"], ["cosine", "cosine"]]


def everything(run: Make) -> dict[str, Record]:
    """A record or two of every recipe."""
    found = {}
    for order, name in enumerate(sorted(BOOK.recipes)):
        for seed in range(2):
            found[f"{name}-seed{seed}"] = run(name, seed, 30.0 + order % 30 + seed)
    return found


def test_the_same_records_give_the_same_bytes_in_any_order(run: Make) -> None:
    records = everything(run)
    before = copy.deepcopy(records)
    there = Rendered(records).files
    back = Rendered(dict(reversed(list(records.items())))).files
    assert there == back
    assert records == before


def test_every_picture_is_there_whole_and_named(run: Make) -> None:
    page = Rendered(everything(run))
    named = set(re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.text))
    made = {path.relative_to(page.page.parent).as_posix() for path in page.files} - {"results.md"}
    assert named == made and len(made) == 9
    for path, text in page.files.items():
        if path.suffix == ".svg":
            root = ElementTree.fromstring(text)
            assert root.tag == "{http://www.w3.org/2000/svg}svg"
            assert "nan" not in text and "None" not in text and "<script" not in text


def test_marks_stand_at_their_values() -> None:
    line = Line(Look(0), [10.0, 1000.0], [(20.0, 10.0, 40.0), (60.0, 60.0, 60.0)], joined=False)
    step = Line(Look(0), [0, 1], [(0.0, None, None), (100.0, None, None)])
    svg = figure("title", [Panel("a", "x", [line]), Panel("b", "x", [step], ["one", "two"])], [])
    rungs = {
        float(text): float(y) - 4
        for y, text in re.findall(r'y="([\d.]+)"[^>]*text-anchor="end">([\d.]+)<', svg)
    }
    assert set(rungs) == {0, 20, 40, 60, 80, 100}
    marks = [
        (float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    ]
    assert [y for _, y in marks] == pytest.approx([rungs[v] for v in (20, 60, 0, 100)], abs=0.1)
    places = {
        float(text.replace(",", "")): float(x)
        for x, text in re.findall(r'<text x="([\d.]+)"[^>]*"middle">([\d,]+)<', svg)
    }
    assert [x for x, _ in marks[:2]] == pytest.approx([places[10], places[1000]], abs=0.1)
    bars = re.findall(r'<path d="M([\d.]+) ([\d.]+)L\1 ([\d.]+)" stroke="#0072b2"', svg)
    low, high = rungs[0] * 0.5 + rungs[20] * 0.5, rungs[40]
    assert [float(y) for y in bars[0][1:]] == pytest.approx([low, high], abs=0.2)


def test_nothing_recorded_names_the_recipes(run: Make, record: Make) -> None:
    page = Rendered({"a": record("stsa", 0)})
    for heading in ("Accuracy against beta", "Bits of a feature", "The ridge", "Without a card"):
        said = page.section(heading).strip()
        assert said.startswith("No record yet") and "\n" not in said
        assert "`p" in said
    assert len(page.files) == 1
    nothing = Rendered({"a": record("stsa", 0)}, Book({}, BOOK.defaults))
    assert "no recipe of this version would make one" in nothing.section("The ridge")


def test_papers_numbers_hold_together() -> None:
    for data, methods in paper.RESNET18.items():
        assert list(methods) == ["Joint", "Fed-EWC", "Fed-LWF", "MFCL", "LANDER", "STSA-E", "STSA"]
        for method, cells in methods.items():
            assert set(paper.BETAS) <= set(cells), (data, method)
            for cell in cells.values():
                assert method == "Joint" or cell.A_avg > cell.A_T
    mib = 2**20
    assert paper.UPLOAD_MIB["stsa"] == round(10 * 4 * (5000 + 10) * 5000 / mib, 1)
    assert paper.UPLOAD_MIB["stsa-e"] == round(10 * 4 * 5001 * 10 * 50 / mib, 1)


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture
def fcil(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fcil", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code, said.out + said.err  # type: ignore[return-value]

    return call


def test_the_command_writes_the_page_without_torch(run: Make, tmp_path: Path) -> None:
    made = run("published-cifar100-stsa-beta0.5", 0, 30.0)
    made.write(tmp_path / "results" / "one")
    code = (
        "import sys, fcil.cli\n"
        "sys.argv = ['fcil', 'results', 'results', '--out', 'docs/results.md']\n"
        "try: fcil.cli.main()\n"
        "except SystemExit as ended: assert not ended.code, ended.code\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'scipy', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "docs/results.md").read_text()
    assert "(../results/one/record.json)" in text
    assert (tmp_path / "docs/results/costs.svg").exists()


@pytest.mark.parametrize(
    ("broken", "code", "said"),
    [
        ("{", 3, "is not a record"),
        (json.dumps({"schema": 99}), 3, "record schema 99"),
        (json.dumps({"schema": 1}), 3, "lacks"),
        (None, 3, "no run has ended there"),
    ],
)
def test_wrong_or_missing_records_are_named(
    fcil: Any, tmp_path: Path, broken: str | None, code: int, said: str
) -> None:
    if broken is not None:
        (tmp_path / "record.json").write_text(broken)
    ended, text = fcil("results", tmp_path, "--out", tmp_path / "page.md")
    assert ended == code and said in text and str(tmp_path) in text
    assert not (tmp_path / "page.md").exists()


def test_a_page_that_is_no_markdown_is_refused(run: Make) -> None:
    with pytest.raises(UsageError, match=r"does not end in \.md"):
        pages({}, BOOK, Path("/repo/results"), [])


def test_figures_that_are_left_over_are_told(fcil: Any, run: Make, tmp_path: Path) -> None:
    run("published-cifar100-stsa-beta0.5", 0, 30.0).write(tmp_path / "records")
    (tmp_path / "page").mkdir()
    (tmp_path / "page/old.svg").write_text("<svg/>")
    code, text = fcil("results", tmp_path / "records", "--out", tmp_path / "page.md")
    assert code == 0 and "old.svg is no part of the page" in text


def test_the_committed_page_is_made_of_the_committed_records(
    fcil: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a record or the page's code changed and the page was not made again."""
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(tmp_path)
    code, text = fcil("results", "results", "--out", "docs/results.md")
    assert code == 0, text
    made = {path.relative_to(tmp_path): path for path in (tmp_path / "docs").rglob("*.*")}
    there = {path.relative_to(ROOT): path for path in (ROOT / "docs/results").glob("*")}
    there[Path("docs/results.md")] = ROOT / "docs/results.md"
    again = "run `fcil results results --out docs/results.md` and commit what it writes"
    assert set(made) == set(there), again
    for path in made:
        assert made[path].read_bytes() == there[path].read_bytes(), f"{path} is stale: {again}"
