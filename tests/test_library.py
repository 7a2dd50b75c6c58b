"""The library as README shows it."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import fcil

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_features.py"


def test_the_example_runs_and_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 40
    names = runpy.run_path(str(EXAMPLE))
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and said[0].endswith("%") and names["left"].hash[:16] in said[1]
    assert names["total"].exact and names["total"].clipped == 0
    assert names["head"].classes == (0, 1, 2, 3, 4)


def test_the_public_names_are_these() -> None:
    assert fcil.__all__ == sorted(fcil.__all__) == [
        "FeatureMap",
        "Features",
        "Grid",
        "Head",
        "Moments",
        "Record",
        "StatisticsClassifier",
        "UnitSums",
        "decode",
        "encode",
        "estimate_gram",
        "solve",
    ]  # fmt: skip
    for name in fcil.__all__:
        assert getattr(fcil, name).__module__.startswith("fcil.")
    assert set(dir(fcil)) == {*fcil.__all__, "__version__"}
    with pytest.raises(AttributeError, match="nonsense"):
        fcil.nonsense  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = "import sys, fcil; print({'torch', 'sklearn', 'numpy', 'scipy'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
