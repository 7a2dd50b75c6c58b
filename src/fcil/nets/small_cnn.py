"""A small network that trains in seconds on a processor, from 8x8 images up."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from fcil.nets.backbone import Backbone, initialise
from fcil.protocol import DataSpec
from fcil.settings import Backbone as BackboneSettings


def small_cnn(spec: DataSpec, settings: BackboneSettings) -> Backbone:
    """The small network for images of these channels; it has no stem to choose."""
    return SmallCnn(spec.channels)


class SmallCnn(Backbone):
    """Three stages of convolution, BatchNorm and ReLU; the second and third halve the side."""

    widths = (32, 64, 128)

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(narrow, wide, 3, stride, padding=1, bias=False),
                nn.BatchNorm2d(wide),
                nn.ReLU(inplace=True),
            )
            for (narrow, wide), stride in zip(
                pairwise((channels, *self.widths)), (1, 2, 2), strict=True
            )
        )
        initialise(self)

    def stages(self, x: Tensor) -> list[Tensor]:
        """The maps of the three stages."""
        maps = []
        for block in self.blocks:
            x = block(x)
            maps.append(x)
        return maps
