from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fcil.errors import DataError, UsageError
from fcil.nets.backbone import Backbone, build_backbone, read_out, read_width
from fcil.protocol import DataSpec
from fcil.settings import Backbone as BackboneSettings

SPEC = DataSpec("toy", 1, 8, (0.5,), (0.25,), 10)
NAMES = ("resnet18", "small-cnn")


def build(name: str = "small-cnn", seed: int = 3, **settings: str) -> Backbone:
    return build_backbone(SPEC, BackboneSettings(name=name, **settings), seed)


def same(one: Backbone, other: Backbone) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[key]) for key, value in one.state_dict().items())


@pytest.mark.parametrize("name", NAMES)
def test_the_draw_depends_on_the_seed_alone_and_leaves_torch_alone(name: str) -> None:
    torch.manual_seed(0)
    first = build(name)
    drawn = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), drawn)
    torch.rand(17)
    assert same(first, build(name))
    assert not same(first, build(name, seed=4))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [8, 28, 32])
def test_vector_is_the_spatial_mean_of_the_last_stage(name: str, size: int) -> None:
    network = build(name).eval()
    x = torch.randn(2, 1, size, size)
    maps = network.stages(x)
    assert tuple(one.shape[1] for one in maps) == network.widths
    assert torch.equal(network(x), maps[-1].mean((2, 3)))
    torch.testing.assert_close(network(x), read_out(maps, ["last"], 1))


def test_initial_weights_have_the_stated_spread() -> None:
    for name in NAMES:
        for key, value in build(name).state_dict().items():
            if value.ndim == 4:
                fan_out = value.shape[0] * value.shape[2] * value.shape[3]
                expected = (2 / fan_out) ** 0.5
                assert abs(value.std().item() / expected - 1) < 6 / value.numel() ** 0.5, key
            elif key.endswith("bias"):
                assert value.count_nonzero() == 0
            elif key.endswith("weight"):
                assert bool((value == 1).all())


def test_read_out_averages_each_cell_of_the_grid_in_the_asked_order() -> None:
    maps = [torch.randn(3, 2, 4, 4), torch.randn(3, 5, 2, 2), torch.randn(3, 4, 2, 2)]
    out = read_out(maps, [3, 1], 2)
    expected = [maps[2].flatten(1)]
    cells = torch.stack(
        [maps[0][:, :, r : r + 2, c : c + 2].sum((2, 3)) / 4 for r in (0, 2) for c in (0, 2)],
        dim=2,
    )
    expected.append(cells.flatten(1))
    torch.testing.assert_close(out, torch.cat(expected, 1))
    assert out.shape[1] == read_width([2, 5, 4], [3, 1], 2) == 24
    assert read_width([2, 5, 4], ["last", 2], 1) == 9


@pytest.mark.parametrize("layers", [[4], [0], [-1], []])
def test_unknown_stage_is_refused_with_the_ones_there_are(layers: list[int]) -> None:
    with pytest.raises(UsageError, match=r"It has: 1, 2, 3, 'last'"):
        read_width((32, 64, 128), layers, 1)


def test_weights_come_back_from_a_file(tmp_path: Path) -> None:
    source = build(seed=9)
    file = tmp_path / "w.safetensors"
    save_file(source.state_dict(), file)
    assert same(build(seed=1, weights=str(file)), source)


def test_missing_or_damaged_weights_are_a_data_error(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    with pytest.raises(DataError, match=r"There is no weights file .*small-cnn there"):
        build(weights=str(file))
    save_file(build().state_dict(), file)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match="cut short"):
        build(weights=str(file))
    with pytest.raises(DataError, match="not a readable"):
        build(weights=str(tmp_path))


def test_weights_of_another_network_are_named_by_key_and_shape(tmp_path: Path) -> None:
    state = dict(build().state_dict())
    state["blocks.1.0.weight"] = torch.zeros(64, 32, 5, 5)
    state["fc.weight"] = state.pop("blocks.0.1.bias")
    file = tmp_path / "w.safetensors"
    save_file(state, file)
    with pytest.raises(UsageError) as said:
        build(weights=str(file))
    for part in (
        "blocks.0.1.bias is missing",
        "fc.weight is not wanted",
        "blocks.1.0.weight has shape (64, 32, 5, 5) instead of (64, 32, 3, 3)",
    ):
        assert part in str(said.value)
