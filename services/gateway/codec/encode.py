"""Messages to JSON: one encoder per message type, compiled from its descriptor on first use. The same message gives the same bytes anywhere (I8)."""

# pyright: standard
# Messages are known by their descriptors only, so their fields are untyped here.

import base64
import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from services.gateway.codec.names import short_names

Encoder = Callable[[Any], Any]
_F = FieldDescriptor
_EXACT = 2.0**53


def dump(value: Any) -> bytes:
    """JSON bytes of an encoder's result. Keys stay in the order of the contract; maps were sorted by their encoder."""
    return orjson.dumps(value)


@cache
def message_encoder(descriptor: Descriptor, *, sparse: bool = False) -> Encoder:
    """The encoder of a message type.

    Plain: every field is there, always: empty text, zero, `[]`, `{}`, and `null` for an absent message, optional value or enum. Sparse, for the data
    of events: what is absent or empty is left out, but numbers and booleans that cannot be absent are always there.
    """
    special = _SPECIAL.get(descriptor.full_name)
    if special is not None:
        return special
    return _MessageEncoder(descriptor, sparse)


class _MessageEncoder:
    def __init__(self, descriptor: Descriptor, sparse: bool) -> None:
        self._descriptor = descriptor
        self._sparse = sparse
        self._compiled: list[Callable[[Any, dict[str, Any]], None]] | None = None

    def __call__(self, message: Any) -> dict[str, Any]:
        if self._compiled is None:
            # Compiled on first use: messages may contain themselves.
            self._compiled = [_putter(field, self._sparse) for field in self._descriptor.fields]
        result: dict[str, Any] = {}
        for put in self._compiled:
            put(message, result)
        return result


def _putter(field: FieldDescriptor, sparse: bool) -> Callable[[Any, dict[str, Any]], None]:
    encode = _field_encoder(field, sparse)
    name = field.name
    if field.has_presence:

        def put_present(message: Any, result: dict[str, Any]) -> None:
            if message.HasField(name):
                result[name] = encode(getattr(message, name))
            elif not sparse:
                result[name] = None

        return put_present

    drops_empty = sparse and (
        field.is_repeated or field.enum_type is not None or field.type in (_F.TYPE_STRING, _F.TYPE_BYTES)
    )

    def put(message: Any, result: dict[str, Any]) -> None:
        value = getattr(message, name)
        if drops_empty and not value:
            return
        result[name] = encode(value)

    return put


def _field_encoder(field: FieldDescriptor, sparse: bool) -> Encoder:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        encode_value = _single_encoder(entry.fields_by_name["value"], sparse)
        # upb iterates maps in an order of its own; sorted, they are the same on every replica.
        return lambda entries: {key: encode_value(entries[key]) for key in sorted(entries)}
    encode = _single_encoder(field, sparse)
    if field.is_repeated:
        return lambda items: [encode(item) for item in items]
    return encode


def _single_encoder(field: FieldDescriptor, sparse: bool) -> Encoder:
    if field.message_type is not None:
        return message_encoder(field.message_type, sparse=sparse)
    if field.enum_type is not None:
        # A value of a newer contract is, to this one, not stated.
        return short_names(field.enum_type).get
    if field.type == _F.TYPE_BYTES:
        return lambda value: base64.b64encode(value).decode("ascii")
    if field.type in (_F.TYPE_DOUBLE, _F.TYPE_FLOAT):
        return number
    return _same


def _same(value: Any) -> Any:
    return value


def number(value: float) -> int | float | None:
    """A double as JSON number: whole ones as integers; what JSON cannot say is null."""
    if value.is_integer():
        return int(value) if abs(value) <= _EXACT else value
    return value if math.isfinite(value) else None


def value_json(value: Any) -> Any:
    """google.protobuf.Value as plain JSON."""
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return value.string_value
    if kind == "number_value":
        return number(value.number_value)
    if kind == "bool_value":
        return value.bool_value
    if kind == "struct_value":
        return struct_json(value.struct_value)
    if kind == "list_value":
        return [value_json(item) for item in value.list_value.values]
    return None


def struct_json(value: Any) -> dict[str, Any]:
    """google.protobuf.Struct as plain JSON, keys sorted."""
    fields = value.fields
    return {key: value_json(fields[key]) for key in sorted(fields)}


@lru_cache(maxsize=1024)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()


def _fraction(nanos: int) -> str:
    if not nanos:
        return ""
    if nanos % 1_000_000 == 0:
        return f".{nanos // 1_000_000:03d}"
    if nanos % 1_000 == 0:
        return f".{nanos // 1_000:06d}"
    return f".{nanos:09d}"


def timestamp_json(value: Any) -> str:
    """RFC 3339 in UTC with no, 3, 6 or 9 digits of a second, as needed."""
    return f"{_second(value.seconds)}{_fraction(value.nanos)}Z"


def _duration_json(value: Any) -> str:
    sign = "-" if value.seconds < 0 or value.nanos < 0 else ""
    return f"{sign}{abs(value.seconds)}{_fraction(abs(value.nanos))}s"


_SPECIAL: dict[str, Encoder] = {
    "google.protobuf.Struct": struct_json,
    "google.protobuf.Value": value_json,
    "google.protobuf.ListValue": lambda value: [value_json(item) for item in value.values],
    "google.protobuf.Timestamp": timestamp_json,
    "google.protobuf.Duration": _duration_json,
}


def register(full_name: str, encode: Encoder) -> None:
    """Gives a message type its own JSON form, before its first use."""
    _SPECIAL[full_name] = encode
