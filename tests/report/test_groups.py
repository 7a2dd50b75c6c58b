"""Which records form a group, and the numbers of a group computed by hand."""

from __future__ import annotations

import copy
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fcil.errors import UsageError
from fcil.report import groups
from fcil.report.groups import Spread

PERCENT = st.floats(0, 100)


def reseeded(make, seed, **changes):
    """A record of another seed with everything else as in seed 0."""
    config = copy.deepcopy(make("stsa", 0).config)
    config["seed"] = seed
    return make("stsa", seed, config=config, **changes)


def test_seeds_of_one_configuration_are_one_group(record):
    members = groups.groups([reseeded(record, s) for s in (2, 0, 1)])
    assert len(members) == 1
    assert [r.seed for r in members[0].records] == [0, 1, 2]
    assert members[0].name == "stsa (demo-stsa)"
    assert members[0].short == "stsa"


def test_every_setting_but_the_seed_parts_groups(record):
    plain = record("stsa", 0)
    for key in groups.flat(plain.config):
        if key == "seed":
            continue
        config = copy.deepcopy(plain.config)
        at = config
        *blocks, last = key.split(".")
        for block in blocks:
            at = at[block]
        if key in ("data.name", "method.name"):
            at[last] = "other"
        elif key in ("tasks.count", "clients.count"):
            at[last] += 1
        else:
            at[last] = 77
        changed = record("stsa", 0, config=config)
        assert len(groups.groups([plain, changed])) == 2, key


def test_devices_are_not_averaged_and_are_named(record):
    members = groups.groups([record("stsa", 0), record("stsa", 0, device="NVIDIA H200")])
    assert len(members) == 2
    assert members[1].name.endswith("on NVIDIA H200")
    assert members[0].short != members[1].short


def test_a_repeated_seed_is_no_second_sample(record):
    old = reseeded(record, 0, A_T=10.0, started="2026-01-01T00:00:00Z")
    new = reseeded(record, 0, A_T=20.0, started="2026-01-02T00:00:00Z")
    other = reseeded(record, 1, A_T=30.0)
    for order in ([old, new, other], [new, other, old]):
        (group,) = groups.groups(order)
        assert group.left_out == 1
        assert group.over_seeds(lambda r: r.A_T) == Spread(25.0, statistics.stdev([20.0, 30.0]))


def test_names_say_what_tells_groups_apart(record):
    few = record("stsa-e", 0)
    config = copy.deepcopy(few.config)
    config["method"]["units"] = 50
    many = record("stsa-e", 0, config=config)
    names = [group.name for group in groups.groups([few, many, record("stsa", 0)])]
    assert names == [
        "stsa-e (demo-stsa-e) method.units=10",
        "stsa-e (demo-stsa-e) method.units=50",
        "stsa (demo-stsa)",
    ]


def test_a_key_one_method_lacks_differs_though_its_value_is_empty(record):
    config = copy.deepcopy(record("stsa", 0).config)
    config["method"]["extra"] = None
    members = groups.groups([record("stsa", 0), record("stsa", 0, config=config)])
    assert groups.differing(members) == ["method.extra"]


def test_bytes_and_seconds_of_a_run(record):
    config = copy.deepcopy(record("stsa", 0).config)
    config["clients"]["count"] = 2
    mib = 2**20
    run = record(
        "stsa",
        0,
        config=config,
        bytes={
            "up": [[mib, 3 * mib], [2 * mib, 2 * mib]],
            "down": [[0, mib], [mib, 0]],
            "first_stage": {"up": [10 * mib, 20 * mib], "down": [5 * mib, 5 * mib]},
        },
        seconds={"first_stage": 7.0, "extract": 1.0, "solve": 0.5, "train": 2.0},
    )
    assert groups.up_mib(run) == 4.0
    assert groups.down_mib(run) == 1.0
    assert groups.first_stage_up_mib(run) == 15.0
    assert groups.first_stage_down_mib(run) == 5.0
    assert groups.seconds_after(run) == 3.5
    assert groups.seconds_first(run) == 7.0


@given(st.lists(PERCENT, min_size=2, max_size=8))
def test_spread_is_the_sample_deviation(values):
    spread = Spread.of(values)
    mean = math.fsum(values) / len(values)
    variance = math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)
    assert spread.mean == pytest.approx(mean)
    assert spread.deviation == pytest.approx(math.sqrt(variance), abs=1e-9)


def test_no_records_is_a_usage_error():
    with pytest.raises(UsageError, match="no record"):
        groups.groups([])
