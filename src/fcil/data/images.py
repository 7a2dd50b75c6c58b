"""Image files to arrays of one size."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from fcil.data.dataset import Images
from fcil.errors import DataError, UsageError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".gif"})
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF")
WIDE_MODES = ("I", "F")
"""Beginnings of Pillow's modes with more than 8 bits, which would be clipped without a word."""


def decode(path: Path, size: int | None) -> Images:
    """An image as RGB, height x width x 3, upright as its EXIF orientation says.

    With a size, the shorter side is brought to it (bicubic) and the middle square is cut out.
    """
    try:
        with Image.open(path, formats=FORMATS) as file:
            if file.mode.startswith(WIDE_MODES):
                raise DataError(f"{path} has more than 8 bits a channel; convert it to 8 bits.")
            picture = ImageOps.exif_transpose(file).convert("RGB")
    except (
        EOFError,
        Image.DecompressionBombError,
        OSError,
        SyntaxError,  # how Pillow reports a broken PNG
        ValueError,
        struct.error,
    ) as why:
        raise DataError(
            f"{path} cannot be decoded as an image: {why}. It is cut short, damaged or in another "
            f"format than {', '.join(FORMATS)}. Fetch it again or take it out."
        ) from why
    return np.asarray(picture if size is None else _square(picture, size))


def stack(paths: Sequence[Path], size: int | None) -> Images:
    """Images one after another, uint8, images x 3 x side x side; decoded in threads.

    Without a size all must be squares of the same size.
    """
    side = size if size is not None else len(decode(paths[0], None))
    images = np.empty((len(paths), 3, side, side), dtype=np.uint8)

    def fill(row: int) -> None:
        pixels = decode(paths[row], size)
        if pixels.shape != (side, side, 3):
            raise UsageError(
                f"{paths[row]} is {pixels.shape[1]}x{pixels.shape[0]} pixels, not {side}x{side}: "
                "images differ in size or are not square. Set `data.size` to the side to which "
                "they shall be brought, as in data.size=224."
            )
        images[row] = pixels.transpose(2, 0, 1)

    with ThreadPoolExecutor() as pool:
        for _ in pool.map(fill, range(len(paths))):
            pass
    return images


def _square(picture: Image.Image, size: int) -> Image.Image:
    short = min(picture.size)
    if short != size:
        width, height = (side * size // short for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (round((side - size) / 2) for side in picture.size)
    return picture.crop((left, top, left + size, top + size))
