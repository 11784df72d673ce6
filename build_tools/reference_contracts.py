"""The page of the contracts: every rpc, message, field and enum with its comment and its constraints."""

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, Final

from google.api import annotations_pb2
from google.protobuf import text_format
from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    FileDescriptor,
    MethodDescriptor,
    OneofDescriptor,
    ServiceDescriptor,
)

from buf.validate import validate_pb2
from build_tools.contract_files import contract_files
from harness.contract_comments import COMMENTS

NOTE: Final = "<!-- Written by `make docs`; change what it comes from, not this page. -->"
_HEAD: Final = f"""# Contracts

{NOTE}

Every package of `proto/`, as `buf` compiles it. Constraints stand in the contract and are enforced by every server, in any language; a
request that breaks one is refused with `invalid_request` and all its problems at once. Numbers that reach JSON as numbers are 32-bit.
The events have [a page of their own](events.md), what REST makes of the public services is in [REST and SSE](rest.md).
"""
_SCALARS: Final = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
}


def contracts_page() -> str:
    """The whole page."""
    packages: dict[str, list[FileDescriptor]] = {}
    for name in contract_files():
        module = import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
        descriptor: FileDescriptor = module.DESCRIPTOR
        packages.setdefault(descriptor.package, []).append(descriptor)
    contents = [f"- [{package}](#{package.replace('.', '')})" for package in packages]
    parts = [_HEAD, "\n".join(contents) + "\n"]
    for package, files in packages.items():
        parts.append(f"## {package}\n")
        parts += [part for file in files for part in _file(file)]
    return "\n".join(parts)


def message_table(message: Descriptor) -> str:
    """The fields of a message, or a word that it has none."""
    if not message.fields:
        return "No fields.\n"
    lines = ["| field | type | constraints | meaning |", "|---|---|---|---|"]
    for field in message.fields:
        lines.append(
            f"| `{field.name}` | {_type(field)} | {_constraints(field)} | {comment(f'{message.full_name}.{field.name}')} |"
        )
    return "\n".join(lines) + "\n"


def comment(full_name: str) -> str:
    """The comment, fit for a cell of a table."""
    return COMMENTS.get(full_name, "").replace("|", "\\|")


def _file(file: FileDescriptor) -> Iterator[str]:
    for service in file.services_by_name.values():
        yield from _service(service)
    for message in file.message_types_by_name.values():
        yield from _message(message)
    for enum in file.enum_types_by_name.values():
        yield _enum(enum)


def _service(service: ServiceDescriptor) -> Iterator[str]:
    yield f"### {service.full_name}\n"
    yield f"{comment(service.full_name)}\n"
    lines = ["| rpc | request → response | REST | meaning |", "|---|---|---|---|"]
    methods: Iterable[MethodDescriptor] = service.methods
    for method in methods:
        request = _stream(method.client_streaming) + _link(method.input_type)
        response = _stream(method.server_streaming) + _link(method.output_type)
        lines.append(f"| `{method.name}` | {request} → {response} | {_route(method)} | {comment(method.full_name)} |")
    yield "\n".join(lines) + "\n"


def _message(message: Descriptor) -> Iterator[str]:
    if message.GetOptions().map_entry:
        return
    yield f"### {message.full_name}\n"
    if text := comment(message.full_name):
        yield f"{text}\n"
    yield message_table(message)
    if oneofs := [oneof for oneof in message.oneofs if not _is_optional(oneof)]:
        yield "\n".join(_oneof(oneof) for oneof in oneofs) + "\n"
    for nested in message.nested_types:
        yield from _message(nested)
    for enum in message.enum_types:
        yield _enum(enum)


def _enum(enum: EnumDescriptor) -> str:
    lines = [f"### {enum.full_name}\n", f"{comment(enum.full_name)}\n", "| value | number | meaning |", "|---|---|---|"]
    lines += [
        f"| `{value.name}` | {value.number} | {comment(f'{enum.full_name}.{value.name}')} |" for value in enum.values
    ]
    return "\n".join(lines) + "\n"


def _oneof(oneof: OneofDescriptor) -> str:
    options: Any = oneof.GetOptions()
    required = options.HasExtension(validate_pb2.oneof) and options.Extensions[validate_pb2.oneof].required
    names = ", ".join(f"`{field.name}`" for field in oneof.fields)
    return f"{'Exactly' if required else 'At most'} one of {names}."


def _is_optional(oneof: OneofDescriptor) -> bool:
    # What `optional` makes of one field; the language has no other sign of it here.
    return len(oneof.fields) == 1 and oneof.name == f"_{oneof.fields[0].name}"


def _type(field: FieldDescriptor) -> str:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = message.fields_by_name["key"], message.fields_by_name["value"]
        return f"map of {_plain_type(key)} to {_plain_type(value)}"
    if field.is_repeated:
        return f"repeated {_plain_type(field)}"
    optional = field.containing_oneof is not None and _is_optional(field.containing_oneof)
    return f"{'optional ' if optional else ''}{_plain_type(field)}"


def _plain_type(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        return _link(field.message_type)
    if field.enum_type is not None:
        return _link(field.enum_type)
    return _SCALARS[field.type]


def _link(kind: Descriptor | EnumDescriptor) -> str:
    if not kind.full_name.startswith("harness."):
        return f"`{kind.full_name}`"
    return f"[{kind.name}](#{kind.full_name.replace('.', '').lower()})"


def _stream(streaming: bool) -> str:
    return "stream of " if streaming else ""


def _route(method: MethodDescriptor) -> str:
    options: Any = method.GetOptions()
    if not options.HasExtension(annotations_pb2.http):
        return ""
    rule = options.Extensions[annotations_pb2.http]
    verb = str(rule.WhichOneof("pattern"))
    return f"{verb.upper()} `{getattr(rule, verb)}`"


def _constraints(field: FieldDescriptor) -> str:
    options: Any = field.GetOptions()
    if not options.HasExtension(validate_pb2.field):
        return ""
    rules = text_format.MessageToString(options.Extensions[validate_pb2.field], as_one_line=True, as_utf8=True)
    return f"`{rules.strip()}`".replace("|", "\\|")
