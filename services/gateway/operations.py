"""The REST operations, read from the contracts: `google.api.http` says where, `harness.common.v1.rest` how (REST API)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

# The extensions must be registered before the options are read.
from google.api import annotations_pb2, http_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor, ServiceDescriptor

from harness.catalog.v1 import agent_service_pb2, harness_service_pb2
from harness.common.v1 import rest_pb2
from harness.files.v1 import file_library_service_pb2
from harness.run.v1 import run_service_pb2

PUBLIC_SERVICES: tuple[ServiceDescriptor, ...] = (
    harness_service_pb2.DESCRIPTOR.services_by_name["HarnessService"],
    agent_service_pb2.DESCRIPTOR.services_by_name["AgentService"],
    run_service_pb2.DESCRIPTOR.services_by_name["RunService"],
    file_library_service_pb2.DESCRIPTOR.services_by_name["FileLibraryService"],
)
CHUNK = "chunk"
"""The field that carries content."""
SAID_BY_HTTP = frozenset((CHUNK, "media_type", "size", "complete"))
"""Fields of an upload that the request's body and head give."""
_VARIABLE = re.compile(r"\{([a-z][a-z0-9_]*)\}")
_LITERAL = re.compile(r"[A-Za-z0-9._~-]+")


class Variable(NamedTuple):
    """A path segment that is the value of a request field."""

    name: str


Segment = str | Variable


@dataclass(frozen=True)
class Operation:
    """One rpc as REST shows it."""

    rpc: str
    """Full name: `harness.run.v1.RunService/GetRun`."""
    name: str
    """`GetRun`."""
    http_method: str
    template: str
    segments: tuple[Segment, ...]
    request: Descriptor
    response: Descriptor
    parameters: tuple[FieldDescriptor, ...]
    """Request fields taken from the query, in the contract's order."""
    has_body: bool
    response_field: FieldDescriptor | None
    """The field of the response that is the answer; None: the whole response."""
    success_status: int
    streams: bool
    """Answers are server-sent events."""
    content: bool
    """The body, of the request where it has one and of the answer otherwise, is content as it is."""
    tag: str

    @property
    def path_fields(self) -> tuple[FieldDescriptor, ...]:
        """Request fields taken from the path."""
        return tuple(self.request.fields_by_name[part.name] for part in self.segments if isinstance(part, Variable))

    @property
    def uploads(self) -> bool:
        """The request's body is content."""
        return self.content and self.has_body

    @property
    def downloads(self) -> bool:
        """The answer's body is content."""
        return self.content and not self.has_body


def public_operations(services: Iterable[ServiceDescriptor] = PUBLIC_SERVICES) -> tuple[Operation, ...]:
    """Every annotated rpc. `ValueError` for an annotation this translation does not know, so that none is served half."""
    return tuple(
        _operation(service, method)
        for service in services
        for method in service.methods
        if _options(method).HasExtension(annotations_pb2.http)
    )


def _options(method: MethodDescriptor) -> Any:
    return method.GetOptions()


def _operation(service: ServiceDescriptor, method: MethodDescriptor) -> Operation:
    rule: http_pb2.HttpRule = _options(method).Extensions[annotations_pb2.http]
    rest: rest_pb2.RestRule = _options(method).Extensions[rest_pb2.rest]
    rpc = f"{service.full_name}/{method.name}"
    pattern = rule.WhichOneof("pattern")
    if (
        pattern not in ("get", "put", "post", "delete", "patch")
        or rule.additional_bindings
        or rule.body not in ("", CHUNK if rest.content else "*")
    ):
        raise ValueError(f"{rpc}: only one binding with a plain method and body '*', or content, or none is served")
    _check_streams(rpc, method, rest, with_body=bool(rule.body))
    template: str = getattr(rule, pattern)
    segments = _segments(rpc, template, method.input_type)
    in_path = {part.name for part in segments if isinstance(part, Variable)}
    elsewhere = in_path | (SAID_BY_HTTP if rest.content else frozenset[str]())
    fields = () if rule.body == "*" else tuple(each for each in method.input_type.fields if each.name not in elsewhere)
    return Operation(
        rpc=rpc,
        name=method.name,
        http_method=pattern.upper(),
        template=template,
        segments=segments,
        request=method.input_type,
        response=method.output_type,
        parameters=fields,
        has_body=bool(rule.body),
        response_field=method.output_type.fields_by_name[rule.response_body] if rule.response_body else None,
        success_status=rest.success_status or 200,
        streams=rest.server_sent_events,
        content=rest.content,
        tag=rest.tag,
    )


def _check_streams(rpc: str, method: MethodDescriptor, rest: rest_pb2.RestRule, *, with_body: bool) -> None:
    if rest.content:
        fields = set((method.input_type if with_body else method.output_type).fields_by_name)
        needed = SAID_BY_HTTP if with_body else {CHUNK, "file"}
        if (method.client_streaming, method.server_streaming) != (with_body, not with_body) or not needed <= fields:
            raise ValueError(f"{rpc}: content needs a stream of messages with {', '.join(sorted(needed))}")
    elif method.client_streaming or method.server_streaming != rest.server_sent_events:
        raise ValueError(f"{rpc}: a server stream needs server_sent_events or content, a client stream content")


def _segments(rpc: str, template: str, request: Descriptor) -> tuple[Segment, ...]:
    segments: list[Segment] = []
    for part in template.removeprefix("/").split("/"):
        variable = _VARIABLE.fullmatch(part)
        if variable is not None:
            if variable[1] not in request.fields_by_name:
                raise ValueError(f"{rpc}: the path names {variable[1]}, which is no field of {request.name}")
            segments.append(Variable(variable[1]))
        elif _LITERAL.fullmatch(part):
            segments.append(part)
        else:
            raise ValueError(f"{rpc}: the path segment {part!r} is not served")
    return tuple(segments)


class Match(NamedTuple):
    """What a path leads to: operations by HTTP method, and the values of the path's variables, still by position."""

    operations: dict[str, Operation]
    values: tuple[str, ...]


class _Node:
    __slots__ = ("literals", "operations", "variable")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.variable: _Node | None = None
        self.operations: dict[str, Operation] = {}


class Router:
    """Finds operations by raw path. A literal segment wins over a variable (`/runs/cancel-active` over `/runs/{run_id}`)."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self._root = _Node()
        for operation in operations:
            node = self._root
            for part in operation.segments:
                if isinstance(part, Variable):
                    node.variable = node.variable or _Node()
                    node = node.variable
                else:
                    node = node.literals.setdefault(part, _Node())
            if operation.http_method in node.operations:
                raise ValueError(f"{operation.rpc}: {operation.http_method} {operation.template} is taken")
            node.operations[operation.http_method] = operation

    def match(self, raw_path: bytes) -> Match | None:
        """The operations at a path as it came over the wire, percent-encoded; None: there are none."""
        if not raw_path.startswith(b"/"):
            return None
        parts: list[str] = []
        for raw in raw_path[1:].split(b"/"):
            try:
                # Decoded after splitting: an encoded slash is part of a value, never a separator.
                parts.append(unquote_to_bytes(raw).decode("utf-8") if b"%" in raw else raw.decode("ascii"))
            except UnicodeDecodeError:
                return None
        return _match(self._root, parts, 0, ())


def _match(node: _Node, parts: list[str], index: int, values: tuple[str, ...]) -> Match | None:
    if index == len(parts):
        return Match(node.operations, values) if node.operations else None
    literal = node.literals.get(parts[index])
    if literal is not None:
        found = _match(literal, parts, index + 1, values)
        if found is not None:
            return found
    if node.variable is not None and parts[index]:
        return _match(node.variable, parts, index + 1, (*values, parts[index]))
    return None
