"""Closing events: what the engine says about calls and subagents that a terminal finds open (rules 2 and 3)."""

from collections.abc import Iterable

from adapters.sdk.lifecycle.open_state import OpenCall, OpenNamespace
from harness.event.v1 import event_pb2, payload_pb2


def closing_drafts(
    calls: Iterable[OpenCall], namespaces: Iterable[OpenNamespace], terminal_kind: str
) -> list[event_pb2.EventDraft]:
    """Completions for all that is open, the innermost and youngest first; never a success (rule 2)."""
    failed = terminal_kind == "run_failed"
    outcome = payload_pb2.TOOL_OUTCOME_ERROR if failed else payload_pb2.TOOL_OUTCOME_CANCELLED
    open_calls = list(calls)
    drafts: list[event_pb2.EventDraft] = []
    # A namespace opened later is never the parent of one opened earlier.
    for opened in reversed(list(namespaces)):
        drafts += [_call(call, outcome) for call in reversed(open_calls) if call.namespace == opened.path]
        drafts.append(_namespace(opened, outcome))
    drafts += [_call(call, outcome) for call in reversed(open_calls) if not call.namespace]
    return drafts


def _call(call: OpenCall, outcome: "payload_pb2.ToolOutcome.ValueType") -> event_pb2.EventDraft:
    completed = payload_pb2.ToolCompleted(tool_call_id=call.tool_call_id, outcome=outcome)
    if outcome == payload_pb2.TOOL_OUTCOME_ERROR:
        completed.error.code = "run_failed"
        completed.error.message = "The run failed before the tool call completed."
    return event_pb2.EventDraft(namespace=call.namespace, payload=payload_pb2.EventPayload(tool_completed=completed))


def _namespace(opened: OpenNamespace, outcome: "payload_pb2.ToolOutcome.ValueType") -> event_pb2.EventDraft:
    return event_pb2.EventDraft(
        namespace=opened.path[:-1],
        payload=payload_pb2.EventPayload(
            subagent_completed=payload_pb2.SubagentCompleted(
                agent_id=opened.path[-1], parent_tool_call_id=opened.parent_tool_call_id, outcome=outcome
            )
        ),
    )
