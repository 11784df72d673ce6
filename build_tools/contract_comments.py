"""Collect the comments of our contracts, which compiled descriptors lose, in a Python module beside them.

`harness/contract_comments.py` holds one mapping, `COMMENTS`: full name of a service, rpc, message, field, enum or enum
value, to the comment above it, lines joined. The REST reference and the OpenAPI document take their words from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from google.protobuf import descriptor_pb2

MODULE: Final = "harness/contract_comments.py"


def comments_module(image: bytes, package: str = "harness.") -> str:
    """Source of the module, from a compiled image (a FileDescriptorSet with source info)."""
    files = descriptor_pb2.FileDescriptorSet.FromString(image).file
    comments: dict[str, str] = {}
    for file in files:
        if file.package.startswith(package):
            comments.update(_comments(file))
    lines = [f"    {name!r}: {text!r}," for name, text in sorted(comments.items())]
    head = '"""Comments of the contracts by full name. Made by `make gen`."""'
    return "\n".join([head, "", "COMMENTS: dict[str, str] = {", *lines, "}", ""])


def _comments(file: descriptor_pb2.FileDescriptorProto) -> Iterator[tuple[str, str]]:
    names = dict(_names(file))
    for location in file.source_code_info.location:
        name = names.get(tuple(location.path))
        if name is not None and location.leading_comments:
            yield name, " ".join(line.strip() for line in location.leading_comments.strip().splitlines())


def _names(file: descriptor_pb2.FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], str]]:
    """Path in the file's descriptor, as source info gives it, and the full name of what is there."""
    number = {field.name: field.number for field in file.DESCRIPTOR.fields}
    for index, service in enumerate(file.service):
        path, name = (number["service"], index), f"{file.package}.{service.name}"
        yield path, name
        for position, method in enumerate(service.method):
            yield (*path, 2, position), f"{name}.{method.name}"
    yield from _messages(file.package, (number["message_type"],), file.message_type)
    yield from _enums(file.package, (number["enum_type"],), file.enum_type)


def _messages(
    scope: str, path: tuple[int, ...], messages: Iterable[descriptor_pb2.DescriptorProto]
) -> Iterator[tuple[tuple[int, ...], str]]:
    for index, message in enumerate(messages):
        own, name = (*path, index), f"{scope}.{message.name}"
        yield own, name
        for position, field in enumerate(message.field):
            yield (*own, 2, position), f"{name}.{field.name}"
        yield from _messages(name, (*own, 3), message.nested_type)
        yield from _enums(name, (*own, 4), message.enum_type)


def _enums(
    scope: str, path: tuple[int, ...], enums: Iterable[descriptor_pb2.EnumDescriptorProto]
) -> Iterator[tuple[tuple[int, ...], str]]:
    for index, enum in enumerate(enums):
        own, name = (*path, index), f"{scope}.{enum.name}"
        yield own, name
        for position, value in enumerate(enum.value):
            # The full name of an enum value, as the language has it, is its sibling's; ours says which enum it is of.
            yield (*own, 2, position), f"{name}.{value.name}"
