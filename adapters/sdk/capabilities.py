"""The contract's capability keys and a builder of descriptors (contract, Capabilities and Registration requirements)."""

from collections.abc import Mapping, Sequence
from typing import Any

import protovalidate

from adapters.sdk.errors import ConfigurationError
from adapters.sdk.events import struct
from harness.adapter.v1 import descriptor_pb2
from harness.common.v1 import capability_pb2, placement_pb2

CONTRACT_VERSION = 1

CAPABILITY_KEYS: tuple[str, ...] = (
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

NATIVE = capability_pb2.CAPABILITY_LEVEL_NATIVE
EMULATED = capability_pb2.CAPABILITY_LEVEL_EMULATED
UNSUPPORTED = capability_pb2.CAPABILITY_LEVEL_UNSUPPORTED
UNAVAILABLE = capability_pb2.CAPABILITY_LEVEL_UNAVAILABLE

# What the SDK's host does for every adapter it serves.
PROVIDED_BY_HOST: Mapping[str, str] = {
    "runtime.cancel": "The host stops the stream and its children.",
    "runtime.bounded_cleanup": "The host bounds cleanup by its deadline.",
    "runtime.lease_fencing": "The host refuses stale turns and generations.",
}

ADAPTER_HOST = placement_pb2.PLACEMENT_PROVIDER_MANAGED
SANDBOX = placement_pb2.PLACEMENT_SANDBOX_POD
IN_PROCESS = placement_pb2.PLACEMENT_IN_PROCESS


def capability(
    level: "capability_pb2.CapabilityLevel.ValueType",
    explanation: str = "",
    constraints: Mapping[str, Any] | None = None,
) -> capability_pb2.Capability:
    """One claim. `explanation` is a sentence or two for a person, `constraints` its machine-readable limits."""
    claim = capability_pb2.Capability(level=level, explanation=explanation)
    if constraints:
        claim.constraints.CopyFrom(struct(constraints))
    return claim


def build_descriptor(
    *,
    harness_id: str,
    display_name: str,
    adapter_version: str,
    capabilities: Mapping[str, capability_pb2.Capability],
    description: str = "",
    placements: Sequence["placement_pb2.Placement.ValueType"] = (ADAPTER_HOST, SANDBOX),
    trust_boundary: "descriptor_pb2.TrustBoundary.ValueType" = descriptor_pb2.TRUST_BOUNDARY_PROVIDER,
    thread_state: "descriptor_pb2.ThreadStateStrategy.ValueType" = descriptor_pb2.THREAD_STATE_STRATEGY_EPHEMERAL,
    session_ids: "descriptor_pb2.SessionIdStyle.ValueType" = descriptor_pb2.SESSION_ID_STYLE_UNSPECIFIED,
    options_schema: Mapping[str, Any] | None = None,
    presentation: Mapping[str, Any] | None = None,
    dependencies: Mapping[str, str] | None = None,
    sdk_name: str = "",
    sdk_version: str = "",
) -> descriptor_pb2.Descriptor:
    """A complete, checked descriptor. Every one of the 38 keys is in it: what is not claimed is `unavailable`, and what
    the host provides is claimed for the adapter. Raises ConfigurationError for an unknown key or a malformed field.
    """
    unknown = sorted(set(capabilities) - set(CAPABILITY_KEYS))
    if unknown:
        raise ConfigurationError(f"unknown capability keys: {', '.join(unknown)}; see CAPABILITY_KEYS")
    claims = {key: capability(UNAVAILABLE, "Not connected in this adapter.") for key in CAPABILITY_KEYS}
    claims.update({key: capability(NATIVE, why) for key, why in PROVIDED_BY_HOST.items()})
    claims.update(capabilities)
    schema: dict[str, Any] = {"type": "object", "properties": {}, **(options_schema or {})}
    schema.setdefault("additionalProperties", False)
    descriptor = descriptor_pb2.Descriptor(
        harness_id=harness_id,
        display_name=display_name,
        description=description,
        adapter_version=adapter_version,
        sdk_name=sdk_name,
        sdk_version=sdk_version,
        contract_versions=[CONTRACT_VERSION],
        placements=placements,
        trust_boundary=trust_boundary,
        thread_state_strategy=thread_state,
        session_id_style=session_ids,
        options_schema=struct(schema),
        capabilities=claims,
    )
    if presentation:
        descriptor.presentation.CopyFrom(struct(presentation))
    for name, version_range in (dependencies or {}).items():
        descriptor.dependencies.add(name=name, version_range=version_range)
    for violation in protovalidate.collect_violations(descriptor):
        path = violation.proto.field
        where = ".".join(element.field_name for element in path.elements) if path is not None else "descriptor"
        raise ConfigurationError(f"descriptor: {where}: {violation.proto.message}")
    return descriptor
