"""What a turn waits for when it ends for a person: its calls, which of them are asked about, and which one the program put off (I24, I25)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adapters.sdk import events
from adapters.sdk.errors import ConfigurationError, PersistenceError
from adapters.sdk.forms import form_of
from harness.event.v1 import event_pb2, payload_pb2
from harness.runtime.v1 import runtime_pb2

TOOL = "tool"
FORM = "form"
PROMPT = "May these calls be made?"


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A call that has not started. `kind`: a portable tool's, or a form's."""

    call_id: str
    # The name within the in-process server.
    name: str
    arguments: dict[str, Any] = field(repr=False)
    kind: str = TOOL


@dataclass(frozen=True, slots=True)
class Pause:
    """What the conversation waits for. `asked`: the calls its interrupt is about; `left`: those to be asked about afterwards, one form at a time.
    `put_off`: the call that the program makes when it goes on; the others have a placeholder in the transcript.
    """

    run_id: str
    interrupt_id: str
    asked: tuple[WaitingCall, ...]
    left: tuple[WaitingCall, ...]
    put_off: str
    # What is asked of a person, apart from the arguments of calls: only of the turn that asks.
    approvals: tuple[payload_pb2.ToolApproval, ...] = ()

    @property
    def calls(self) -> tuple[WaitingCall, ...]:
        """All that have no result yet."""
        return (*self.asked, *self.left)

    def to_document(self) -> dict[str, Any]:
        """JSON-safe form."""
        return {
            "run_id": self.run_id,
            "interrupt_id": self.interrupt_id,
            "asked": [_document(call) for call in self.asked],
            "left": [_document(call) for call in self.left],
            "put_off": self.put_off,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Pause":
        """The inverse of `to_document`. Raises PersistenceError for what is none."""
        try:
            asked, left = (tuple(_call(one) for one in document[name]) for name in ("asked", "left"))
            return cls(str(document["run_id"]), str(document["interrupt_id"]), asked, left, str(document["put_off"]))
        except (KeyError, TypeError):
            raise PersistenceError("The conversation's state is damaged.", code="state_damaged") from None

    def check(self, decision: runtime_pb2.ResumeDecision) -> None:
        """Raises ConfigurationError for a decision on anything else (I25)."""
        if (self.run_id, self.interrupt_id) != (decision.interrupted_run_id, decision.interrupt_id):
            raise ConfigurationError(
                "The decision is on another interrupt than the conversation's.", code="interrupt_unknown"
            )

    def question(self) -> event_pb2.EventDraft:
        """The one interrupt."""
        first = self.asked[0]
        if first.kind == FORM:
            prompt, fields = form_of(first.arguments)
            return events.form_requested(self.interrupt_id, fields, prompt)
        return events.approval_requested(self.interrupt_id, self.approvals, PROMPT)


def pause_for(
    run_id: str, number: int, calls: Sequence[WaitingCall], approvals: Sequence[payload_pb2.ToolApproval], put_off: str
) -> Pause:
    """The pause of calls that wait: approvals first, all in one interrupt, then each form in one of its own."""
    tools = tuple(call for call in calls if call.kind == TOOL)
    forms = tuple(call for call in calls if call.kind == FORM)
    asked, left = (tools, forms) if tools else (forms[:1], forms[1:])
    return Pause(run_id, f"interrupt-{number}", asked, left, put_off, tuple(approvals))


def _document(call: WaitingCall) -> dict[str, Any]:
    return {"id": call.call_id, "name": call.name, "arguments": call.arguments, "kind": call.kind}


def _call(document: Mapping[str, Any]) -> WaitingCall:
    return WaitingCall(str(document["id"]), str(document["name"]), dict(document["arguments"]), str(document["kind"]))
