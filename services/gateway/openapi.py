"""The OpenAPI document and a page for people, both from the contracts: descriptors, annotations, constraints, comments (REST API)."""

# pyright: standard
# Descriptors and their options are walked generically here.

import html
import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from buf.validate import validate_pb2
from harness.contract_comments import COMMENTS
from harness.event.v1 import event_pb2
from services.common.errors import TABLE
from services.gateway.codec.names import short_names
from services.gateway.event_view import WIRE_NAMES
from services.gateway.operations import Operation

Schema = dict[str, Any]
_F = FieldDescriptor
_EVENT = event_pb2.Event.DESCRIPTOR.full_name
_CONTENT: Schema = {"type": "string", "format": "binary"}
_ANY_OBJECT: Schema = {"type": "object", "additionalProperties": True}
_SPECIAL: dict[str, Schema] = {
    "google.protobuf.Struct": _ANY_OBJECT,
    "google.protobuf.Value": {},
    "google.protobuf.ListValue": {"type": "array", "items": {}},
    "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string", "pattern": r"^-?[0-9]+(\.[0-9]{1,9})?s$"},
}
_BOUNDS = {
    _F.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    _F.CPPTYPE_UINT32: (0, 2**32 - 1),
    _F.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    _F.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_ERROR: Schema = {
    "type": "object",
    "description": "Any failure.",
    "required": ["success", "error", "code", "details"],
    "properties": {
        "success": {"const": False},
        "error": {"type": "string", "description": "What was wrong and what to do; safe to show."},
        "code": {"type": "string", "description": "Machine code.", "enum": sorted(reason.value for reason in TABLE)},
        "details": {
            "type": "array",
            "description": "Every field problem at once; facts of an error (`run_id` of a conflict, `incident_id`) are a last entry with an empty path.",
            "items": {
                "type": "object",
                "required": ["path", "code", "message"],
                "properties": {
                    name: {"type": "string"} for name in ("path", "code", "message", "run_id", "incident_id")
                },
                "additionalProperties": {"type": "string"},
            },
        },
    },
}
_EVENT_SCHEMA: Schema = {
    "type": "object",
    "description": "One event of a run's log. `data` leaves out what is absent.",
    "required": ["run_id", "sequence", "event_type", "data", "created_at"],
    "properties": {
        "run_id": {"type": "string"},
        "sequence": {"type": "integer", "minimum": 1, "description": "From 1, +1 per event, no gap."},
        "event_type": {"type": "string", "enum": sorted({*WIRE_NAMES.values(), "subagent.event"})},
        "data": _ANY_OBJECT,
        "created_at": {"type": "string", "format": "date-time"},
    },
}


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """OpenAPI 3.1 of the operations."""
    schemas = _Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.template, {})[operation.http_method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Harness Mesh",
            "version": product_version(),
            "description": "Agents on any agent SDK behind one contract: the surface for the BFF.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"internalToken": [], "subject": []}],
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR, **dict(sorted(schemas.all.items()))},
            "securitySchemes": {
                "internalToken": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The BFF's internal service token.",
                },
                "subject": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-Harness-Engine-Subject",
                    "description": "The caller's stable subject, 1 to 256 printable ASCII characters.",
                },
            },
        },
    }


def product_version() -> str:
    """The installed version of the product; `0` when it runs from a tree that was not installed."""
    try:
        return version("harness-mesh")
    except PackageNotFoundError:
        return "0"


def comment(name: str) -> str:
    return COMMENTS.get(name, "")


def operation_comment(operation: Operation) -> str:
    return comment(operation.rpc.replace("/", "."))


def _operation(operation: Operation, schemas: "_Schemas") -> dict[str, Any]:
    words = operation_comment(operation)
    result: dict[str, Any] = {
        "operationId": operation.name[0].lower() + operation.name[1:],
        "tags": [operation.tag],
        "summary": re.split(r"(?<=[a-z])\. |: ", words)[0].rstrip("."),
        "description": words,
        "parameters": _parameters(operation, schemas),
        "responses": {str(operation.success_status): _answer(operation, schemas), "default": _failure()},
    }
    if operation.uploads:
        result["requestBody"] = {
            "required": True,
            "description": "The content. Content-Type is its media type; one that is announced by Content-Length is refused at once if it is too large.",
            "content": {"*/*": {"schema": _CONTENT}},
        }
    elif operation.has_body:
        content = {"application/json": {"schema": schemas.reference(operation.request, request=True)}}
        result["requestBody"] = {"required": True, "content": content}
    return result


def _parameters(operation: Operation, schemas: "_Schemas") -> list[dict[str, Any]]:
    parameters = [_parameter(field, "path", schemas) for field in operation.path_fields]
    parameters += [_parameter(field, "query", schemas) for field in operation.parameters]
    if operation.streams:
        cursor = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
        text = "The id of the last frame that was received; wins over `after`."
        parameters.append(
            {"name": "Last-Event-ID", "in": "header", "required": False, "description": text, "schema": cursor}
        )
    return parameters


def _parameter(field: FieldDescriptor, place: str, schemas: "_Schemas") -> dict[str, Any]:
    schema = schemas.field(field, request=True)
    words = schema.pop("description", "")
    return {"name": field.name, "in": place, "required": place == "path", "description": words, "schema": schema}


def _answer(operation: Operation, schemas: "_Schemas") -> dict[str, Any]:
    if operation.streams:
        text = "Frames of `id: <sequence>`, `event: <type>`, `data: <json of data>`, or as `protocol` has them; ends after the run's terminal event."
        return {"description": text, "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    if operation.downloads:
        text = "The content, with its media type, its length, and its name in Content-Disposition."
        return {"description": text, "content": {"*/*": {"schema": _CONTENT}}}
    field = operation.response_field
    data = schemas.reference(operation.response if field is None else field.message_type)  # type: ignore[arg-type]
    envelope = {
        "type": "object",
        "required": ["success", "data"],
        "properties": {"success": {"const": True}, "data": data},
    }
    return {"description": "Success.", "content": {"application/json": {"schema": envelope}}}


def _failure() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": "Failure.", "content": content}


class _Schemas:
    """Schemas of messages by name, made on first use. Requests differ from answers: constraints, no unknown field."""

    def __init__(self) -> None:
        self.all: dict[str, Schema] = {}

    def reference(self, descriptor: Descriptor, *, request: bool = False) -> Schema:
        special = _SPECIAL.get(descriptor.full_name)
        if special is not None:
            return dict(special)
        name = descriptor.name if not request or descriptor.name.endswith("Request") else f"{descriptor.name}Input"
        if name not in self.all:
            self.all[name] = {}  # first, for messages that contain themselves
            self.all[name] = self._message(descriptor, request)
        return {"$ref": f"#/components/schemas/{name}"}

    def _message(self, descriptor: Descriptor, request: bool) -> Schema:
        if descriptor.full_name == _EVENT:
            return _EVENT_SCHEMA
        properties = {field.name: self.field(field, request=request) for field in descriptor.fields}
        schema: Schema = {"type": "object", "description": comment(descriptor.full_name), "properties": properties}
        if request:
            schema["additionalProperties"] = False
            required = [field.name for field in descriptor.fields if _is_required(field)]
        else:
            required = list(properties)
        if required:
            schema["required"] = required
        return schema

    def field(self, field: FieldDescriptor, *, request: bool) -> Schema:
        entry = field.message_type
        rules = _rules(field)
        if entry is not None and entry.GetOptions().map_entry:
            schema: Schema = {
                "type": "object",
                "additionalProperties": self._single(entry.fields_by_name["value"], request, None),
            }
        elif field.is_repeated:
            schema = {"type": "array", "items": self._single(field, request, rules.repeated.items if request else None)}
            if request and rules.repeated.HasField("max_items"):
                schema["maxItems"] = rules.repeated.max_items
        else:
            schema = self._single(field, request, rules if request else None)
            if not request and (field.has_presence or field.enum_type is not None):
                schema = {"anyOf": [schema, {"type": "null"}]}
        words = comment(field.full_name)
        return {**schema, "description": words} if words else schema

    def _single(self, field: FieldDescriptor, request: bool, rules: Any) -> Schema:
        if field.message_type is not None:
            return self.reference(field.message_type, request=request)
        if field.enum_type is not None:
            return _enum(field.enum_type)
        if field.type == _F.TYPE_STRING:
            return _text(rules.string if rules is not None else None)
        if field.type == _F.TYPE_BYTES:
            return {"type": "string", "contentEncoding": "base64"}
        if field.type == _F.TYPE_BOOL:
            return {"type": "boolean"}
        if field.cpp_type in _BOUNDS:
            return _integer(field, rules)
        return {"type": "number"}


def _rules(field: FieldDescriptor) -> Any:
    options: Any = field.GetOptions()
    return options.Extensions[validate_pb2.field]


def _is_required(field: FieldDescriptor) -> bool:
    rules = _rules(field)
    if rules.required:
        return True
    if field.type != _F.TYPE_STRING or field.is_repeated or field.has_presence:
        return False
    # A text that may not be empty has to be given.
    pattern = rules.string.pattern
    return rules.string.min_len > 0 or bool(pattern and re.search(pattern, "") is None)


def _text(rules: Any) -> Schema:
    schema: Schema = {"type": "string"}
    if rules is not None:
        for rule, keyword in (("min_len", "minLength"), ("max_len", "maxLength"), ("pattern", "pattern")):
            if rules.HasField(rule):
                schema[keyword] = getattr(rules, rule)
    return schema


def _integer(field: FieldDescriptor, rules: Any) -> Schema:
    low, high = _BOUNDS[field.cpp_type]
    if rules is not None and field.type == _F.TYPE_UINT32:
        low = rules.uint32.gte if rules.uint32.HasField("gte") else low
        high = rules.uint32.lte if rules.uint32.HasField("lte") else high
    return {"type": "integer", "minimum": low, "maximum": high}


def _enum(enum: EnumDescriptor) -> Schema:
    return {"type": "string", "enum": [name for name in short_names(enum).values() if name is not None]}


def operations_table(operations: Iterable[Operation]) -> str:
    """The operations as a Markdown table, for the reference."""
    lines = ["| method, path | does | success |", "|---|---|---|"]
    for each in operations:
        answer = f"`{each.response_field.name}`" if each.response_field else "whole answer"
        answer = "SSE" if each.streams else "the content" if each.downloads else answer
        words = operation_comment(each).replace("|", "\\|")
        lines.append(f"| {each.http_method} `{each.template}` | {words} | {each.success_status}, {answer} |")
    return "\n".join(lines) + "\n"


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}"
    "h2{margin-top:2em}section{border-top:1px solid #ddd;padding:.6em 0}b{font-family:monospace}"
    "code{font-family:monospace;background:#f4f4f4;padding:0 .25em}td{padding:.15em 1em .15em 0;vertical-align:top}"
)


def page(operations: Iterable[Operation]) -> str:
    """The operations for people: one page, nothing loaded from anywhere."""
    tags: dict[str, list[Operation]] = {}
    for operation in operations:
        tags.setdefault(operation.tag, []).append(operation)
    sections = "".join(f"<h2>{html.escape(tag)}</h2>" + "".join(map(_section, group)) for tag, group in tags.items())
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Harness Mesh REST</title><style>{_STYLE}</style>'
        f"<h1>Harness Mesh REST</h1><p>Version {html.escape(product_version())}. The document for programs is "
        f'<a href="openapi.json">openapi.json</a>.</p>{sections}</html>'
    )


def _section(operation: Operation) -> str:
    fields = (
        operation.request.fields
        if operation.has_body and not operation.uploads
        else (*operation.path_fields, *operation.parameters)
    )
    rows = "".join(
        f"<tr><td><code>{field.name}</code></td><td>{html.escape(comment(field.full_name))}</td></tr>"
        for field in fields
    )
    return (
        f"<section><p><b>{operation.http_method} {html.escape(operation.template)}</b></p>"
        f"<p>{html.escape(operation_comment(operation))}</p><table>{rows}</table></section>"
    )
