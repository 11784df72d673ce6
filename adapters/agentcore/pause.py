"""What a turn waits for when it ends for a person, kept until the decision: in thread state, or in the runtime of a conversation without any (I24, I25).

The service keeps the conversation, and with it the message whose calls are to be answered. It takes the answers of all of them at once, so those that
are there already are kept beside the calls that wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from adapters.agentcore.answers import Answer, refusal
from adapters.sdk import events
from adapters.sdk.contract import Turn
from adapters.sdk.errors import ConfigurationError, PersistenceError
from adapters.sdk.events import Draft
from adapters.sdk.forms import form_of
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2

CODEC = "agentcore.pause.v1"
TOOL, FORM = "tool", "form"
PROMPT = "May these calls be made?"
DISMISSED = "The person dismissed the question, and the call was not made."
UNDECIDED = "No decision on this call is known here, nor whether it was made: take it neither for made nor for not made, and do not make it again unasked."
_NOTHING = b"{}"


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A call that has not started. `kind`: a portable tool's, or a form's."""

    call_id: str
    name: str
    arguments: dict[str, Any] = field(repr=False)
    kind: str = TOOL

    def to_document(self) -> dict[str, Any]:
        """JSON-safe form."""
        return {"id": self.call_id, "name": self.name, "arguments": self.arguments, "kind": self.kind}


@dataclass(frozen=True, slots=True)
class Pause:
    """`order`: all calls of the message. `answers`: those that are answered. `asked`: what the interrupt is about; `left`: what is asked afterwards,
    one form at a time.
    """

    run_id: str
    interrupt_id: str
    order: tuple[str, ...]
    answers: Mapping[str, Answer] = field(repr=False)
    asked: tuple[WaitingCall, ...]
    left: tuple[WaitingCall, ...] = ()
    # What is asked of a person, apart from the arguments of calls: only of the turn that asks.
    approvals: tuple[payload_pb2.ToolApproval, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """JSON-safe form."""
        return {
            "run_id": self.run_id,
            "interrupt_id": self.interrupt_id,
            "order": self.order,
            "answers": self.answers,
            "asked": [call.to_document() for call in self.asked],
            "left": [call.to_document() for call in self.left],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Pause":
        """The inverse of `to_document`. Raises PersistenceError for what is none."""
        try:
            asked, left = (tuple(_waiting(one) for one in document[name]) for name in ("asked", "left"))
            return cls(
                str(document["run_id"]),
                str(document["interrupt_id"]),
                tuple(document["order"]),
                dict(document["answers"]),
                asked,
                left,
            )
        except (KeyError, TypeError, ValueError):
            raise _damaged() from None

    def check(self, decision: runtime_pb2.ResumeDecision) -> None:
        """Raises ConfigurationError for a decision on anything else (I25)."""
        if (self.run_id, self.interrupt_id) != (decision.interrupted_run_id, decision.interrupt_id):
            raise ConfigurationError(
                "The decision is on another interrupt than the conversation's.", code="interrupt_unknown"
            )

    def question(self) -> Draft:
        """The one interrupt."""
        first = self.asked[0]
        if first.kind == FORM:
            prompt, fields = form_of(first.arguments)
            return events.form_requested(self.interrupt_id, fields, prompt)
        return events.approval_requested(self.interrupt_id, self.approvals, PROMPT)

    def in_order(self, answers: Mapping[str, Answer]) -> list[Answer]:
        """The answers of the whole message, each call's once. Of a call that has none nothing is said but that (I11): a resume that broke may have made it."""
        known = {**self.answers, **answers}
        return [known.get(call_id) or refusal(call_id, UNDECIDED) for call_id in self.order]


async def load(turn: Turn) -> Pause | None:
    """What the committed state says that the conversation waits for (I30). Raises PersistenceError."""
    if turn.thread_revision == 0:
        return None
    head = await turn.thread.load_head()
    if head is None or not head.parts:
        return None
    if head.codec != CODEC:
        raise _damaged()
    try:
        document = orjson.loads(head.parts[-1])
    except orjson.JSONDecodeError:
        raise _damaged() from None
    return Pause.from_document(document) if document else None


async def save(turn: Turn, pause: Pause | None) -> None:
    """Writes what the conversation waits for from here; the executor commits it. Raises PersistenceError."""
    data = _NOTHING if pause is None else orjson.dumps(pause.to_document())
    await turn.thread.write_part(data, CODEC, replace=True)


def _waiting(document: Mapping[str, Any]) -> WaitingCall:
    return WaitingCall(str(document["id"]), str(document["name"]), dict(document["arguments"]), str(document["kind"]))


def _damaged() -> PersistenceError:
    return PersistenceError("The conversation's state is damaged.", code="state_damaged")
