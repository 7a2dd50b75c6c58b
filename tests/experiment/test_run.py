"""A run from data to record: what it computes, and that it survives being stopped anywhere."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fcil import metrics, record, registry
from fcil.errors import Interrupted, Refused, UsageError
from fcil.experiment import checkpoint
from fcil.experiment.run import Clock, choose_device, run
from fcil.record import Record
from small import make

METHODS = ("stsa", "stsa-e", "fedavg", "joint")


class StopAt:
    """A listener that presses Ctrl-C after so many asks."""

    def __init__(self, asks: int) -> None:
        self.left = asks

    def __call__(self, done: int, total: int, what: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole() -> Callable[[str], Record]:
    """An uninterrupted run of a method, made once."""
    made: dict[str, Record] = {}

    def get(method: str) -> Record:
        if method not in made:
            made[method] = run(make(method=method))
        return made[method]

    return get


def test_record_of_stsa_is_complete_and_consistent(whole: Callable[[str], Record]) -> None:
    found = whole("stsa")
    assert [len(row) for row in found.matrix] == [1, 2, 3, 4, 5]
    assert found.A_avg == metrics.average_accuracy(found.matrix)
    assert found.A_T is not None and found.A_T > 85
    assert found.curve[-1] == found.A_T
    assert sorted(label for task in found.task_classes for label in task) == list(range(10))
    assert (
        sum(n for task in found.holdings for client in task for n in client)
        == (found.statistics[-1]["rows"])
    )
    assert found.gradient_steps[0] > 0
    assert found.gradient_steps[1:] == [0, 0, 0, 0]
    assert set(found.seconds) == {"evaluate", "extract", "first_stage", "solve", "statistics"}
    assert all(entry["exact"] for entry in found.statistics)
    assert len(found.fingerprint) == 64
    json.loads(found.to_json())


def test_joint_has_no_matrix_before_the_end_and_no_forgetting(
    whole: Callable[[str], Record],
) -> None:
    found = whole("joint")
    assert found.matrix[:4] == [[None] * n for n in range(1, 5)]
    assert found.A_T is not None and found.A_T > 50
    assert found.A_avg is None and found.F_T is None and found.F_T_all is None
    assert found.bytes["up"] == [[0] * 3] * 5


def test_finetuning_forgets_and_stsa_does_not(whole: Callable[[str], Record]) -> None:
    stsa, finetuned = whole("stsa"), whole("fedavg")
    assert stsa.A_T is not None and finetuned.A_T is not None
    assert finetuned.A_T < 50 < 85 < stsa.A_T


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("asks", [1, 2, 5])
def test_interrupted_run_resumes_to_the_same_record(
    method: str, asks: int, tmp_path: Path, whole: Callable[[str], Record]
) -> None:
    settings = make(method=method)
    if sum(len(row) for row in whole(method).matrix) and method == "joint" and asks > 2:
        asks = 2  # joint asks three times in all
    with pytest.raises(Interrupted) as stopped:
        run(settings, out=tmp_path, listener=StopAt(asks), checkpoint_every=0)
    assert stopped.value.exit_code == 130
    assert "--resume" in str(stopped.value)
    resumed = run(settings, out=tmp_path, resume=True)
    assert resumed.outcome() == whole(method).outcome()
    assert Record.read(tmp_path).outcome() == resumed.outcome()
    assert not (tmp_path / checkpoint.FILE).exists()


@pytest.mark.parametrize("method", ["stsa", "stsa-e"])
def test_patches_in_the_making_and_a_fold_resume_as_well(method: str, tmp_path: Path) -> None:
    """Stopped among k-means rounds, and after tasks whose fold the server holds."""
    made = make(
        "features.patches=6",
        "features.dictionary=task1-kmeans",
        "method.gamma=auto",
        "method.projection=40",
        method=method,
    )
    alone = run(made, device="cpu")
    for at, asks in enumerate((1, 5, 14, 16)):  # 2 rounds, 11 asks for filters, 1 for the grid
        folder = tmp_path / str(at)
        with pytest.raises(Interrupted):
            run(made, out=folder, listener=StopAt(asks), checkpoint_every=0, device="cpu")
        resumed = run(made, out=folder, resume=True, device="cpu")
        assert resumed.outcome() == alone.outcome()
    curves = [solved["curve"] for solved in alone.solver]
    assert all(len(curve) >= 2 for curve in curves) and len(curves) == 5


@pytest.mark.parametrize("encoding", ["auto", "exact", "packed", "full", "int16"])
def test_a_fold_travels_in_every_encoding(encoding: str) -> None:
    made = make("method.gamma=auto", f"upload.encoding={encoding}")
    found, base = run(made, device="cpu"), run(make("method.gamma=auto"), device="cpu")
    assert found.A_T is not None and base.A_T is not None and abs(found.A_T - base.A_T) < 2
    if encoding not in ("full", "int16"):
        assert found.matrix == base.matrix
        assert [s["hash"] for s in found.statistics] == [s["hash"] for s in base.statistics]


_KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from small import make
from fcil.experiment.run import run
run(make(method=sys.argv[3]), out=Path(sys.argv[1]), checkpoint_every=0, resume=True,
    listener=lambda done, total, what: print(done, flush=True))
"""


@pytest.mark.parametrize("method", ["stsa", "fedavg"])
def test_killed_run_resumes_to_the_same_record(
    method: str, tmp_path: Path, whole: Callable[[str], Record]
) -> None:
    here = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", _KILLED, str(tmp_path), here, method]
    kills = 0
    for moment in (1, 2, 3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(moment):
            process.stdout.readline()
        time.sleep(0.003 * moment)  # somewhere inside the next ask, or inside a checkpoint
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
        process.stdout.close()
    assert kills, "no process was still running when it was to be killed"
    assert run(make(method=method), out=tmp_path, resume=True).outcome() == whole(method).outcome()


def test_two_processes_give_the_same_bits(tmp_path: Path) -> None:
    here = str(Path(__file__).parents[1])
    outcomes = []
    for name in ("a", "b"):
        command = [sys.executable, "-c", _KILLED, str(tmp_path / name), here, "stsa-e"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        outcomes.append(Record.read(tmp_path / name).outcome())
    assert outcomes[0] == outcomes[1]


def test_split_of_the_data_does_not_show() -> None:
    """Without a first stage nothing depends on who holds what: not the sums, not the matrix."""
    found = [
        run(make("first_stage.kind=none", f"clients.count={K}", f"clients.beta={beta}"))
        for K, beta in ((1, 0), (3, 0.1), (7, 0.5))
    ]
    assert len({json.dumps(one.statistics) for one in found}) == 1
    assert len({json.dumps(one.matrix) for one in found}) == 1
    assert len({json.dumps(one.holdings) for one in found}) == 3
    assert found[0].gradient_steps == [0] * 5


def test_training_longer_changes_neither_partition_nor_projection() -> None:
    short, long = run(make()), run(make("first_stage.rounds=3"))
    assert short.holdings == long.holdings
    assert short.fingerprint != long.fingerprint


def test_a_record_repeats_its_run(whole: Callable[[str], Record], tmp_path: Path) -> None:
    from fcil import settings

    path = whole("stsa").write(tmp_path)
    tree, recipe = settings.load(path)
    again = run(settings.build(tree), recipe=recipe)
    assert again.outcome() == whole("stsa").outcome()


@pytest.mark.parametrize("views", ['["plain"]', '["plain", "mirror", "shift1"]'])
def test_layers_pool_and_views_are_read(views: str) -> None:
    found = run(make("features.layers=[1, 3]", "features.pool=2", f"features.views={views}"))
    assert found.A_T is not None and found.A_T > 85
    assert found.statistics[-1]["exact"]


@pytest.mark.parametrize("bits", [0, 4, 12])
def test_bits(bits: int, whole: Callable[[str], Record]) -> None:
    found = run(make(f"features.bits={bits}"))
    assert found.A_T is not None and whole("stsa").A_T is not None
    assert abs(found.A_T - whole("stsa").A_T) < 5  # type: ignore[operator]
    assert found.statistics[-1]["exact"] == (bits > 0)


@pytest.mark.parametrize("encoding", ["exact", "packed", "full", "int16"])
def test_encodings_change_bytes_and_hardly_accuracy(
    encoding: str, whole: Callable[[str], Record]
) -> None:
    found = run(make(f"upload.encoding={encoding}"))
    reference = whole("stsa")
    assert found.A_T is not None and reference.A_T is not None
    assert abs(found.A_T - reference.A_T) < 1
    if encoding in ("exact", "packed"):
        assert found.matrix == reference.matrix
        assert [s["hash"] for s in found.statistics] == [s["hash"] for s in reference.statistics]
    assert found.bytes["up"] != reference.bytes["up"] or encoding == "exact"


def test_published_upload_has_the_published_size() -> None:
    width, classes = 100, 2
    found = run(make("upload.encoding=full", "features.bits=0"))
    for client in found.bytes["up"][1]:  # the second task: no other message is counted there
        assert 0 < client - 4 * (width + classes) * width < 1000
    units = 5
    found = run(make("upload.encoding=full", "features.bits=0", method="stsa-e"))
    for client in found.bytes["up"][1]:
        assert 0 < client - 4 * (width + 1) * classes * units < 1000


def test_network_goes_down_once() -> None:
    found = run(make())
    first, second = found.bytes["down"][0], found.bytes["down"][1]
    assert all(a > 100_000 > 1000 > b for a, b in zip(first, second, strict=True))


def test_client_fraction_asks_some(whole: Callable[[str], Record]) -> None:
    found = run(make("clients.fraction=0.34"))
    asked = [up > 0 for up in found.bytes["first_stage"]["up"]]
    assert 0 < sum(asked) <= 2
    assert all(up > 0 for up in found.bytes["up"][0]), "statistics are asked of all"


def test_estimate_error_is_measured_and_not_counted() -> None:
    plain, measured = (
        run(make(method="stsa-e")),
        run(make("method.measure_error=true", method="stsa-e")),
    )
    assert plain.estimate_error is None and measured.estimate_error is not None
    assert 0 < measured.estimate_error["frobenius"] < 0.2
    assert measured.bytes["up"] == plain.bytes["up"]
    assert measured.matrix == plain.matrix
    published = run(make("method.measure_error=true", "method.count=all", method="stsa-e"))
    assert published.estimate_error is not None
    assert published.estimate_error["trace_bias"] < -0.005, "counting all units shrinks the scatter"
    assert abs(measured.estimate_error["trace_bias"]) < abs(published.estimate_error["trace_bias"])


def test_single_image_cells_are_told() -> None:
    told = run(make("method.units=50", method="stsa-e")).notes
    assert any("hold a single image" in note for note in told)
    kept = run(make("method.units=50", "method.min_cell=3", method="stsa-e")).notes
    assert not any("hold a single image" in note for note in kept)


def test_large_first_task() -> None:
    found = run(make("tasks.count=6", "tasks.first_classes=5"))
    assert [len(task) for task in found.task_classes] == [5, 1, 1, 1, 1, 1]
    assert found.A_T is not None and found.A_T > 80


def test_another_configuration_cannot_resume(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(make(), out=tmp_path, listener=StopAt(2), checkpoint_every=0)
    with pytest.raises(Refused, match=r"method\.gamma"):
        run(make("method.gamma=5"), out=tmp_path, resume=True)
    with pytest.raises(Refused, match="--resume"):
        run(make(), out=tmp_path)
    run(make(), out=tmp_path, resume=True)


def test_finished_folder_is_kept(tmp_path: Path) -> None:
    first = run(make(), out=tmp_path)
    with pytest.raises(Refused, match="finished"):
        run(make(), out=tmp_path)
    with pytest.raises(Refused, match="seed"):
        run(make("seed=5"), out=tmp_path, resume=True)
    assert run(make(), out=tmp_path, resume=True) == first


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    with checkpoint.locked(tmp_path), pytest.raises(Refused, match="at work"):
        run(make(), out=tmp_path)
    run(make(), out=tmp_path)


def test_full_disk_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Callable[[str], Record]
) -> None:
    real, calls = os.fsync, [0]

    def full(handle: int) -> None:
        calls[0] += 1
        if calls[0] > 4:  # a checkpoint syncs its file and its folder: the third one fails
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    monkeypatch.setattr(record.os, "fsync", full)
    with pytest.raises(Interrupted, match="No space left"):
        run(make(), out=tmp_path, checkpoint_every=0)
    monkeypatch.undo()
    assert not list(tmp_path.glob("*.part"))
    saved = checkpoint.load(tmp_path, torch.device("cpu"))
    assert saved is not None and saved["progress"]["asks"] == 2
    assert run(make(), out=tmp_path, resume=True).outcome() == whole("stsa").outcome()


def test_diverging_training_says_so() -> None:
    from fcil.errors import NumericalError

    with pytest.raises(NumericalError, match="learning rate"):
        run(make("first_stage.lr=1e30"))


def test_more_clients_than_images() -> None:
    with pytest.raises(UsageError, match=r"clients\.count"):
        run(make("clients.count=5000"))


def test_device_names() -> None:
    assert choose_device("cpu").type == "cpu"
    with pytest.raises(UsageError, match="auto, cpu and cuda"):
        choose_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="--device cpu"):
            choose_device("cuda")


def test_clock_charges_the_innermost_name() -> None:
    clock = Clock(torch.device("cpu"))
    with clock("outer"):
        with clock("inner"):
            time.sleep(0.05)
        time.sleep(0.01)
    assert clock.seconds["inner"] >= 0.05 > clock.seconds["outer"] >= 0.01


def test_pooling_is_refused_without_being_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    joint = registry.find("methods", "joint")
    monkeypatch.setattr(joint, "pools_data", False)
    with pytest.raises(Refused, match="pools_data"):
        run(make(method="joint"))


def test_checkpoint_holds_any_tree(tmp_path: Path) -> None:
    from fcil.stats.moments import Moments

    tree: dict[str, Any] = {
        "a": [torch.arange(3), {"b": torch.zeros(0)}],
        "c": None,
        "d": {"e": 1.5, "f": "text"},
        "m": Moments.of(torch.randn(5, 3), torch.tensor([0, 0, 1, 4, 4])),
    }
    checkpoint.save(tmp_path, tree)
    back = checkpoint.load(tmp_path, torch.device("cpu"))
    assert back is not None
    assert torch.equal(back["a"][0], tree["a"][0]) and back["a"][1]["b"].shape == (0,)
    assert back["c"] is None and back["d"] == tree["d"] and back["m"] == tree["m"]


def test_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    from fcil.errors import DataError

    checkpoint.save(tmp_path, {"a": torch.arange(1000)})
    path = tmp_path / checkpoint.FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="damaged"):
        checkpoint.load(tmp_path, torch.device("cpu"))


def test_runs_that_begin_alike_share_their_first_stage(tmp_path: Path) -> None:
    made = make("method.projection=100")
    alone = run(made, device="cpu")
    trained = run(made, device="cpu", shared=tmp_path)
    taken = run(made, device="cpu", shared=tmp_path)
    assert alone.outcome() == trained.outcome() == taken.outcome()
    assert (trained.first_stage_of, taken.first_stage_of) == ("", trained.started)
    assert taken.seconds["first_stage"] == trained.seconds["first_stage"]
    # Another method, another reading of the network: the same first stage.
    other = make("method.units=5", "features.views=['plain','mirror']", method="stsa-e")
    assert run(other, device="cpu", shared=tmp_path).first_stage_of == trained.started
    assert run(other, device="cpu").outcome() == run(other, device="cpu", shared=tmp_path).outcome()
    # Whatever decides the first stage makes it another one.
    for change in ("seed=1", "first_stage.lr=0.04", "clients.beta=0.4", "clients.count=2"):
        assert run(make(change), device="cpu", shared=tmp_path).first_stage_of == ""
    # A method that shares nothing is left alone.
    assert run(make(method="fedavg"), device="cpu", shared=tmp_path).first_stage_of == ""
