import pytest
import torch

from fcil.nets.small_cnn import small_cnn
from fcil.protocol import DataSpec
from fcil.settings import Backbone


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (28, 1), (32, 3)])
def test_three_stages_from_eight_pixels_up(size: int, channels: int) -> None:
    spec = DataSpec("toy", channels, size, (0.5,) * channels, (0.25,) * channels, 10)
    network = small_cnn(spec, Backbone())
    maps = network.stages(torch.randn(2, channels, size, size))
    assert [tuple(one.shape[1:]) for one in maps] == [
        (32, size, size),
        (64, size // 2, size // 2),
        (128, size // 4, size // 4),
    ]
    assert all(bool((one >= 0).all()) for one in maps)
