"""Records where they lie: groups of them, matched by their settings with the recipes there are.

A group is a recipe's when its settings are, whatever its records call themselves; a record of
other settings never counts as that recipe's number.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fcil.record import Record
from fcil.report import groups
from fcil.report.groups import Group, Spread
from fcil.report.markdown import Piece, link

Tree = Mapping[str, Any]
IDLE = ("seed", "data.root", "method.measure_error")
"""Settings that change no number of a run: which sample, where files lie, what is also measured."""
COMMA = ",\N{NO-BREAK SPACE}"
FAMILIES = {
    "published": "the paper's settings",
    "published-code": "the settings of the paper's public code, where they differ",
    "best": "what measures best at the paper's own width, M = 5000",
    "wide": "what measures best at all",
    "patches": "whitened patches, no training at all",
    "patches-cpu": "the same without a card",
}
"""Families of recipes that are compared, in the order in which they are shown."""


@dataclasses.dataclass(frozen=True)
class Book:
    """The recipes there are."""

    recipes: Mapping[str, Tree]
    """Settings by name; of `method`, only those that the recipe states."""
    defaults: Tree
    """The value of every setting that is not the method's own."""


@dataclasses.dataclass(frozen=True)
class Stored:
    """A run group, the files it lies in, and what makes it again."""

    group: Group
    links: Mapping[int, str]
    """Path of each seed's record, relative to the page."""
    recipe: str
    """The recipe with these settings, else the one the records name."""
    known: bool
    """Whether there is such a recipe."""
    matches: tuple[str, ...]
    """All recipes with these settings."""
    changes: Mapping[str, Any]
    """Settings by dotted key in which the group differs from its recipe."""

    @property
    def config(self) -> Mapping[str, Any]:
        """Complete settings of the first seed."""
        return self.group.config

    @property
    def data(self) -> str:
        """Name of the data set."""
        return str(self.config["data"]["name"])

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.group.method

    @property
    def family(self) -> str:
        """What the recipe's name begins with, before data set and method."""
        return self.recipe.partition(f"-{self.data}-{self.method}")[0]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds in order."""
        return tuple(self.links)

    def value(self, of: Callable[[Record], float | None], seeds: Iterable[int] = ()) -> Spread:
        """Mean and spread over some seeds, or over all."""
        wanted = set(seeds) or set(self.links)
        return Spread.of(of(record) for record in self.group.records if record.seed in wanted)

    def linked(self, seeds: Iterable[int] = ()) -> Piece:
        """Seeds, each leading to its record."""
        wanted = set(seeds) or set(self.links)
        shown = [link(str(seed), path) for seed, path in self.links.items() if seed in wanted]
        return Piece(f"({COMMA.join(shown)})")


def gather(found: Mapping[Path, Record], book: Book, page: Path) -> list[Stored]:
    """Groups of records by path, in order of family, method and recipe."""
    paths = {os.path.relpath(path, page.parent): record for path, record in found.items()}
    records, where = [], {}
    for path in sorted(paths):
        record = dataclasses.replace(paths[path], config=_completed(paths[path], book))
        where[id(record)] = Path(path).as_posix()
        records.append(record)
    _fill_newer(records)
    stated = {name: groups.flat(tree) for name, tree in book.recipes.items()}
    result = []
    for group in groups.groups(records):
        tree = groups.flat(group.config)
        names = tuple(dict.fromkeys(record.recipe for record in group.records))
        matches = [name for name, settings in stated.items() if not _changes(tree, settings)]
        own = [name for name in matches if name in names]
        recipe = [*own, *matches, *names][0]
        result.append(
            Stored(
                group=group,
                links={record.seed: where[id(record)] for record in group.records},
                recipe=recipe,
                known=recipe in stated,
                matches=tuple(dict.fromkeys([*own, *matches])),
                changes=_changes(tree, stated[recipe]) if recipe in stated else {},
            )
        )
    return sorted(result, key=_place)


def seconds_after(record: Record) -> float:
    """Seconds of everything but the first stage and what only a simulation measures."""
    return groups.seconds_after(record) - record.seconds.get("measure", 0.0)


def shared(members: Iterable[Stored]) -> tuple[int, ...]:
    """Seeds that all groups have."""
    sets = [set(stored.seeds) for stored in members]
    return tuple(sorted(set.intersection(*sets)))


def alike(members: Sequence[Stored], keys: Iterable[str]) -> list[list[Stored]]:
    """Groups that differ in some keys only, two or more values each.

    Keys are as in `among`.
    """
    free = tuple(keys)
    buckets: dict[str, list[Stored]] = {}
    for stored in members:
        tree = groups.flat(stored.config)
        rest = {k: v for k, v in tree.items() if k != "seed" and not among(k, free)}
        buckets.setdefault(json.dumps(rest, sort_keys=True), []).append(stored)
    return [bucket for bucket in buckets.values() if len({_at(s, free) for s in bucket}) > 1]


def among(key: str, keys: Iterable[str]) -> bool:
    """Whether a key is one of some, of which those that end in a dot stand for whole blocks.

    >>> among("features.bits", ["features."]), among("method.gamma", ["method.g"])
    (True, False)
    """
    return any(key.startswith(k) if k.endswith(".") else key == k for k in keys)


def _place(stored: Stored) -> tuple[Any, ...]:
    """Where a group stands: by data, family, method, and the numbers in its recipe's name."""
    order = list(FAMILIES)
    rank = order.index(stored.family) if stored.family in order else len(order)
    words = re.split(r"(\d+(?:\.\d+)?)", stored.recipe)
    recipe = [(word, 0.0) if i % 2 == 0 else ("", float(word)) for i, word in enumerate(words)]
    changes = json.dumps(stored.changes, sort_keys=True)
    links = list(stored.links.values())
    return stored.data, rank, stored.family, stored.method, recipe, changes, links


def _at(stored: Stored, keys: Sequence[str]) -> str:
    tree = groups.flat(stored.config)
    return json.dumps({k: v for k, v in tree.items() if among(k, keys)}, sort_keys=True)


def _completed(record: Record, book: Book) -> dict[str, Any]:
    """The settings with those that are newer than the record at their default."""
    config: dict[str, Any] = copy.deepcopy(record.config)
    for block, value in book.defaults.items():
        if block != "method" and isinstance(value, Mapping):
            config[block] = {**value, **config.get(block, {})}
        elif block != "method":
            config.setdefault(block, value)
    config["data"]["root"] = None
    config["method"].pop("measure_error", None)
    return config


def _fill_newer(records: Sequence[Record]) -> None:
    """Give a method's setting that is newer than a record the value its younger fellows share.

    Without it a seed measured before the setting existed could never join one measured after.
    """
    fellows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        method = record.config["method"]
        fellows.setdefault((record.recipe, method["name"]), []).append(method)
    for methods in fellows.values():
        for key in sorted({key for method in methods for key in method}):
            values = [method[key] for method in methods if key in method]
            if all(value == values[0] for value in values):
                for method in methods:
                    method.setdefault(key, values[0])


def _changes(tree: Tree, stated: Tree) -> dict[str, Any]:
    """Settings by dotted key that a recipe states otherwise, or that no recipe has."""
    other = {key for key, value in stated.items() if key not in tree or tree[key] != value}
    other |= {key for key in tree if key not in stated and not key.startswith("method.")}
    return {key: tree.get(key) for key in sorted(other.difference(IDLE))}
