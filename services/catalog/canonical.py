"""One JSON form of a value, so that equal intent has equal bytes (I17), and its bounds (I35)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson
from google.protobuf import json_format, struct_pb2
from google.protobuf.message import Message

_EXACT_INTEGERS: Final = 1 << 53


class NotJson(ValueError):
    """A value with no JSON form, or beyond a bound. `path` is where; the text says what, without the value."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(what)
        self.path = path
        self.what = what


class Bounds:
    """How deep and how large a value may be; one instance counts the nodes of one value."""

    def __init__(self, depth: int, nodes: int) -> None:
        self.depth = depth
        self.nodes = nodes

    def enter(self, path: str, depth: int) -> None:
        self.nodes -= 1
        if depth > self.depth:
            raise NotJson(path, "is nested too deeply")
        if self.nodes < 0:
            raise NotJson(path, "has too many values")


def plain_struct(struct: struct_pb2.Struct, path: str, bounds: Bounds) -> dict[str, Any]:
    """A Struct as plain JSON. Errors: `NotJson` for a number that is not finite, a value that is not set, or a bound."""
    return _plain_fields(struct, path, bounds, 1)


def _plain_fields(struct: struct_pb2.Struct, path: str, bounds: Bounds, depth: int) -> dict[str, Any]:
    bounds.enter(path, depth)
    return {key: _plain_value(value, f"{path}.{key}", bounds, depth) for key, value in struct.fields.items()}


def _plain_value(value: struct_pb2.Value, path: str, bounds: Bounds, depth: int) -> Any:
    match value.WhichOneof("kind"):
        case "struct_value":
            return _plain_fields(value.struct_value, path, bounds, depth + 1)
        case "list_value":
            bounds.enter(path, depth + 1)
            items = value.list_value.values
            return [_plain_value(item, f"{path}[{number}]", bounds, depth + 1) for number, item in enumerate(items)]
        case "number_value":
            bounds.enter(path, depth)
            if not math.isfinite(value.number_value):
                raise NotJson(path, "is not a finite number")
            return _number(value.number_value)
        case "string_value":
            bounds.enter(path, depth)
            return value.string_value
        case "bool_value":
            bounds.enter(path, depth)
            return value.bool_value
        case "null_value":
            bounds.enter(path, depth)
            return None
        case _:
            raise NotJson(path, "has no value")


def _number(value: float) -> int | float:
    # I17: 1 and 1.0 are the same number, and so are 0 and -0.
    return int(value) if value.is_integer() and abs(value) <= _EXACT_INTEGERS else value


def struct_of(value: Mapping[str, Any]) -> struct_pb2.Struct:
    """A plain JSON object as a Struct."""
    struct = struct_pb2.Struct()
    json_format.ParseDict(dict(value), struct)
    return struct


def message_document(message: Message) -> dict[str, Any]:
    """A message as a JSON document with contract names and every field written out; its Structs must be finite."""
    document = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return cast(dict[str, Any], _tamed(document))


def _tamed(value: Any) -> Any:
    # json_format prints every whole double as an integer, also 1e300, which is none that a JSON reader keeps.
    if isinstance(value, dict):
        return {key: _tamed(child) for key, child in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [_tamed(child) for child in cast(list[Any], value)]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT_INTEGERS:
        return float(value)
    return value


def canonical_json(value: object) -> bytes:
    """The value's one JSON form: keys sorted, no whitespace, UTF-8."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def digest(value: object) -> str:
    """SHA-256 of the canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()
