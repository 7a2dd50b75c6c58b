"""ResNet-18 from scratch, in the stems the literature on small images uses.

Tensors are named as in the common ResNet-18 files, so such a file fits once its classifier
(`fc.*`) is taken out.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from fcil.nets.backbone import Backbone, initialise
from fcil.protocol import DataSpec
from fcil.settings import Backbone as BackboneSettings

SMALL_IMAGE = 32
"""Largest side for which the stem `auto` is the small one."""


def resnet18(spec: DataSpec, settings: BackboneSettings) -> Backbone:
    """ResNet-18 with the stem the settings ask for."""
    large = settings.stem == "large" or (settings.stem == "auto" and spec.size > SMALL_IMAGE)
    pool = large or settings.stem == "small-pool"
    return ResNet18(spec.channels, stride=2 if large else 1, pool=pool)


class ResNet18(Backbone):
    """Four stages of two basic blocks.

    Stem: 7x7 with `stride` 2 or 3x3 with stride 1, then a 3x3 max-pool of stride 2 if `pool`.
    """

    widths = (64, 128, 256, 512)

    def __init__(self, channels: int, *, stride: int = 1, pool: bool = False) -> None:
        super().__init__()
        kernel = 7 if stride == 2 else 3
        self.conv1 = nn.Conv2d(
            channels, self.widths[0], kernel, stride, padding=kernel // 2, bias=False
        )
        self.bn1 = nn.BatchNorm2d(self.widths[0])
        self.maxpool = nn.MaxPool2d(3, 2, padding=1) if pool else nn.Identity()
        self.layer1 = nn.Sequential(_Block(64, 64, 1), _Block(64, 64, 1))
        self.layer2 = nn.Sequential(_Block(64, 128, 2), _Block(128, 128, 1))
        self.layer3 = nn.Sequential(_Block(128, 256, 2), _Block(256, 256, 1))
        self.layer4 = nn.Sequential(_Block(256, 512, 2), _Block(512, 512, 1))
        initialise(self)

    def stages(self, x: Tensor) -> list[Tensor]:
        """The maps of the four stages."""
        x = self.maxpool(functional.relu(self.bn1(self.conv1(x)), inplace=True))
        maps = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            maps.append(x)
        return maps


class _Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where shapes change."""

    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(narrow, wide, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(wide)
        self.conv2 = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(wide)
        self.downsample: nn.Module = nn.Identity()
        if narrow != wide:
            self.downsample = nn.Sequential(
                nn.Conv2d(narrow, wide, 1, stride, bias=False), nn.BatchNorm2d(wide)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return functional.relu(y.add_(self.downsample(x)), inplace=True)
