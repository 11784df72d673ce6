"""Print a file descriptor as `.proto` source.

Some contracts are installed only as a descriptor inside a wheel, while buf reads source. The printed source has no
comments (descriptors inside wheels carry none), puts nested messages before fields, and but for that order compiles to
the same descriptor; `tests/test_toolchain.py` holds that. Groups and editions are refused: nothing printed here has any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from google.protobuf import descriptor_pb2, text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_Field = descriptor_pb2.FieldDescriptorProto

_SCALARS: Final = {
    _Field.TYPE_DOUBLE: "double",
    _Field.TYPE_FLOAT: "float",
    _Field.TYPE_INT64: "int64",
    _Field.TYPE_UINT64: "uint64",
    _Field.TYPE_INT32: "int32",
    _Field.TYPE_FIXED64: "fixed64",
    _Field.TYPE_FIXED32: "fixed32",
    _Field.TYPE_BOOL: "bool",
    _Field.TYPE_STRING: "string",
    _Field.TYPE_BYTES: "bytes",
    _Field.TYPE_UINT32: "uint32",
    _Field.TYPE_SFIXED32: "sfixed32",
    _Field.TYPE_SFIXED64: "sfixed64",
    _Field.TYPE_SINT32: "sint32",
    _Field.TYPE_SINT64: "sint64",
}
_MAX_FIELD_NUMBER: Final = 536_870_911
_MAX_ENUM_NUMBER: Final = 2_147_483_647


def print_file(file: descriptor_pb2.FileDescriptorProto) -> str:
    """Source of `file`. Custom options print by name only if their extensions are in the default descriptor pool
    *before* `file` is parsed; options that stay unknown are refused, since they would be lost silently.

    Raises ValueError for what cannot be printed: editions, groups, unknown options.
    """
    return "\n".join(_FilePrinter(file).lines()) + "\n"


class _FilePrinter:
    def __init__(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        if file.syntax not in ("", "proto2", "proto3"):
            raise ValueError(f"{file.name}: cannot print syntax {file.syntax!r}, only proto2 and proto3")
        self._file = file
        self._proto3 = file.syntax == "proto3"

    def lines(self) -> Iterator[str]:
        file = self._file
        yield f'syntax = "{file.syntax or "proto2"}";'
        yield f"package {file.package};"
        for index, dependency in enumerate(file.dependency):
            yield f'import {"public " if index in file.public_dependency else ""}"{dependency}";'
        yield from _option_statements(file.options)
        yield from self._extensions(file.extension)
        for message in file.message_type:
            yield from self._message(message)
        for enum in file.enum_type:
            yield from self._enum(enum)
        for service in file.service:
            yield from self._service(service)

    def _message(self, message: descriptor_pb2.DescriptorProto) -> Iterator[str]:
        yield f"message {message.name} {{"
        yield from _indent(self._message_body(message))
        yield "}"

    def _message_body(self, message: descriptor_pb2.DescriptorProto) -> Iterator[str]:
        yield from _option_statements(message.options)
        maps = {entry.name: entry for entry in message.nested_type if entry.options.map_entry}
        for nested in message.nested_type:
            if nested.name not in maps:
                yield from self._message(nested)
        for enum in message.enum_type:
            yield from self._enum(enum)
        yield from self._fields(message, maps)
        yield from self._extensions(message.extension)
        for extension_range in message.extension_range:
            yield _extension_range(extension_range)
        reserved = [_number_range(r.start, r.end - 1, _MAX_FIELD_NUMBER) for r in message.reserved_range]
        yield from _reserved(reserved, message.reserved_name)

    def _fields(
        self, message: descriptor_pb2.DescriptorProto, maps: dict[str, descriptor_pb2.DescriptorProto]
    ) -> Iterator[str]:
        opened: set[int] = set()
        for field in message.field:
            # An `optional` of proto3 is a one-member oneof in the descriptor only.
            if not field.HasField("oneof_index") or field.proto3_optional:
                yield self._field(field, maps)
            elif field.oneof_index not in opened:
                opened.add(field.oneof_index)
                oneof = message.oneof_decl[field.oneof_index]
                yield f"oneof {oneof.name} {{"
                yield from _indent(_option_statements(oneof.options))
                members = [f for f in message.field if f.HasField("oneof_index") and f.oneof_index == field.oneof_index]
                yield from _indent(self._field(member, maps, in_oneof=True) for member in members)
                yield "}"

    def _field(self, field: _Field, maps: dict[str, descriptor_pb2.DescriptorProto], *, in_oneof: bool = False) -> str:
        if field.type == _Field.TYPE_GROUP:
            raise ValueError(f"{self._file.name}: cannot print field {field.name!r}, it is a group")
        entry = maps.get(field.type_name.rsplit(".", 1)[-1])
        if entry is not None and field.label == _Field.LABEL_REPEATED:
            key, value = entry.field
            kind = f"map<{_type_name(key)}, {_type_name(value)}>"
        else:
            label = "" if in_oneof else self._label(field)
            kind = f"{label}{_type_name(field)}"
        options = list(_options(field.options))
        if field.HasField("default_value"):
            options.insert(0, f"default = {_default(field)}")
        if field.json_name and field.json_name != _default_json_name(field.name) and not field.extendee:
            options.insert(0, f"json_name = {_quote(field.json_name)}")
        return f"{kind} {field.name} = {field.number}{_bracketed(options)};"

    def _label(self, field: _Field) -> str:
        if field.label == _Field.LABEL_REPEATED:
            return "repeated "
        if field.label == _Field.LABEL_REQUIRED:
            return "required "
        return "" if self._proto3 and not field.proto3_optional else "optional "

    def _extensions(self, extensions: Iterable[_Field]) -> Iterator[str]:
        for extension in extensions:
            yield f"extend {extension.extendee} {{"
            yield from _indent([self._field(extension, {})])
            yield "}"

    def _enum(self, enum: descriptor_pb2.EnumDescriptorProto) -> Iterator[str]:
        yield f"enum {enum.name} {{"
        yield from _indent(_option_statements(enum.options))
        for value in enum.value:
            yield f"  {value.name} = {value.number}{_bracketed(list(_options(value.options)))};"
        ranges = [_number_range(r.start, r.end, _MAX_ENUM_NUMBER) for r in enum.reserved_range]
        yield from _indent(_reserved(ranges, enum.reserved_name))
        yield "}"

    def _service(self, service: descriptor_pb2.ServiceDescriptorProto) -> Iterator[str]:
        yield f"service {service.name} {{"
        yield from _indent(_option_statements(service.options))
        for method in service.method:
            request = f"{'stream ' if method.client_streaming else ''}{method.input_type}"
            response = f"{'stream ' if method.server_streaming else ''}{method.output_type}"
            options = "".join(f" option {option};" for option in _options(method.options))
            yield f"  rpc {method.name}({request}) returns ({response}){f' {{{options} }}' if options else ';'}"
        yield "}"


def _indent(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _bracketed(options: list[str]) -> str:
    return f" [{', '.join(options)}]" if options else ""


def _option_statements(options: Message) -> Iterator[str]:
    return (f"option {option};" for option in _options(options))


def _options(options: Message) -> Iterator[str]:
    """`name = value` for each option that is set, but for `map_entry`, which source says by `map<…>`."""
    known = type(options)()
    known.CopyFrom(options)
    known.DiscardUnknownFields()
    if known.ByteSize() != options.ByteSize():
        raise ValueError(f"{options.DESCRIPTOR.full_name}: an option has no known extension and would be lost")
    for field, value in options.ListFields():
        if field.name == "map_entry":
            continue
        name = f"(.{field.full_name})" if field.is_extension else field.name
        values = value if field.is_repeated else [value]
        for single in values:
            yield f"{name} = {_option_value(field, single)}"


def _option_value(field: FieldDescriptor, value: object) -> str:
    if isinstance(value, Message):
        return f"{{ {text_format.MessageToString(value, as_one_line=True)} }}"
    if field.enum_type is not None and isinstance(value, int):
        return field.enum_type.values_by_number[value].name
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | bytes):
        return _quote(value)
    return str(value)


def _default(field: _Field) -> str:
    # The descriptor holds bytes defaults already escaped; strings are raw; numbers, enums and bools are source text.
    if field.type == _Field.TYPE_STRING:
        return _quote(field.default_value)
    return f'"{field.default_value}"' if field.type == _Field.TYPE_BYTES else field.default_value


def _quote(value: str | bytes) -> str:
    raw = value.encode() if isinstance(value, str) else value
    plain = (chr(b) if 0x20 <= b < 0x7F and chr(b) not in '"\\' else f"\\{b:03o}" for b in raw)
    return f'"{"".join(plain)}"'


def _type_name(field: _Field) -> str:
    return field.type_name or _SCALARS[field.type]


def _default_json_name(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in tail)


def _number_range(first: int, last: int, maximum: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last == maximum else last}"


def _extension_range(extension_range: descriptor_pb2.DescriptorProto.ExtensionRange) -> str:
    numbers = _number_range(extension_range.start, extension_range.end - 1, _MAX_FIELD_NUMBER)
    return f"extensions {numbers}{_bracketed(list(_options(extension_range.options)))};"


def _reserved(ranges: list[str], names: Iterable[str]) -> Iterator[str]:
    if ranges:
        yield f"reserved {', '.join(ranges)};"
    quoted = [_quote(name) for name in names]
    if quoted:
        yield f"reserved {', '.join(quoted)};"
