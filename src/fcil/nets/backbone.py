"""What every convolutional backbone is, and how one is built, initialised and read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from fcil import registry
from fcil.errors import DataError, UsageError
from fcil.protocol import DataSpec
from fcil.settings import Backbone as BackboneSettings

Layer = int | Literal["last"]


class Backbone(nn.Module, ABC):
    """A network of stages; its vector is the last stage averaged over space."""

    widths: tuple[int, ...]
    """Channels of each stage; stages are counted from 1."""

    @abstractmethod
    def stages(self, x: Tensor) -> list[Tensor]:
        """The map (B, channels, height, width) of each stage."""

    def forward(self, x: Tensor) -> Tensor:
        """Vectors (B, width of the last stage)."""
        return self.stages(x)[-1].mean((2, 3))


def build_backbone(spec: DataSpec, settings: BackboneSettings, generator_seed: int) -> Backbone:
    """The named backbone on the CPU, with its weights loaded or drawn from a seed.

    The draw depends on the seed alone and leaves torch's own generators as they were.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator_seed)
        backbone: Backbone = registry.find("backbones", settings.name)(spec, settings)
    if settings.weights is not None:
        _load(backbone, Path(settings.weights), settings.name)
    return backbone


def initialise(network: nn.Module) -> None:
    """Kaiming-normal (fan-out) convolutions; BatchNorm starts as the identity."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def read_out(maps: Sequence[Tensor], layers: Sequence[Layer], pool: int) -> Tensor:
    """Averages of the asked stages on a pool x pool grid, one after another (B, width)."""
    chosen = [maps[place] for place in _places(layers, len(maps))]
    return torch.cat(
        [functional.adaptive_avg_pool2d(one, pool).flatten(1) for one in chosen], dim=1
    )


def read_width(widths: Sequence[int], layers: Sequence[Layer], pool: int) -> int:
    """Length of what `read_out` gives."""
    return sum(widths[place] for place in _places(layers, len(widths))) * pool**2


def _places(layers: Sequence[Layer], count: int) -> list[int]:
    """Positions of the asked stages among `count`."""
    valid: list[Layer] = [*range(1, count + 1), "last"]
    if not layers or any(layer not in valid for layer in layers):
        raise UsageError(
            f"features.layers = {list(layers)} asks for stages this backbone does not have. "
            f"It has: {', '.join(map(repr, valid))}."
        )
    return [count - 1 if layer == "last" else layer - 1 for layer in layers]


def _load(backbone: Backbone, path: Path, name: str) -> None:
    """Put the weights of a file into a backbone; every key and shape must fit."""
    expected = backbone.state_dict()
    try:
        given = load_file(path)
    except FileNotFoundError:
        raise DataError(
            f"There is no weights file {path}. Put a .safetensors file of a {name} there "
            f"(tensors {next(iter(expected))}, ... and no classifier), correct "
            "`backbone.weights`, or leave that setting out to start from a seeded draw."
        ) from None
    except (OSError, SafetensorError) as why:
        raise DataError(
            f"{path} is not a readable .safetensors file: {why}. It was cut short or has another "
            "format: fetch it again, or save its tensors with safetensors."
        ) from why
    wrong = [f"{key} is missing" for key in expected if key not in given]
    wrong += [f"{key} is not wanted" for key in given if key not in expected]
    wrong += [
        f"{key} has shape {tuple(given[key].shape)} instead of {tuple(expected[key].shape)}"
        for key in expected
        if key in given and given[key].shape != expected[key].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 6} more" if len(wrong) > 6 else ""
        raise UsageError(
            f"The weights in {path} do not fit the backbone {name}: {'; '.join(wrong[:6])}{more}. "
            "They belong to another network, stem or number of channels: change "
            "`backbone.name` or `backbone.stem`, or take other weights."
        )
    backbone.load_state_dict(given)


def uses_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether networks run in bfloat16: `auto` means on a card."""
    return precision == "bfloat16" or (precision == "auto" and device.type == "cuda")
