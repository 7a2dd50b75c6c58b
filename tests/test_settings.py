"""Settings, names, seeds and the record."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fcil
from fcil import metrics, registry, seeds, settings
from fcil.errors import DataError, UnknownName, UsageError
from fcil.record import Record
from small import BASE


def test_every_default_is_in_the_complete_tree() -> None:
    tree = settings.build({"method": {"name": "stsa"}}).complete()

    def leaves(node: object, prefix: str = "") -> set[str]:
        if not isinstance(node, dict):
            return {prefix[:-1]}
        return set().union(*(leaves(v, f"{prefix}{k}.") for k, v in node.items()))

    assert {k for k in leaves(tree) if not k.startswith("method.")} == set(settings.keys()) - {
        "method"
    }
    assert tree["method"]["gamma"] == "0.003r"


def test_complete_settings_build_themselves() -> None:
    made = settings.build(settings.override(BASE, ["method.name=stsa-e", "method.units=7"]))
    assert settings.build(json.loads(json.dumps(made.complete()))) == settings.build(
        made.complete()
    )
    assert settings.build(made.complete()).complete() == made.complete()


def test_settings_are_frozen() -> None:
    with pytest.raises(Exception, match="frozen"):
        settings.build({}).seed = 3  # type: ignore[misc]


def test_override_leaves_the_original_alone() -> None:
    tree = {"clients": {"count": 5}}
    assert settings.override(tree, ["clients.count=7"])["clients"]["count"] == 7
    assert tree == {"clients": {"count": 5}}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("true", True), ('"x"', "x"), ("plain words", "plain words"), ("[1]", [1]),
     ("0.003r", "0.003r"), ("/a/b", "/a/b")],
)  # fmt: skip
def test_override_reads_values(text: str, value: object) -> None:
    assert settings.override({}, [f"a.b={text}"]) == {"a": {"b": value}}


def test_files_that_hold_no_settings(tmp_path: Path) -> None:
    for name, text in (("a.toml", "= nonsense"), ("b.json", "[]"), ("c.json", "{")):
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=name):
            settings.load(tmp_path / name)


def test_two_packages_with_one_name_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "fcil.methods"
    twice = [EntryPoint("x", "a:b", group), EntryPoint("x", "c:d", group)]
    monkeypatch.setattr(registry, "entry_points", lambda group: twice)
    registry._entries.cache_clear()
    with pytest.raises(UsageError, match="Two packages"):
        registry.names("methods")
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [EntryPoint("x", "no.such:b", group)]
    )
    registry._entries.cache_clear()
    with pytest.raises(UsageError, match="could not be imported"):
        registry.find("methods", "x")
    monkeypatch.undo()
    registry._entries.cache_clear()
    with pytest.raises(UnknownName, match="Nearest: 'joint'"):
        registry.find("methods", "joinnt")


def test_class_order_is_the_literatures() -> None:
    assert seeds.class_order(0, 100)[:20] == (
        26, 86, 2, 55, 75, 93, 16, 73, 54, 95, 53, 92, 78, 13, 7, 30, 22, 24, 33, 8,
    )  # fmt: skip
    assert seeds.class_order(0, 200)[:10] == (18, 170, 107, 98, 177, 182, 5, 146, 12, 152)


@given(st.integers(0, 2**32 - 1), st.sampled_from(seeds.STREAMS), st.integers(0, 9))
def test_streams_are_apart(seed: int, name: str, where: int) -> None:
    drawn = seeds.philox(seed, name, where).random_raw(4).tolist()
    assert drawn == seeds.philox(seed, name, where).random_raw(4).tolist()
    others = [(seed + 1, name, where), (seed, name, where + 1)]
    others += [(seed, other, where) for other in seeds.STREAMS if other != name]
    assert all(drawn != seeds.philox(*other).random_raw(4).tolist() for other in others)


def test_streams_never_change() -> None:
    """Committed bits: whoever changes these changes every result ever recorded."""
    assert seeds.philox(0, "projection", 5).random_raw(2).tolist() == [
        COMMITTED[0],
        COMMITTED[1],
    ]
    assert seeds.integer(0, "training", 1, 2, 3) == COMMITTED[2]
    with pytest.raises(ValueError, match="no random stream"):
        seeds.integer(0, "luck")


COMMITTED = (9662777695938437838, 18078258424504552370, 115008316)


def test_forgetting_by_hand() -> None:
    matrix = [[90.0], [95.0, 60.0], [80.0, 70.0, 50.0]]
    # task 1: best before the end 95, last 80 -> 15; task 2: 60 - 70 = -10 -> mean 2.5
    assert metrics.forgetting(matrix) == 2.5
    # with the last stage among the candidates: 15 and 0
    assert metrics.forgetting_all_stages(matrix) == 7.5
    # the matrix on which two published calculators disagree (21.7 and 25.0)
    known = [[90.0], [85.0, 70.0], [60.0, 50.0, 80.0]]
    assert metrics.forgetting(known) == metrics.forgetting_all_stages(known) == 25.0
    assert metrics.average_accuracy(known) == pytest.approx((90 + 77.5 + 190 / 3) / 3)
    assert metrics.final_accuracy(known) == pytest.approx(190 / 3)


def test_metrics_without_a_matrix() -> None:
    assert metrics.final_accuracy([]) is None and metrics.average_accuracy([]) is None
    assert metrics.forgetting([[50.0]]) is None and metrics.forgetting_all_stages([[5.0]]) is None
    assert metrics.forgetting([[None], [50.0, 60.0]]) is None
    assert metrics.final_accuracy([[None], [50.0, 60.0]]) == 55.0


@given(st.lists(st.lists(st.floats(0, 100), min_size=6, max_size=6), min_size=2, max_size=6))
def test_forgetting_laws(rows: list[list[float]]) -> None:
    matrix = [row[: t + 1] for t, row in enumerate(rows)]
    paper, every = metrics.forgetting(matrix), metrics.forgetting_all_stages(matrix)
    assert paper is not None and every is not None
    assert every >= 0 and every >= paper - 1e-9
    constant = [[row[0]] * (t + 1) for t, row in enumerate([rows[0]] * len(rows))]
    assert metrics.forgetting(constant) == 0


def record() -> Record:
    return Record(
        recipe="r", config={"seed": 0}, versions={}, device="d", started="now", seed=0,
        fingerprint="f", matrix=[[1.0]], A_avg=1.0, A_T=1.0, F_T=None, F_T_all=None, curve=[1.0],
        overall=[1.0], task_classes=[[0]], class_names=[["a"]], holdings=[[[1]]], bytes={},
        seconds={"solve": 1.0}, gradient_steps=[0], statistics=[], solver=[], notes=[],
    )  # fmt: skip


def test_record_round_trip(tmp_path: Path) -> None:
    made = record()
    made.write(tmp_path)
    assert Record.read(tmp_path) == made == Record.read(tmp_path / "record.json")
    assert replace(made, seconds={"solve": 2.0}).outcome() == made.outcome()
    assert replace(made, A_T=2.0).outcome() != made.outcome()


def test_record_is_readable_without_torch() -> None:
    code = (
        "import sys; import fcil.record, fcil.metrics, fcil.report.page\n"
        "assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "not a record"), ("[1]", "schema"), ('{"schema": 99}', "schema 99"),
     ('{"schema": 1, "recipe": "x"}', "lacks")],
)  # fmt: skip
def test_damaged_records_are_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(DataError, match=said):
        Record.read(tmp_path)


def test_nothing_that_is_no_number_enters_a_record() -> None:
    with pytest.raises(ValueError):
        replace(record(), A_T=float("nan")).to_json()


def test_exported_names() -> None:
    assert sorted(fcil.__all__) == fcil.__all__
    for name in fcil.__all__:
        assert getattr(fcil, name).__doc__
    with pytest.raises(AttributeError):
        _ = fcil.nothing
    assert np.__version__  # the library's only unconditional companion
