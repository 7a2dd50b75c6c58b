"""A dictionary that holds the last few things it was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(dict[K, V]):
    """Makes what is missing, after letting go of what was asked for longest ago."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size

    def of(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key, most recently asked for from now on."""
        if key in self:
            self[key] = self.pop(key)
        else:
            while len(self) >= self._size:  # first, so that no more than `size` are ever in memory
                del self[next(iter(self))]
            self[key] = make()
        return self[key]
