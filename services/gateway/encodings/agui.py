"""The AG-UI encoding: the events of `ag-ui-protocol` 1.0, each as one `data:` line (events, "Other encodings").

Messages and calls of the root become AG-UI's own events. A subagent's, warnings and usage are CUSTOM, with the canonical type as their name and the
canonical data as their value. What AG-UI has no field for stands in an event's `metadata`.
"""

# pyright: standard
# Payloads are known by their descriptors only, so their fields are untyped here.

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import orjson

from harness.event.v1 import event_pb2
from services.gateway.encodings.agui_interrupt import interrupt_outcome
from services.gateway.event_view import event_data, payload_data

PROTOCOL_VERSION = "1.0"
_Json = dict[str, Any]
_USAGE_FIELDS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cached_input_tokens": "cachedInputTokens",
}
_dumps = orjson.dumps


class Message(NamedTuple):
    """The message that is open at the root."""

    kind: Literal["content_delta", "reasoning_delta"]
    message_id: str


@dataclass(slots=True)
class AguiState:
    """All that later frames depend on. Small: the lifecycle bounds how many calls are open, and an event's size (events, Bounds)."""

    cursor: int = 0
    """Sequence of the last event taken."""
    message: Message | None = None
    calls: dict[str, None] = field(default_factory=dict)
    """Calls of the root whose arguments may go on, in the order of their start."""
    interrupt: _Json | None = None
    """Data of the requested interrupt, with its namespace."""
    usage: _Json | None = None
    """The root's last usage, as AG-UI counts it."""


class AguiEncoder:
    """Encodes the events of one run in order."""

    __slots__ = ("_thread_id", "state")

    def __init__(self, thread_id: str, state: AguiState | None = None) -> None:
        self._thread_id = thread_id
        self.state = state or AguiState()

    @property
    def cursor(self) -> int:
        return self.state.cursor

    def encode(self, event: event_pb2.Event) -> bytes:
        """The frames of the next event, perhaps none."""
        self.state.cursor = event.sequence
        kind = event.payload.WhichOneof("kind")
        # A kind of a newer contract has no meaning here.
        shown = [] if kind is None else self._shown(event, kind)
        if not shown:
            return b""
        if event.HasField("time"):
            milliseconds = event.time.seconds * 1000 + event.time.nanos // 1_000_000
            for item in shown:
                item["timestamp"] = milliseconds
        frames = [b"data: %b\n\n" % _dumps(item) for item in shown]
        # Only the last carries the id: whoever loses the connection between them gets all of them again.
        frames[-1] = b"id: %d\n%b" % (event.sequence, frames[-1])
        return b"".join(frames)

    def _shown(self, event: event_pb2.Event, kind: str) -> list[_Json]:
        if kind == "interrupt_requested":
            self.state.interrupt = payload_data(event.payload, kind)
            if event.namespace:
                self.state.interrupt["namespace"] = list(event.namespace)
        if event.namespace or kind in _CUSTOM_KINDS:
            if kind == "usage_updated" and not event.namespace:
                self._note_usage(payload_data(event.payload, kind))
            name, value = event_data(event)
            return [{"type": "CUSTOM", "name": name, "value": value}]
        show = _ROOT.get(kind)
        return [] if show is None else show(self, event, kind)

    def _note_usage(self, data: _Json) -> None:
        # AG-UI knows tokens alone; the rest is in the CUSTOM event.
        self.state.usage = {name: data[field] for field, name in _USAGE_FIELDS.items() if field in data} or None

    def _run_started(self, event: event_pb2.Event, kind: str) -> list[_Json]:
        return [
            {
                "type": "RUN_STARTED",
                "threadId": self._thread_id,
                "runId": event.run_id,
                "protocolVersion": PROTOCOL_VERSION,
                "metadata": payload_data(event.payload, kind),
            }
        ]

    def _content(self, event: event_pb2.Event, kind: str) -> list[_Json]:
        delta = event.payload.content_delta
        message = Message("content_delta", delta.message_id)
        shown = self._change_message(message)
        shown.append({"type": "TEXT_MESSAGE_CONTENT", "messageId": delta.message_id, "delta": delta.text})
        return shown

    def _reasoning(self, event: event_pb2.Event, kind: str) -> list[_Json]:
        delta = event.payload.reasoning_delta
        message = Message("reasoning_delta", delta.message_id)
        shown = self._change_message(message)
        shown.append({"type": "REASONING_MESSAGE_CONTENT", "messageId": delta.message_id, "delta": delta.text})
        return shown

    def _change_message(self, message: Message | None) -> list[_Json]:
        """Closes the open message and opens `message`, unless they are the same."""
        before, self.state.message = self.state.message, message
        if before == message:
            return []
        shown: list[_Json] = []
        if before is not None:
            types = _MESSAGE_ENDS[before.kind]
            shown += [{"type": name, "messageId": before.message_id} for name in types]
        if message is not None:
            types = _MESSAGE_STARTS[message.kind]
            shown += [{"type": name, "messageId": message.message_id, **more} for name, more in types]
        return shown

    def _tool_started(self, event: event_pb2.Event, kind: str) -> list[_Json]:
        started = event.payload.tool_started
        call_id = started.tool_call_id
        shown = self._change_message(None)
        start: _Json = {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": started.tool_name}
        if started.parent_message_id:
            start["parentMessageId"] = started.parent_message_id
        shown.append(start)
        if started.HasField("arguments"):
            arguments = _dumps(payload_data(event.payload, kind)["arguments"]).decode()
            shown.append({"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": arguments})
            shown.append({"type": "TOOL_CALL_END", "toolCallId": call_id})
        else:
            self.state.calls[call_id] = None
        return shown

    def _tool_arguments(self, event: event_pb2.Event, kind: str) -> list[_Json]:
        delta = event.payload.tool_arguments_delta
        return [{"type": "TOOL_CALL_ARGS", "toolCallId": delta.tool_call_id, "delta": delta.delta}]

    def _tool_completed(self, event: event_pb2.Event, kind: str) -> list[_Json]:
        data = payload_data(event.payload, kind)
        call_id = data.pop("tool_call_id")
        shown = self._change_message(None)
        if call_id in self.state.calls:
            # That the arguments are complete is only known now.
            del self.state.calls[call_id]
            shown.append({"type": "TOOL_CALL_END", "toolCallId": call_id})
        shown.append(
            {
                "type": "TOOL_CALL_RESULT",
                "messageId": f"{call_id}:result",
                "toolCallId": call_id,
                "content": _result_text(data),
                "role": "tool",
                "metadata": data,
            }
        )
        return shown

    def _close_all(self) -> list[_Json]:
        shown = self._change_message(None)
        shown += [{"type": "TOOL_CALL_END", "toolCallId": call_id} for call_id in self.state.calls]
        self.state.calls.clear()
        return shown

    def _run_finished(self, event: event_pb2.Event, kind: str) -> list[_Json]:
        data = payload_data(event.payload, kind)
        if kind == "run_interrupted":
            outcome = interrupt_outcome(data, self.state.interrupt)
        else:
            outcome = {"type": "success" if kind == "run_completed" else "cancelled"}
        finished = {
            "type": "RUN_FINISHED",
            "threadId": self._thread_id,
            "runId": event.run_id,
            "outcome": outcome,
            "metadata": data,
        }
        return [*self._close_all(), self._with_usage(finished)]

    def _run_error(self, event: event_pb2.Event, kind: str) -> list[_Json]:
        data = payload_data(event.payload, kind)
        error: _Json = {"type": "RUN_ERROR", "message": data.pop("message", ""), "code": data.pop("code", "")}
        error["metadata"] = data
        return [*self._close_all(), self._with_usage(error)]

    def _with_usage(self, terminal: _Json) -> _Json:
        if self.state.usage is not None:
            terminal["usage"] = [self.state.usage]
        return terminal


def _result_text(data: _Json) -> str:
    """The content of a tool message, which is text. Takes the result out of the data."""
    if "result" in data:
        result = data.pop("result")
        return result if isinstance(result, str) else _dumps(result).decode()
    return data.get("error", {}).get("message", "")


_CUSTOM_KINDS = frozenset(("warning", "usage_updated", "subagent_started", "subagent_completed"))
_MESSAGE_STARTS: dict[str, tuple[tuple[str, _Json], ...]] = {
    "content_delta": (("TEXT_MESSAGE_START", {"role": "assistant"}),),
    "reasoning_delta": (("REASONING_START", {}), ("REASONING_MESSAGE_START", {"role": "reasoning"})),
}
_MESSAGE_ENDS: dict[str, tuple[str, ...]] = {
    "content_delta": ("TEXT_MESSAGE_END",),
    "reasoning_delta": ("REASONING_MESSAGE_END", "REASONING_END"),
}
_ROOT: dict[str, Callable[[AguiEncoder, event_pb2.Event, str], list[_Json]]] = {
    "run_started": AguiEncoder._run_started,
    "content_delta": AguiEncoder._content,
    "reasoning_delta": AguiEncoder._reasoning,
    "tool_started": AguiEncoder._tool_started,
    "tool_arguments_delta": AguiEncoder._tool_arguments,
    "tool_completed": AguiEncoder._tool_completed,
    "run_completed": AguiEncoder._run_finished,
    "run_cancelled": AguiEncoder._run_finished,
    "run_interrupted": AguiEncoder._run_finished,
    "run_failed": AguiEncoder._run_error,
}
