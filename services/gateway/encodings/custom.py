"""The custom encoding: the few things a chat shows, each under a short name (events, "Other encodings").

`content` and `thinking` are the root's alone: what a subagent says is not the answer. Everything else of a subagent carries its `namespace`. The last
frame is always `done`.
"""

# pyright: standard
# Payloads are known by their descriptors only, so their fields are untyped here.

from dataclasses import dataclass, field
from typing import Any

import orjson

from harness.event.v1 import event_pb2
from services.gateway.event_view import TERMINAL_KINDS, payload_data

_TEXT_FRAMES = {"content_delta": b"content", "reasoning_delta": b"thinking"}
_SAME_DATA = {"warning": b"warning", "interrupt_requested": b"input_required"}
_dumps = orjson.dumps


@dataclass(slots=True)
class CustomState:
    """All that later frames depend on. Small: the lifecycle bounds how many calls are open (events, Bounds)."""

    cursor: int = 0
    """Sequence of the last event taken."""
    tool_names: dict[str, str] = field(default_factory=dict)
    """Names of the open calls, by their id."""
    usage: dict[str, Any] | None = None
    """The root's last usage."""


class CustomEncoder:
    """Encodes the events of one run in order."""

    __slots__ = ("state",)

    def __init__(self, state: CustomState | None = None) -> None:
        self.state = state or CustomState()

    @property
    def cursor(self) -> int:
        return self.state.cursor

    def encode(self, event: event_pb2.Event) -> bytes:
        """The frames of the next event, often none."""
        self.state.cursor = event.sequence
        kind = event.payload.WhichOneof("kind")
        if kind is None:
            return b""
        name = _TEXT_FRAMES.get(kind)
        if name is not None:
            if event.namespace:
                return b""
            delta = getattr(event.payload, kind)
            return _frame(event.sequence, name, {"message_id": delta.message_id, "text": delta.text})
        return self._general(event, kind)

    def _general(self, event: event_pb2.Event, kind: str) -> bytes:
        state, sequence = self.state, event.sequence
        data = payload_data(event.payload, kind)
        if event.namespace:
            data["namespace"] = list(event.namespace)
        if kind == "tool_started":
            state.tool_names[data["tool_call_id"]] = data["tool_name"]
            return _frame(sequence, b"tool_start", data)
        if kind == "tool_completed":
            name = state.tool_names.pop(data["tool_call_id"], None)
            return _frame(sequence, b"tool_end", data if name is None else {**data, "tool_name": name})
        if kind in _SAME_DATA:
            return _frame(sequence, _SAME_DATA[kind], data)
        if kind == "usage_updated" and not event.namespace:
            state.usage = data
        elif kind in TERMINAL_KINDS:
            return self._terminal(sequence, kind, data)
        return b""

    def _terminal(self, sequence: int, kind: str, data: dict[str, Any]) -> bytes:
        status = kind.removeprefix("run_")
        usage = {} if self.state.usage is None else {"usage": self.state.usage}
        if kind != "run_failed":
            return _frame(sequence, b"done", {"status": status, **data, **usage})
        # Only the last frame of an event carries the id: whoever loses the connection between them gets both again.
        error = b"event: error\ndata: %b\n\n" % _dumps(data)
        return error + _frame(sequence, b"done", {"status": status, **usage})


def _frame(sequence: int, name: bytes, data: dict[str, Any]) -> bytes:
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (sequence, name, _dumps(data))
