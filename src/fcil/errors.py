"""Every error this package raises on purpose.

    FcilError
    ├── UsageError            exit 2   a setting, a name or an argument is wrong
    │   └── UnknownName                a name nobody registered; the nearest one is suggested
    ├── DataError             exit 3   data or weights are missing or damaged
    ├── Refused               exit 4   the request is understood and must not be carried out
    │   ├── FingerprintMismatch        statistics of different feature maps
    │   └── NotExact                   integers past what float64 holds exactly
    ├── NumericalError        exit 5   not finite, or a factorisation failed
    └── Interrupted           exit 130 stopped before the end; `--resume` goes on

A message is one paragraph: what happened, the likely cause, what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SHOWN = 16
"""Names an error lists before it points to `fcil list`."""


class FcilError(Exception):
    """Root of the tree; `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(FcilError):
    """A setting, a name or an argument is wrong."""

    exit_code = 2


class UnknownName(UsageError):
    """A name that nobody registered; says which one is nearest."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        nearest = difflib.get_close_matches(name, self.known, n=1, cutoff=0.5)
        hint = f" Nearest: {nearest[0]!r}." if nearest else ""
        shown, more = self.known[:_SHOWN], len(self.known) - _SHOWN
        rest = f" and {more} more (`fcil list` shows all)" if more > 0 else ""
        super().__init__(f"There is no {kind} {name!r}.{hint} There is: {', '.join(shown)}{rest}.")


class DataError(FcilError):
    """Data or weights are missing or damaged."""

    exit_code = 3


class Refused(FcilError):
    """The request is understood and must not be carried out."""

    exit_code = 4


class FingerprintMismatch(Refused):
    """Statistics of different feature maps were put together."""


class NotExact(Refused):
    """Integers grew past what float64 holds exactly."""


class NumericalError(FcilError):
    """Something was not finite, or a factorisation failed."""

    exit_code = 5


class Interrupted(FcilError):
    """Stopped before the end in a state from which `--resume` goes on."""

    exit_code = 130
