"""The command line: what it prints, where, and with which exit code."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fcil import cli
from fcil.record import Record

QUICK = [
    "--set", "first_stage.rounds=1", "--set", "first_stage.epochs=1",
    "--set", "method.projection=50", "--device", "cpu",
]  # fmt: skip


class Said:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def fcil(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> object:
    """Calls the command in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["fcil", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Said(ended.value.code, said.out, said.err)

    return call


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, fcil.cli\nsys.argv = ['fcil', '--help']\n"
        "try: fcil.cli.main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'scipy', 'pydantic', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "compare" in done.stdout


def test_run_writes_a_record_and_says_where(fcil, tmp_path: Path) -> None:
    done = fcil("run", "digits-stsa", *QUICK)
    assert done.code == 0, done.err
    record = Record.read(tmp_path / "runs/digits-stsa-seed0")
    assert record.recipe == "digits-stsa"
    assert "runs/digits-stsa-seed0/record.json" in done.out


def test_json_prints_the_record_and_nothing_else(fcil, tmp_path: Path) -> None:
    done = fcil("run", "digits-stsa-e", *QUICK, "--out", "here", "--json")
    assert done.code == 0
    assert json.loads(done.out) == json.loads((tmp_path / "here/record.json").read_text())


def test_record_runs_again(fcil) -> None:
    fcil("run", "digits-stsa", *QUICK, "--out", "first")
    done = fcil("run", "first/record.json", "--out", "second")
    assert done.code == 0, done.err
    assert Record.read(Path("first")).outcome() == Record.read(Path("second")).outcome()


def test_toml_file(fcil, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        '[tasks]\ncount = 2\n[first_stage]\nkind = "none"\n'
        '[method]\nname = "stsa"\nprojection = 0\n'
    )
    assert fcil("run", "mine.toml", "--out", "a").code == 0
    assert Record.read(Path("a")).recipe == "mine"


def test_compare_and_report(fcil, tmp_path: Path) -> None:
    for seed in (0, 1):
        fcil("run", "digits-stsa", *QUICK, "--set", f"seed={seed}")
    for format in ("text", "markdown", "csv", "latex"):
        done = fcil("compare", "runs", "--format", format)
        assert done.code == 0 and "stsa" in done.out
    rows = list(csv.reader(io.StringIO(fcil("compare", "runs", "--format", "csv").out)))
    assert len(rows) == 2, "two seeds are one group"
    done = fcil("report", "runs", "--out", "page.html")
    assert done.code == 0 and "page.html" in done.out
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_a_series_goes_on_after_a_failure_and_says_so(fcil, tmp_path: Path) -> None:
    quick = (*QUICK, "--out", "here")
    done = fcil("measure", "digits-stsa", "digits-stsa-e", "--seeds", "0,2", *quick)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert len(lines) == 4 and lines[-1].startswith("here/digits-stsa-e-seed2: A_T ")
    assert Record.read(tmp_path / "here/digits-stsa-e-seed0").first_stage_of
    both = ("digits-stsa", "patches-cpu", "--seeds", "0", "--set", "data.root=nowhere")
    bad = fcil("measure", *both, "--out", "there", *QUICK)
    assert bad.code == 3 and "1 of 2 runs failed" in bad.err and "cifar" in bad.err
    assert bad.out.startswith("there/digits-stsa-seed0: A_T ")
    for seeds in ("", "0,,1", "a", "-1"):
        assert fcil("measure", "digits-stsa", "--seeds", seeds).code == 2


def test_data_show(fcil, tmp_path: Path) -> None:
    assert fcil("data", "show", "digits-stsa", "--out", "held.html").code == 0
    assert "Who holds what" in (tmp_path / "held.html").read_text()


@pytest.mark.parametrize("kind", ["methods", "datasets", "backbones", "first-stages", "recipes"])
def test_list(fcil, kind: str) -> None:
    lines = fcil("list", kind).out.splitlines()
    names = json.loads(fcil("list", kind, "--json").out)
    assert len(lines) == len(names) > 1
    assert all(lines) and all(names.values())


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["run", "digits-sta"], 2, "Nearest: 'digits-stsa'"),
        (["run", "digits-stsa", "--set", "clients.betta=1"], 2, "Nearest: 'clients.beta'"),
        (["run", "digits-stsa", "--set", "method.gama=1"], 2, "Nearest: 'method.gamma'"),
        (["run", "digits-stsa", "--set", "method.name=stsae"], 2, "Nearest: 'stsa-e'"),
        (["run", "digits-stsa", "--set", "data.name=digit"], 2, "Nearest: 'digits'"),
        (["run", "digits-stsa", "--set", "method.gamma=-1"], 2, "method.gamma"),
        (["run", "digits-stsa", "--set", "method.gamma=0"], 2, "method.gamma"),
        (["run", "digits-stsa", "--set", "method.gamma=nan"], 2, "method.gamma"),
        (["run", "digits-stsa", "--set", "method.gamma=inf"], 2, "method.gamma"),
        (["run", "digits-stsa", "--set", "method.gamma=7x"], 2, "method.gamma"),
        (["run", "digits-stsa", "--set", "method.projection=-5"], 2, "method.projection"),
        (["run", "digits-stsa", "--set", "method.projection=nan"], 2, "method.projection"),
        (["run", "digits-stsa", "--set", "clients.count=0"], 2, "clients.count"),
        (["run", "digits-stsa", "--set", "clients.count=2000"], 2, "clients.count"),
        (["run", "digits-stsa", "--set", "tasks.count=3"], 2, "tasks.count"),
        (["run", "digits-stsa", "--set", "nonsense"], 2, "KEY=VALUE"),
        (["run", "digits-stsa", "--set", "seed.a=1"], 2, "seed"),
        (["run", "digits-stsa", "--set", "features.layers=[9]"], 2, "features.layers"),
        (["run", "digits-stsa", "--set", 'features.views=["upside"]'], 2, "upside"),
        (["run", "digits-stsa", "--set", "backbone.weights=/no/such"], 3, "/no/such"),
        (["run", "digits-stsa", "--device", "tpu"], 2, "auto, cpu and cuda"),
        (["run", "absent.toml"], 3, "absent.toml"),
        (["run", "published-cifar100-stsa-beta0.5"], 2, "data.root"),
        (["run", "published-cifar100-joint", "--set", "data.root=nowhere"], 3, "nowhere"),
        (["list", "method"], 2, "Nearest: 'methods'"),
        (["compare", "nowhere"], 3, "nowhere"),
        (["compare", "nowhere", "--format", "pdf"], 3, "nowhere"),
        (["bench", "estimate"], 2, "Nearest: 'estimator'"),
        (["data", "check", "cifar100", "--root", "nowhere"], 3, "nowhere"),
        (["no-such-command"], 2, "No such command"),
        (["run"], 2, "Missing argument"),
    ],
)  # fmt: skip
def test_mistakes_are_one_clear_paragraph(fcil, words: list[str], code: int, said: str) -> None:
    done = fcil(*words)
    assert done.code == code, done.err
    assert said in done.err
    assert "Traceback" not in done.err
    assert len(done.err) < 1500


def test_refusals_have_their_code(fcil) -> None:
    fcil("run", "digits-stsa", *QUICK)
    assert fcil("run", "digits-stsa", *QUICK).code == 4
    assert fcil("run", "digits-stsa", *QUICK, "--resume").code == 0
    other = fcil("run", "digits-stsa", *QUICK, "--resume", "--set", "method.gamma=3")
    assert other.code == 4 and "method.gamma" in other.err


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from fcil.errors import UnknownName

    monkeypatch.setattr(sys, "argv", ["fcil", "run", "digits-sta", "--debug"])
    with pytest.raises(UnknownName):
        cli.main()


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(tmp_path: Path) -> None:
    import os
    import signal

    command = [sys.executable, "-c", "from fcil.cli import main; main()", "run", "digits-fedavg"]
    more = ["--set", "first_stage.rounds=300", "--checkpoint-every", "0", "--out", "run"]
    process = subprocess.Popen(
        [*command, *more], cwd=tmp_path, stderr=subprocess.PIPE, text=True, stdout=subprocess.PIPE
    )
    checkpoint = tmp_path / "run/checkpoint.safetensors"
    for _ in range(600):
        if checkpoint.exists():
            break
        assert process.poll() is None
        os.sched_yield()
        __import__("time").sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in err and "Traceback" not in err
    assert checkpoint.exists()


def test_bench_gives_the_contracts_json(fcil, monkeypatch: pytest.MonkeyPatch) -> None:
    from fcil import bench

    small = {"gram": lambda: bench.gram(width=40, rows=50), "estimator": lambda: bench.estimator(
        width=20, clients=2, units=3, classes=2
    )}  # fmt: skip
    monkeypatch.setattr(bench, "_BENCHMARKS", small)
    monkeypatch.setattr(bench, "_alone", lambda name: small[name]())
    found = json.loads(fcil("bench", "--json").out)
    assert set(found) == {"gram", "estimator"}
    for result in found.values():
        assert {"ours_s", "baseline_s", "ratio"} <= set(result)
    assert "ratio" in fcil("bench", "gram").out


def test_demo_ends_in_a_table_and_a_page(fcil, tmp_path: Path) -> None:
    done = fcil("demo", "--out", "demo", "--device", "cpu")
    assert done.code == 0, done.err
    for name in ("stsa", "stsa-e", "fedavg", "joint"):
        assert (tmp_path / f"demo/digits-{name}/record.json").exists()
        assert name in done.out
    assert (tmp_path / "demo/report.html").stat().st_size > 10_000
    assert "demo/report.html" in done.out
    assert fcil("demo", "--out", "demo", "--device", "cpu").code == 0, "a demo can be repeated"
