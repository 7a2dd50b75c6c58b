"""Classifier heads that grow with the classes, and a backbone with its head."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from fcil.nets.backbone import Backbone


class LinearHead(nn.Module):
    """One linear layer with bias; new rows are Kaiming-uniform of gain 1, their bias 0."""

    def __init__(self, width: int, classes: int, generator: Generator | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, width))
        self.bias = nn.Parameter(torch.empty(0))
        self.grow(classes, generator)

    def grow(self, classes: int, generator: Generator | None = None) -> None:
        """Bring the head to this many classes; what it has stays as it is.

        Without a generator, torch's own is drawn from.
        """
        self.weight = _grown(self.weight, classes, math.sqrt(3 / self.weight.shape[1]), generator)
        new = self.bias.new_zeros(classes - len(self.bias))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), new]))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        return functional.linear(x, self.weight, self.bias)


class CosineHead(nn.Module):
    """Cosines between the vector and each class's row, times a learned scale; no bias."""

    def __init__(self, width: int, classes: int, generator: Generator | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, width))
        self.scale = nn.Parameter(torch.ones(()))
        self.grow(classes, generator)

    def grow(self, classes: int, generator: Generator | None = None) -> None:
        """Bring the head to this many classes; what it has stays as it is.

        Without a generator, torch's own is drawn from.
        """
        self.weight = _grown(self.weight, classes, 1 / math.sqrt(self.weight.shape[1]), generator)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        return self.scale * functional.linear(
            functional.normalize(x), functional.normalize(self.weight)
        )


class Classifier(nn.Module):
    """A backbone and a head."""

    def __init__(self, backbone: Backbone, head: LinearHead | CosineHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = self.head(self.backbone(x))
        return logits


def _grown(weight: Tensor, classes: int, bound: float, generator: Generator | None) -> nn.Parameter:
    """Rows followed by new ones, uniform in +-bound, drawn where the generator lives."""
    if classes < len(weight):
        raise ValueError(f"a head of {len(weight)} classes cannot grow to {classes}")
    device = weight.device if generator is None else generator.device
    new = torch.empty(classes - len(weight), weight.shape[1], device=device)
    new.uniform_(-bound, bound, generator=generator)
    return nn.Parameter(torch.cat([weight.detach(), new.to(weight)]))
