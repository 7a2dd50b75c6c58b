"""The settings of a run: one frozen tree, read from TOML, a record or dotted keys.

Every block belongs to one part of the program. `method` is the exception: its keys belong to the
method that is named there, so each method declares its own (`Method.Config`).
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from fcil import registry
from fcil.errors import DataError, UsageError


class Block(BaseModel):
    """A frozen group of settings that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]


class Data(Block):
    """Which images."""

    name: str = "digits"
    root: str | None = None
    """Folder that holds the files; `digits` needs none."""
    size: Annotated[int, Field(ge=1)] | None = None
    """Side to which images of varying size are brought; empty = the data set's own."""


class Tasks(Block):
    """How classes are cut into tasks."""

    count: Count = 10
    first_classes: Annotated[int, Field(ge=1)] | None = None
    """Classes of the first task; the rest is cut equally. Empty = equal tasks."""


class Clients(Block):
    """Who holds what."""

    count: Count = 5
    beta: Annotated[float, Field(ge=0)] = 0.5
    """Dirichlet skew: small = each client holds few classes; 0 = IID."""
    fraction: Share = 1.0
    """Share of the clients asked in each training round; statistics are asked of all."""
    seeding: Literal["named", "published"] = "named"
    """`published` seeds each task's partition with the run's seed itself, as the reference code
    does, so that tasks of equal size get the same proportions."""


class Backbone(Block):
    """Which network."""

    name: str = "small-cnn"
    weights: str | None = None
    """Local path of weights; empty = seeded initialisation."""
    stem: Literal["auto", "small", "small-pool", "large"] = "auto"
    """ResNet stem: 3x3 stride 1 (`small`; `small-pool` with pooling) or 7x7 stride 2 with pooling
    (`large`); `auto` takes the small one up to 32 pixels."""


class FirstStage(Block):
    """Federated training on the first task; methods that train use it for every task."""

    kind: str = "fedavg"
    rounds: Annotated[int, Field(ge=0)] = 100
    epochs: Count = 2
    batch: Count = 128
    lr: Annotated[float, Field(gt=0)] = 0.04
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    schedule: Literal["constant", "cosine", "step"] = "constant"
    milestones: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.5, 0.75)
    """`step`: the rate is divided by ten at these shares of the rounds."""
    head: Literal["linear", "cosine"] = "linear"
    rotation: bool = False
    """Each image at four angles, four labels a class."""
    augment: Literal["none", "crop-flip", "standard", "strong"] = "standard"
    average: Literal["uniform", "samples"] = "uniform"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` = bfloat16 on a card, float32 on a processor."""


class Features(Block):
    """What the frozen network hands to the ridge."""

    layers: tuple[int | Literal["last"], ...] = ("last",)
    """Stages that are read, counted from 1."""
    pool: Count = 1
    """Side of the grid a stage is averaged on."""
    views: tuple[str, ...] = ("plain",)
    """`plain`, `mirror`, `shiftN`: phi is the mean over the views."""
    bits: Annotated[int, Field(ge=0, le=16)] = 8
    """Features are rounded to integers of so many bits; 0 = real numbers, as published."""
    patches: Annotated[int, Field(ge=0)] = 0
    """Whitened-patch filters beside the network, or alone where nothing made a network (no first
    stage, no weights); 0 = none."""
    stride: Count = 1
    """Pixels between two patches."""
    dictionary: Literal["public", "gaussian", "task1-kmeans", "task1-patches"] = "public"
    """Where the patch filters come from."""
    allow_raw_patches: bool = False
    """Whether `task1-patches` may send pieces of clients' images to the server."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the patch map; `auto` = bfloat16 where the device has instructions for it."""


class Upload(Block):
    """How statistics travel."""

    encoding: Literal["auto", "exact", "packed", "factor", "int16", "full"] = "auto"


class Settings(Block):
    """Everything a run depends on."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    data: Data = Data()
    tasks: Tasks = Tasks()
    clients: Clients = Clients()
    backbone: Backbone = Backbone()
    first_stage: FirstStage = FirstStage()
    features: Features = Features()
    method: dict[str, Any] = {"name": "stsa"}
    upload: Upload = Upload()
    engine: Literal["in-process"] = "in-process"

    def method_config(self) -> Any:
        """The `method` block as the named method's own configuration."""
        return registry.find("methods", self.method["name"]).Config(
            **{key: value for key, value in self.method.items() if key != "name"}
        )

    def complete(self) -> dict[str, Any]:
        """Plain values of every setting, defaults included."""
        tree = self.model_dump(mode="json")
        config = self.method_config().model_dump(mode="json")
        tree["method"] = {"name": self.method["name"], **config}
        return tree


def build(tree: Mapping[str, Any]) -> Settings:
    """Check a tree of values; every complaint names its dotted key and the nearest valid one."""
    try:
        settings = Settings.model_validate(tree)
        name = settings.method.get("name")
        if not isinstance(name, str):
            raise UsageError("`method.name` is missing or no text. See `fcil list methods`.")
        for kind, value in (
            ("datasets", settings.data.name),
            ("backbones", settings.backbone.name),
            ("first-stages", settings.first_stage.kind),
        ):
            if value not in registry.names(kind):
                registry.find(kind, value)  # raises, with the nearest name
        registry.find("methods", name)
        try:
            settings.method_config()
        except pydantic.ValidationError as why:
            raise UsageError(_explain(why, prefix=("method",), owner=name)) from why
    except pydantic.ValidationError as why:
        raise UsageError(_explain(why)) from why
    return settings


def load(path: Path) -> tuple[dict[str, Any], str]:
    """The tree in a TOML file or in a record, and what its runs are called."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise DataError(f"There is no file {path}.") from None
    except (OSError, UnicodeDecodeError) as why:
        raise DataError(f"{path} cannot be read: {why}.") from why
    try:
        if path.suffix == ".json":
            record = json.loads(text)
            tree, name = record["config"], str(record["recipe"])
        else:
            tree, name = tomllib.loads(text), path.stem
    except (ValueError, KeyError, TypeError) as why:
        raise UsageError(f"{path} holds neither settings (TOML) nor a record: {why}.") from why
    if not isinstance(tree, dict):
        raise UsageError(f"{path} holds no settings.")
    return tree, name


def override(tree: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A copy of a tree with `key=value` assignments applied.

    Values are read as TOML where they can be, else as text.

    >>> override({"seed": 1}, ["clients.beta=0.1", "data.name=digits", "features.pool=2"])
    {'seed': 1, 'clients': {'beta': 0.1}, 'data': {'name': 'digits'}, 'features': {'pool': 2}}
    """
    result: dict[str, Any] = json.loads(json.dumps(tree))
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise UsageError(
                f"{assignment!r} is no setting: write KEY=VALUE, as in clients.beta=0.1."
            )
        *blocks, last = key.strip().split(".")
        at = result
        for block in blocks:
            at = at.setdefault(block, {})
            if not isinstance(at, dict):
                raise UsageError(f"{key!r} is no setting: {block!r} holds a value, not a group.")
        try:
            at[last] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            at[last] = text.strip()
    return result


def keys(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[str]:
    """All dotted keys but the method's own."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name


def _explain(why: pydantic.ValidationError, prefix: tuple[str, ...] = (), owner: str = "") -> str:
    known = list(keys())
    if owner:
        config = registry.find("methods", owner).Config
        known = [f"method.{name}" for name in config.model_fields]
    said = []
    for error in why.errors():
        where = ".".join(map(str, (*prefix, *(part for part in error["loc"]))))
        if error["type"] == "extra_forbidden":
            nearest = difflib.get_close_matches(where, known, n=1, cutoff=0.5)
            of = f" of {owner}" if owner else ""
            hint = f" Nearest: {nearest[0]!r}." if nearest else f" There is: {', '.join(known)}."
            said.append(f"There is no setting {where!r}{of}.{hint}")
        else:
            value = error["input"]
            shown = (
                "not a number" if isinstance(value, float) and math.isnan(value) else repr(value)
            )
            said.append(f"{where} = {shown} is not possible: {error['msg']}.")
    return " ".join(said)
