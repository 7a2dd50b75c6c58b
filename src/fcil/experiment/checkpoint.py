"""A run's state on disk: one file, replaced whole, so that the last good one always stays."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fcil.errors import DataError, Interrupted, Refused
from fcil.record import write_atomically
from fcil.stats import codec

FILE = "checkpoint.safetensors"
_TENSOR, _VALUE = "$tensor", "$value"


def save(folder: Path, tree: Mapping[str, Any]) -> None:
    """Write nested dictionaries and lists of tensors, statistics and JSON values."""
    tensors: dict[str, Tensor] = {}
    skeleton = _flatten(tree, tensors)
    content = safetensors.torch.save(tensors, {"tree": json.dumps(skeleton)})
    try:
        write_atomically(folder / FILE, content)
    except OSError as why:
        raise Interrupted(
            f"The checkpoint could not be written to {folder}: {why.strerror}. The last good one "
            "is still there. Make room (or choose another disk) and go on with --resume."
        ) from why


def load(folder: Path, device: torch.device) -> dict[str, Any] | None:
    """The tree of the last checkpoint; None where there is none."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with safetensors.safe_open(path, "pt") as file:
            skeleton = json.loads(file.metadata()["tree"])
            tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as why:
        raise DataError(
            f"The checkpoint {path} is damaged: {why}. It was altered after it was written; "
            "delete the folder and run again."
        ) from why
    tree: dict[str, Any] = _restore(skeleton, tensors)
    return tree


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run's folder; a second run that wants it is refused. A crash frees it."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"Another run is at work in {folder}. Wait for it, or give this one its own "
                "folder with --out."
            ) from None
        yield
    finally:
        os.close(handle)


def _flatten(node: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    if isinstance(node, Tensor):
        name = f"{len(tensors)}{path}"
        tensors[name] = node.detach().cpu().contiguous().clone()
        return {_TENSOR: name}
    if isinstance(node, Mapping):
        return {str(key): _flatten(value, tensors, f"{path}/{key}") for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_flatten(value, tensors, f"{path}/{i}") for i, value in enumerate(node)]
    kind = getattr(node, "kind", None)
    if kind in codec.KINDS:
        meta, parts = node.to_parts("packed")
        return {_VALUE: kind, "meta": meta, "parts": _flatten(parts, tensors, path)}
    return node


def _restore(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(node, list):
        return [_restore(value, tensors) for value in node]
    if not isinstance(node, dict):
        return node
    if _TENSOR in node:
        return tensors[node[_TENSOR]]
    if _VALUE in node:
        parts = _restore(node["parts"], tensors)
        return codec.KINDS[node[_VALUE]].from_parts(node["meta"], parts)
    return {key: _restore(value, tensors) for key, value in node.items()}
