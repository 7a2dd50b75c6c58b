"""Comparisons of groups that differ in one thing: width, clients, dummy clients, bits, ridge."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fcil.report import groups
from fcil.report.stored import Stored, alike


@dataclass(frozen=True)
class Sweep:
    """A setting that takes several values while everything else stays."""

    name: str
    heading: str
    label: str
    key: str
    recipes: str
    """Names of the recipes that make it, as a pattern."""
    free: tuple[str, ...] = ()
    """Other settings that follow the value."""

    def of(self, members: Sequence[Stored]) -> list[list[Stored]]:
        """Its series: groups in order of the value."""
        kept = [member for member in members if self.covers(member)]
        found = alike(kept, (self.key, *self.free))
        return [sorted(bucket, key=self.value) for bucket in found]

    def covers(self, member: Stored) -> bool:
        """Whether a group is a recipe's of this sweep, whatever else its records may be called."""
        return any(re.search(self.recipes, name) for name in (member.recipe, *member.matches))

    def value(self, member: Stored) -> int:
        """What the setting is in a group."""
        return int(groups.flat(member.config)[self.key])


SWEEPS = (
    Sweep(
        name="width",
        heading="Width M of the random layer",
        label="M (0 = no random layer)",
        key="method.projection",
        recipes=r"-stsa(-e)?-m\d+$",
    ),
    Sweep(
        name="clients",
        heading="Clients K",
        label="K",
        key="clients.count",
        recipes=r"-(stsa-k\d+|stsa-e-k\d+-kd\d+)$",
        free=("method.units",),
    ),
    Sweep(
        name="units",
        heading="Dummy clients of a client, K_D",
        label="K_D",
        key="method.units",
        recipes=r"-stsa-e-kd\d+$",
    ),
)
"""The paper's ablations."""
