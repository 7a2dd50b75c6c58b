"""Kinds of first stage: which weights train before the extractor is frozen, and for how long."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from fcil.settings import FirstStage as Settings


class FirstStage(Protocol):
    """How a backbone is prepared for federated training."""

    def rounds(self, settings: Settings) -> int:
        """Rounds of training on the first task."""

    def prepare(self, backbone: nn.Module) -> None:
        """Add what trains and mark it with `requires_grad`; the output stays as it was."""


class WholeNetwork:
    """`fedavg`: all weights train."""

    def rounds(self, settings: Settings) -> int:
        """As many as the settings say."""
        return settings.rounds

    def prepare(self, backbone: nn.Module) -> None:
        """Everything trains."""
        backbone.requires_grad_(True)


class AsGiven:
    """`none`: the backbone as it is; without weights, its seeded initialisation."""

    def rounds(self, settings: Settings) -> int:
        """None at all."""
        return 0

    def prepare(self, backbone: nn.Module) -> None:
        """Nothing trains."""
        backbone.requires_grad_(False)
