"""Readers of single files: digits, arrays, Fashion-MNIST, CIFAR-100 in both archives."""

from __future__ import annotations

import collections
import copyreg
import gzip
import hashlib
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from fcil import registry
from fcil.data import cifar, idx, readers
from fcil.data.dataset import Dataset
from fcil.data.sources import SOURCES, Remote
from fcil.errors import DataError, UnknownName, UsageError

# digits ------------------------------------------------------------------------------------------


def test_digits_are_scikit_learns_split_for_good() -> None:
    data = readers.load("digits")
    assert data.train_images.shape == (1260, 1, 8, 8)
    assert data.test_images.shape == (537, 1, 8, 8)
    assert data.train_images.max() == 255
    assert data.train_images.min() == 0
    held = np.bincount(data.train_labels) / (
        np.bincount(data.train_labels) + np.bincount(data.test_labels)
    )
    assert (abs(held - 0.7) < 0.01).all()
    assert data.fingerprint[:16] == DIGITS


DIGITS = "851b485d41f1c604"


def test_digits_hold_scikit_learns_pixels() -> None:
    from sklearn.datasets import load_digits

    data = readers.digits()
    pixels, labels = load_digits(return_X_y=True)
    theirs = collections.Counter(
        (int(y), tuple(x.astype(int))) for x, y in zip(pixels, labels, strict=True)
    )
    ours: collections.Counter[Any] = collections.Counter()
    for images, ys in (
        (data.train_images, data.train_labels),
        (data.test_images, data.test_labels),
    ):
        back = np.rint(images.reshape(-1, 64) / 255 * 16).astype(int)
        ours.update((int(y), tuple(x)) for x, y in zip(back, ys, strict=True))
    assert ours == theirs


def test_reading_imports_no_torch() -> None:
    code = (
        "import sys, fcil.data.download, fcil.data.partition, fcil.data.tasks\n"
        "from fcil.data.readers import load\n"
        "load('digits')\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_registered_reader_can_be_found() -> None:
    ours = {"arrays", "cifar100", "digits", "fashion-mnist", "folder", "imagenet-r"}
    assert ours | {"tiny-imagenet"} <= set(registry.names("datasets"))
    for name in ours | {"tiny-imagenet"}:
        assert callable(registry.find("datasets", name))


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Nearest: 'cifar100'"):
        readers.load("cifar10")


@pytest.mark.parametrize("name", ["cifar100", "fashion-mnist", "folder", "arrays", "imagenet-r"])
def test_a_missing_root_is_a_missing_setting(name: str) -> None:
    with pytest.raises(UsageError, match=r"data\.root"):
        readers.load(name)


def test_a_size_of_its_own_cannot_be_changed() -> None:
    with pytest.raises(UsageError, match=r"data\.size = 32 is not possible with digits"):
        readers.load("digits", size=32)


# arrays ------------------------------------------------------------------------------------------


def parts(**changes: Any) -> dict[str, Any]:
    rng = np.random.RandomState(0)
    plain = {
        "x_train": rng.randint(0, 256, (8, 6, 6, 3)).astype(np.uint8),
        "y_train": np.arange(8) % 2,
        "x_test": rng.randint(0, 256, (4, 6, 6, 3)).astype(np.uint8),
        "y_test": np.arange(4) % 2,
    }
    return {key: value for key, value in {**plain, **changes}.items() if value is not None}


@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "NHW", "NHW1"])
def test_arrays_in_every_layout(tmp_path: Path, layout: str) -> None:
    content = parts()
    expected = content["x_train"].transpose(0, 3, 1, 2)
    for key in ("x_train", "x_test"):
        if layout == "NCHW":
            content[key] = content[key].transpose(0, 3, 1, 2)
        elif layout == "NHW":
            content[key] = content[key][..., 0]
        elif layout == "NHW1":
            content[key] = content[key][..., :1]
    np.savez(tmp_path / "mine.npz", **content)
    data = readers.load("arrays", tmp_path)
    expected = expected if layout in ("NHWC", "NCHW") else expected[:, :1]
    np.testing.assert_array_equal(data.train_images, expected)
    assert data.train_images.flags.c_contiguous
    assert data.train_labels.dtype == np.int64
    assert (data.name, data.class_names) == ("mine", ("0", "1"))
    assert data.mean[0] == pytest.approx(expected[:, 0].mean() / 255, rel=1e-12)


def test_arrays_may_bring_names_and_normalisation(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    extra = {"class_names": np.array(["cat", "dog"]), "mean": np.array([0.1, 0.2, 0.3])}
    np.savez(path, **parts(**extra, std=np.array([0.4, 0.5, 0.6], np.float32)))
    data = readers.load("arrays", path)
    assert data.class_names == ("cat", "dog")
    assert data.mean == (0.1, 0.2, 0.3)
    assert data.std == pytest.approx((0.4, 0.5, 0.6))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x_train": np.zeros((8, 6, 6), np.float32)}, r"float32.*numpy.rint\(255 \* x\)"),
        ({"x_train": np.zeros((8, 6, 6, 4), np.uint8)}, r"shape \(8, 6, 6, 4\)"),
        ({"x_train": np.zeros((8, 36), np.uint8)}, r"shape \(8, 36\)"),
        ({"y_test": None, "x_test": None}, "lacks x_test, y_test; it holds x_train, y_train"),
        ({"y_train": np.zeros(8)}, "float64"),
        ({"y_train": np.zeros((8, 2), int)}, r"\(8, 2\)"),
        ({"y_train": np.zeros(8, int), "y_test": np.zeros(4, int) + 1}, "there are 1 classes"),
        ({"y_train": np.array(["a"] * 8, dtype=object)}, "Python objects"),
        ({"x_train": np.zeros((0, 6, 6, 3), np.uint8), "y_train": np.zeros(0, int)}, "no pixels"),
        ({"mean": np.array(["a", "b", "c"])}, "mean is <U1"),
    ],
)
def test_arrays_that_are_wrong(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    np.savez(tmp_path / "mine.npz", **parts(**changes))
    with pytest.raises(DataError, match=said):
        readers.load("arrays", tmp_path)


def test_arrays_missing_or_damaged(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \.npz file.*numpy\.savez"):
        readers.load("arrays", tmp_path)
    path = tmp_path / "mine.npz"
    np.savez(path, **parts())
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=r"mine\.npz"):
            readers.load("arrays", path)
    (tmp_path / "second.npz").write_bytes(whole)
    with pytest.raises(DataError, match=r"2 \.npz files"):
        readers.load("arrays", tmp_path)
    np.save(tmp_path / "plain.npy", np.zeros(3))
    (tmp_path / "plain.npy").rename(path)
    with pytest.raises(DataError, match=r"mine\.npz"):
        readers.load("arrays", path)


# Fashion-MNIST -----------------------------------------------------------------------------------


def idx_bytes(values: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


@pytest.fixture
def fashion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small data set in Fashion-MNIST's form, with checksums to match."""
    rng = np.random.RandomState(0)
    monkeypatch.setattr(idx, "ROWS", {"train": 40, "t10k": 20})
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    remotes = []
    for part, n in idx.ROWS.items():
        for what, values in (
            ("images-idx3", rng.randint(0, 256, (n, 28, 28))),
            ("labels-idx1", np.arange(n) % 10),
        ):
            path = folder / f"{part}-{what}-ubyte.gz"
            path.write_bytes(gzip.compress(idx_bytes(values.astype(np.uint8)), mtime=0))
            remotes.append(Remote(path.name, hashlib.md5(path.read_bytes()).hexdigest()))
    source = SOURCES["fashion-mnist"]
    changed = type(source)(**{**vars(source), "remotes": tuple(remotes)})
    monkeypatch.setitem(SOURCES, "fashion-mnist", changed)
    return tmp_path


def test_fashion_mnist_is_read(fashion: Path) -> None:
    data = readers.load("fashion-mnist", fashion)
    rng = np.random.RandomState(0)
    np.testing.assert_array_equal(data.train_images[:, 0], rng.randint(0, 256, (40, 28, 28)))
    np.testing.assert_array_equal(data.test_labels, np.arange(20) % 10)
    assert data.class_names[9] == "Ankle boot"
    assert readers.load("fashion-mnist", fashion / "fashion-mnist").fingerprint == data.fingerprint


def test_fashion_mnist_unpacked_is_the_same(fashion: Path) -> None:
    expected = readers.load("fashion-mnist", fashion).fingerprint
    for path in (fashion / "fashion-mnist").glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert readers.load("fashion-mnist", fashion).fingerprint == expected


def test_fashion_mnist_missing_says_what_and_where(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        readers.load("fashion-mnist", tmp_path)
    for said in (
        str(tmp_path / "fashion-mnist" / "train-images-idx3-ubyte.gz"),
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/t10k-labels-idx1-ubyte.gz",
        f"fcil data get fashion-mnist --root {tmp_path}",
        "bef4ecab320f06d8554ea6380940ec79",
    ):
        assert said in str(caught.value)


def test_fashion_mnist_wrong_checksum(fashion: Path) -> None:
    path = fashion / "fashion-mnist" / "t10k-images-idx3-ubyte.gz"
    right = hashlib.md5(path.read_bytes()).hexdigest()
    path.write_bytes(path.read_bytes()[:-5])
    found = hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(DataError, match=f"{path.name}.*has md5 {found} instead of {right}"):
        readers.load("fashion-mnist", fashion)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "begins with nothing"),
        (b"\x00\x00\x08\x01" + bytes(100), "begins with 00000801 instead of 00000803"),
        (struct.pack(">4B3I", 0, 0, 8, 3, 2, 28, 28), r"\(2, 28, 28\) values instead of"),
        (struct.pack(">4B2I", 0, 0, 8, 3, 40, 28), r"\(40, 28\) values instead of \(40, 28, 28\)"),
        (struct.pack(">4B3I", 0, 0, 8, 3, 40, 28, 28) + bytes(9), "9 bytes after its header"),
    ],
)
def test_broken_idx_files(fashion: Path, content: bytes, said: str) -> None:
    folder = fashion / "fashion-mnist"
    (folder / "train-images-idx3-ubyte.gz").unlink()
    (folder / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(DataError, match=said):
        readers.load("fashion-mnist", fashion)


def test_a_truncated_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros(1000, np.uint8)))[:-6])
    with pytest.raises(DataError, match=r"x\.gz cannot be read"):
        idx.read_idx(path, (1000,))


# CIFAR-100 ---------------------------------------------------------------------------------------


class Python2Pickler(pickle._Pickler):
    """Writes texts as Python 2 did: 8-bit strings."""

    dispatch: ClassVar[Any] = dict(pickle._Pickler.dispatch)

    def save_python2(self, text: str | bytes) -> None:
        raw = text.encode("latin1") if isinstance(text, str) else text
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)  # type: ignore[attr-defined]
        self.memoize(text)  # type: ignore[attr-defined]

    dispatch[str] = dispatch[bytes] = save_python2


def python2(path: Path, content: Any) -> None:
    """A pickle as in the official archive."""
    with path.open("wb") as file:
        Python2Pickler(file, protocol=2).dump(content)
    raw = path.read_bytes().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    path.write_bytes(raw)


def python3(protocol: int) -> Any:
    def write(path: Path, content: Any) -> None:
        path.write_bytes(pickle.dumps(content, protocol=protocol))

    return write


WRITERS = {"python2": python2, "protocol 2": python3(2), "protocol 4": python3(4)}


@pytest.fixture
def slice_of_cifar(monkeypatch: pytest.MonkeyPatch) -> dict[str, NDArray[np.uint8]]:
    """Made-up images in CIFAR's binary form, which the reader takes for the official ones."""
    rng = np.random.RandomState(0)
    rows = {}
    for part, n in (("train", 200), ("test", 100)):
        fine = rng.permutation(np.arange(n) % 100)
        pixels = rng.randint(0, 256, (n, 3072))
        rows[part] = np.hstack([fine[:, None] // 5, fine[:, None], pixels]).astype(np.uint8)
    sums = {part: hashlib.md5(value.tobytes()).hexdigest() for part, value in rows.items()}
    monkeypatch.setattr(cifar, "MD5", sums)
    monkeypatch.setattr(cifar, "ROWS", {part: len(value) for part, value in rows.items()})
    return rows


NAMES = [f"name{n}" for n in range(100)]


def write_binary(root: Path, rows: dict[str, NDArray[np.uint8]]) -> Path:
    folder = root / "cifar-100-binary"
    folder.mkdir()
    for part, values in rows.items():
        (folder / f"{part}.bin").write_bytes(values.tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(NAMES) + "\n\n")
    return folder


def write_python(root: Path, rows: dict[str, NDArray[np.uint8]], write: Any = python2) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir()
    for part, values in rows.items():
        content = {
            "filenames": [f"image_{n}.png" for n in range(len(values))],
            "batch_label": f"{part}ing batch 1 of 1",
            "fine_labels": values[:, 1].tolist(),
            "coarse_labels": values[:, 0].tolist(),
            "data": values[:, 2:].copy(),
        }
        write(folder / part, content)
    write(folder / "meta", {"fine_label_names": NAMES, "coarse_label_names": ["x"] * 20})
    return folder


def test_the_binary_archive_is_read(
    tmp_path: Path, slice_of_cifar: dict[str, NDArray[np.uint8]]
) -> None:
    folder = write_binary(tmp_path, slice_of_cifar)
    data = readers.load("cifar100", tmp_path)
    rows = slice_of_cifar["train"]
    np.testing.assert_array_equal(data.train_labels, rows[:, 1])
    np.testing.assert_array_equal(data.train_images.reshape(200, -1), rows[:, 2:])
    assert data.class_names == tuple(NAMES)
    assert data.mean == (0.5071, 0.4867, 0.4408)
    assert readers.load("cifar100", folder).fingerprint == data.fingerprint


@pytest.mark.parametrize("writer", WRITERS)
def test_the_python_archive_gives_the_same(
    tmp_path: Path, slice_of_cifar: dict[str, NDArray[np.uint8]], writer: str
) -> None:
    (tmp_path / "b").mkdir()
    write_binary(tmp_path / "b", slice_of_cifar)
    folder = write_python(tmp_path, slice_of_cifar, WRITERS[writer])
    expected = readers.load("cifar100", tmp_path / "b").fingerprint
    assert readers.load("cifar100", tmp_path).fingerprint == expected
    assert readers.load("cifar100", folder).fingerprint == expected


def test_the_binary_archive_is_preferred(
    tmp_path: Path, slice_of_cifar: dict[str, NDArray[np.uint8]]
) -> None:
    write_binary(tmp_path, slice_of_cifar)
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "train").write_bytes(b"never read")
    assert isinstance(readers.load("cifar100", tmp_path), Dataset)


def test_class_names_are_optional_in_the_binary_archive(
    tmp_path: Path, slice_of_cifar: dict[str, NDArray[np.uint8]]
) -> None:
    folder = write_binary(tmp_path, slice_of_cifar)
    (folder / "fine_label_names.txt").write_text("one\ntwo\n")
    with pytest.raises(DataError, match="2 class names instead of 100"):
        readers.load("cifar100", tmp_path)
    (folder / "fine_label_names.txt").unlink()
    assert readers.load("cifar100", tmp_path).class_names[17] == "17"


def test_cifar_missing_says_what_and_where(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        readers.load("cifar100", tmp_path)
    for said in (
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        f"fcil data get cifar100 --root {tmp_path}",
        str(tmp_path / "cifar-100-binary"),
    ):
        assert said in str(caught.value)


def test_a_truncated_binary_file_is_named(
    tmp_path: Path, slice_of_cifar: dict[str, NDArray[np.uint8]]
) -> None:
    path = write_binary(tmp_path, slice_of_cifar) / "train.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"train\.bin has 614,799 bytes instead of 614,800"):
        readers.load("cifar100", tmp_path)


def test_one_flipped_bit_is_found(
    tmp_path: Path, slice_of_cifar: dict[str, NDArray[np.uint8]]
) -> None:
    path = write_binary(tmp_path, slice_of_cifar) / "test.bin"
    raw = bytearray(path.read_bytes())
    raw[1234] ^= 1
    path.write_bytes(raw)
    found = hashlib.md5(raw).hexdigest()
    with pytest.raises(DataError, match=f"md5 {found} instead of {cifar.MD5['test']}"):
        readers.load("cifar100", tmp_path)


def test_a_changed_image_in_the_python_archive_is_found(
    tmp_path: Path, slice_of_cifar: dict[str, NDArray[np.uint8]]
) -> None:
    other = {part: rows.copy() for part, rows in slice_of_cifar.items()}
    other["train"][0, 100] ^= 1
    write_python(tmp_path, other)
    with pytest.raises(DataError, match=f"instead of {cifar.MD5['train']}"):
        readers.load("cifar100", tmp_path)


@pytest.mark.parametrize("part", ["train", "test", "meta"])
def test_a_part_of_the_python_archive_is_missing_or_cut(
    tmp_path: Path, slice_of_cifar: dict[str, NDArray[np.uint8]], part: str
) -> None:
    path = write_python(tmp_path, slice_of_cifar) / part
    whole = path.read_bytes()
    for cut in (0, 1, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match=f"{part} is cut short or no pickle"):
            readers.load("cifar100", tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=f"There is no file .*{part}"):
        readers.load("cifar100", tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {"data": np.zeros((3, 3072), np.uint8), "fine_labels": [1, 2, 3]},
        {"data": np.zeros((3, 3072)), "fine_labels": [1, 2, 3], "coarse_labels": [1, 2, 3]},
        {"data": np.zeros((3, 9), np.uint8), "fine_labels": [1] * 3, "coarse_labels": [1] * 3},
        {"data": np.zeros((3, 3072), np.uint8), "fine_labels": [1] * 2, "coarse_labels": [1] * 3},
        {"data": np.zeros((3, 3072), np.uint8), "fine_labels": [100] * 3, "coarse_labels": [1] * 3},
        {"data": np.zeros((3, 3072), np.uint8), "fine_labels": ["a"] * 3, "coarse_labels": [1] * 3},
    ],
)
def test_a_pickle_of_something_else(
    tmp_path: Path, slice_of_cifar: dict[str, NDArray[np.uint8]], content: Any
) -> None:
    python2(write_python(tmp_path, slice_of_cifar) / "train", content)
    with pytest.raises(DataError, match="train"):
        readers.load("cifar100", tmp_path)


class Evil:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> Any:
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path, protocol: int) -> None:
    import os

    path, witness = tmp_path / "train", tmp_path / "ran"
    path.write_bytes(pickle.dumps({"data": Evil(os.mkdir, str(witness))}, protocol=protocol))
    pickle.loads(path.read_bytes())  # noqa: S301 - it does run in an unrestricted reader
    assert witness.is_dir()
    witness.rmdir()
    with pytest.raises(DataError, match=r"asks for posix\.mkdir"):
        cifar.read_pickle(path)
    assert not witness.exists()


@pytest.mark.parametrize(
    ("evil", "said"),
    [
        (Evil(eval, "1"), r"builtins\.eval|__builtin__\.eval"),
        (Evil(getattr, "x", "upper"), r"\.getattr"),
        (Evil(__import__, "os"), r"\.__import__"),
        (Evil(collections.OrderedDict), r"collections\.OrderedDict"),
        (Evil(copyreg._reconstructor, object, object, None), r"copy_?reg\._reconstructor"),  # type: ignore[attr-defined]
        (Evil(np.load, "x"), r"numpy\.load"),
        (Evil(np.frombuffer, b"x"), r"\.frombuffer"),
        (subprocess.Popen, r"(subprocess|commands)\.Popen"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_the_refused_name_is_told(tmp_path: Path, evil: Any, said: str, protocol: int) -> None:
    path = tmp_path / "train"
    path.write_bytes(pickle.dumps([evil], protocol=protocol))
    with pytest.raises(DataError, match=f"asks for .*{said}.* was not read"):
        cifar.read_pickle(path)


@pytest.mark.parametrize("array", [np.zeros(3, np.int64), np.array([None, 1]), np.array(["a"])])
def test_arrays_of_anything_but_bytes_are_refused(tmp_path: Path, array: NDArray[Any]) -> None:
    python2(tmp_path / "train", {"data": array})
    with pytest.raises(DataError, match="not of bytes"):
        cifar.read_pickle(tmp_path / "train")


def test_arrays_of_any_shape_and_order_come_back(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    for write in WRITERS.values():
        write(tmp_path / "train", {"data": array})
        np.testing.assert_array_equal(cifar.read_pickle(tmp_path / "train")[b"data"], array)


def test_only_one_text_encoding_is_permitted(tmp_path: Path) -> None:
    path = tmp_path / "train"
    path.write_bytes(b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x04\x00\x00\x00zlib\x86R.")
    with pytest.raises(DataError, match="zlib"):
        cifar.read_pickle(path)


@pytest.mark.real
def test_real_cifar_is_the_official_one_and_equals_the_mosaics(
    cifar100_root: Path, real_cifar100: Dataset
) -> None:
    folder = cifar100_root / "cifar-100-binary"
    sums = {p: hashlib.md5((folder / f"{p}.bin").read_bytes()).hexdigest() for p in cifar.MD5}
    assert sums == {
        "train": "6172c7755cfe09b2fe270c85cebc1b15",
        "test": "4499cfba6c016c1be1438163640a0898",
    }
    data = readers.load("cifar100", cifar100_root)
    assert data.train_images.shape == (50_000, 3, 32, 32)
    assert (np.bincount(data.train_labels) == 500).all()
    assert (np.bincount(data.test_labels) == 100).all()
    assert data.class_names[:2] == ("apple", "aquarium_fish") == real_cifar100.class_names[:2]
    for images, labels, few, few_labels, n in (
        (
            data.train_images,
            data.train_labels,
            real_cifar100.train_images,
            real_cifar100.train_labels,
            40,
        ),
        (
            data.test_images,
            data.test_labels,
            real_cifar100.test_images,
            real_cifar100.test_labels,
            10,
        ),
    ):
        for label in (0, 42, 99):
            np.testing.assert_array_equal(images[labels == label][:n], few[few_labels == label])
    mean = data.train_images.mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(mean, data.mean, atol=6e-4)


@pytest.mark.real
def test_real_cifar_from_the_python_archive(cifar100_root: Path, tmp_path: Path) -> None:
    binary = cifar100_root / "cifar-100-binary"
    rows = {
        part: np.fromfile(binary / f"{part}.bin", np.uint8).reshape(-1, cifar.ROW)
        for part in cifar.ROWS
    }
    write_python(tmp_path, rows, python3(4))
    python, expected = readers.load("cifar100", tmp_path), readers.load("cifar100", cifar100_root)
    np.testing.assert_array_equal(python.train_images, expected.train_images)
    np.testing.assert_array_equal(python.test_labels, expected.test_labels)
