"""Official addresses and checksums, and the sentence that says what to put where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Remote:
    """One file at an official address."""

    file: str
    md5: str


@dataclass(frozen=True)
class Source:
    """Where a data set is published."""

    address: str
    """What file names are appended to."""
    remotes: tuple[Remote, ...]
    folder: str
    """What appears under the root: the archive's only folder, or the one that takes the files."""
    archive: bool
    unpacked: int
    """Bytes the archive takes when unpacked, about; 0 = it is not unpacked."""
    also: str = ""
    """What has to be fetched by hand."""


IMAGENET_R_LISTS = (
    "The archive has no training/test split. Take imagenet-r_train.yaml and imagenet-r_test.yaml "
    "from https://github.com/GT-RIPL/CODA-Prompt (folder dataloaders/splits) and put them beside "
    "the class folders; or use a copy that already has train/ and test/ folders, as LAMDA-PILOT "
    "(https://github.com/LAMDA-CL/LAMDA-PILOT) offers."
)

SOURCES = {
    "cifar100": Source(
        address="https://www.cs.toronto.edu/~kriz/",
        remotes=(Remote("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),),
        folder="cifar-100-binary",
        archive=True,
        unpacked=185_000_000,
    ),
    "fashion-mnist": Source(
        address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        remotes=(
            Remote("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
            Remote("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
            Remote("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
            Remote("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
        ),
        folder="fashion-mnist",
        archive=False,
        unpacked=0,
    ),
    "tiny-imagenet": Source(
        address="http://cs231n.stanford.edu/",
        remotes=(Remote("tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
        folder="tiny-imagenet-200",
        archive=True,
        unpacked=600_000_000,
    ),
    "imagenet-r": Source(
        address="https://people.eecs.berkeley.edu/~hendrycks/",
        remotes=(Remote("imagenet-r.tar", "a61312130a589d0ca1a8fca1f2bd3337"),),
        folder="imagenet-r",
        archive=True,
        unpacked=2_400_000_000,
        also=IMAGENET_R_LISTS,
    ),
}


def by_hand(name: str, root: Path) -> str:
    """What to fetch without this program and where to put it."""
    source = SOURCES[name]
    files = " and ".join(
        f"{source.address}{remote.file} (md5 {remote.md5})" for remote in source.remotes
    )
    place = (
        f"unpack it in {root}, so that {root / source.folder} is there"
        if source.archive
        else f"put them into {root / source.folder}"
    )
    return f"By hand: fetch {files} and {place}." + (f" {source.also}" if source.also else "")


def how_to_get(name: str, root: Path) -> str:
    """Both ways to a data set: the command and by hand."""
    return f"`fcil data get {name} --root {root}` fetches it. {by_hand(name, root)}"
