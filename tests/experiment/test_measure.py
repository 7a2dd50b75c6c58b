"""Many runs in one process: what is run, what is left alone, and what a failure does."""

from __future__ import annotations

from pathlib import Path

import pytest

from fcil.errors import UnknownName, UsageError
from fcil.experiment import measure as module
from fcil.experiment.measure import Done, measure
from fcil.experiment.run import run
from fcil.record import Record
from fcil.settings import build, override
from small import BASE

FAST = ("first_stage.rounds=1", "method.projection=50")


def test_a_series_is_what_its_runs_are_alone(tmp_path: Path) -> None:
    seen: list[Done] = []
    names = ["digits-stsa", "digits-stsa-e"]
    series = measure(
        names,
        [0, 3],
        FAST,
        out=tmp_path,
        shared=tmp_path / "kept",
        device="cpu",
        listener=seen.append,
    )
    assert [done.folder.name for done in series] == [
        f"{name}-seed{seed}" for seed in (0, 3) for name in names
    ]
    assert seen == series and not any(done.failure for done in series)
    for done in series:
        record = done.record
        assert record is not None
        assert record.outcome() == Record.read(done.folder).outcome()
        alone = run(build(record.config), recipe=record.recipe, device="cpu")
        assert alone.outcome() == record.outcome()
    first, second = (done.record for done in series[:2])
    assert first and second and second.first_stage_of == first.started


def test_what_is_finished_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = measure(["digits-stsa"], [0], FAST, out=tmp_path, device="cpu")
    monkeypatch.setattr(module, "_read", lambda *_: pytest.fail("data were read again"))
    (again,) = measure(["digits-stsa"], [0], FAST, out=tmp_path, device="cpu")
    assert first.record and again.record and again.record.started == first.record.started
    (other,) = measure(["digits-stsa"], [0], [*FAST, "seed=0", "clients.beta=0.2"], out=tmp_path)
    assert other.record is None and "clients.beta differ" in str(other.failure)


def test_a_failed_run_does_not_stop_the_others(tmp_path: Path) -> None:
    series = measure(
        ["published-cifar100-stsa-m0", "digits-stsa"],
        [0],
        [*FAST, f"data.root={tmp_path}"],
        out=tmp_path,
        device="cpu",
    )
    assert "cifar" in str(series[0].failure) and series[0].record is None
    assert series[1].record is not None


def test_all_settings_are_checked_before_the_first_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"clients\.beta"):
        measure(["digits-stsa"], [0, 1], ["clients.beta=-1"], out=tmp_path)
    with pytest.raises(UnknownName):
        measure(["digits-stsa", "digits-stsaa"], [0], (), out=tmp_path)
    assert not list(tmp_path.iterdir())
    assert override(BASE, []) == BASE  # recipes and settings are never changed in place
