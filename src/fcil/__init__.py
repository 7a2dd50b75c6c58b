"""Federated class-incremental learning by exact sums.

The names below are the library; each is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fcil.classifier import StatisticsClassifier
    from fcil.features import FeatureMap
    from fcil.record import Record
    from fcil.ridge import Head, solve
    from fcil.stats.codec import decode, encode
    from fcil.stats.features import Features
    from fcil.stats.grid import Grid
    from fcil.stats.moments import Moments
    from fcil.stats.unit_sums import UnitSums, estimate_gram

__version__ = "0.1.0"

_HOME = {
    "FeatureMap": "fcil.features",
    "Features": "fcil.stats.features",
    "Grid": "fcil.stats.grid",
    "Head": "fcil.ridge",
    "Moments": "fcil.stats.moments",
    "Record": "fcil.record",
    "StatisticsClassifier": "fcil.classifier",
    "UnitSums": "fcil.stats.unit_sums",
    "decode": "fcil.stats.codec",
    "encode": "fcil.stats.codec",
    "estimate_gram": "fcil.stats.unit_sums",
    "solve": "fcil.ridge",
}

__all__ = [
    "FeatureMap",
    "Features",
    "Grid",
    "Head",
    "Moments",
    "Record",
    "StatisticsClassifier",
    "UnitSums",
    "decode",
    "encode",
    "estimate_gram",
    "solve",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fcil' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
