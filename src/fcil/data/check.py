"""What is there of a data set: every file looked at, every problem listed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fcil import registry
from fcil.data import cifar, idx, splits, trees
from fcil.data.findings import Finding, counted
from fcil.data.readers import load
from fcil.errors import DataError

MOST = 20
"""Problems that are listed one by one; a folder that is missing can cause thousands."""


def check(name: str, root: Path | None = None) -> list[Finding]:
    """Look at a data set's files; the set can be read when every finding is ok."""
    registry.find("datasets", name)  # an unknown name is the user's mistake, not a finding
    if name in EXAMINERS and root is not None:
        findings = EXAMINERS[name](root)
    else:
        findings = _by_reading(name, root)
    bad = [finding for finding in findings if not finding.ok]
    if len(bad) <= MOST:
        return findings
    dropped = set(bad[MOST:])
    more = Finding(False, name, f"{len(dropped)} more problems of the kinds listed above.")
    return [finding for finding in findings if finding not in dropped] + [more]


def _by_reading(name: str, root: Path | None) -> list[Finding]:
    try:
        dataset = load(name, root)
    except DataError as why:
        return [Finding(False, name, str(why))]
    return [
        counted("train", dataset.train_labels, dataset.class_names),
        counted("test", dataset.test_labels, dataset.class_names),
        Finding(True, "images", f"{dataset.channels} x {dataset.size} x {dataset.size} pixels"),
    ]


def _tree(listing: Callable[[Path], trees.Listing]) -> Callable[[Path], list[Finding]]:
    def examine(root: Path) -> list[Finding]:
        found = listing(root)
        return found.findings + trees.decodable(found)

    return examine


EXAMINERS: dict[str, Callable[[Path], list[Finding]]] = {
    "cifar100": cifar.examine,
    "fashion-mnist": idx.examine,
    "folder": _tree(trees.list_folder),
    "imagenet-r": _tree(splits.list_imagenet_r),
    "tiny-imagenet": _tree(trees.list_tiny_imagenet),
}
