"""What the harness says of itself: honest claims, with their limits."""

from adapters.claude_agent_sdk.attachments import DOCUMENTS, IMAGES, MAX_DOCUMENT_BYTES, MAX_FILES, MAX_IMAGE_BYTES
from adapters.claude_agent_sdk.options import OPTIONS_SCHEMA
from adapters.sdk.capabilities import (
    EMULATED,
    IN_PROCESS,
    NATIVE,
    SANDBOX,
    UNSUPPORTED,
    build_descriptor,
    capability,
)
from adapters.sdk.profile_settings import MAX_ENTRIES
from harness.adapter.v1 import descriptor_pb2

HARNESS_ID = "claude_agent_sdk"
VERSION = "0.1.0"
SDK = "claude-agent-sdk"
SDK_RANGE = ">=0.2.189,<0.3"
MAX_TOOLS = 128

_CAPABILITIES = {
    "stream.text": capability(NATIVE, "As the model writes it."),
    "stream.reasoning": capability(NATIVE, "As the model shows it; some models show a summary, or none."),
    "stream.usage": capability(NATIVE, "Once, at the end of a turn; the cost where the SDK knows the model's price."),
    "session.multi_turn": capability(NATIVE, "Each turn goes on from the committed transcript."),
    "session.cross_replica_resume": capability(
        NATIVE, "The whole transcript is thread state; no turn needs the host of the one before."
    ),
    "session.clear": capability(NATIVE, "A new epoch starts with nothing."),
    "thread.durable_commit": capability(NATIVE, "Appends what the turn adds to the transcript."),
    "thread.eviction_restore": capability(NATIVE, "Loads the committed head in every turn."),
    "interrupt.form_input": capability(
        NATIVE, "A tool with which the model asks, where the agent's option ask_person allows it."
    ),
    "interrupt.tool_approval": capability(
        NATIVE, "A call that waits is put off; the decision goes on from thread state in any process."
    ),
    "interrupt.multi_tool": capability(NATIVE, "One interrupt asks about all calls of a message that wait, up to 32."),
    "tool.builtin": capability(
        NATIVE, "Portable tools, called through the tool broker under the model's call id.", {"max_tools": MAX_TOOLS}
    ),
    "tool.mcp": capability(
        UNSUPPORTED, "The program connects to no MCP server of its own; tools come through the tool broker."
    ),
    "tool.partial_availability": capability(NATIVE, "A tool that is away costs its own call alone."),
    "tool.cancellation": capability(
        NATIVE, "A cancel ends the wait for a tool at once; what the tool began may still happen."
    ),
    "input.images": capability(
        NATIVE,
        "As part of the person's message; what does not fit is left out with a warning.",
        {"max_files": MAX_FILES, "max_bytes": MAX_IMAGE_BYTES, "media_types": list(IMAGES)},
    ),
    "input.documents": capability(
        NATIVE,
        "PDF, and text in UTF-8 of at most 2 MiB, as part of the person's message; what does not fit is left out with a warning.",
        {"max_files": MAX_FILES, "max_bytes": MAX_DOCUMENT_BYTES, "media_types": list(DOCUMENTS)},
    ),
    "skills": capability(NATIVE, "Those that the profile gives.", {"max_skills": MAX_ENTRIES}),
    "subagents": capability(
        NATIVE,
        "Those that the profile defines, within the same run; other agents cannot be called.",
        {"max_agents": 0, "max_depth": 1},
    ),
    "runtime.cancel": capability(NATIVE, "Interrupts the program, and ends it by force if it does not stop."),
    "runtime.restart": capability(NATIVE, "Holds nothing that a restart could lose."),
    "runtime.bounded_cleanup": capability(NATIVE, "Ends its processes and removes its folder."),
    "runtime.eviction_recovery": capability(NATIVE, "A new runtime goes on from thread state."),
    "runtime.sandbox_isolation": capability(EMULATED, "Supplied by the sandbox it is placed in."),
    "observability.redaction": capability(NATIVE, "Logs types and places only."),
    "middleware.portable": capability(UNSUPPORTED, "The SDK has its own loop."),
}


def describe(sdk_version: str) -> descriptor_pb2.Descriptor:
    """The descriptor, with the version of the SDK that is installed; empty: none is."""
    return build_descriptor(
        harness_id=HARNESS_ID,
        display_name="Claude Agent SDK",
        description="Anthropic's agent loop, with the agent's portable tools and the built-in ones that the profile allows.",
        adapter_version=VERSION,
        sdk_name=SDK,
        sdk_version=sdk_version,
        placements=(SANDBOX, IN_PROCESS),
        trust_boundary=descriptor_pb2.TRUST_BOUNDARY_SANDBOX,
        thread_state=descriptor_pb2.THREAD_STATE_STRATEGY_ADAPTER_STORE,
        session_ids=descriptor_pb2.SESSION_ID_STYLE_EVENT_ASSIGNED,
        options_schema=OPTIONS_SCHEMA,
        presentation={"order": ["max_turns", "thinking", "effort", "ask_person"]},
        dependencies={SDK: SDK_RANGE},
        capabilities=_CAPABILITIES,
    )
