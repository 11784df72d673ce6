"""What the harness says of itself: honest claims, with their limits."""

from adapters.agentcore.calling import MAX_WAITING
from adapters.agentcore.options import OPTIONS_SCHEMA
from adapters.sdk.capabilities import ADAPTER_HOST, NATIVE, UNSUPPORTED, build_descriptor, capability
from harness.adapter.v1 import descriptor_pb2

HARNESS_ID = "agentcore"
VERSION = "0.1.0"
SDK = "boto3"
SDK_RANGE = ">=1.44.8,<2"
MAX_TOOLS = 64
_MANAGED = "Managed harnesses only: a custom runtime tells no more than text."

_CAPABILITIES = {
    "stream.text": capability(NATIVE, "As the provider sends it."),
    "stream.reasoning": capability(NATIVE, f"As the model shows it. {_MANAGED}"),
    "stream.usage": capability(NATIVE, f"The sum of a turn's invocations, without a price. {_MANAGED}"),
    "session.multi_turn": capability(NATIVE, "The provider keeps the conversation under a session of its own."),
    "session.cross_replica_resume": capability(
        NATIVE, "The session's name follows from the conversation; what waits for a decision is thread state."
    ),
    "session.clear": capability(NATIVE, "A new epoch has a session of its own."),
    "interrupt.form_input": capability(
        NATIVE, f"A function with which the model asks, where the agent's option ask_person allows it. {_MANAGED}"
    ),
    "interrupt.tool_approval": capability(
        NATIVE, f"The decision goes on in any process, with the answers of all calls of the message. {_MANAGED}"
    ),
    "interrupt.multi_tool": capability(
        NATIVE, "One interrupt asks about all calls of a message that wait.", {"max_calls": MAX_WAITING}
    ),
    "tool.builtin": capability(
        NATIVE,
        f"Portable tools as inline functions, called through the tool broker under the model's call id. {_MANAGED}",
        {"max_tools": MAX_TOOLS},
    ),
    "tool.mcp": capability(
        UNSUPPORTED, "The provider connects to MCP servers by itself, as the operator's profile says."
    ),
    "tool.partial_availability": capability(NATIVE, "A tool that is away costs its own call alone."),
    "tool.cancellation": capability(
        NATIVE, "A cancel ends the wait for a tool at once; what the tool began may still happen."
    ),
    "input.images": capability(UNSUPPORTED, "The provider's messages take texts alone."),
    "input.documents": capability(UNSUPPORTED, "The provider's messages take texts alone."),
    "skills": capability(UNSUPPORTED, "Skills of the provider are the harness's own."),
    "subagents": capability(UNSUPPORTED, "The provider tells of none."),
    "runtime.cancel": capability(
        NATIVE, "Cuts the stream, and stops the provider's session where the profile allows it."
    ),
    "runtime.restart": capability(NATIVE, "Holds nothing that a restart could lose."),
    "runtime.bounded_cleanup": capability(NATIVE, "Ends its streams and gives its connections back."),
    "runtime.eviction_recovery": capability(NATIVE, "A new runtime goes on in the same session."),
    "observability.redaction": capability(NATIVE, "Logs types, places and codes only."),
    "middleware.portable": capability(UNSUPPORTED, "The provider has its own loop."),
}


def describe(sdk_version: str) -> descriptor_pb2.Descriptor:
    """The descriptor, with the version of the SDK that is installed; empty: none is."""
    return build_descriptor(
        harness_id=HARNESS_ID,
        display_name="Amazon Bedrock AgentCore",
        description="Managed harnesses and custom runtimes of Amazon Bedrock AgentCore.",
        adapter_version=VERSION,
        sdk_name=SDK,
        sdk_version=sdk_version,
        placements=(ADAPTER_HOST,),
        trust_boundary=descriptor_pb2.TRUST_BOUNDARY_PROVIDER,
        thread_state=descriptor_pb2.THREAD_STATE_STRATEGY_REMOTE_MANAGED,
        session_ids=descriptor_pb2.SESSION_ID_STYLE_CALLER_ASSIGNED,
        options_schema=OPTIONS_SCHEMA,
        presentation={"order": ["max_iterations", "max_tokens", "ask_person"]},
        dependencies={SDK: SDK_RANGE},
        capabilities=_CAPABILITIES,
    )
