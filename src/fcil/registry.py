"""Named parts found through entry points: ours and a stranger's come in by the same door.

A package adds a method by declaring it:

    [project.entry-points."fcil.methods"]
    mine = "my_package.mine:Mine"
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fcil.errors import FcilError, UnknownName, UsageError

KINDS = {
    "methods": "method",
    "datasets": "data set",
    "backbones": "backbone",
    "first-stages": "first stage",
}


@cache
def _entries(kind: str) -> Mapping[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=f"fcil.{kind.replace('-', '_')}"):
        if entry.name in found and found[entry.name].value != entry.value:
            raise UsageError(
                f"Two packages register the {KINDS[kind]} {entry.name!r}: "
                f"{found[entry.name].value} and {entry.value}. Uninstall one of them."
            )
        found[entry.name] = entry
    if not found:
        raise UsageError(
            f"No {KINDS[kind]} is registered: the package's metadata is missing. "
            "Install fcil (`pip install -e .`) instead of putting its folder on the path."
        )
    return found


def names(kind: str) -> list[str]:
    """All registered names of a kind, sorted; nothing is imported."""
    return sorted(_entries(kind))


def find(kind: str, name: str) -> Any:
    """The object registered under a name; imports only what it needs."""
    entries = _entries(kind)
    if name not in entries:
        raise UnknownName(KINDS[kind], name, entries)
    try:
        return entries[name].load()
    except (ImportError, AttributeError) as why:
        if isinstance(why, FcilError):
            raise
        raise UsageError(
            f"The {KINDS[kind]} {name!r} is registered as {entries[name].value} and could not be "
            f"imported: {why}. The package that brings it is broken or lacks a dependency."
        ) from why
