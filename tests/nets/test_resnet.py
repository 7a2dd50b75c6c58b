import pytest
import torch
from torch import nn

from fcil.nets.resnet import ResNet18, resnet18
from fcil.protocol import DataSpec
from fcil.settings import Backbone


def spec(size: int, channels: int = 3) -> DataSpec:
    return DataSpec("toy", channels, size, (0.5,) * channels, (0.25,) * channels, 10)


def sides(network: nn.Module, size: int, channels: int = 3) -> list[int]:
    assert isinstance(network, ResNet18)
    with torch.no_grad():
        return [
            one.shape[-1] for one in network.eval().stages(torch.zeros(1, channels, size, size))
        ]


def weights(network: nn.Module) -> int:
    return sum(one.numel() for one in network.parameters())


def test_size_of_the_cifar_variant_is_the_published_one() -> None:
    network = resnet18(spec(32), Backbone(name="resnet18"))
    assert weights(network) == 11_168_832
    # mean and variance of 4,800 channels and one counter for each of 20 BatchNorms
    assert sum(one.numel() for one in network.buffers()) == 9_620


def test_large_stem_is_the_common_resnet18_without_its_classifier() -> None:
    network = resnet18(spec(64), Backbone(name="resnet18"))
    assert weights(network) == 11_689_512 - (512 * 1000 + 1000)
    names = set(dict(network.named_parameters()))
    assert {"conv1.weight", "bn1.bias", "layer1.1.conv2.weight"} <= names
    assert {"layer4.0.downsample.0.weight", "layer4.0.downsample.1.bias"} <= names
    assert len(names) == 60


@pytest.mark.parametrize(
    ("size", "stem", "expected"),
    [
        (32, "auto", [32, 16, 8, 4]),
        (33, "auto", [9, 5, 3, 2]),
        (64, "auto", [16, 8, 4, 2]),
        (64, "small", [64, 32, 16, 8]),
        (32, "large", [8, 4, 2, 1]),
    ],
)
def test_maps_have_the_stated_sides(size: int, stem: str, expected: list[int]) -> None:
    network = resnet18(spec(size), Backbone.model_validate({"name": "resnet18", "stem": stem}))
    assert sides(network, size) == expected


def test_third_variant_pools_after_a_small_stem() -> None:
    network = ResNet18(3, pool=True)
    assert weights(network) == 11_168_832
    assert sides(network, 64) == [32, 16, 8, 4]


def test_any_number_of_channels() -> None:
    assert sides(resnet18(spec(28, 1), Backbone(name="resnet18")), 28, 1) == [28, 14, 7, 4]


def test_a_block_adds_its_input_before_the_last_relu() -> None:
    network = ResNet18(3).eval()
    block = network.layer1[0]
    nn.init.zeros_(block.conv2.weight)  # the branch is silent: only the shortcut is left
    x = torch.randn(2, 64, 5, 5)
    torch.testing.assert_close(block(x.clone()), x.clamp(min=0))
