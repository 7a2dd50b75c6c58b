"""Run groups: records that differ in nothing but their seed, and what is measured on them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from fcil.errors import UsageError
from fcil.record import Record

MIB = 2**20
DASH = "-"
"""Stands where a number is undefined."""

Scenario = tuple[str, int, int, float]
"""Data set, number of tasks, number of clients, skew: what the groups of one chart share."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds; None where there is none."""

    mean: float | None
    deviation: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """Of one value a seed; undefined as soon as one of them is.

        >>> Spread.of([1.0, 2.0, 3.0])
        Spread(mean=2.0, deviation=1.0)
        >>> Spread.of([1.0]), Spread.of([1.0, None])
        (Spread(mean=1.0, deviation=None), Spread(mean=None, deviation=None))
        """
        known = []
        for value in values:
            if value is None:
                return cls(None, None)
            known.append(value)
        if not known:
            return cls(None, None)
        return cls(fmean(known), stdev(known) if len(known) > 1 else None)


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seed, on one kind of device."""

    records: tuple[Record, ...]
    """In order of seed, each seed once."""
    left_out: int
    """Older records of a seed that is there already."""
    name: str
    """`method (recipe)`, and what tells it from other groups of that name."""
    short: str
    """The method alone where no other group of the scenario has it."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Complete settings of the first seed."""
        return self.records[0].config

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.config["method"]["name"])

    @property
    def recipe(self) -> str:
        """Name of the recipe; several where equal settings came from several."""
        return "/".join(sorted({record.recipe for record in self.records}))

    @property
    def scenario(self) -> Scenario:
        """What the groups of one chart share."""
        return _scenario(self.config)

    @property
    def device(self) -> str:
        """The device's own name, equal for all records of the group."""
        return self.records[0].device

    def over_seeds(self, of: Callable[[Record], float | None]) -> Spread:
        """Mean and spread of a number of each record."""
        return Spread.of(map(of, self.records))


def up_mib(record: Record) -> float:
    """MiB a client sent over the whole run, first stage apart."""
    return _a_client(record, record.bytes["up"])


def down_mib(record: Record) -> float:
    """MiB a client received over the whole run, first stage apart."""
    return _a_client(record, record.bytes["down"])


def first_stage_up_mib(record: Record) -> float:
    """MiB a client sent in the first stage."""
    return _a_client(record, [record.bytes["first_stage"]["up"]])


def first_stage_down_mib(record: Record) -> float:
    """MiB a client received in the first stage."""
    return _a_client(record, [record.bytes["first_stage"]["down"]])


def seconds_after(record: Record) -> float:
    """Seconds of everything but the first stage."""
    return sum(value for key, value in record.seconds.items() if key != "first_stage")


def seconds_first(record: Record) -> float:
    """Seconds of the first stage."""
    return float(record.seconds.get("first_stage", 0.0))


def groups(records: Sequence[Record]) -> list[Group]:
    """Run groups in order of first appearance.

    Seconds of two kinds of device have no meaningful mean, so a group also has one device. Of two
    records with the same seed only the one started last counts: it is no second sample.
    """
    if not records:
        raise UsageError(
            "There is no record to compare. Name the folders of finished runs; each holds a "
            "record.json."
        )
    found: dict[str, list[Record]] = {}
    for record in records:
        shared = {key: value for key, value in record.config.items() if key != "seed"}
        found.setdefault(json.dumps([shared, record.device], sort_keys=True), []).append(record)
    bare = []
    for members in found.values():
        newest: dict[int, Record] = {}
        for record in sorted(members, key=lambda r: r.started):
            newest[record.seed] = record
        kept = tuple(newest[seed] for seed in sorted(newest))
        bare.append(Group(kept, len(members) - len(kept), "", ""))
    return _named(bare)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted key.

    >>> flat({"seed": 0, "clients": {"beta": 0.5}})
    {'seed': 0, 'clients.beta': 0.5}
    """
    result: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            result.update(flat(value, f"{prefix}{key}."))
        else:
            result[prefix + key] = value
    return result


def setting(value: Any) -> str:
    """A setting's value as one writes it after `--set KEY=`; a dash where it is empty."""
    if value is None:
        return DASH
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def differing(members: Sequence[Group]) -> list[str]:
    """Dotted keys, the seed aside, in which some groups differ."""
    trees = [flat(group.config) for group in members]
    keys = dict.fromkeys(key for tree in trees for key in tree if key != "seed")
    return [k for k in keys if any(t.get(k) != trees[0].get(k) or k not in t for t in trees)]


def by_scenario(members: Sequence[Group]) -> dict[Scenario, list[Group]]:
    """Groups of each scenario, both in order of first appearance."""
    result: dict[Scenario, list[Group]] = {}
    for group in members:
        result.setdefault(group.scenario, []).append(group)
    return result


def _scenario(config: Mapping[str, Any]) -> Scenario:
    clients = config["clients"]
    return config["data"]["name"], config["tasks"]["count"], clients["count"], clients["beta"]


def _a_client(record: Record, counts: Iterable[Iterable[int]]) -> float:
    total = sum(sum(count) for count in counts)
    return float(total / record.config["clients"]["count"] / MIB)


def _named(bare: Sequence[Group]) -> list[Group]:
    devices = {group.device for group in bare}
    named = []
    for group in bare:
        alike = [g for g in bare if g.scenario == group.scenario and g.method == group.method]
        twins = [g for g in alike if g.recipe == group.recipe]
        parts = [group.method]
        if group.recipe != group.method:
            parts.append(f"({group.recipe})")
        tree = flat(group.config)
        parts += [f"{key}={setting(tree.get(key))}" for key in differing(twins)]
        if len(devices) > 1:
            parts.append(f"on {group.device}")
        name = " ".join(parts)
        short = name if len(alike) > 1 else group.method
        named.append(dataclasses.replace(group, name=name, short=short))
    return named
