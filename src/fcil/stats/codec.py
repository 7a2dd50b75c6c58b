"""Statistics to messages and back: safetensors, no pickle, a schema version.

A message knows its exact size before its bytes are put together, so that a simulation can count
what would travel without copying it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fcil.errors import DataError, UsageError
from fcil.stats.extent import Extent
from fcil.stats.moments import Moments
from fcil.stats.parameters import Parameters
from fcil.stats.unit_sums import UnitSums
from fcil.stats.with_fold import MomentsWithFold

SCHEMA = 1
_MALFORMED = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    OverflowError,
    RuntimeError,
)
"""What reading bytes that somebody else wrote can end in; all of it means a malformed message."""
ENCODINGS = ("auto", "exact", "packed", "factor", "int16", "full")


class Value(Protocol):
    """What a value needs to travel."""

    kind: str

    def to_parts(self, encoding: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Plain values and tensors."""

    @classmethod
    def from_parts(cls, meta: dict[str, Any], tensors: dict[str, Tensor]) -> Self:
        """The value again."""


KINDS: dict[str, type[Any]] = {
    value.kind: value for value in (Moments, MomentsWithFold, UnitSums, Parameters, Extent)
}
"""Values by the name their messages carry."""


@dataclass(frozen=True, eq=False)
class Message:
    """A header of plain values and some tensors."""

    meta: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def size(self) -> int:
        """Length of `to_bytes()`, without making it."""
        names: dict[str, Any] = {"__metadata__": self._metadata()}
        at = 0
        for name, t in sorted(self.tensors.items(), key=lambda item: (_place(item[1]), item[0])):
            end = at + t.numel() * t.element_size()
            names[name] = {
                "dtype": _DTYPES[_place(t)][1],
                "shape": list(t.shape),
                "data_offsets": [at, end],
            }
            at = end
        header = len(json.dumps(names, separators=(",", ":"), ensure_ascii=False).encode())
        return 8 + header + -header % 8 + at

    def to_bytes(self) -> bytes:
        """The message as it travels."""
        tensors: dict[str, Tensor] = {}
        memory = set()
        for name, t in self.tensors.items():
            whole = t.cpu().contiguous()
            # safetensors refuses tensors that share memory, as tied weights do
            tensors[name] = whole.clone() if whole.data_ptr() in memory else whole
            memory.add(whole.data_ptr())
        return safetensors.torch.save(tensors, self._metadata())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a message; anything malformed is a DataError."""
        try:
            length = int.from_bytes(data[:8], "little")
            metadata = json.loads(data[8 : 8 + length])["__metadata__"]
            meta = json.loads(metadata["fcil"])
            if not isinstance(meta, dict):
                raise TypeError("its header is no table of values")
            tensors = safetensors.torch.load(data)
        except (*_MALFORMED, RecursionError, safetensors.SafetensorError) as why:
            raise DataError(
                f"These {len(data)} bytes are no message of fcil: {why}. It was cut or altered on "
                "its way, or something else was sent."
            ) from why
        return cls(meta, tensors)

    def _metadata(self) -> dict[str, str]:
        return {"fcil": json.dumps(self.meta, separators=(",", ":"))}


_DTYPES = (
    (torch.int64, "I64"),
    (torch.float64, "F64"),
    (torch.float32, "F32"),
    (torch.uint32, "U32"),
    (torch.int32, "I32"),
    (torch.bfloat16, "BF16"),
    (torch.float16, "F16"),
    (torch.int16, "I16"),
    (torch.int8, "I8"),
    (torch.uint8, "U8"),
    (torch.bool, "BOOL"),
)
"""Types by the name safetensors gives them, in the order in which it lays tensors out."""
_PLACES = {dtype: place for place, (dtype, _) in enumerate(_DTYPES)}


def _place(tensor: Tensor) -> int:
    return _PLACES[tensor.dtype]


@runtime_checkable
class Outlined(Value, Protocol):
    """A value that can say how large its message would be without packing it."""

    outlines: bool
    """Marks such a value; its `to_parts` takes `outline = True`, which leaves out bit-packed data
    but for its type and length."""


def to_message(value: Value, encoding: str = "auto") -> Message:
    """The message of a value."""
    return _message(value, encoding)


def outlined(value: Value, encoding: str = "auto") -> Message:
    """A message of the same size and header as `to_message`, for counting bytes.

    A lossy encoding's is the message itself.
    """
    options = {"outline": True} if isinstance(value, Outlined) else {}
    return _message(value, encoding, **options)


def _message(value: Value, encoding: str, **options: bool) -> Message:
    if encoding not in ENCODINGS:
        raise UsageError(f"There is no encoding {encoding!r}; there is {', '.join(ENCODINGS)}.")
    meta, tensors = value.to_parts(encoding, **options)
    return Message({"schema": SCHEMA, "kind": value.kind, **meta}, tensors)


def from_message(message: Message) -> Any:
    """The value of a message."""
    schema, kind = message.meta.get("schema"), message.meta.get("kind")
    if schema != SCHEMA or not isinstance(kind, str) or kind not in KINDS:
        raise DataError(
            f"The message says schema {schema!r} and kind {kind!r}; this version reads schema "
            f"{SCHEMA} of {', '.join(sorted(KINDS))}. Sender and receiver run different versions."
        )
    try:
        return KINDS[kind].from_parts(message.meta, message.tensors)
    except _MALFORMED as why:
        raise DataError(f"The {kind} message lacks or garbles a part: {why!r}.") from why


def encode(value: Value, encoding: str = "auto") -> bytes:
    """A value as bytes that travel; `auto` takes the smallest lossless encoding."""
    return to_message(value, encoding).to_bytes()


def decode(data: bytes) -> Any:
    """The value that bytes hold."""
    return from_message(Message.from_bytes(data))
