"""The 38 capability keys of the adapter contract, and what of them a blueprint or a turn's files need, field by field (contract, Capabilities).

The catalog asks before it saves, runs before it starts: a capability may disappear with the next version of an adapter. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from google.protobuf import struct_pb2

from harness.common.v1 import blueprint_pb2 as pb
from harness.common.v1.capability_pb2 import (
    CAPABILITY_LEVEL_EMULATED,
    CAPABILITY_LEVEL_NATIVE,
    CAPABILITY_LEVEL_UNSUPPORTED,
    Capability,
)
from harness.runtime.v1.runtime_pb2 import FileRef
from services.common.errors import FieldIssue, Reason

KEYS: Final[tuple[str, ...]] = (
    "stream.text",
    "stream.reasoning",
    "stream.usage",
    "invoke.non_streaming",
    "session.multi_turn",
    "session.cross_replica_resume",
    "session.clear",
    "thread.durable_commit",
    "thread.eviction_restore",
    "interrupt.form_input",
    "interrupt.tool_approval",
    "interrupt.multi_tool",
    "tool.mcp",
    "tool.builtin",
    "tool.caller_credentials",
    "tool.partial_availability",
    "tool.cancellation",
    "input.images",
    "input.documents",
    "skills",
    "subagents",
    "subagents.mixed_harness",
    "middleware.portable",
    "memory.semantic",
    "memory.episodic_reference",
    "memory.procedural",
    "memory.user_scope",
    "memory.shared_policy",
    "observability.metrics",
    "observability.tracing",
    "observability.trace_propagation",
    "observability.redaction",
    "runtime.cancel",
    "runtime.restart",
    "runtime.bounded_cleanup",
    "runtime.sandbox_isolation",
    "runtime.lease_fencing",
    "runtime.eviction_recovery",
)
USABLE: Final = (CAPABILITY_LEVEL_NATIVE, CAPABILITY_LEVEL_EMULATED)
MAX_CONSTRAINT: Final = 1 << 31
"""Of a number; beyond it a limit says nothing."""

# The constraints that are compared with what an author or a client wants; `max_*` is a whole number, the others are lists of texts.
_TOOLS: Final = ("max_tools", "max_tool_calls")
_FILES: Final = ("max_files", "max_bytes", "media_types")
COMPARED: Final[Mapping[str, tuple[str, ...]]] = {
    "tool.mcp": _TOOLS,
    "tool.builtin": _TOOLS,
    "input.images": _FILES,
    "input.documents": _FILES,
    "skills": ("max_skills",),
    "subagents": ("max_agents", "max_depth", "max_parallel"),
    "memory.shared_policy": ("scopes",),
    "runtime.sandbox_isolation": ("persistence",),
}

_KIND_KEYS: Final = {
    pb.MEMORY_KIND_SEMANTIC: "memory.semantic",
    pb.MEMORY_KIND_EPISODIC_REFERENCE: "memory.episodic_reference",
    pb.MEMORY_KIND_PROCEDURAL: "memory.procedural",
}
_SHARED: Final = {pb.MEMORY_SCOPE_AGENT: "agent", pb.MEMORY_SCOPE_ORGANIZATION: "organization"}
_PERSISTENCE: Final = {pb.WORKSPACE_PERSISTENCE_RUN: "run", pb.WORKSPACE_PERSISTENCE_THREAD: "thread"}


class Limit(NamedTuple):
    """What one field asks, held against one constraint: a number against `max_*`, a text against a list."""

    path: str
    constraint: str
    wanted: int | str
    remedy: str


class Need(NamedTuple):
    """A field that works only if the harness can do one of `keys`, within that one's constraints."""

    path: str
    wish: str
    keys: tuple[str, ...]
    remedy: str
    limits: tuple[Limit, ...] = ()


def constraint_problem(key: str, constraints: struct_pb2.Struct) -> str | None:
    """Which constraint of a key cannot be compared, and why; None if all that are compared can be."""
    for name in COMPARED.get(key, ()):
        if name not in constraints.fields:
            continue
        value = constraints.fields[name]
        if name.startswith("max_"):
            number = value.number_value
            if value.WhichOneof("kind") != "number_value" or not 0 <= number <= MAX_CONSTRAINT or number % 1:
                return f"{name} must be a whole number of 0 to {MAX_CONSTRAINT}"
        elif value.WhichOneof("kind") != "list_value" or any(
            each.WhichOneof("kind") != "string_value" for each in value.list_value.values
        ):
            return f"{name} must be a list of texts"
    return None


def needs(blueprint: pb.AgentBlueprint) -> Iterator[Need]:
    """What a normalised blueprint needs of its harness."""
    if blueprint.tools.bindings:
        yield _tool_need(blueprint)
        yield from _approval_needs(blueprint.tools)
    if blueprint.memory.enabled:
        yield from _memory_needs(blueprint.memory)
    if blueprint.delegation.agents:
        yield _delegation_need(blueprint.delegation)
    if blueprint.skills:
        limit = Limit("skills", "max_skills", len(blueprint.skills), "remove some of the skills")
        yield Need("skills", "skills", ("skills",), "remove the skills", (limit,))
    workspace = blueprint.workspace.persistence
    if workspace not in (pb.WORKSPACE_PERSISTENCE_UNSPECIFIED, pb.WORKSPACE_PERSISTENCE_NONE):
        path, remedy = "workspace.persistence", "set workspace.persistence to none"
        limit = Limit(path, "persistence", _PERSISTENCE.get(workspace, ""), remedy)
        yield Need(path, "a workspace", ("runtime.sandbox_isolation",), remedy, (limit,))
    if blueprint.thread.persistence == pb.THREAD_PERSISTENCE_DURABLE:
        keys = ("thread.durable_commit", "session.multi_turn")
        yield Need("thread.persistence", "a durable thread", keys, "set thread.persistence to ephemeral")


def _tool_need(blueprint: pb.AgentBlueprint) -> Need:
    tools, calls = len(blueprint.tools.bindings), blueprint.limits.max_tool_calls
    limits = (
        Limit("tools.bindings", "max_tools", tools, "remove some of the tools"),
        Limit("limits.max_tool_calls", "max_tool_calls", calls, "lower limits.max_tool_calls"),
    )
    return Need("tools.bindings", "tools", ("tool.builtin",), "remove the tools", limits)


def _approval_needs(tools: pb.ToolsSpec) -> Iterator[Need]:
    approval = ("interrupt.tool_approval",)
    if tools.approval_policy == pb.APPROVAL_POLICY_ALWAYS:
        yield Need("tools.approval_policy", "approval of tool calls", approval, "set it to sensitive_only or never")
    for number, binding in enumerate(tools.bindings):
        if binding.approval_policy == pb.APPROVAL_POLICY_ALWAYS and tools.approval_policy != pb.APPROVAL_POLICY_ALWAYS:
            path = f"tools.bindings[{number}].approval_policy"
            yield Need(path, "approval of tool calls", approval, "set it to sensitive_only or never")


def approval_needs(tools: pb.ToolsSpec, waiting: Collection[str]) -> Iterator[Need]:
    """What bindings need whose calls wait for a person because of the tool itself; `waiting` are the ids of such tools. Policy `always` is among `needs`."""
    for number, binding in enumerate(tools.bindings):
        if binding.tool_id in waiting and binding.approval_policy == pb.APPROVAL_POLICY_SENSITIVE_ONLY:
            path, remedy = f"tools.bindings[{number}].approval_policy", "set it to never, remove the tool"
            yield Need(path, "calls of a sensitive tool, which wait for a person", ("interrupt.tool_approval",), remedy)


def _memory_needs(memory: pb.MemorySpec) -> Iterator[Need]:
    for number, kind in enumerate(memory.kinds):
        key = _KIND_KEYS.get(kind)
        if key is not None:
            yield Need(f"memory.kinds[{number}]", "this kind of memory", (key,), "remove it or disable memory")
    for number, scope in enumerate(memory.read_scopes):
        yield _scope_need(f"memory.read_scopes[{number}]", "this scope", scope, "remove it or disable memory")
    if memory.write_policy not in (pb.MEMORY_WRITE_POLICY_UNSPECIFIED, pb.MEMORY_WRITE_POLICY_DISABLED):
        yield _scope_need("memory.write_scope", "writes to this scope", memory.write_scope, "disable memory writes")


def _scope_need(path: str, wish: str, scope: pb.MemoryScope.ValueType, remedy: str) -> Need:
    if scope == pb.MEMORY_SCOPE_USER:
        return Need(path, wish, ("memory.user_scope",), remedy)
    limit = Limit(path, "scopes", _SHARED.get(scope, ""), remedy)
    return Need(path, wish, ("memory.shared_policy",), remedy, (limit,))


def _delegation_need(delegation: pb.DelegationSpec) -> Need:
    limits = (
        Limit("delegation.agents", "max_agents", len(delegation.agents), "remove some of the agents"),
        Limit("delegation.max_depth", "max_depth", delegation.max_depth, "lower delegation.max_depth"),
        Limit("delegation.max_parallel", "max_parallel", delegation.max_parallel, "lower delegation.max_parallel"),
    )
    return Need("delegation.agents", "other agents to call", ("subagents",), "remove the agents", limits)


def file_needs(files: Iterable[FileRef]) -> Iterator[Need]:
    """What a turn's files need. A file whose media type is not known yet may be of either kind."""
    counts: dict[tuple[str, ...], int] = {}
    for number, file in enumerate(files):
        path, keys = f"files[{number}]", _file_keys(file.media_type)
        counts[keys] = counts.get(keys, 0) + 1
        limits: list[Limit] = []
        if file.size:
            limits.append(Limit(path, "max_bytes", file.size, "send a smaller file"))
        if file.media_type:
            limits.append(Limit(path, "media_types", file.media_type.lower(), "convert the file"))
        yield Need(path, "this file", keys, "send the turn without it", tuple(limits))
    for keys, count in counts.items():
        limit = Limit("files", "max_files", count, "send fewer files")
        yield Need("files", "files", keys, "send the turn without files", (limit,))


def _file_keys(media_type: str) -> tuple[str, ...]:
    if not media_type:
        return ("input.images", "input.documents")
    return ("input.images",) if media_type.lower().startswith("image/") else ("input.documents",)


def unmet(wanted: Iterable[Need], claims: Mapping[str, Capability], harness_id: str) -> Iterator[FieldIssue]:
    """An issue at each field that a harness with these claims cannot serve: what is missing, and what to do."""
    for need in wanted:
        usable = [claims[key].constraints for key in need.keys if key in claims and claims[key].level in USABLE]
        if not usable:
            yield _issue(need.path, f"{_lack(need, claims, harness_id)}: {need.remedy}")
            continue
        # One of them has to serve the whole of it: what each grants in part does not add up.
        if any(all(_within(limit, constraints) for limit in need.limits) for constraints in usable):
            continue
        for limit in need.limits:
            if not all(_within(limit, constraints) for constraints in usable):
                said = _said(limit, usable)
                yield _issue(limit.path, f"Harness {harness_id} takes {said}, {limit.wanted} is asked: {limit.remedy}")


def _lack(need: Need, claims: Mapping[str, Capability], harness_id: str) -> str:
    never = all(key in claims and claims[key].level == CAPABILITY_LEVEL_UNSUPPORTED for key in need.keys)
    level = "does not support" if never else "does not offer here"
    return f"Harness {harness_id} {level} {' or '.join(need.keys)}, needed for {need.wish}"


def _issue(path: str, what: str) -> FieldIssue:
    return FieldIssue(path, Reason.HARNESS_CAPABILITY_UNSUPPORTED.value, f"{what}, or choose another harness.")


def _within(limit: Limit, constraints: struct_pb2.Struct) -> bool:
    value = constraints.fields.get(limit.constraint)
    if value is None:
        return True
    if isinstance(limit.wanted, int):
        return limit.wanted <= value.number_value
    return any(_admits(each.string_value.lower(), limit.wanted) for each in value.list_value.values)


def _admits(allowed: str, wanted: str) -> bool:
    # A media type may be allowed by its family: image/*.
    return allowed == wanted or (allowed.endswith("/*") and wanted.startswith(allowed[:-1]))


def _said(limit: Limit, usable: Iterable[struct_pb2.Struct]) -> str:
    show = _number if isinstance(limit.wanted, int) else _texts
    told = dict.fromkeys(
        show(constraints.fields[limit.constraint]) for constraints in usable if limit.constraint in constraints.fields
    )
    return f"{limit.constraint} {' or '.join(told)}"


def _number(value: struct_pb2.Value) -> str:
    return str(int(value.number_value))


def _texts(value: struct_pb2.Value) -> str:
    return ", ".join(each.string_value[:64] for each in list(value.list_value.values)[:10]) or "none"
