"""A pause for a person: what a script asks, what is kept of it until the decision, and how a decision is told (reference harness, interrupt)."""

from dataclasses import dataclass, field
from typing import Any, cast

import orjson
from google.protobuf import json_format

from adapters.reference.calls import Call
from adapters.reference.message import Script, Step
from adapters.sdk import events
from adapters.sdk.errors import ConfigurationError
from harness.event.v1 import event_pb2, payload_pb2
from harness.runtime.v1 import runtime_pb2

_TYPES = {"string": "STRING", "number": "NUMBER", "boolean": "BOOLEAN", "choice": "CHOICE"}
_DECISIONS = {"approve": "APPROVE", "reject": "REJECT", "edit": "EDIT"}


@dataclass(frozen=True, slots=True)
class Pause:
    """What a turn leaves behind that waits: its run and interrupt, the scripts of its message, and, where portable tools wait, their calls and what
    is left of the script.
    """

    run_id: str
    interrupt_id: str
    scripts: list[Script]
    per_turn: bool
    calls: tuple[Call, ...] = ()
    rest: Script = field(default_factory=list[Step])
    # Turns of the session that were played, for a conversation that keeps no other memory.
    turns: int = 0

    def to_document(self) -> dict[str, Any]:
        """JSON-safe form."""
        return {
            "run_id": self.run_id,
            "interrupt_id": self.interrupt_id,
            "scripts": self.scripts,
            "per_turn": self.per_turn,
            "calls": [call.to_document() for call in self.calls],
            "rest": self.rest,
            "turns": self.turns,
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "Pause":
        """The inverse of `to_document`. Raises KeyError for what is none."""
        return cls(
            document["run_id"],
            document["interrupt_id"],
            document["scripts"],
            document["per_turn"],
            # Not there in what an earlier version left behind.
            tuple(Call.from_document(call) for call in document.get("calls", [])),
            document.get("rest", []),
            int(document.get("turns", 0)),
        )


def requested(step: Step, interrupt_id: str, namespace: tuple[str, ...]) -> event_pb2.EventDraft:
    """The event of an `interrupt` step: a form, or calls to be approved. Raises ConfigurationError for a step that asks nothing valid."""
    asked: object = step.get("interrupt")
    fields = cast("dict[str, Any]", asked) if isinstance(asked, dict) else {}
    interrupt_id = str(fields.get("id") or interrupt_id)
    prompt = str(fields.get("prompt") or "")
    form, calls = fields.get("form"), fields.get("approve")
    if isinstance(form, list) and form and calls is None:
        items = [_field(item) for item in cast("list[Any]", form)]
        return events.form_requested(interrupt_id, items, prompt, namespace=namespace)
    if isinstance(calls, list) and calls and form is None:
        approvals = [_approval(item) for item in cast("list[Any]", calls)]
        return events.approval_requested(interrupt_id, approvals, prompt, namespace=namespace)
    raise _wrong("either `form`, a list of fields, or `approve`, a list of calls")


def told(decision: runtime_pb2.ResumeDecision | None) -> str:
    """The decision as the `decision` step tells it: one line of JSON."""
    return orjson.dumps(_plain(decision), option=orjson.OPT_SORT_KEYS).decode()


def _plain(decision: runtime_pb2.ResumeDecision | None) -> Any:
    if decision is None:
        return None
    match decision.WhichOneof("answer"):
        case "form_values":
            return {"form": json_format.MessageToDict(decision.form_values)}
        case "tool_decisions":
            return {"calls": {call.tool_call_id: _one(call) for call in decision.tool_decisions.decisions}}
        case _:
            return {"dismiss": True}


def _one(call: runtime_pb2.ToolDecision) -> Any:
    match call.WhichOneof("decision"):
        case "edit":
            return {"edit": json_format.MessageToDict(call.edit)}
        case "reject":
            return {"reject": call.reject}
        case _:
            return "approve"


def _field(item: Any) -> payload_pb2.FormField:
    given = _item(item)
    kind = _TYPES.get(str(given.get("type", "string")))
    if kind is None:
        raise _wrong(f"fields of type {', '.join(_TYPES)}")
    return _parsed({**given, "type": f"FORM_FIELD_TYPE_{kind}"}, payload_pb2.FormField())


def _approval(item: Any) -> payload_pb2.ToolApproval:
    given = _item(item)
    allowed = [_DECISIONS.get(str(decision)) for decision in given.get("allowed", ["approve", "reject"])]
    if None in allowed:
        raise _wrong(f"calls that allow {', '.join(_DECISIONS)}")
    return _parsed(
        {
            "tool_call_id": given.get("id", ""),
            "tool_name": given.get("name", ""),
            "arguments": given.get("arguments", {}),
            "allowed": [f"APPROVAL_DECISION_KIND_{decision}" for decision in allowed],
        },
        payload_pb2.ToolApproval(),
    )


def _item(item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise _wrong("a list of objects")
    return cast("dict[str, Any]", item)


def _parsed(document: dict[str, Any], message: Any) -> Any:
    try:
        return json_format.ParseDict(document, message)
    except json_format.ParseError:
        raise _wrong("fields and calls as the vocabulary has them") from None


def _wrong(expected: str) -> ConfigurationError:
    return ConfigurationError(f"The step `interrupt` needs {expected}.", code="step_invalid")
