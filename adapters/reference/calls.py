"""Calls of portable tools: made through the broker, and made again once a person decided on them (reference harness, tool)."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

from adapters.reference.message import Step
from adapters.sdk import events
from adapters.sdk.contract import Turn
from adapters.sdk.errors import ConfigurationError
from harness.event.v1 import event_pb2, payload_pb2
from harness.runtime.v1 import runtime_pb2

MAX_WAITING = 32
"""Calls that one interrupt may ask about."""
PROMPT = "May these calls be made?"


@dataclass(frozen=True, slots=True)
class Call:
    """What a `tool` step asks for. The same call is made again at resume, under the same id and with the same arguments."""

    tool_call_id: str
    name: str
    arguments: dict[str, Any]
    stream_arguments: bool = False

    def to_document(self) -> dict[str, Any]:
        """JSON-safe form."""
        return {
            "id": self.tool_call_id,
            "name": self.name,
            "arguments": self.arguments,
            "stream_arguments": self.stream_arguments,
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "Call":
        """The inverse of `to_document`. Raises KeyError for what is none."""
        return cls(document["id"], document["name"], document["arguments"], document["stream_arguments"])


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that has not started, and what a person is to be asked about it."""

    call: Call
    approval: payload_pb2.ToolApproval


def asked(step: Step, own_id: str) -> Call:
    """The call of a `tool` step; `own_id` is the id of one that is given none. Raises ConfigurationError for a step that is no call."""
    given: object = step.get("tool")
    fields = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    name, arguments = fields.get("name"), fields.get("arguments", {})
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ConfigurationError(
            "The step `tool` needs an object with a `name` and, if any, `arguments`.", code="step_invalid"
        )
    return Call(
        str(fields.get("id") or own_id),
        name,
        cast("dict[str, Any]", arguments),
        fields.get("stream_arguments") is True,
    )


async def make(
    call: Call,
    turn: Turn,
    waiting: list[Waiting],
    *,
    decision: runtime_pb2.ResumeDecision | None = None,
    namespace: tuple[str, ...] = (),
) -> AsyncIterator[event_pb2.EventDraft]:
    """The events of one call; nothing if it has to wait: then it is among the `waiting`. What is refused is told, and the script goes on."""
    if not turn.tools.connected:
        raise ConfigurationError("This run has no access to portable tools.", code="tools_unavailable")
    tool = turn.tools.find(call.name)
    if tool is None:
        yield events.tool_started(call.tool_call_id, call.name, call.arguments, namespace=namespace)
        message = "The agent has no such tool."
        yield events.tool_failed(call.tool_call_id, "tool_unknown", message, namespace=namespace)
        return
    made = turn.tools.call(
        tool,
        call.arguments,
        tool_call_id=call.tool_call_id,
        decision=decision,
        stream_arguments=call.stream_arguments,
        namespace=namespace,
    )
    async for event in made.events():
        yield event
    if made.approval is None:
        return
    if namespace:
        # The script inside a subagent does not go on after a resume, so nobody could make the call again.
        yield events.tool_started(call.tool_call_id, tool.tool_id, call.arguments, namespace=namespace)
        message = "A call inside a subagent cannot wait for a person here."
        yield events.tool_failed(call.tool_call_id, "approval_in_subagent", message, namespace=namespace)
        return
    waiting.append(Waiting(call, made.approval))


def question(waiting: list[Waiting], interrupt_id: str) -> event_pb2.EventDraft:
    """The one interrupt that asks about all that wait."""
    return events.approval_requested(interrupt_id, [each.approval for each in waiting], PROMPT)
