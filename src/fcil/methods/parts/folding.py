"""Putting uploads together as they arrive, one in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from fcil.errors import UsageError
from fcil.protocol import Mergeable

T = TypeVar("T", bound=Mergeable)


def folded(uploads: Iterable[tuple[int, Mergeable]], kind: type[T], start: T | None = None) -> T:
    """`start` and all uploads, which are of one kind, put together."""
    total = start
    for _, upload in uploads:
        assert isinstance(upload, kind)
        total = upload if total is None else total + upload
    if total is None:
        raise UsageError("No client answered, so there is nothing to put together.")
    return total
