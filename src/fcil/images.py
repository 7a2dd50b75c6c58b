"""Operations on batches of images, on the device the images are on.

Images are (B, C, H, W) with pixels from 0 to 255: uint8 as stored, float32 once a change of colour
made them fractional. Random operations draw each image's parameters from the given generator,
which lives on the images' device, and from nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Literal

import torch
from torch import Generator, Tensor
from torch.nn import functional

from fcil.errors import UnknownName, UsageError
from fcil.protocol import DataSpec

Augment = Literal["none", "crop-flip", "standard", "strong"]

PAD = 4
"""Pixels of zero around an image before the random crop, fewer below 32 pixels: an eighth."""
BRIGHTNESS = 63 / 255
"""`standard`: how far the factor of brightness strays from 1."""
COLOUR = 0.4
"""`strong`: how far the factors of brightness, contrast and saturation stray from 1."""
GREY = 0.2
"""`strong`: share of images that lose their colour."""
SCALE = (0.3, 1.0)
"""`strong`: share of the image's area that a crop covers."""
RATIO = (3 / 4, 4 / 3)
"""`strong`: width of a crop over its height."""
LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey."""


def normalise(images: Tensor, spec: DataSpec) -> Tensor:
    """What a network reads: pixels scaled to [0, 1], less the mean, over the deviation."""
    mean, std = _moments(spec, images.device)
    return (images / 255 - mean) / std


def augment(images: Tensor, kind: Augment, generator: Generator) -> Tensor:
    """Randomly changed images of the same size.

    `crop-flip`: a crop out of the zero-padded image, a mirror image half of the time.
    `standard`: the same, then brightness.
    `strong`: a crop of 0.3 to 1 of the area brought back to size, a mirror image half of the time,
    brightness, contrast and saturation in this order, and no colour for a fifth of the images;
    without three channels there is no saturation and no grey.
    """
    if kind == "none":
        return images
    if kind == "crop-flip":
        return _shifted_crop(images, generator)
    if kind == "standard":
        images = _shifted_crop(images, generator)
        return brighten(images, _factors(images, BRIGHTNESS, generator))
    boxes, mirrored = _boxes(images, generator), _coin(images, 0.5, generator)
    images = resized_crop(images, boxes, mirrored)
    images = brighten(images, _factors(images, COLOUR, generator))
    images = blend(
        images, grey(images).mean((1, 2, 3), keepdim=True), _factors(images, COLOUR, generator)
    )
    if images.shape[1] == 3:
        images = blend(images, grey(images), _factors(images, COLOUR, generator))
        colourless = _coin(images, GREY, generator)
        images = torch.where(_column(colourless), grey(images), images)
    return images


def crop(images: Tensor, top: Tensor, left: Tensor, mirrored: Tensor, pad: int) -> Tensor:
    """The window of the original size at (top, left) of the zero-padded image, mirrored or not."""
    count, _, height, width = images.shape
    padded = functional.pad(images, (pad, pad, pad, pad))
    rows = top[:, None] + torch.arange(height, device=images.device)
    columns = left[:, None] + torch.arange(width, device=images.device)
    columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    each = torch.arange(count, device=images.device)[:, None, None]
    return padded[each, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def resized_crop(images: Tensor, boxes: Tensor, mirrored: Tensor) -> Tensor:
    """Boxes (top, left, height, width, in pixels) brought to the image's size, bilinear."""
    top, left, height, width = boxes.unbind(1)
    rows, columns = images.shape[2:]
    x, y = _middles(left, width, columns), _middles(top, height, rows)
    x = torch.where(mirrored[:, None], x.flip(1), x)
    across, down = x[:, None, :].expand(-1, rows, -1), y[:, :, None].expand(-1, -1, columns)
    grid = torch.stack((across, down), dim=3)
    pixels = images.to(torch.float32)
    return functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)


def brighten(images: Tensor, factors: Tensor) -> Tensor:
    """Pixels times each image's factor, clamped to 0..255."""
    return (images * _column(factors)).clamp_(0, 255)


def blend(images: Tensor, other: Tensor, factors: Tensor) -> Tensor:
    """`other` + factor x (image - other), clamped to 0..255.

    Against the image's mean grey this is contrast, against the grey image saturation.
    """
    return torch.lerp(other.expand_as(images), images, _column(factors)).clamp_(0, 255)


def grey(images: Tensor) -> Tensor:
    """Brightness as one channel: weighted for three channels, else the mean of all."""
    if images.shape[1] != 3:
        return images.to(torch.float32).mean(1, keepdim=True)
    return LUMA[0] * images[:, :1] + LUMA[1] * images[:, 1:2] + LUMA[2] * images[:, 2:]


def rotate(images: Tensor, quarter_turns: Tensor) -> Tensor:
    """Each square image turned counter-clockwise by its own number (0 to 3) of quarter turns."""
    turned = torch.stack([torch.rot90(images, turns, (2, 3)) for turns in range(4)])
    return turned[quarter_turns, torch.arange(len(images), device=images.device)]


def check_views(names: Iterable[str]) -> None:
    """Complain about a view that does not exist, or about having none."""
    names = list(names)
    for name in names:
        _shift(name)
    if not names:
        raise UsageError("features.views is empty: name at least one view, as in ['plain'].")


def view(images: Tensor, name: str) -> Tensor:
    """One of the fixed ways to look at an image.

    `plain`: as it is. `mirror`: left and right exchanged. `shiftN`: moved N pixels down and N to
    the right; the first row and column are repeated in what becomes free.
    """
    shift = _shift(name)
    if name == "mirror":
        return images.flip(3)
    if shift >= min(images.shape[2:]):
        raise UsageError(
            f"The view {name!r} moves images of {images.shape[2]} x {images.shape[3]} pixels out "
            "of sight: take a smaller shift in `features.views`."
        )
    rows, columns = (
        (torch.arange(side, device=images.device) - shift).clamp_(min=0)
        for side in images.shape[2:]
    )
    return images[:, :, rows][:, :, :, columns] if shift else images


def _shift(name: str) -> int:
    """Pixels a view moves the image by."""
    if name in ("plain", "mirror"):
        return 0
    found = re.fullmatch(r"shift([1-9]\d{0,3})", name)
    if not found:
        raise UnknownName("view", name, ("plain", "mirror", "shiftN"))
    return int(found[1])


def _shifted_crop(images: Tensor, generator: Generator) -> Tensor:
    pad = min(PAD, max(1, images.shape[-1] // 8))
    top, left = torch.randint(
        2 * pad + 1, (2, len(images)), generator=generator, device=images.device
    )
    return crop(images, top, left, _coin(images, 0.5, generator), pad)


def _boxes(images: Tensor, generator: Generator) -> Tensor:
    """Random crops: of ten draws the first that fits into the image, else one cut to it."""
    count, _, rows, columns = images.shape
    area, ratio, top, left = torch.rand(4, count, 10, generator=generator, device=images.device)
    area = (SCALE[0] + (SCALE[1] - SCALE[0]) * area) * rows * columns
    ratio = RATIO[0] * (RATIO[1] / RATIO[0]) ** ratio
    height, width = (area / ratio).sqrt(), (area * ratio).sqrt()
    fits = (height <= rows) & (width <= columns)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    height, width = (
        height.gather(1, first).clamp(max=rows),
        width.gather(1, first).clamp(max=columns),
    )
    top, left = top.gather(1, first) * (rows - height), left.gather(1, first) * (columns - width)
    return torch.cat([top, left, height, width], dim=1)


@cache
def _moments(spec: DataSpec, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and deviation on a device; kept, since bringing them there waits for the device."""
    mean, std = torch.tensor((spec.mean, spec.std), device=device)[:, :, None, None]
    return mean, std


def _middles(start: Tensor, length: Tensor, count: int) -> Tensor:
    """Middles of `count` equal pieces of each stretch, in grid_sample's scale: -1 to 1 an image."""
    pieces = (torch.arange(count, device=start.device) + 0.5) / count
    return (start[:, None] + length[:, None] * pieces) * (2 / count) - 1


def _factors(images: Tensor, spread: float, generator: Generator) -> Tensor:
    """One factor an image, uniform in 1 +- spread."""
    drawn = torch.rand(len(images), generator=generator, device=images.device)
    return 1 + spread * (2 * drawn - 1)


def _coin(images: Tensor, share: float, generator: Generator) -> Tensor:
    """One truth value an image, true with the given probability."""
    return torch.rand(len(images), generator=generator, device=images.device) < share


def _column(values: Tensor) -> Tensor:
    """One value an image, shaped to go with images."""
    return values.view(-1, 1, 1, 1)
