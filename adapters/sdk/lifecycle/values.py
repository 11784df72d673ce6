"""Structured values inside events: bounded, finite, and plain JSON."""

import math
from typing import cast

import orjson
from google.protobuf import struct_pb2

from adapters.sdk.lifecycle.violation import ProtocolViolation


class _Budget:
    """Counts the keys of one value."""

    __slots__ = ("depth", "keys", "what")

    def __init__(self, what: str, depth: int, keys: int | None) -> None:
        self.what = what
        self.depth = depth
        self.keys = keys

    def take(self, count: int) -> None:
        if self.keys is None:
            return
        self.keys -= count
        if self.keys < 0:
            raise ProtocolViolation(7, "too_many_keys", f"{self.what} has too many keys")

    def check_depth(self, level: int) -> None:
        if level > self.depth:
            raise ProtocolViolation(7, "too_deep", f"{self.what} is nested too deeply")


def check_struct(value: struct_pb2.Struct, what: str, *, depth: int, keys: int, max_bytes: int) -> None:
    """Raises ProtocolViolation if `value` is deeper, has more keys or more bytes of JSON than allowed, or is not finite."""
    plain = _struct(value, 1, _Budget(what, depth, keys))
    _check_size(plain, what, max_bytes)


def check_value(value: struct_pb2.Value, what: str, *, depth: int, max_bytes: int) -> None:
    """As check_struct, for any JSON value and without a bound on keys but its size."""
    plain = _value(value, 0, _Budget(what, depth, None))
    _check_size(plain, what, max_bytes)


def check_json_object(text: str, what: str, *, depth: int, keys: int) -> None:
    """Raises ProtocolViolation unless `text` is one JSON object within the bounds. orjson refuses NaN, infinity and lone surrogates."""
    try:
        parsed: object = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise ProtocolViolation(2, "arguments_not_json", f"{what} does not parse as JSON") from None
    if not isinstance(parsed, dict):
        raise ProtocolViolation(2, "arguments_not_object", f"{what} is not a JSON object")
    _check_plain(cast("object", parsed), 1, _Budget(what, depth, keys))


def _check_plain(value: object, level: int, budget: _Budget) -> None:
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        budget.check_depth(level)
        budget.take(len(members))
        for member in members.values():
            _check_plain(member, level + 1, budget)
    elif isinstance(value, list):
        budget.check_depth(level)
        for item in cast("list[object]", value):
            _check_plain(item, level + 1, budget)


def _check_size(plain: object, what: str, max_bytes: int) -> None:
    if len(orjson.dumps(plain)) > max_bytes:
        raise ProtocolViolation(7, "too_large", f"{what} is over {max_bytes} bytes")


def _struct(value: struct_pb2.Struct, level: int, budget: _Budget) -> dict[str, object]:
    budget.check_depth(level)
    budget.take(len(value.fields))
    return {name: _value(member, level, budget) for name, member in value.fields.items()}


def _value(value: struct_pb2.Value, level: int, budget: _Budget) -> object:
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        number = value.number_value
        if not math.isfinite(number):
            raise ProtocolViolation(7, "not_finite", f"{budget.what} holds NaN or infinity")
        return number
    if kind == "struct_value":
        return _struct(value.struct_value, level + 1, budget)
    if kind == "list_value":
        budget.check_depth(level + 1)
        return [_value(item, level + 1, budget) for item in value.list_value.values]
    if kind == "string_value":
        return value.string_value
    if kind == "bool_value":
        return value.bool_value
    if kind is None:
        raise ProtocolViolation(7, "malformed", f"{budget.what} holds a value without a kind")
    return None
