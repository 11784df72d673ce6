"""The 38 capability keys of the adapter contract, what a harness says of each, and what a blueprint needs of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from harness.common.v1 import blueprint_pb2 as pb
from harness.common.v1.capability_pb2 import (
    CAPABILITY_LEVEL_EMULATED,
    CAPABILITY_LEVEL_NATIVE,
    CAPABILITY_LEVEL_UNAVAILABLE,
    CAPABILITY_LEVEL_UNSPECIFIED,
    CAPABILITY_LEVEL_UNSUPPORTED,
    Capability,
)
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

_USABLE: Final = (CAPABILITY_LEVEL_NATIVE, CAPABILITY_LEVEL_EMULATED)
_KIND_KEYS: Final = {
    pb.MEMORY_KIND_SEMANTIC: "memory.semantic",
    pb.MEMORY_KIND_EPISODIC_REFERENCE: "memory.episodic_reference",
    pb.MEMORY_KIND_PROCEDURAL: "memory.procedural",
}


def complete(claims: Mapping[str, Capability]) -> dict[str, Capability]:
    """Every key of the contract with its claim; one left out counts as unavailable, one the contract lacks is dropped.

    I21: a claim stays what the adapter says, and carries no evidence id: evidence is the catalog's to give, not the claimant's.
    """
    completed: dict[str, Capability] = {}
    for key in KEYS:
        capability = Capability()
        if key in claims:
            capability.CopyFrom(claims[key])
        if capability.level == CAPABILITY_LEVEL_UNSPECIFIED:
            capability.level = CAPABILITY_LEVEL_UNAVAILABLE
            capability.explanation = capability.explanation or "The adapter does not state it."
        capability.evidence_id = ""
        completed[key] = capability
    return completed


def in_effect(completed: Mapping[str, Capability], differing: Mapping[str, Capability]) -> dict[str, Capability]:
    """What holds for one blueprint: an evaluation may narrow what the descriptor claims, never add to it."""
    effective = dict(completed)
    for key, said in complete(differing).items():
        if key in differing and not (said.level in _USABLE and effective[key].level not in _USABLE):
            effective[key] = said
    return effective


class Need(NamedTuple):
    """A field of a blueprint that works only if the harness can do one of `keys`."""

    path: str
    wish: str
    keys: tuple[str, ...]
    remedy: str


def needs(blueprint: pb.AgentBlueprint) -> Iterator[Need]:
    """What a normalised blueprint needs of its harness."""
    if blueprint.tools.bindings:
        yield Need("tools.bindings", "tools", ("tool.mcp", "tool.builtin"), "remove the tools")
        yield from _approval_needs(blueprint.tools)
    if blueprint.memory.enabled:
        yield from _memory_needs(blueprint.memory)
    if blueprint.delegation.agents:
        yield Need("delegation.agents", "other agents to call", ("subagents",), "remove the agents")
    if blueprint.skills:
        yield Need("skills", "skills", ("skills",), "remove the skills")
    if blueprint.workspace.persistence != pb.WORKSPACE_PERSISTENCE_NONE:
        yield Need(
            "workspace.persistence",
            "a workspace",
            ("runtime.sandbox_isolation",),
            "set workspace.persistence to none",
        )
    if blueprint.thread.persistence == pb.THREAD_PERSISTENCE_DURABLE:
        yield Need(
            "thread.persistence",
            "a durable thread",
            ("thread.durable_commit", "session.multi_turn"),
            "set thread.persistence to ephemeral",
        )


def _approval_needs(tools: pb.ToolsSpec) -> Iterator[Need]:
    approval = ("interrupt.tool_approval",)
    if tools.approval_policy == pb.APPROVAL_POLICY_ALWAYS:
        yield Need("tools.approval_policy", "approval of tool calls", approval, "set it to sensitive_only or never")
    for number, binding in enumerate(tools.bindings):
        if binding.approval_policy == pb.APPROVAL_POLICY_ALWAYS and tools.approval_policy != pb.APPROVAL_POLICY_ALWAYS:
            path = f"tools.bindings[{number}].approval_policy"
            yield Need(path, "approval of tool calls", approval, "set it to sensitive_only or never")


def _memory_needs(memory: pb.MemorySpec) -> Iterator[Need]:
    for number, kind in enumerate(memory.kinds):
        yield Need(f"memory.kinds[{number}]", "this kind of memory", (_KIND_KEYS[kind],), "remove it or disable memory")
    for number, scope in enumerate(memory.read_scopes):
        yield Need(f"memory.read_scopes[{number}]", "this scope", _scope_keys(scope), "remove it or disable memory")
    if memory.write_policy != pb.MEMORY_WRITE_POLICY_DISABLED:
        yield Need(
            "memory.write_scope", "writes to this scope", _scope_keys(memory.write_scope), "disable memory writes"
        )


def _scope_keys(scope: pb.MemoryScope.ValueType) -> tuple[str, ...]:
    return ("memory.user_scope",) if scope == pb.MEMORY_SCOPE_USER else ("memory.shared_policy",)


def capability_issues(
    blueprint: pb.AgentBlueprint, effective: Mapping[str, Capability], harness_id: str
) -> Iterator[FieldIssue]:
    """An issue at each field that the harness cannot serve."""
    for need in needs(blueprint):
        if any(effective[key].level in _USABLE for key in need.keys):
            continue
        unsupported = all(effective[key].level == CAPABILITY_LEVEL_UNSUPPORTED for key in need.keys)
        level = "does not support" if unsupported else "does not offer here"
        keys = " or ".join(need.keys)
        yield FieldIssue(
            need.path,
            Reason.HARNESS_CAPABILITY_UNSUPPORTED.value,
            f"Harness {harness_id} {level} {keys}, needed for {need.wish}: {need.remedy}, or choose another harness.",
        )
