"""Messages of any type, made at random from their descriptors: mostly what the contract admits, often at its edges, sometimes beyond."""

# pyright: standard
# Messages are known by their descriptors only, so their fields are untyped here.

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

CANARIES = (
    "AKIAABCDEFGHIJKLMNOP",
    "sk-canary0123456789abcdef",
    "arn:aws:iam::123456789012:role/canary",
    "https://canary.internal.example/v1",
    "-----BEGIN PRIVATE KEY----- canary",
)
"""What must never be shown, wherever it stands."""
WORDS = (
    "", "a", "c1", "m1", "a1", "toy", "native", "approve", "object", "type", "properties", "$ref", "#/$defs/a", "max_tools", "media_types", "pattern",
    "^[a-z]{1,8}$", "(a+)+$", "{", "}", '{"k": 1}', "1.2.3", "stream.text", "tool.mcp", "<b>x</b>", "\x00", "\u202e", "line\n", "\x7f", "é", "😀" * 40,
    "x" * 129, "x" * 1001, "api_key", "command",
)  # fmt: skip
NUMBERS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    5.0,
    1e16,
    1e300,
    -1e300,
    2.0**53,
    2.0**63,
    float("inf"),
    float("-inf"),
    float("nan"),
)
_F = FieldDescriptor
_RANGES = {
    _F.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    _F.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    _F.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    _F.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}


class Maker:
    """Fills messages with random content. One random source, so that an example is one number and shrinks by being replayed."""

    def __init__(self, source: random.Random, words: tuple[str, ...] = WORDS + CANARIES) -> None:
        self.source = source
        self._words = words

    def message(self, kind: Callable[[], Message], *, depth: int = 4, density: float = 0.5) -> Any:
        """A message of the type; each field is there with the density."""
        made = kind()
        self.fill(made, depth, density)
        return made

    def fill(self, message: Message, depth: int, density: float) -> None:
        """Sets fields of a message anew."""
        name = message.DESCRIPTOR.full_name
        if name == "google.protobuf.Struct":
            self._struct(message, depth)
        elif name == "google.protobuf.Value":
            self._value(message, depth)
        elif name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
            message.seconds = self.source.choice((0, 1, -1, 1 << 33, -62135596800, 253402300799, 1 << 62))  # type: ignore[attr-defined] # both have it
            message.nanos = self.source.choice((0, 1, 999_999_999, -1))  # type: ignore[attr-defined] # both have it
        else:
            for field in _chosen(message, self.source, density):
                self.set_field(message, field, depth, density)

    def set_field(self, message: Message, field: FieldDescriptor, depth: int, density: float) -> None:
        """Gives one field a random content."""
        if depth <= 0 and field.cpp_type == _F.CPPTYPE_MESSAGE:
            return
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            self._map(getattr(message, field.name), field, depth, density)
        elif field.is_repeated:
            items = getattr(message, field.name)
            for _ in range(self.source.choice((0, 1, 1, 2, 3))):
                if field.cpp_type == _F.CPPTYPE_MESSAGE:
                    self.fill(items.add(), depth - 1, density)
                else:
                    items.append(self.scalar(field))
        elif field.cpp_type == _F.CPPTYPE_MESSAGE:
            part = getattr(message, field.name)
            part.SetInParent()
            self.fill(part, depth - 1, density)
        else:
            setattr(message, field.name, self.scalar(field))

    def _map(self, items: Any, field: FieldDescriptor, depth: int, density: float) -> None:
        entry: Any = field.message_type
        value = entry.fields_by_name["value"]
        for _ in range(self.source.choice((0, 1, 2))):
            key = self.word()
            if value.cpp_type == _F.CPPTYPE_MESSAGE:
                self.fill(items[key], depth - 1, density)
            else:
                items[key] = self.scalar(value)

    def scalar(self, field: FieldDescriptor) -> Any:
        """A value of a scalar field."""
        source = self.source
        match field.cpp_type:
            case _F.CPPTYPE_STRING if field.type == _F.TYPE_BYTES:
                return source.randbytes(source.choice((0, 1, 40)))
            case _F.CPPTYPE_STRING:
                return self.word()
            case _F.CPPTYPE_BOOL:
                return source.random() < 0.5
            case _F.CPPTYPE_ENUM:
                # Open enums: a newer peer may say what this one does not know.
                enum: Any = field.enum_type
                return source.choice((source.choice(enum.values).number, 0, 99, -1))
            case _F.CPPTYPE_DOUBLE | _F.CPPTYPE_FLOAT:
                return source.choice(NUMBERS)
            case kind:
                low, high = _RANGES[kind]
                return source.choice((1, 1, 2, low, high, source.randint(max(low, 0), 100)))

    def word(self) -> str:
        """A text."""
        return self.source.choice(self._words)

    def json(self, depth: int) -> Any:
        """A JSON value, with what JSON does not admit among it."""
        source = self.source
        if depth <= 0 or source.random() < 0.4:
            return source.choice((None, True, False, self.word(), source.choice(NUMBERS), source.randint(-3, 70_000)))
        if source.random() < 0.4:
            return [self.json(depth - 1) for _ in range(source.choice((0, 1, 2, 4)))]
        return {self.word(): self.json(depth - 1) for _ in range(source.choice((0, 1, 2, 4)))}

    def _struct(self, struct: Any, depth: int) -> None:
        for _ in range(self.source.choice((0, 1, 2, 3))):
            self._value(struct.fields[self.word()], depth)

    def _value(self, value: Any, depth: int) -> None:
        source = self.source
        kind = source.choice(("null", "number", "string", "string", "bool", "struct", "list", "unset", "deep"))
        if kind == "unset":
            value.SetInParent()
        elif kind == "number":
            value.number_value = source.choice(NUMBERS)
        elif kind == "string":
            value.string_value = self.word()
        elif kind == "bool":
            value.bool_value = source.random() < 0.5
        elif kind == "struct" and depth > 0:
            value.struct_value.SetInParent()
            self._struct(value.struct_value, depth - 1)
        elif kind == "list" and depth > 0:
            value.list_value.SetInParent()
            for _ in range(source.choice((0, 1, 3))):
                self._value(value.list_value.values.add(), depth - 1)
        elif kind == "deep" and source.random() < 0.2:
            for _ in range(source.choice((7, 8, 9, 25, 40))):
                value = value.list_value.values.add()
            value.number_value = 1
        else:
            value.null_value = 0


def _chosen(message: Message, source: random.Random, density: float) -> list[FieldDescriptor]:
    """Fields to set: of a oneof at most one."""
    descriptor: Any = message.DESCRIPTOR
    chosen = [field for field in descriptor.fields if field.containing_oneof is None and source.random() < density]
    for oneof in descriptor.oneofs:
        if source.random() < 0.95:
            chosen.append(source.choice(oneof.fields))
    return chosen


def mutated(source: random.Random, data: bytes, rounds: int = 3) -> bytes:
    """The bytes with some of them changed, left out, repeated or moved."""
    changed = bytearray(data)
    for _ in range(source.randint(1, rounds)):
        at = source.randrange(len(changed) + 1)
        match source.randrange(4):
            case 0 if changed:
                changed[at % len(changed)] = source.randrange(256)
            case 1:
                del changed[at : at + source.randint(1, 8)]
            case 2:
                changed[at:at] = changed[at : at + source.randint(1, 30)]
            case _:
                changed[at:at] = source.randbytes(source.randint(1, 6))
    return bytes(changed)


def parsed(kind: Any, data: bytes) -> Any:
    """The message in the bytes, None if there is none."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None
