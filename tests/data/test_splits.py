"""ImageNet-R by published lists, by text lists and by folders, on images made here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fcil.data import readers, splits
from fcil.data.images import decode
from fcil.errors import DataError, UsageError

TRAIN = [("n01", "art_0"), ("n02", "toy_1"), ("n02", "art_0"), ("n01", "misc_7")]
TEST = [("n02", "sketch_3"), ("n01", "art_5")]


@pytest.fixture
def renditions(tmp_path: Path) -> Path:
    """Original class folders, images of varying size, no split."""
    for n, (wnid, name) in enumerate(TRAIN + TEST):
        pixels = np.random.RandomState(n).randint(0, 256, (20 + n, 30 - n, 3)).astype(np.uint8)
        path = tmp_path / "imagenet-r" / wnid / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return tmp_path


def write_lists(
    folder: Path, prefix: str = "data/imagenet-r/train/", labels: tuple[int, int] = (0, 1)
) -> None:
    """Split lists in the published form: the folder named in them is the publisher's own."""
    for part, rows in (("train", TRAIN), ("test", TEST)):
        data = "".join(f"- {prefix}{wnid}/{name}.jpg\n" for wnid, name in rows)
        targets = "".join(f"- {labels[wnid == 'n02']}\n" for wnid, _ in rows)
        (folder / f"imagenet-r_{part}.yaml").write_text(f"data:\n{data}targets:\n{targets}")


@pytest.mark.parametrize("prefix", ["data/imagenet-r/train/", "data/imagenet-r/", ""])
@pytest.mark.parametrize("inside", [True, False])
def test_imagenet_r_by_the_published_lists(renditions: Path, prefix: str, inside: bool) -> None:
    write_lists(renditions / "imagenet-r" if inside else renditions, prefix)
    data = readers.load("imagenet-r", renditions, 16)
    assert data.train_labels.tolist() == [0, 1, 1, 0]
    assert data.test_labels.tolist() == [1, 0]
    assert data.class_names == ("n01", "n02")
    assert data.mean == (0.485, 0.456, 0.406)
    for row, (wnid, name) in enumerate(TRAIN):
        expected = decode(renditions / "imagenet-r" / wnid / f"{name}.jpg", 16)
        np.testing.assert_array_equal(data.train_images[row].transpose(1, 2, 0), expected)


def test_imagenet_r_by_lists_over_moved_folders(renditions: Path) -> None:
    """Some copies hold another split's train/ and test/ folders; the list decides."""
    base = renditions / "imagenet-r"
    for n, (wnid, name) in enumerate(TRAIN + TEST):
        place = base / ("test" if n % 2 else "train") / wnid / f"{name}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        (base / wnid / f"{name}.jpg").rename(place)
    write_lists(base)
    data = readers.load("imagenet-r", renditions, 16)
    assert data.train_labels.tolist() == [0, 1, 1, 0]


def test_imagenet_r_labels_are_the_lists_own(renditions: Path) -> None:
    write_lists(renditions, labels=(1, 0))
    data = readers.load("imagenet-r", renditions, 16)
    assert data.class_names == ("n02", "n01")
    assert data.train_labels.tolist() == [1, 0, 0, 1]


def test_imagenet_r_by_text_lists(renditions: Path) -> None:
    for part, rows in (("train", TRAIN), ("test", TEST)):
        text = "".join(f"{wnid}/{name}.jpg\n" for wnid, name in rows)
        (renditions / f"{part}.txt").write_text(text + "\n")
    expected = readers.load("imagenet-r", renditions, 16)
    write_lists(renditions)
    assert readers.load("imagenet-r", renditions, 16).fingerprint == expected.fingerprint


def test_imagenet_r_by_class_folders(renditions: Path) -> None:
    base = renditions / "imagenet-r"
    for part, rows in (("train", TRAIN), ("test", TEST)):
        for wnid, name in rows:
            place = base / part / wnid / f"{name}.jpg"
            place.parent.mkdir(parents=True, exist_ok=True)
            (base / wnid / f"{name}.jpg").rename(place)
    data = readers.load("imagenet-r", renditions, 16)
    assert data.train_labels.tolist() == [0, 0, 1, 1]
    assert data.name == "imagenet-r"
    with pytest.raises(UsageError, match=r"data\.size"):
        readers.load("imagenet-r", renditions)


def test_imagenet_r_without_a_split_or_at_all(renditions: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"2 class folders.*imagenet-r_train\.yaml.*CODA-Prompt"):
        readers.load("imagenet-r", renditions, 16)
    with pytest.raises(DataError, match=r"hendrycks/imagenet-r\.tar"):
        readers.load("imagenet-r", tmp_path / "nowhere", 16)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("data:\n- /etc/n01/art_0.jpg\ntargets:\n- 0\n", "does not lead to CLASS/FILE"),
        ("data:\n- ../n01/art_0.jpg\ntargets:\n- 0\n", "does not lead to CLASS/FILE"),
        ("data:\n- n01/../../n01/art_0.jpg\ntargets:\n- 0\n", "does not lead to CLASS/FILE"),
        ("data:\n- art_0.jpg\ntargets:\n- 0\n", "does not lead to CLASS/FILE"),
        ("data:\n- n01/gone.jpg\ntargets:\n- 0\n", "no file for 'n01/gone.jpg'"),
        ("data:\n- n02/sketch_3.jpg\ntargets:\n- 1\n", "is in both split lists"),
        ("data:\n- n01/art_0.jpg\n- n01/art_0.jpg\ntargets:\n- 0\n- 0\n", "a split list twice"),
        ("data:\n- n01/art_0.jpg\ntargets:\n- 1\n", "one label of its own"),
        ("data:\n- n01/art_0.jpg\ntargets:\n- 7\n", "one label of its own"),
        ("data:\n- n01/art_0.jpg\ntargets:\n- 0\n- 0\n", "1 paths and 2 labels"),
        ("data:\n- n01/art_0.jpg\ntargets:\n- -1\n", "one number for each path"),
        ("data:\n- n01/art_0.jpg\n", "1 paths and 0 labels"),
        ("", "0 paths"),
        ("data: !!python/object/apply:os.system ['x']\n", "line 1: .*is neither"),
        ("- n01/art_0.jpg\n", "line 1: .*is neither"),
        ("data:\ndata:\n", "line 2: .*is neither"),
    ],
)
def test_imagenet_r_with_wrong_lists(renditions: Path, text: str, said: str) -> None:
    write_lists(renditions)
    (renditions / "imagenet-r_train.yaml").write_text(text)
    with pytest.raises(DataError, match=said):
        readers.load("imagenet-r", renditions, 16)


def test_a_list_alone_is_not_enough(renditions: Path) -> None:
    write_lists(renditions)
    (renditions / "imagenet-r_test.yaml").unlink()
    with pytest.raises(DataError, match=r"no file .*imagenet-r_test\.yaml"):
        readers.load("imagenet-r", renditions, 16)
    (renditions / "imagenet-r_train.yaml").unlink()
    (renditions / "train.txt").write_text("\n")
    with pytest.raises(DataError, match=r"train\.txt is empty"):
        readers.load("imagenet-r", renditions, 16)


def test_list_values_may_be_quoted(tmp_path: Path) -> None:
    path = tmp_path / "list.yaml"
    path.write_text(
        "# made by hand\ndata:\n  - 'a/1.jpg'\n  - \"b/2.jpg\"\n\ntargets:\n  - '0'\n  - 1\n"
    )
    assert splits.read_list(path) == (["a/1.jpg", "b/2.jpg"], [0, 1])


def test_lists_as_pyyaml_writes_them(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    content = {
        "data": [f"data/imagenet-r/n0{n}/art_{n}.jpg" for n in range(9)],
        "targets": [*range(9)],
    }
    (tmp_path / "list.yaml").write_text(yaml.dump(content, default_flow_style=False))
    assert splits.read_list(tmp_path / "list.yaml") == (content["data"], content["targets"])
