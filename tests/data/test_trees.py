"""Data sets of image files, made here: class folders and Tiny-ImageNet."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fcil.data import readers
from fcil.data.images import decode, stack
from fcil.errors import DataError, UsageError


def picture(seed: int, height: int = 8, width: int = 8) -> NDArray[np.uint8]:
    return np.random.RandomState(seed).randint(0, 256, (height, width, 3)).astype(np.uint8)


def save(path: Path, pixels: NDArray[np.uint8], **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)  # type: ignore[arg-type]
    return path


# one image ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["png", "webp", "bmp", "ppm"])
def test_lossless_formats_come_back_bit_for_bit(tmp_path: Path, suffix: str) -> None:
    options = {"lossless": True} if suffix == "webp" else {}
    path = save(tmp_path / f"x.{suffix}", picture(0), **options)
    np.testing.assert_array_equal(decode(path, None), picture(0))


@pytest.mark.parametrize("suffix", ["jpg", "JPEG", "gif"])
def test_lossy_formats_come_back_in_colour(tmp_path: Path, suffix: str) -> None:
    flat = np.full((8, 8, 3), (200, 30, 90), np.uint8)
    pixels = decode(save(tmp_path / f"x.{suffix}", flat), None).astype(int)
    assert abs(pixels - (200, 30, 90)).max() <= 4


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA", "CMYK", "LA"])
def test_every_mode_becomes_three_channels(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("x.jpg" if mode == "CMYK" else "x.png")
    Image.fromarray(picture(0)).convert(mode).save(path)
    pixels = decode(path, None)
    assert pixels.shape == (8, 8, 3)
    if mode == "L":
        assert (pixels[..., 0] == pixels[..., 1]).all()


def test_sixteen_bits_are_not_clipped_in_silence(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(tmp_path / "x.png")
    with pytest.raises(DataError, match=r"x\.png has more than 8 bits"):
        decode(tmp_path / "x.png", None)


def test_exif_orientation_is_honoured(tmp_path: Path) -> None:
    upright = picture(0, 4, 6)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show rotated by 90 degrees clockwise
    path = tmp_path / "x.png"
    Image.fromarray(np.rot90(upright)).save(path, exif=exif)
    np.testing.assert_array_equal(decode(path, None), upright)


@pytest.mark.parametrize(("height", "width"), [(8, 20), (20, 8), (8, 8)])
def test_the_middle_square_is_cut_out(tmp_path: Path, height: int, width: int) -> None:
    whole = picture(0, height, width)
    pixels = decode(save(tmp_path / "x.png", whole), 8)
    top, left = (height - 8) // 2, (width - 8) // 2
    np.testing.assert_array_equal(pixels, whole[top : top + 8, left : left + 8])


@pytest.mark.parametrize(("height", "width"), [(16, 31), (31, 16), (5, 7), (640, 3)])
@pytest.mark.parametrize("size", [1, 8, 9])
def test_the_shorter_side_is_brought_to_the_size(
    tmp_path: Path, height: int, width: int, size: int
) -> None:
    ramp = np.linspace(0, 255, width)[None, :, None] + np.zeros((height, 1, 3))
    pixels = decode(save(tmp_path / "x.png", ramp.astype(np.uint8)), size)
    assert pixels.shape == (size, size, 3)
    if width >= height and size > 1:
        assert (np.diff(pixels[0, :, 0].astype(int)) >= 0).all()
        assert abs(pixels.mean() - 127) < 16  # the middle of the ramp


def test_resizing_is_pillows_bicubic(tmp_path: Path) -> None:
    whole = picture(0, 24, 40)
    resized = Image.fromarray(whole).resize((20, 12), Image.Resampling.BICUBIC)
    expected = np.asarray(resized)[:, 4:16]
    np.testing.assert_array_equal(decode(save(tmp_path / "x.png", whole), 12), expected)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "bmp", "ppm"])
def test_a_damaged_file_is_named(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"broken.{suffix}", picture(0, 40, 40))
    whole = path.read_bytes()
    for cut in (0, 1, 9, 20, len(whole) // 2):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=rf"broken\.{suffix} cannot be decoded"):
            decode(path, None)
    path.write_bytes(b"no image at all" * 20)
    with pytest.raises(DataError, match=rf"broken\.{suffix} cannot be decoded"):
        decode(path, None)


def test_many_images_keep_their_order(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{n}.png", picture(n)) for n in range(50)]
    images = stack(paths, None)
    for n in range(50):
        np.testing.assert_array_equal(images[n].transpose(1, 2, 0), picture(n))


def test_one_bad_file_does_not_wait_for_the_rest(tmp_path: Path) -> None:
    good = save(tmp_path / "good.png", picture(0, 400, 400))
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"x")
    begin = time.perf_counter()
    decode(good, 200)
    once = time.perf_counter() - begin
    begin = time.perf_counter()
    with pytest.raises(DataError, match=r"bad\.png"):
        stack([bad, *[good] * 3000], 200)
    assert time.perf_counter() - begin < 300 * once + 1


# class folders -----------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for label, name in enumerate(("ant", "bee", "cow")):
        for n in range(4):
            save(tmp_path / "train" / name / f"{n}.png", picture(10 * label + n))
        for n in range(2):
            save(tmp_path / "test" / name / f"{n}.png", picture(100 + 10 * label + n))
    return tmp_path


def test_class_folders(tree: Path) -> None:
    (tree / "train" / "ant" / "notes.txt").write_text("no image")
    (tree / "train" / "ant" / "._0.png").write_bytes(b"left by another system")
    (tree / "train" / ".cache").mkdir()
    data = readers.load("folder", tree)
    assert data.class_names == ("ant", "bee", "cow")
    assert data.train_labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.test_labels.tolist() == [0, 0, 1, 1, 2, 2]
    for row, seed in enumerate((0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23)):
        np.testing.assert_array_equal(data.train_images[row].transpose(1, 2, 0), picture(seed))
    np.testing.assert_array_equal(data.test_images[2].transpose(1, 2, 0), picture(110))
    pixels = data.train_images / 255
    np.testing.assert_allclose(data.mean, pixels.mean(axis=(0, 2, 3)))
    np.testing.assert_allclose(data.std, pixels.std(axis=(0, 2, 3)))


def test_the_test_folder_may_be_called_val(tree: Path) -> None:
    expected = readers.load("folder", tree).fingerprint
    (tree / "test").rename(tree / "val")
    assert readers.load("folder", tree).fingerprint == expected


def test_images_of_varying_size_need_a_size(tree: Path) -> None:
    odd = save(tree / "train" / "bee" / "9.png", picture(0, 16, 24))
    with pytest.raises(UsageError, match=rf"{odd.name} is 24x16 pixels, not 8x8.*data\.size=224"):
        readers.load("folder", tree)
    assert readers.load("folder", tree, 12).train_images.shape == (13, 3, 12, 12)


def test_train_and_test_of_different_size_need_one_too(tree: Path) -> None:
    for path in (tree / "test").rglob("*.png"):
        save(path, picture(0, 16, 16))
    with pytest.raises(DataError, match="3x8x8 and test images 3x16x16"):
        readers.load("folder", tree)
    assert readers.load("folder", tree, 8).size == 8


def test_an_undecodable_file_is_named(tree: Path) -> None:
    bad = tree / "test" / "cow" / "1.png"
    bad.write_bytes(bad.read_bytes()[:40])
    with pytest.raises(DataError, match=str(bad)):
        readers.load("folder", tree)


def remove(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda root: remove(root / "train" / "bee"),
            "train set .* 1 of them without an image: bee",
        ),
        (lambda root: remove(root / "test" / "bee"), "test set .* 1 of them without an image: bee"),
        (lambda root: save(root / "test" / "dog" / "0.png", picture(0)), "dog is a class that"),
        (lambda root: (root / "train").rename(root / "x"), r"no folder .*train\. Put training"),
        (lambda root: (root / "test").rename(root / "x"), r"no folder .*test\. Put training"),
    ],
)
def test_incomplete_trees(tree: Path, damage: Callable[[Path], object], said: str) -> None:
    damage(tree)
    with pytest.raises(DataError, match=said):
        readers.load("folder", tree)


def test_empty_trees(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    with pytest.raises(DataError, match=r"train set holds no images.*One of 2 problems"):
        readers.load("folder", tmp_path)


# Tiny-ImageNet -----------------------------------------------------------------------------------


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    base = tmp_path / "tiny-imagenet-200"
    wnids = ("n03", "n01", "n02")  # not sorted, as in the official file
    for c, wnid in enumerate(wnids):
        for n in range(3):
            grey = picture(10 * c + n)[..., 0] if n == 2 else picture(10 * c + n)
            save(base / "train" / wnid / "images" / f"{wnid}_{n}.JPEG", grey)
        (base / "train" / wnid / f"{wnid}_boxes.txt").write_text("x\t0\t0\t1\t1\n")
    (base / "wnids.txt").write_text("\n".join(wnids) + "\n")
    (base / "words.txt").write_text("n01\tgoldfish, Carassius\nn02\ttoad\nn99\tother\n")
    lines = []
    for n, wnid in enumerate(("n02", "n03", "n01", "n02", "n01")):
        save(base / "val" / "images" / f"val_{n}.JPEG", picture(50 + n))
        lines.append(f"val_{n}.JPEG\t{wnid}\t0\t32\t44\t62\n")
    (base / "val" / "val_annotations.txt").write_text("".join(lines))
    return tmp_path


def test_tiny_imagenet(tiny: Path) -> None:
    data = readers.load("tiny-imagenet", tiny)
    assert data.class_names == ("goldfish", "toad", "n03")
    assert data.train_labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert data.test_labels.tolist() == [1, 2, 0, 1, 0]
    assert data.mean == (0.4802, 0.4481, 0.3975)
    assert data.std == (0.2302, 0.2265, 0.2262)
    images = tiny / "tiny-imagenet-200" / "train" / "n01" / "images"
    first = np.asarray(Image.open(images / "n01_0.JPEG").convert("RGB"))
    np.testing.assert_array_equal(data.train_images[0].transpose(1, 2, 0), first)
    assert (data.train_images[2, 0] == data.train_images[2, 2]).all()  # grey became colour
    inside = readers.load("tiny-imagenet", tiny / "tiny-imagenet-200")
    assert inside.fingerprint == data.fingerprint


def test_tiny_imagenet_without_its_lists(tiny: Path) -> None:
    expected = readers.load("tiny-imagenet", tiny)
    (tiny / "tiny-imagenet-200" / "wnids.txt").unlink()
    (tiny / "tiny-imagenet-200" / "words.txt").unlink()
    data = readers.load("tiny-imagenet", tiny)
    assert data.class_names == ("n01", "n02", "n03")
    np.testing.assert_array_equal(data.test_labels, expected.test_labels)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("val_0.JPEG n02\n", "line 1: .* does not name a file"),
        ("val_0.JPEG\tn77\t0\t0\t1\t1\n", "line 1: .*n77"),
        ("../../x.JPEG\tn01\t0\t0\t1\t1\n", "line 1: .*does not name a file"),
        ("val_9.JPEG\tn01\t0\t0\t1\t1\n", r"no file .*val_9\.JPEG, but val_annotations"),
    ],
)
def test_tiny_imagenet_with_wrong_annotations(tiny: Path, line: str, said: str) -> None:
    (tiny / "tiny-imagenet-200" / "val" / "val_annotations.txt").write_text(line)
    with pytest.raises(DataError, match=said):
        readers.load("tiny-imagenet", tiny)


def test_tiny_imagenet_incomplete(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(DataError, match=r"cs231n\.stanford\.edu/tiny-imagenet-200\.zip"):
        readers.load("tiny-imagenet", empty)
    base = tiny / "tiny-imagenet-200"
    remove(base / "train" / "n02" / "images")
    with pytest.raises(DataError, match="1 of them without an image: toad"):
        readers.load("tiny-imagenet", tiny)
    (base / "val" / "val_annotations.txt").unlink()
    with pytest.raises(DataError, match=r"val_annotations\.txt cannot be read"):
        readers.load("tiny-imagenet", tiny)
