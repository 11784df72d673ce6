"""A blueprint's shape and its normal form, in which every default is written out (contract, AgentBlueprint; I17)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import protovalidate
from google.protobuf.message import Message

from harness.common.v1 import blueprint_pb2 as pb
from services.catalog.canonical import Bounds, NotJson, canonical_json, message_document, plain_struct, struct_of
from services.common.errors import MAX_FIELD_ISSUES, FieldIssue
from services.common.interceptors.validation import field_path

MAX_BLUEPRINT_BYTES: Final = 256 * 1024
"""Of the JSON form."""
MAX_OPTIONS_BYTES: Final = 64 * 1024
MAX_OPTIONS_DEPTH: Final = 16
MAX_OPTIONS_VALUES: Final = 2_000
MAX_ENCODED_BYTES: Final = 1 << 20
"""Beyond this many bytes on the wire nothing inside is looked at."""
OPTIONS_PATH: Final = "harness.options"
DEFAULT_PROFILE: Final = "default"
DEFAULT_RETENTION: Final = "standard"
DEFAULT_RUN_SECONDS: Final = 900
DEFAULT_TOOL_CALLS: Final = 50


class Shape:
    """A draft as far as it can be understood. `options` is None, and it cannot be normalised, while `issues` holds any."""

    def __init__(self, issues: list[FieldIssue], options: dict[str, Any] | None) -> None:
        self.issues = issues
        self.options = options


def shape_of(draft: pb.AgentBlueprint) -> Shape:
    """Every way in which the draft breaks its contract, at once, and its options as plain JSON."""
    if draft.ByteSize() > MAX_ENCODED_BYTES:
        return Shape([_too_large("", MAX_BLUEPRINT_BYTES)], None)
    issues = [
        FieldIssue(field_path(violation.proto.field), violation.proto.rule_id or "invalid", _sentence(violation.proto))
        for violation in protovalidate.collect_violations(draft)[:MAX_FIELD_ISSUES]
    ]
    options: dict[str, Any] | None = None
    try:
        options = plain_struct(draft.harness.options, OPTIONS_PATH, Bounds(MAX_OPTIONS_DEPTH, MAX_OPTIONS_VALUES))
    except NotJson as error:
        issues.append(FieldIssue(error.path[:512], "invalid_value", f"The value {error.what}: change it."))
    else:
        issues += [
            FieldIssue(path, "invalid_character", "The text holds a NUL character.") for path in _nuls(draft, options)
        ]
        if len(canonical_json(options)) > MAX_OPTIONS_BYTES:
            issues.append(_too_large(OPTIONS_PATH, MAX_OPTIONS_BYTES))
        elif len(canonical_json(message_document(draft))) > MAX_BLUEPRINT_BYTES:
            issues.append(_too_large("", MAX_BLUEPRINT_BYTES))
    return Shape(issues, None if issues else options)


def _too_large(path: str, limit: int) -> FieldIssue:
    return FieldIssue(path, "too_large", f"More than {limit} bytes as JSON: make it shorter.")


def _sentence(violation: Any) -> str:
    text = (violation.message or "is not valid").removeprefix("value ")
    return f"The value {text}."[:1000]


def _nuls(draft: pb.AgentBlueprint, options: Mapping[str, Any]) -> Iterator[str]:
    """Fields with a NUL, which no store, provider or terminal treats alike."""
    yield from _message_nuls(draft, "")
    if b"\\u0000" in canonical_json(options):
        yield OPTIONS_PATH


def _message_nuls(message: Message, prefix: str) -> Iterator[str]:
    for field, value in message.ListFields():
        path = f"{prefix}{field.name}"
        if path == OPTIONS_PATH:
            continue
        if isinstance(value, str):
            if "\0" in value:
                yield path
        elif isinstance(value, Message):
            yield from _message_nuls(value, f"{path}.")
        elif isinstance(value, Mapping):
            texts = cast(Mapping[str, str], value)
            yield from (f'{path}["{key}"]' for key, text in texts.items() if "\0" in key or "\0" in text)


def normalized(draft: pb.AgentBlueprint, options: Mapping[str, Any]) -> pb.AgentBlueprint:
    """The blueprint with every default written out; `draft` has no shape issue, `options` has its schema's defaults."""
    blueprint = pb.AgentBlueprint()
    blueprint.CopyFrom(draft)
    blueprint.DiscardUnknownFields()
    harness = blueprint.harness
    harness.profile_id = harness.profile_id or DEFAULT_PROFILE
    harness.options.CopyFrom(struct_of(options))
    for section in ("prompt", "model", "tools", "thread", "memory", "workspace", "streaming", "delegation", "limits"):
        getattr(blueprint, section).SetInParent()
    blueprint.model.policy = blueprint.model.policy or pb.MODEL_POLICY_HARNESS_DEFAULT
    tools = blueprint.tools
    tools.approval_policy = tools.approval_policy or pb.APPROVAL_POLICY_SENSITIVE_ONLY
    for binding in tools.bindings:
        binding.approval_policy = binding.approval_policy or tools.approval_policy
    thread = blueprint.thread
    thread.persistence = thread.persistence or pb.THREAD_PERSISTENCE_DURABLE
    thread.retention_profile = thread.retention_profile or DEFAULT_RETENTION
    _normalize_memory(blueprint.memory)
    workspace = blueprint.workspace
    workspace.persistence = workspace.persistence or pb.WORKSPACE_PERSISTENCE_NONE
    streaming = blueprint.streaming
    streaming.protocol = streaming.protocol or pb.STREAM_PROTOCOL_CANONICAL
    streaming.replay = streaming.replay or pb.REPLAY_POLICY_REQUIRED
    _normalize_numbers(blueprint)
    return blueprint


def _normalize_memory(memory: pb.MemorySpec) -> None:
    memory.write_policy = memory.write_policy or pb.MEMORY_WRITE_POLICY_DISABLED
    memory.retention_profile = memory.retention_profile or DEFAULT_RETENTION
    if memory.enabled:
        if not memory.read_scopes:
            memory.read_scopes.append(pb.MEMORY_SCOPE_USER)
        if not memory.kinds:
            memory.kinds.append(pb.MEMORY_KIND_SEMANTIC)
        memory.write_scope = memory.write_scope or pb.MEMORY_SCOPE_USER


def _normalize_numbers(blueprint: pb.AgentBlueprint) -> None:
    delegation, limits = blueprint.delegation, blueprint.limits
    if not delegation.HasField("max_depth"):
        delegation.max_depth = 1
    if not delegation.HasField("max_parallel"):
        delegation.max_parallel = 1
    if not limits.HasField("max_run_seconds"):
        limits.max_run_seconds = DEFAULT_RUN_SECONDS
    if not limits.HasField("max_tool_calls"):
        limits.max_tool_calls = DEFAULT_TOOL_CALLS
