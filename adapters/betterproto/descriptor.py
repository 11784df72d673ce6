"""What this harness is, and which blueprints it can run (contract, Descriptor and Capabilities)."""

from importlib import metadata

from betterproto_contracts.google.protobuf import Struct
from betterproto_contracts.harness.adapter.v1 import (
    DependencyRequirement,
    Descriptor,
    EvaluateRequest,
    EvaluateResponse,
    SessionIdStyle,
    ThreadStateStrategy,
    TrustBoundary,
)
from betterproto_contracts.harness.common.v1 import Capability, CapabilityLevel, Issue, Placement

HARNESS_ID = "reference_betterproto"
VERSION = "0.1.0"
MAX_GREETING_CHARACTERS = 200
OPTIONS_SCHEMA = {
    "type": "object",
    "properties": {
        "greeting": {
            "type": "string",
            "maxLength": MAX_GREETING_CHARACTERS,
            "default": "",
            "title": "Greeting",
            "description": "Said before every answer to a plain message.",
        }
    },
    "additionalProperties": False,
}
NATIVE = {
    "stream.text": "Word by word, or as the message says.",
    "stream.reasoning": "As a script says.",
    "stream.usage": "Counts words.",
    "session.multi_turn": "Remembers turns in committed thread state.",
    "session.cross_replica_resume": "Everything it knows of a conversation is thread state.",
    "session.clear": "A new epoch starts with nothing.",
    "thread.durable_commit": "Writes its state in every plain turn.",
    "thread.eviction_restore": "Loads the committed head in every turn that needs it.",
    "interrupt.form_input": "Asks what a script says, and goes on from thread state.",
    "interrupt.tool_approval": "Asks about the calls a script names or the tool broker holds back.",
    "interrupt.multi_tool": "One interrupt asks about several calls.",
    "tool.builtin": "Calls portable tools through the tool broker.",
    "tool.partial_availability": "A tool that is away costs its own call alone.",
    "tool.cancellation": "A cancel does not wait for an open call.",
    "observability.trace_propagation": "Calls of facades carry the run's trace context.",
    "observability.redaction": "Logs types and ids only.",
    "runtime.cancel": "Stops the turn at its next await.",
    "runtime.restart": "Holds nothing that a restart could lose.",
    "runtime.bounded_cleanup": "Bounded by the call's deadline.",
    "runtime.lease_fencing": "Refuses stale turns and generations.",
    "runtime.eviction_recovery": "A new runtime goes on from thread state.",
}
UNSUPPORTED = {
    "input.images": "There is no model behind it.",
    "input.documents": "There is no model behind it.",
    "runtime.sandbox_isolation": "It runs as an adapter host only.",
}
UNAVAILABLE = (
    *("invoke.non_streaming", "tool.mcp", "tool.caller_credentials", "skills", "subagents", "subagents.mixed_harness"),
    *("middleware.portable", "memory.semantic", "memory.episodic_reference", "memory.procedural", "memory.user_scope"),
    *("memory.shared_policy", "observability.metrics", "observability.tracing"),
)


def describe() -> Descriptor:
    """The descriptor; it makes no call."""
    levels = (
        (CapabilityLevel.NATIVE, NATIVE),
        (CapabilityLevel.UNSUPPORTED, UNSUPPORTED),
        (CapabilityLevel.UNAVAILABLE, dict.fromkeys(UNAVAILABLE, "Not connected in this adapter.")),
    )
    return Descriptor(
        harness_id=HARNESS_ID,
        display_name="Reference harness on betterproto2",
        description="Deterministic, free and offline: it does what the message says, with no model behind it.",
        adapter_version=VERSION,
        sdk_name="betterproto2",
        sdk_version=metadata.version("betterproto2"),
        contract_versions=[1],
        placements=[Placement.PROVIDER_MANAGED],
        trust_boundary=TrustBoundary.PROCESS,
        thread_state_strategy=ThreadStateStrategy.ADAPTER_STORE,
        session_id_style=SessionIdStyle.UNSPECIFIED,
        dependencies=[
            DependencyRequirement(name="betterproto2", version_range=">=0.10"),
            DependencyRequirement(name="grpclib", version_range=">=0.4.8"),
        ],
        options_schema=Struct.from_dict(OPTIONS_SCHEMA),
        presentation=Struct.from_dict({"order": ["greeting"]}),
        capabilities={
            key: Capability(level=level, explanation=why) for level, claims in levels for key, why in claims.items()
        },
    )


def evaluate(request: EvaluateRequest) -> EvaluateResponse:
    """Whether a blueprint can run here. Pure; the greeting's default is written out."""
    blueprint = request.blueprint
    given = blueprint.harness.options.to_dict() if blueprint and blueprint.harness and blueprint.harness.options else {}
    issues = [
        Issue(path=f"harness.options.{key}"[:512], code="unknown_option", message="There is no such option; remove it.")
        for key in sorted(given)
        if key != "greeting"
    ]
    greeting = given.get("greeting", "")
    if not isinstance(greeting, str) or len(greeting) > MAX_GREETING_CHARACTERS:
        message = f"Give a text of {MAX_GREETING_CHARACTERS} characters at most."
        issues.append(Issue(path="harness.options.greeting", code="option_invalid", message=message))
    if request.placement not in (Placement.UNSPECIFIED, Placement.PROVIDER_MANAGED):
        message = "This harness runs in an adapter host only; choose a profile with that placement."
        issues.append(Issue(path="harness.profile_id", code="placement_unsupported", message=message))
    if issues:
        return EvaluateResponse(issues=issues[:256])
    return EvaluateResponse(normalized_options=Struct.from_dict({"greeting": greeting}))
