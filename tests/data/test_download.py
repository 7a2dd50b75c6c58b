"""Fetching against a local server that breaks off, ignores ranges, lies, or is not there."""

from __future__ import annotations

import hashlib
import http.server
import io
import shutil
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from fcil.data import cifar, download
from fcil.data.sources import SOURCES, Remote
from fcil.errors import DataError, UnknownName, UsageError

CONTENT = bytes(range(256)) * 1200  # 300 kB: many packets


@dataclass
class Behaviour:
    """What the server does, and what it was asked."""

    files: dict[str, bytes]
    break_after: list[int] = field(default_factory=list)
    """Bytes sent before the connection is cut, one entry for each request; then no more cuts."""
    ignore_range: bool = False
    wrong_range: bool = False
    status: list[int] = field(default_factory=list)
    length: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)


class Handler(http.server.BaseHTTPRequestHandler):
    behaviour: Behaviour

    def do_GET(self) -> None:
        told, wanted = self.behaviour, self.headers.get("Range")
        told.asked.append((self.path, wanted))
        if told.status:
            self.send_error(told.status.pop(0))
            return
        content = told.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = 0
        if wanted and not told.ignore_range:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            shown = start + told.wrong_range
            self.send_header("Content-Range", f"bytes {shown}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        if told.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: told.break_after.pop(0)] if told.break_after else body)
        self.close_connection = True

    def log_message(self, *_: Any) -> None: ...


@dataclass
class Server:
    told: Behaviour
    address: str


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "PAUSE", 0.001)
    monkeypatch.setenv("no_proxy", "*")
    told = Behaviour({"/file.bin": CONTENT})
    handler = type("Bound", (Handler,), {"behaviour": told})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield Server(told, f"http://127.0.0.1:{httpd.server_port}")
        httpd.shutdown()
        thread.join()


def publish(monkeypatch: pytest.MonkeyPatch, name: str, *files: tuple[str, bytes]) -> None:
    """Change what counts as official to files of this test."""
    remotes = tuple(Remote(file, hashlib.md5(content).hexdigest()) for file, content in files)
    monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], remotes=remotes, unpacked=1000))


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fashion-mnist` is one plain file."""
    publish(monkeypatch, "fashion-mnist", ("file.bin", CONTENT))


def tar(*members: tuple[str, bytes | None, dict[str, Any]]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, content, changes in members:
            info = tarfile.TarInfo(name)
            info.size = len(content or b"")
            for key, value in changes.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(content or b""))
    return raw.getvalue()


def zipped(*members: tuple[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return raw.getvalue()


# plain files -------------------------------------------------------------------------------------


def test_a_file_is_fetched_and_progress_told(server: Server, plain: None, tmp_path: Path) -> None:
    heard: list[tuple[int, int | None]] = []
    paths = download.get(
        "fashion-mnist",
        tmp_path,
        address=server.address + "/",
        progress=lambda done, total: heard.append((done, total)),
    )
    assert paths == [tmp_path / "fashion-mnist" / "file.bin"]
    assert paths[0].read_bytes() == CONTENT
    assert heard[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in heard] == sorted({done for done, _ in heard})
    assert [p.name for p in paths[0].parent.iterdir()] == ["file.bin"]


def test_what_is_there_and_right_is_not_fetched_again(
    server: Server, plain: None, tmp_path: Path
) -> None:
    for _ in range(2):
        download.get("fashion-mnist", tmp_path, address=server.address)
    assert len(server.told.asked) == 1
    path = tmp_path / "fashion-mnist" / "file.bin"
    path.write_bytes(CONTENT[:-1])
    download.get("fashion-mnist", tmp_path, address=server.address)
    assert path.read_bytes() == CONTENT


def test_a_broken_connection_goes_on_where_it_stopped(
    server: Server, plain: None, tmp_path: Path
) -> None:
    server.told.break_after = [100_000, 1, 50_000, 0, 0]
    [path] = download.get("fashion-mnist", tmp_path, address=server.address)
    assert path.read_bytes() == CONTENT
    asked = [wanted for _, wanted in server.told.asked]
    assert asked == [None, "bytes=100000-", *["bytes=100001-"], *["bytes=150001-"] * 3]


def test_breaks_without_progress_end_and_a_later_call_goes_on(
    server: Server, plain: None, tmp_path: Path
) -> None:
    server.told.break_after = [1000] + [0] * download.TRIES
    with pytest.raises(DataError) as caught:
        download.get("fashion-mnist", tmp_path, address=server.address)
    assert "after 1,000 of 307,200 bytes" in str(caught.value)
    assert SOURCES["fashion-mnist"].remotes[0].md5 in str(caught.value)
    assert caught.value.exit_code == 3
    folder = tmp_path / "fashion-mnist"
    assert [p.name for p in folder.iterdir()] == ["file.bin.part"]
    assert (folder / "file.bin.part").stat().st_size == 1000
    before = len(server.told.asked)
    server.told.break_after = []
    download.get("fashion-mnist", tmp_path, address=server.address)
    assert server.told.asked[before:] == [("/file.bin", "bytes=1000-")]


def test_a_server_that_ignores_ranges(server: Server, plain: None, tmp_path: Path) -> None:
    server.told.ignore_range = True
    server.told.break_after = [100_000, 200_000]
    [path] = download.get("fashion-mnist", tmp_path, address=server.address)
    assert path.read_bytes() == CONTENT
    assert len(server.told.asked) == 3


def test_a_server_that_ignores_ranges_and_always_breaks(
    server: Server, plain: None, tmp_path: Path
) -> None:
    server.told.ignore_range = True
    server.told.break_after = [100_000] * 50
    with pytest.raises(DataError, match="connection ended after 100,000"):
        download.get("fashion-mnist", tmp_path, address=server.address)
    assert len(server.told.asked) == 1 + download.TRIES - 1


def test_a_server_that_sends_another_range(server: Server, plain: None, tmp_path: Path) -> None:
    server.told.wrong_range = True
    server.told.break_after = [100_000]
    with pytest.raises(DataError, match="another range"):
        download.get("fashion-mnist", tmp_path, address=server.address)


def test_a_server_that_tells_no_length(server: Server, plain: None, tmp_path: Path) -> None:
    server.told.length = False
    [path] = download.get("fashion-mnist", tmp_path, address=server.address)
    assert path.read_bytes() == CONTENT


def test_a_server_that_is_busy_for_a_while(server: Server, plain: None, tmp_path: Path) -> None:
    server.told.status = [503, 500, 429][:2]
    [path] = download.get("fashion-mnist", tmp_path, address=server.address)
    assert path.read_bytes() == CONTENT


def test_wrong_content_is_deleted_and_named(server: Server, plain: None, tmp_path: Path) -> None:
    server.told.files["/file.bin"] = b"<html>please log in</html>"
    found = hashlib.md5(server.told.files["/file.bin"]).hexdigest()
    right = hashlib.md5(CONTENT).hexdigest()
    with pytest.raises(DataError, match=f"26 bytes with md5 {found} instead of {right}"):
        download.get("fashion-mnist", tmp_path, address=server.address)
    assert list((tmp_path / "fashion-mnist").iterdir()) == []
    assert len(server.told.asked) == 1


@pytest.mark.parametrize("old", [b"x" * 5000, b"y" * len(CONTENT), b"z" * (len(CONTENT) + 9)])
def test_the_rest_of_another_file_is_thrown_away(
    server: Server, plain: None, tmp_path: Path, old: bytes
) -> None:
    part = tmp_path / "fashion-mnist" / "file.bin.part"
    part.parent.mkdir()
    part.write_bytes(old)
    [path] = download.get("fashion-mnist", tmp_path, address=server.address)
    assert path.read_bytes() == CONTENT
    assert server.told.asked[-1] == ("/file.bin", None)


def test_a_complete_part_needs_nothing_more(server: Server, plain: None, tmp_path: Path) -> None:
    part = tmp_path / "fashion-mnist" / "file.bin.part"
    part.parent.mkdir()
    part.write_bytes(CONTENT)
    [path] = download.get("fashion-mnist", tmp_path, address=server.address)
    assert path.read_bytes() == CONTENT
    assert server.told.asked == [("/file.bin", f"bytes={len(CONTENT)}-")]


def test_a_missing_file_is_not_asked_for_again(server: Server, plain: None, tmp_path: Path) -> None:
    server.told.files.clear()
    with pytest.raises(DataError, match="HTTP Error 404"):
        download.get("fashion-mnist", tmp_path, address=server.address)
    assert len(server.told.asked) == 1


def test_offline_says_what_to_fetch_and_where_to_put_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(download, "PAUSE", 0.001)
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        for name in SOURCES:
            with pytest.raises(DataError) as caught:
                download.get(name, tmp_path / name, address=address)
            assert caught.value.exit_code == 3
            for said in (
                "offline",
                SOURCES[name].address + SOURCES[name].remotes[-1].file,
                SOURCES[name].remotes[-1].md5,
                str(tmp_path / name / SOURCES[name].folder),
            ):
                assert said in str(caught.value)


def test_a_full_disk_is_known_before(
    server: Server, plain: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataError, match="1,000 bytes free and 307,200 are needed"):
        download.get("fashion-mnist", tmp_path, address=server.address)


def test_a_folder_that_cannot_be_written(server: Server, plain: None, tmp_path: Path) -> None:
    (tmp_path / "fashion-mnist").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="could not be written under"):
        download.get("fashion-mnist", tmp_path, address=server.address)


def test_names_and_addresses_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="cifar100"):
        download.get("cifar10", tmp_path)
    for name in ("digits", "folder", "arrays"):
        with pytest.raises(UsageError, match="no official address"):
            download.get(name, tmp_path)
    with pytest.raises(UsageError, match="http"):
        download.get("cifar100", tmp_path, address="file:///etc")


def test_the_catalogue_is_the_official_one() -> None:
    remotes = {remote.file: remote.md5 for source in SOURCES.values() for remote in source.remotes}
    assert remotes == {
        "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        "tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de",
        "imagenet-r.tar": "a61312130a589d0ca1a8fca1f2bd3337",
    }


# archives ----------------------------------------------------------------------------------------


def offer(monkeypatch: pytest.MonkeyPatch, server: Server, name: str, content: bytes) -> None:
    file = SOURCES[name].remotes[0].file
    publish(monkeypatch, name, (file, content))
    server.told.files = {f"/{file}": content}


def test_a_tar_is_unpacked_and_removed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"train": bytes(3 * cifar.ROW), "test": bytes(2 * cifar.ROW)}
    monkeypatch.setattr(cifar, "ROWS", {"train": 3, "test": 2})
    monkeypatch.setattr(cifar, "MD5", {p: hashlib.md5(r).hexdigest() for p, r in rows.items()})
    monkeypatch.setattr(cifar, "counted", lambda part, *_: download.Finding(True, part, ""))
    folder = ("cifar-100-binary", None, {"type": tarfile.DIRTYPE})
    names = "\n".join(map(str, range(100))).encode()
    content = tar(
        folder,
        ("cifar-100-binary/train.bin", rows["train"], {}),
        ("cifar-100-binary/test.bin", rows["test"], {}),
        ("cifar-100-binary/fine_label_names.txt", names, {}),
    )
    offer(monkeypatch, server, "cifar100", content)
    (tmp_path / ".cifar100.unpacking" / "left").mkdir(parents=True)
    [path] = download.get("cifar100", tmp_path, address=server.address)
    assert path == tmp_path / "cifar-100-binary"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cifar-100-binary"]
    assert (path / "train.bin").read_bytes() == rows["train"]
    download.get("cifar100", tmp_path, address=server.address)
    assert len(server.told.asked) == 1

    (path / "train.bin").write_bytes(b"damaged")
    (path / "own.txt").write_text("the user's")
    download.get("cifar100", tmp_path, address=server.address)
    assert (path / "train.bin").read_bytes() == rows["train"]
    assert (path / "own.txt").read_text() == "the user's"
    assert len(server.told.asked) == 2


def test_a_zip_is_unpacked_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = zipped(
        ("tiny-imagenet-200/train/n01/images/a.JPEG", b"a"), ("tiny-imagenet-200/w", b"")
    )
    offer(monkeypatch, server, "tiny-imagenet", content)
    for _ in range(2):
        [path] = download.get("tiny-imagenet", tmp_path, address=server.address)
        assert (path / "train" / "n01" / "images" / "a.JPEG").read_bytes() == b"a"
    assert len(server.told.asked) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["tiny-imagenet-200"]


OUTSIDE = [
    ("/tmp/evil", b"x", {}),
    ("../evil", b"x", {}),
    ("imagenet-r/../../evil", b"x", {}),
    ("imagenet-r\\..\\evil", b"x", {}),
    ("C:evil", b"x", {}),
    ("imagenet-r/link", None, {"type": tarfile.SYMTYPE, "linkname": "/etc"}),
    ("imagenet-r/link", None, {"type": tarfile.LNKTYPE, "linkname": "../x"}),
    ("imagenet-r/pipe", None, {"type": tarfile.FIFOTYPE}),
    ("imagenet-r/device", None, {"type": tarfile.CHRTYPE}),
]


@pytest.mark.parametrize("member", OUTSIDE)
def test_an_unsafe_tar_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, member: Any
) -> None:
    offer(monkeypatch, server, "imagenet-r", tar(("imagenet-r/n01/a.jpg", b"a", {}), member))
    with pytest.raises(DataError, match="Refused"):
        download.get("imagenet-r", tmp_path / "root", address=server.address)
    assert not (tmp_path / "evil").exists()
    assert [p.name for p in (tmp_path / "root").iterdir()] == ["imagenet-r.tar"]


def test_an_unsafe_zip_is_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, server, "tiny-imagenet", zipped(("../evil", b"x")))
    with pytest.raises(DataError, match="Refused"):
        download.get("tiny-imagenet", tmp_path / "root", address=server.address)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("name", ["tiny-imagenet", "imagenet-r"])
def test_something_else_than_the_archive(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    offer(monkeypatch, server, name, b"no archive" * 100)
    with pytest.raises(DataError, match="cannot be unpacked"):
        download.get(name, tmp_path / "a", address=server.address)
    other = zipped(("x/y", b"")) if name == "tiny-imagenet" else tar(("x/y", b"", {}))
    offer(monkeypatch, server, name, other)
    with pytest.raises(DataError, match="holds no folder"):
        download.get(name, tmp_path / "b", address=server.address)


def test_unpacking_needs_room(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, server, "imagenet-r", tar(("imagenet-r/n01/a.jpg", b"a", {})))
    usage = shutil.disk_usage(tmp_path)._replace(free=999)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DataError, match="999 bytes free and 1,000 are needed"):
        download.get("imagenet-r", tmp_path, address=server.address)
