"""JSON values to messages: one decoder per message type, compiled from its descriptor on first use; all problems at once."""

# pyright: standard
# Messages are known by their descriptors only, so their fields are untyped here.

import base64
import binascii
import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from google.protobuf import message_factory, struct_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from services.common.errors import MAX_FIELD_ISSUES, FieldIssue
from services.gateway.codec.names import numbers
from services.gateway.codec.text import NotANumber, RepeatedKeys

MAX_DEPTH = 32
# Beyond it nobody reads on; the walk itself goes on, so that one request never hides how much is wrong with it.
MAX_ISSUES = MAX_FIELD_ISSUES

Issues = list[FieldIssue]
Reader = Callable[[Any, str, Issues], Any]
"""A value, its path, the list of problems → what to store, or BAD after adding a problem."""

BAD: Any = object()
_F = FieldDescriptor
_INTEGER_BOUNDS = {
    _F.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    _F.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    _F.CPPTYPE_UINT32: (0, 2**32 - 1),
    _F.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_MAX_FLOAT = 3.4028234663852886e38
_DIGITS = re.compile(r"-?[0-9]{1,64}", re.ASCII)


def problem(issues: Issues, path: str, code: str, message: str) -> Any:
    """Adds a problem; always BAD, so that readers can return it."""
    if len(issues) < MAX_ISSUES:
        issues.append(FieldIssue(path, code, message))
    return BAD


def child(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@cache
def message_decoder(descriptor: Descriptor) -> Reader:
    """The reader of a whole message; BAD when the value is no object, else a message with what could be read."""
    special = _SPECIAL.get(descriptor.full_name)
    if special is not None:
        return special
    return _MessageReader(descriptor)


class _Field(NamedTuple):
    store: Callable[[Message, Any, str, Issues], None]
    takes_null: bool
    oneof: str | None


class _MessageReader:
    def __init__(self, descriptor: Descriptor) -> None:
        self._descriptor = descriptor
        self._new = message_factory.GetMessageClass(descriptor)
        self._compiled: dict[str, _Field] | None = None

    @property
    def _fields(self) -> dict[str, _Field]:
        # Compiled on first use: messages may contain themselves.
        if self._compiled is None:
            self._compiled = {field.name: _field(field) for field in self._descriptor.fields}
        return self._compiled

    def __call__(self, value: Any, path: str, issues: Issues) -> Any:
        if not isinstance(value, dict):
            return problem(issues, path, "wrong_type", "Expected an object.")
        report_repeated(value, path, issues)
        message = self._new()
        fields = self._fields
        oneofs: dict[str, str] = {}
        for name, item in value.items():
            field = fields.get(name)
            where = child(path, name)
            if field is None:
                problem(issues, where, "unknown_field", "There is no such field.")
                continue
            if item is None and not field.takes_null:
                continue
            if field.oneof is not None:
                other = oneofs.setdefault(field.oneof, name)
                if other != name:
                    problem(issues, where, "conflicting_fields", f"Only one of {other} and {name} may be given.")
                    continue
            field.store(message, item, where, issues)
        return message


def report_repeated(value: dict[str, Any], path: str, issues: Issues) -> None:
    if isinstance(value, RepeatedKeys):
        for name in value.repeated:
            problem(issues, child(path, name), "duplicate_key", "The key is given more than once.")


def _field(field: FieldDescriptor) -> _Field:
    takes_null = (
        field.message_type is not None and field.message_type.full_name == "google.protobuf.Value"
    ) and not field.is_repeated
    oneof = field.containing_oneof
    real_oneof = None if oneof is None or (len(oneof.fields) == 1 and oneof.name.startswith("_")) else oneof.name
    return _Field(_store(field), takes_null, real_oneof)


def _store(field: FieldDescriptor) -> Callable[[Message, Any, str, Issues], None]:
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _store_map(field)
    if field.is_repeated:
        return _store_list(field)
    read = _reader(field)
    if field.message_type is not None:

        def store_message(message: Message, value: Any, path: str, issues: Issues) -> None:
            result = read(value, path, issues)
            if result is not BAD:
                getattr(message, name).CopyFrom(result)
                getattr(message, name).SetInParent()

        return store_message

    def store_scalar(message: Message, value: Any, path: str, issues: Issues) -> None:
        result = read(value, path, issues)
        if result is not BAD:
            setattr(message, name, result)

    return store_scalar


def _store_list(field: FieldDescriptor) -> Callable[[Message, Any, str, Issues], None]:
    read = _reader(field)

    def store(message: Message, value: Any, path: str, issues: Issues) -> None:
        if not isinstance(value, list):
            problem(issues, path, "wrong_type", "Expected a list.")
            return
        items = [read(item, f"{path}[{index}]", issues) for index, item in enumerate(value)]
        getattr(message, field.name).extend(item for item in items if item is not BAD)

    return store


def _store_map(field: FieldDescriptor) -> Callable[[Message, Any, str, Issues], None]:
    entry: Any = field.message_type
    key_field, value_field = entry.fields_by_name["key"], entry.fields_by_name["value"]
    if key_field.type != _F.TYPE_STRING:
        raise TypeError(f"{field.full_name}: only maps with text keys have a JSON form here")
    read = _reader(value_field)
    of_messages = value_field.message_type is not None

    def store(message: Message, value: Any, path: str, issues: Issues) -> None:
        if not isinstance(value, dict):
            problem(issues, path, "wrong_type", "Expected an object.")
            return
        report_repeated(value, path, issues)
        target = getattr(message, field.name)
        for key, item in value.items():
            where = f"{path}[{_quoted(key)}]"
            key_is_text = read_text(key, where, issues) is not BAD
            result = read(item, where, issues)
            if result is BAD or not key_is_text:
                continue
            if of_messages:
                target[key].CopyFrom(result)
            else:
                target[key] = result

    return store


def _quoted(key: str) -> str:
    return '"' + key[:128].replace("\\", "\\\\").replace('"', '\\"') + '"'


def _reader(field: FieldDescriptor) -> Reader:
    if field.message_type is not None:
        return message_decoder(field.message_type)
    if field.enum_type is not None:
        return _enum_reader(field)
    if field.type == _F.TYPE_STRING:
        return read_text
    if field.type == _F.TYPE_BYTES:
        return _read_bytes
    if field.type == _F.TYPE_BOOL:
        return _read_bool
    if field.cpp_type in _INTEGER_BOUNDS:
        return _integer_reader(*_INTEGER_BOUNDS[field.cpp_type])
    return _float_reader(_MAX_FLOAT if field.type == _F.TYPE_FLOAT else math.inf)


def read_text(value: Any, path: str, issues: Issues) -> Any:
    if not isinstance(value, str):
        return problem(issues, path, "wrong_type", "Expected text.")
    if "\0" in value:
        return problem(issues, path, "invalid_text", "The text contains a NUL character.")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return problem(issues, path, "invalid_text", "The text contains half of a surrogate pair.")
    return value


def _read_bytes(value: Any, path: str, issues: Issues) -> Any:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError):
        return problem(issues, path, "wrong_type", "Expected base64 text.")


def _read_bool(value: Any, path: str, issues: Issues) -> Any:
    if value is True or value is False:
        return value
    return problem(issues, path, "wrong_type", "Expected true or false.")


def _integer_reader(low: int, high: int) -> Reader:
    def read(value: Any, path: str, issues: Issues) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 1.0 and 1e3 are integers to JSON
        if isinstance(value, NotANumber):
            return problem(issues, path, value.code, value.message)
        if isinstance(value, float) and math.isinf(value):
            return problem(issues, path, "out_of_range", f"Expected a whole number from {low} to {high}.")
        if isinstance(value, bool) or not isinstance(value, int):
            return problem(issues, path, "wrong_type", "Expected a whole number.")
        if not low <= value <= high:
            return problem(issues, path, "out_of_range", f"Expected a whole number from {low} to {high}.")
        return value

    return read


def _float_reader(limit: float) -> Reader:
    def read(value: Any, path: str, issues: Issues) -> Any:
        if isinstance(value, NotANumber):
            return problem(issues, path, value.code, value.message)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return problem(issues, path, "wrong_type", "Expected a number.")
        if isinstance(value, float) and math.isinf(value):
            return problem(issues, path, "out_of_range", "The number is larger than a double can hold.")
        if isinstance(value, int) and int(float(value)) != value:
            return problem(issues, path, "out_of_range", "A double cannot hold this whole number exactly.")
        if abs(value) > limit:
            return problem(issues, path, "out_of_range", "The number is out of range.")
        return float(value)

    return read


_read_double = _float_reader(math.inf)


def _enum_reader(field: FieldDescriptor) -> Reader:
    known = numbers(field.enum_type)  # pyright: ignore[reportArgumentType] - the caller looked
    choices = ", ".join(known)

    def read(value: Any, path: str, issues: Issues) -> Any:
        if not isinstance(value, str):
            return problem(issues, path, "wrong_type", f"Expected one of: {choices}.")
        number = known.get(value)
        if number is None:
            return problem(issues, path, "unknown_value", f"Expected one of: {choices}.")
        return number

    return read


def _struct(value: Any, path: str, issues: Issues) -> Any:
    if not isinstance(value, dict):
        return problem(issues, path, "wrong_type", "Expected an object.")
    message = struct_pb2.Struct()
    _fill_struct(message, value, path, issues, 1)
    return message


def _value(value: Any, path: str, issues: Issues) -> Any:
    message = struct_pb2.Value()
    _fill_value(message, value, path, issues, 1)
    return message


def _list_value(value: Any, path: str, issues: Issues) -> Any:
    if not isinstance(value, list):
        return problem(issues, path, "wrong_type", "Expected a list.")
    message = struct_pb2.ListValue()
    for index, item in enumerate(value):
        _fill_value(message.values.add(), item, f"{path}[{index}]", issues, 1)
    return message


def _fill_struct(message: Any, value: dict[str, Any], path: str, issues: Issues, depth: int) -> None:
    report_repeated(value, path, issues)
    message.SetInParent()
    fields = message.fields
    for key, item in value.items():
        where = child(path, key)
        if read_text(key, where, issues) is not BAD:
            _fill_value(fields[key], item, where, issues, depth + 1)


def _fill_value(message: Any, value: Any, path: str, issues: Issues, depth: int) -> None:
    if depth > MAX_DEPTH:
        problem(issues, path, "too_deep", f"Nested more than {MAX_DEPTH} levels deep.")
    elif value is None:
        message.null_value = 0
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, str):
        if read_text(value, path, issues) is not BAD:
            message.string_value = value
    elif isinstance(value, dict):
        _fill_struct(message.struct_value, value, path, issues, depth)
    elif isinstance(value, list):
        message.list_value.SetInParent()
        values = message.list_value.values
        for index, item in enumerate(value):
            _fill_value(values.add(), item, f"{path}[{index}]", issues, depth + 1)
    else:
        number = _read_double(value, path, issues)
        if number is not BAD:
            message.number_value = number


def _time_reader(descriptor_name: str, expected: str) -> Reader:
    from google.protobuf import duration_pb2, timestamp_pb2

    new: Any = {"Timestamp": timestamp_pb2.Timestamp, "Duration": duration_pb2.Duration}[descriptor_name]

    def read(value: Any, path: str, issues: Issues) -> Any:
        message = new()
        try:
            message.FromJsonString(value)
        except (ValueError, TypeError, AttributeError):
            return problem(issues, path, "wrong_type", expected)
        return message

    return read


_SPECIAL: dict[str, Reader] = {
    "google.protobuf.Struct": _struct,
    "google.protobuf.Value": _value,
    "google.protobuf.ListValue": _list_value,
    "google.protobuf.Timestamp": _time_reader("Timestamp", "Expected an RFC 3339 time, like 2030-01-31T12:00:00Z."),
    "google.protobuf.Duration": _time_reader("Duration", "Expected seconds with the letter s, like 1.5s."),
}


@cache
def parameter_decoder(field: FieldDescriptor) -> Callable[[Sequence[str], str, Issues], Any]:
    """The reader of a path or query parameter's texts (several, where it was given several times)."""
    if field.message_type is not None:
        raise TypeError(f"{field.full_name}: a message cannot be a parameter")
    read = _reader(field)
    convert = _from_text(field)

    def one(text: str, path: str, issues: Issues) -> Any:
        return read(convert(text), path, issues)

    if field.is_repeated:
        return lambda texts, path, issues: [
            item for index, text in enumerate(texts) if (item := one(text, f"{path}[{index}]", issues)) is not BAD
        ]

    def single(texts: Sequence[str], path: str, issues: Issues) -> Any:
        if len(texts) != 1:
            return problem(issues, path, "duplicate_parameter", "The parameter is given more than once.")
        return one(texts[0], path, issues)

    return single


def _from_text(field: FieldDescriptor) -> Callable[[str], Any]:
    """Text as the JSON value it stands for; what stands for none stays text, which the reader refuses."""
    if field.type == _F.TYPE_BOOL:
        return lambda text: {"true": True, "false": False}.get(text, text)
    if field.cpp_type in _INTEGER_BOUNDS and field.enum_type is None:
        return lambda text: int(text) if _DIGITS.fullmatch(text) else text
    if field.type in (_F.TYPE_DOUBLE, _F.TYPE_FLOAT):
        return _number_from_text
    return lambda text: text


def _number_from_text(text: str) -> Any:
    try:
        number = float(text)
    except ValueError:
        return text
    return text if math.isnan(number) else number
