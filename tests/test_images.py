import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from torch import Tensor

from fcil import images
from fcil.errors import UnknownName, UsageError
from fcil.protocol import DataSpec

KINDS = ("none", "crop-flip", "standard", "strong")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int = 6, channels: int = 3, size: int = 16, seed: int = 0) -> Tensor:
    shape = (count, channels, size, size)
    return torch.randint(256, shape, generator=seeded(seed), dtype=torch.uint8)


def pillow(picture: Tensor) -> Image.Image:
    return Image.fromarray(picture.permute(1, 2, 0).numpy())


def pixels(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def test_normalise_is_the_textbook_formula_for_any_dtype() -> None:
    spec = DataSpec("toy", 3, 16, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7), 2)
    x = pictures()
    want = (x.numpy() / 255 - np.reshape(spec.mean, (3, 1, 1))) / np.reshape(spec.std, (3, 1, 1))
    before = x.clone()
    for given_as in (x, x.float()):
        out = images.normalise(given_as, spec)
        assert out.dtype == torch.float32
        np.testing.assert_allclose(out.numpy(), want, atol=1e-6)
        assert torch.equal(given_as.to(torch.uint8), before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 8), (1, 28), (3, 32)])
def test_augment_keeps_shape_range_and_input_and_follows_its_generator(
    kind: images.Augment, channels: int, size: int
) -> None:
    x = pictures(5, channels, size)
    before, torchs_own = x.clone(), torch.get_rng_state()
    out = images.augment(x, kind, seeded(1))
    assert out.shape == x.shape
    assert 0 <= out.min().item() <= out.max().item() <= 255
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), torchs_own)
    assert torch.equal(out, images.augment(x, kind, seeded(1)))
    assert (kind == "none") == torch.equal(out, images.augment(x, kind, seeded(2)))


def test_crop_is_a_window_of_the_zero_padded_image() -> None:
    x = pictures(4, size=9)
    top, left = torch.tensor([0, 4, 2, 1]), torch.tensor([4, 0, 2, 3])
    mirrored = torch.tensor([False, True, False, True])
    out = images.crop(x, top, left, mirrored, 2)
    for i in range(4):
        padded = np.pad(x[i].numpy(), ((0, 0), (2, 2), (2, 2)))
        want = padded[:, top[i] : top[i] + 9, left[i] : left[i] + 9]
        assert np.array_equal(out[i], want[:, :, ::-1] if mirrored[i] else want)


@pytest.mark.parametrize(("size", "pad"), [(8, 1), (28, 3), (32, 4), (64, 4)])
def test_standard_shifts_evenly_over_its_range_and_mirrors_half(size: int, pad: int) -> None:
    x = torch.zeros(4000, 1, size, size, dtype=torch.uint8)
    middle = size // 2
    x[:, :, middle, middle] = 100  # a dot and, beside it, what tells left from right
    x[:, :, middle, middle + 1] = 200
    out = images.augment(x, "standard", seeded()).squeeze(1)
    row, column = out.flatten(1).argmax(1) // size, out.flatten(1).argmax(1) % size
    mirrored = out[torch.arange(4000), row, (column + 1).clamp(max=size - 1)] > 0
    assert abs(mirrored.float().mean().item() - 0.5) < 0.05
    moved = torch.bincount(row - middle + pad, minlength=2 * pad + 1)
    assert len(moved) == 2 * pad + 1
    assert moved.min().item() > 4000 / (2 * pad + 1) * 0.75
    across = torch.bincount(column[~mirrored] - middle - 1 + pad, minlength=2 * pad + 1)
    assert len(across) == 2 * pad + 1
    assert across.min().item() > 0.3 * 4000 / (2 * pad + 1)
    factors = out.flatten(1).max(1).values / 200
    assert factors.max().item() == pytest.approx(1 + 63 / 255, abs=0.005)
    assert factors.min().item() == pytest.approx(1 - 63 / 255, abs=0.005)
    assert factors.mean().item() == pytest.approx(1, abs=0.01)


def test_colour_operations_agree_with_pillow() -> None:
    x = pictures(4)
    factors = torch.tensor([0.6, 0.9, 1.2, 1.4])
    mean = images.grey(x).mean((1, 2, 3), keepdim=True)
    for enhance, out in (
        (ImageEnhance.Brightness, images.brighten(x, factors)),
        (ImageEnhance.Contrast, images.blend(x.float(), mean, factors)),
        (ImageEnhance.Color, images.blend(x.float(), images.grey(x), factors)),
    ):
        for i in range(4):
            want = pixels(enhance(pillow(x[i])).enhance(factors[i].item())).float()
            assert (out[i] - want).abs().max().item() < 1.5, enhance


def test_resized_crop_agrees_with_pillow() -> None:
    x = pictures(3, size=12)
    boxes = torch.tensor([[0.0, 0.0, 12.0, 12.0], [1.5, 3.0, 8.0, 6.5], [5.0, 0.0, 7.0, 9.0]])
    mirrored = torch.tensor([False, False, True])
    out = images.resized_crop(x, boxes, mirrored)
    torch.testing.assert_close(out[0], x[0].float(), rtol=0, atol=1e-3)
    for i in range(3):
        top, left, height, width = boxes[i].tolist()
        box = (left, top, left + width, top + height)
        want = pixels(pillow(x[i]).resize((12, 12), Image.Resampling.BILINEAR, box=box)).float()
        assert ((want.flip(2) if mirrored[i] else want) - out[i]).abs().max().item() < 1.5


def test_strong_covers_the_stated_areas_and_ratios() -> None:
    boxes = images._boxes(torch.zeros(5000, 1, 20, 20), seeded())
    top, left, height, width = boxes.unbind(1)
    area, ratio = height * width / 400, width / height
    assert 0.3 <= area.min().item() < 0.31
    assert 0.97 < area.max().item() <= 1 + 1e-6
    assert 0.75 <= ratio.min().item() + 1e-6 < 0.77
    assert 1.3 < ratio.max().item() <= 4 / 3 + 1e-6
    assert bool(((top >= 0) & (left >= 0) & (top + height <= 20.001)).all())
    assert bool((left + width <= 20.001).all())
    assert (top / (20 - height).clamp(min=1e-3)).mean().item() == pytest.approx(0.5, abs=0.03)


def test_strong_takes_the_colour_of_a_fifth_and_mirrors_half() -> None:
    x = torch.zeros(4000, 3, 8, 8, dtype=torch.uint8)
    x[:, 0, :, :4], x[:, 2, :, 4:] = 250, 250  # red on the left, blue on the right
    out = images.augment(x, "strong", seeded())
    colourless = (out.amax(1) - out.amin(1)).amax((1, 2)) < 1e-3
    assert colourless.float().mean().item() == pytest.approx(0.2, abs=0.02)
    red = (out[:, 0] - out[:, 2])[~colourless]
    mirrored = red[:, :, 0].mean(1) < red[:, :, -1].mean(1)
    assert mirrored.float().mean().item() == pytest.approx(0.5, abs=0.03)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8))
def test_rotate_turns_each_image_by_its_own_angle(turns: list[int]) -> None:
    x = pictures(len(turns), size=5)
    out = images.rotate(x, torch.tensor(turns))
    for picture, turned, k in zip(x, out, turns, strict=True):
        want = np.array(pillow(picture).rotate(90 * k))  # Pillow turns counter-clockwise, too
        assert np.array_equal(turned.permute(1, 2, 0), want)
    back = images.rotate(out.float(), (4 - torch.tensor(turns)) % 4)
    assert torch.equal(back, x.float())


def test_views_are_what_they_say() -> None:
    x = pictures(2, size=6)
    assert torch.equal(images.view(x, "plain"), x)
    assert np.array_equal(images.view(x, "mirror"), x.numpy()[:, :, :, ::-1])
    moved = np.pad(x.numpy(), ((0, 0), (0, 0), (2, 0), (2, 0)), mode="edge")[:, :, :6, :6]
    assert np.array_equal(images.view(x, "shift2"), moved)
    with pytest.raises(UsageError, match="out of sight"):
        images.view(x, "shift6")


def test_unknown_views_are_refused_with_the_nearest() -> None:
    images.check_views(["plain", "mirror", "shift1", "shift12"])
    with pytest.raises(UnknownName, match="Nearest: 'mirror'"):
        images.check_views(["plain", "miror"])
    for name in ("shift", "shift0", "shift-1", "shift02", "shift2 "):
        with pytest.raises(UnknownName, match="Nearest: 'shiftN'"):
            images.check_views([name])
    with pytest.raises(UsageError, match="empty"):
        images.check_views([])
