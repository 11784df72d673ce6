"""The rules of a run's events (canonical events, Lifecycle rules), held before a draft gets its offset."""

import json
import re
from collections.abc import Iterator
from typing import Any

import betterproto2
from betterproto_contracts.harness.common.v1 import ErrorCategory
from betterproto_contracts.harness.event.v1 import (
    EventDraft,
    EventPayload,
    ToolCompleted,
    ToolOutcome,
)

from adapters.betterproto.errors import Failure

MAX_EVENT_BYTES = 256 * 1024
MAX_DELTA_BYTES = 64 * 1024
MAX_ARGUMENT_BYTES = 128 * 1024
TERMINALS = frozenset({"run_completed", "run_interrupted", "run_cancelled", "run_failed"})
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Lifecycle:
    """One run: what is open, and whether it has ended. `accept` raises Failure of category protocol."""

    def __init__(self) -> None:
        self.ended = False
        self._calls: dict[str, str] = {}
        self._known: set[str] = set()
        self._pause = ""

    def accept(self, draft: EventDraft) -> Iterator[EventDraft]:
        """What goes out for `draft`: itself, nothing for an empty delta, pieces of a long one, what a terminal closes before it."""
        payload = draft.payload or EventPayload()
        kind, value = _kind(payload)
        if self.ended:
            raise _violation("event_after_terminal")
        if self._pause and kind not in TERMINALS:
            raise _violation("event_after_interrupt")
        if draft.namespace or kind in ("", "run_started", "subagent_started", "subagent_completed"):
            # This harness has no subagents, and run.started is the engine's.
            raise _violation("event_not_allowed")
        if kind in ("content_delta", "reasoning_delta"):
            yield from _pieces(draft, kind)
            return
        if kind.startswith("tool_"):
            self._tool(kind, value)
        elif kind == "interrupt_requested":
            self._pause = _id(value.interrupt_id)
        elif kind in TERMINALS:
            yield from self._end(kind, value)
        if len(bytes(draft)) > MAX_EVENT_BYTES:
            raise _violation("event_too_large")
        yield draft

    def _tool(self, kind: str, value: Any) -> None:
        call = _id(value.tool_call_id)
        if kind == "tool_started":
            if call in self._known:
                raise _violation("tool_call_repeated")
            self._known.add(call)
            self._calls[call] = ""
            return
        if call not in self._calls:
            raise _violation("tool_call_not_open")
        if kind == "tool_completed":
            joined = self._calls.pop(call)
            if joined and not _is_object(joined):
                raise _violation("tool_arguments_not_json")
            if value.outcome is ToolOutcome.UNSPECIFIED:
                raise _violation("tool_outcome_missing")
            return
        self._calls[call] += value.delta
        if len(self._calls[call].encode()) > MAX_ARGUMENT_BYTES:
            raise _violation("tool_arguments_too_large")

    def _end(self, kind: str, value: Any) -> Iterator[EventDraft]:
        if (kind == "run_interrupted") != bool(self._pause) and kind not in ("run_cancelled", "run_failed"):
            raise _violation("interrupt_without_end" if self._pause else "end_without_interrupt")
        if kind == "run_interrupted" and value.interrupt_id != self._pause:
            raise _violation("other_interrupt")
        for call in self._calls:
            cancelled = ToolCompleted(tool_call_id=call, outcome=ToolOutcome.CANCELLED)
            yield EventDraft(payload=EventPayload(tool_completed=cancelled))
        self._calls = {}
        self.ended = True


def _kind(payload: EventPayload) -> tuple[str, Any]:
    return betterproto2.which_one_of(payload, "kind")


def _pieces(draft: EventDraft, kind: str) -> Iterator[EventDraft]:
    delta = getattr(draft.payload, kind)
    _id(delta.message_id)
    # Control characters are no reason to fail a run; a delta is split, never cut.
    text = _CONTROL.sub("\ufffd", delta.text)
    while text:
        size = len(text)
        while len(text[:size].encode()) > MAX_DELTA_BYTES:
            size = size // 2
        piece = type(delta)(message_id=delta.message_id, text=text[:size])
        yield EventDraft(payload=EventPayload(**{kind: piece}))
        text = text[size:]


def _id(value: str) -> str:
    if not _ID.fullmatch(value):
        raise _violation("id_malformed")
    return value


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _violation(code: str) -> Failure:
    return Failure(ErrorCategory.PROTOCOL, code, "The harness sent an event that breaks the contract.")
