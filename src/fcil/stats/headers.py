"""What the header of each kind of message must hold, checked before any of its tensors is used."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from fcil.stats.grid import Grid


def _ascending(classes: Sequence[int]) -> Sequence[int]:
    if not all(a < b for a, b in pairwise(classes)):
        raise ValueError("class ids must ascend")
    return classes


Whole = Annotated[int, Field(ge=-(2**62), lt=2**62)]
Natural = Annotated[int, Field(ge=0, lt=2**62)]
Bins = Annotated[Sequence[Natural], Field(min_length=128, max_length=128)]
Classes = Annotated[Sequence[Whole], AfterValidator(_ascending)]


class _Header(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)

    @classmethod
    def of(cls, meta: dict[str, Any]) -> Self:
        """The checked header; a ValueError where it is not one."""
        return cls.model_validate(meta)


class _GridHeader(_Header):
    bits: Annotated[int, Field(ge=0, le=16)]
    exponent: Annotated[int, Field(ge=-512, le=512)]
    signed: bool

    def grid(self) -> Grid:
        return Grid(self.bits, self.exponent, self.signed)


class _OnGrid(_Header):
    map: str
    grid: _GridHeader
    width: Annotated[int, Field(ge=0, lt=2**24)]
    clipped: Whole
    classes: Classes


class MomentsHeader(_OnGrid):
    """Of moments; `gram_codec` knows the encodings."""

    encoding: str
    exact: bool


class UnitSumsHeader(_OnGrid):
    """Of class sums by unit."""

    encoding: Literal["exact", "real", "full"]
    declared: Sequence[Annotated[Sequence[Natural], Field(min_length=3, max_length=3)]]
    withheld: Natural


class ParametersHeader(_Header):
    """Of network parameters."""

    weight: Annotated[float, Field(ge=0)]
    steps: Natural


class ExtentHeader(_Header):
    """Of the reach of features."""

    source: Bins
    mapped: Bins
    negative: Natural
    patches: Bins
