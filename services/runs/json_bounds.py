"""How large a JSON object of a client may be (run contract, `client_context`; events, Bounds): 8 levels, 256 keys, and a size as JSON. Pure."""

from __future__ import annotations

import json
from typing import Final

from google.protobuf import struct_pb2

from services.common.errors import FieldIssue

MAX_LEVELS: Final = 8
"""Objects and lists inside one another, the outermost included."""
MAX_KEYS: Final = 256
"""Of all objects together."""
MAX_JSON_BYTES: Final = 64 * 1024
"""Of a turn's context and of the values of a form, as JSON."""
MAX_ARGUMENTS_BYTES: Final = 128 * 1024
"""Of the arguments of one tool call, as JSON."""
_MAX_READ: Final = 16 * MAX_JSON_BYTES


def issues_of(given: struct_pb2.Struct, path: str, *, max_bytes: int = MAX_JSON_BYTES) -> list[FieldIssue]:
    """Every bound that the object at `path` of a request exceeds; none: it may be used. Of one that is far too large no more is read than shows
    it (I35).
    """
    measured = _Measured()
    measured.of_object(given, 1)
    issues: list[FieldIssue] = []
    if measured.levels > MAX_LEVELS:
        issues.append(FieldIssue(path, "too_deep", f"Nested more than {MAX_LEVELS} levels deep."))
    if measured.keys > MAX_KEYS:
        issues.append(FieldIssue(path, "too_many_keys", f"More than {MAX_KEYS} keys together."))
    if measured.size > max_bytes:
        issues.append(FieldIssue(path, "too_large", f"More than {max_bytes} bytes as JSON."))
    return issues


class _Measured:
    def __init__(self) -> None:
        self.levels = 0
        self.keys = 0
        self.size = 0

    def of_object(self, value: struct_pb2.Struct, level: int) -> None:
        self._enter(level)
        for key, item in value.fields.items():
            self.keys += 1
            self.size += _text_size(key) + 2  # the colon, and the comma or the brace
            self._of_value(item, level)
            if self.size > _MAX_READ:
                return

    def _of_list(self, value: struct_pb2.ListValue, level: int) -> None:
        self._enter(level)
        for item in value.values:
            self.size += 1
            self._of_value(item, level)
            if self.size > _MAX_READ:
                return

    def _enter(self, level: int) -> None:
        self.levels = max(self.levels, level)
        self.size += 1

    def _of_value(self, value: struct_pb2.Value, level: int) -> None:
        match value.WhichOneof("kind"):
            case "struct_value":
                self.of_object(value.struct_value, level + 1)
            case "list_value":
                self._of_list(value.list_value, level + 1)
            case "string_value":
                self.size += _text_size(value.string_value)
            case "number_value":
                number = value.number_value
                self.size += len(str(int(number)) if number.is_integer() and abs(number) < 1e16 else repr(number))
            case _:
                self.size += 4


def _text_size(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace"))
