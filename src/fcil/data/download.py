"""Fetch data sets from their official addresses: resumable, verified, unpacked safely."""

from __future__ import annotations

import http.client
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from fcil import registry
from fcil.data import cifar
from fcil.data.check import check
from fcil.data.findings import BLOCK, Finding, md5
from fcil.data.sources import SOURCES, Remote, Source, by_hand
from fcil.errors import DataError, UsageError

__all__ = ["Finding", "check", "get"]

TRIES = 5
"""Attempts in a row that bring no new byte before a download is given up."""
PAUSE = 1.0
"""Seconds before the second attempt; doubled each time."""
TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as broken."""

Progress = Callable[[int, int | None], None]


def get(
    name: str,
    root: Path,
    *,
    progress: Progress | None = None,
    address: str | None = None,
) -> list[Path]:
    """Bring a data set under a folder; what is already there and right is left alone.

    A download that broke off goes on where it stopped, also in a later call. A file appears under
    its name only after its checksum was found right. `address` replaces the official base address
    by a mirror's; the checksums stay. `progress` hears bytes of the current file: done, total.
    """
    registry.find("datasets", name)
    if name not in SOURCES:
        raise UsageError(
            f"{name} has no official address to fetch it from. There is: {', '.join(SOURCES)}. "
            "`digits` ships with scikit-learn; `folder` and `arrays` read your own files."
        )
    source = SOURCES[name]
    base = (address or source.address).rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise UsageError(f"{base!r} is no address: it must begin with http:// or https://.")
    try:
        root.mkdir(parents=True, exist_ok=True)
        if source.archive:
            return [_archive(name, source, root, base, progress)]
        folder = root / source.folder
        folder.mkdir(exist_ok=True)
        return [
            _fetch(name, remote, folder, f"{base}/{remote.file}", root, progress)
            for remote in source.remotes
        ]
    except OSError as why:
        raise DataError(
            f"{name} could not be written under {root}: {why}. Check the folder's permissions and "
            "the free space; the same command goes on where it stopped."
        ) from why


def _archive(name: str, source: Source, root: Path, base: str, progress: Progress | None) -> Path:
    target = root / source.folder
    if target.is_dir() and _is_right(name, root):
        return target
    for remote in source.remotes:
        packed = _fetch(name, remote, root, f"{base}/{remote.file}", root, progress)
        _room(root, source.unpacked)
        scratch = root / f".{name}.unpacking"
        shutil.rmtree(scratch, ignore_errors=True)  # left by a run that was killed
        try:
            _unpack(packed, scratch)
            if not (scratch / source.folder).is_dir():
                raise DataError(
                    f"{packed} holds no folder {source.folder}: it is not the archive that was "
                    f"expected. Delete it. {by_hand(name, root)}"
                )
            _move(scratch / source.folder, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        packed.unlink()
    return target


def _is_right(name: str, root: Path) -> bool:
    """Whether an unpacked folder needs no second download.

    Folders appear whole or not at all, so one of images counts as right when it is there; where
    files have checksums of their own, those decide.
    """
    return name != "cifar100" or all(finding.ok for finding in cifar.examine(root))


def _fetch(
    name: str,
    remote: Remote,
    folder: Path,
    url: str,
    root: Path,
    progress: Progress | None,
) -> Path:
    """One file, verified; the bytes of a broken download stay in FILE.part."""
    final, part = folder / remote.file, folder / f"{remote.file}.part"
    if final.is_file() and md5(final) == remote.md5:
        return final
    for resumed in (part.is_file(), False):
        try:
            _download(url, part, progress)
        except _Broken as why:
            raise DataError(
                f"{url} could not be fetched: {why}. This machine is offline, the address has "
                "moved, or a proxy is in the way; what came so far is kept and the same command "
                f"goes on from there. {by_hand(name, root)}"
            ) from why
        found, size = md5(part), part.stat().st_size
        if found == remote.md5:
            return part.replace(final)
        part.unlink()
        if not resumed:  # else another file's beginning may have been continued: once more, afresh
            break
    raise DataError(
        f"{url} gave {size:,} bytes with md5 {found} instead of {remote.md5}: a login page "
        "answered in its place, or the file is not the official one. It was deleted. "
        + by_hand(name, root)
    )


class _Broken(Exception):
    """A connection failed; becomes a DataError. `final`: asking again will not help."""

    def __init__(self, why: Exception, *, final: bool = False) -> None:
        super().__init__(str(why) or type(why).__name__)
        self.final = final


def _download(url: str, part: Path, progress: Progress | None) -> None:
    """Fill a file from an address, going on after each break while bytes keep coming."""
    failures = 0
    while True:
        have = part.stat().st_size if part.is_file() else 0
        try:
            _receive(url, part, have, progress)
            return
        except _Broken as why:
            came = part.is_file() and part.stat().st_size > have
            failures = 1 if came else failures + 1
            if why.final or failures >= TRIES:
                raise
        time.sleep(PAUSE * 2 ** (failures - 1))


def _receive(url: str, part: Path, have: int, progress: Progress | None) -> None:
    """Append what is missing; start over where the server does not continue."""
    headers = {"Range": f"bytes={have}-"} if have else {}
    try:
        answer = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError as why:
        with why:
            if why.code == 416 and have:  # nothing beyond what is there: the checksum decides
                return
            raise _Broken(why, final=why.code < 500) from why
    except _NETWORK as why:
        raise _Broken(why) from why
    with answer:
        continued = answer.status == 206
        if continued and not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            raise _Broken(ValueError("the server sent another range than asked for"), final=True)
        done = have if continued else 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length is not None else None
        _room(part.parent, (total or 0) - done)
        with part.open("ab" if continued else "wb") as file:
            while block := _block(answer):
                file.write(block)
                done += len(block)
                if progress is not None:
                    progress(done, total)
    if total is not None and done < total:
        raise _Broken(EOFError(f"the connection ended after {done:,} of {total:,} bytes"))


def _block(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read1(BLOCK)  # what is there now, so that a break loses nothing
    except _NETWORK as why:
        raise _Broken(why) from why


_NETWORK = (OSError, http.client.HTTPException)


def _room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(
            f"{folder} has {free:,} bytes free and {needed:,} are needed. Free some space or take "
            "another folder; what came so far is kept."
        )


def _unpack(packed: Path, folder: Path) -> None:
    """Write an archive's plain files; anything else in it, or a path that leads out, is refused."""
    try:
        for path, content in _members(packed):
            inside = PurePosixPath(path)
            if inside.is_absolute() or ".." in inside.parts or "\\" in path or ":" in path:
                raise DataError(f"{packed} holds {path!r}, which leads out of the folder. Refused.")
            target = folder / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                shutil.copyfileobj(content, file, BLOCK)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as why:
        raise DataError(
            f"{packed} cannot be unpacked: {why}. Delete it and fetch it again."
        ) from why


def _members(packed: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if packed.suffix == ".zip":
        with zipfile.ZipFile(packed) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    with archive.open(entry) as content:
                        yield entry.filename, content
        return
    with tarfile.open(packed) as archive:
        for member in archive:
            if member.isdir():
                continue
            stream = archive.extractfile(member) if member.isreg() else None
            if stream is None:
                raise DataError(
                    f"{packed} holds {member.name!r}, a link or device and no plain file. Refused."
                )
            with stream:
                yield member.name, stream


def _move(source: Path, target: Path) -> None:
    """Put a folder in place: at once where there is none, else file by file over the old ones."""
    if not target.exists():
        source.replace(target)
        return
    for path in sorted(source.rglob("*")):
        if path.is_file():
            there = target / path.relative_to(source)
            there.parent.mkdir(parents=True, exist_ok=True)
            path.replace(there)
