"""`check` lists everything at once and agrees with the readers on what can be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fcil.data import check as checking
from fcil.data import readers
from fcil.data.download import Finding, check
from fcil.errors import DataError, UnknownName, UsageError


def tree(root: Path) -> Path:
    for part in ("train", "test"):
        for name in ("ant", "bee"):
            folder = root / part / name
            folder.mkdir(parents=True)
            for n in range(3):
                Image.fromarray(np.full((4, 4, 3), n, np.uint8)).save(folder / f"{n}.png")
    return root


def test_a_sound_folder(tmp_path: Path) -> None:
    findings = check("folder", tree(tmp_path))
    assert all(finding.ok for finding in findings)
    assert [(f.subject, f.message) for f in findings] == [
        ("train set", "6 images of 2 classes, 3 to 3 a class"),
        ("test set", "6 images of 2 classes, 3 to 3 a class"),
        ("images", "12 of 12 decode"),
    ]


def test_every_problem_is_listed(tmp_path: Path) -> None:
    tree(tmp_path)
    broken = [tmp_path / "train" / "ant" / "0.png", tmp_path / "test" / "bee" / "2.png"]
    for path in broken:
        path.write_bytes(b"x")
    (tmp_path / "test" / "cow").mkdir()
    findings = check("folder", tmp_path)
    bad = [finding.subject for finding in findings if not finding.ok]
    assert bad == [str(tmp_path / "test" / "cow"), *map(str, broken), "images"]
    assert findings[-1].message == "10 of 12 decode"


def test_thousands_of_problems_are_cut_short(tmp_path: Path) -> None:
    tree(tmp_path)
    lines = "".join(f"c/{n}.png\n" for n in range(2000))
    (tmp_path / "train.txt").write_text(lines)
    (tmp_path / "test.txt").write_text("ant/0.png\n")
    findings = check("imagenet-r", tmp_path)
    assert len([f for f in findings if not f.ok]) == checking.MOST + 1
    assert "more problems" in findings[-1].message


@pytest.mark.parametrize(
    "name", ["cifar100", "fashion-mnist", "folder", "imagenet-r", "tiny-imagenet", "arrays"]
)
def test_an_empty_folder_fails_in_check_and_in_load(tmp_path: Path, name: str) -> None:
    findings = check(name, tmp_path)
    assert not all(finding.ok for finding in findings)
    with pytest.raises(DataError) as caught:
        readers.load(name, tmp_path)
    first = next(finding.message for finding in findings if not finding.ok)
    assert str(caught.value).startswith(first)


def test_every_file_of_fashion_mnist_is_named(tmp_path: Path) -> None:
    assert len([f for f in check("fashion-mnist", tmp_path) if not f.ok]) == 4


def test_sets_without_files_of_their_own_layout_are_read(tmp_path: Path) -> None:
    assert check("digits") == [
        Finding(True, "train set", "1,260 images of 10 classes, 122 to 128 a class"),
        Finding(True, "test set", "537 images of 10 classes, 52 to 55 a class"),
        Finding(True, "images", "1 x 8 x 8 pixels"),
    ]
    np.savez(tmp_path / "x.npz", x_train=np.zeros(3))
    [finding] = check("arrays", tmp_path)
    assert not finding.ok
    assert "lacks" in finding.message


def test_mistakes_of_the_user_are_no_findings(tmp_path: Path) -> None:
    with pytest.raises(UnknownName):
        check("cifar10", tmp_path)
    with pytest.raises(UsageError, match=r"data\.root"):
        check("cifar100")


@pytest.mark.real
def test_real_cifar_is_sound(cifar100_root: Path) -> None:
    findings = check("cifar100", cifar100_root)
    assert all(finding.ok for finding in findings)
    said = [finding.message for finding in findings]
    assert "153,700,000 bytes, md5 as published" in said
    assert "50,000 images of 100 classes, 500 to 500 a class" in said
    assert "10,000 images of 100 classes, 100 to 100 a class" in said
