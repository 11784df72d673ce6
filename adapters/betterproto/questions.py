"""What a person is asked, and whether the answer fits the question (reference harness, interrupt)."""

import json
from typing import Any, cast

import betterproto2
from betterproto_contracts.harness.event.v1 import (
    ApprovalDecisionKind,
    FormField,
    InterruptRequested,
    InterruptType,
    ToolApproval,
)
from betterproto_contracts.harness.runtime.v1 import ResumeDecision, ToolDecision

from adapters.betterproto.errors import wrong
from adapters.betterproto.memory import Pause
from adapters.betterproto.message import Step

_KINDS = {
    "approve": ApprovalDecisionKind.APPROVE,
    "reject": ApprovalDecisionKind.REJECT,
    "edit": ApprovalDecisionKind.EDIT,
}


def asked(step: Step, interrupt_id: str) -> InterruptRequested:
    """The event of an `interrupt` step: a form, or calls to be approved."""
    given: object = step["interrupt"]
    question = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    requested = InterruptRequested(
        interrupt_id=str(question.get("id") or interrupt_id), revision=1, prompt=str(question.get("prompt") or "")
    )
    form, calls = question.get("form"), question.get("approve")
    try:
        if form and not calls:
            requested.interrupt_type = InterruptType.FORM_INPUT
            requested.fields = [_field(item) for item in form]
            return requested
        if calls and not form:
            requested.interrupt_type = InterruptType.TOOL_APPROVAL
            requested.tool_approvals = [_approval(item) for item in calls]
            return requested
    except (AttributeError, KeyError, TypeError, ValueError):
        pass  # said below: what was given is no question of the vocabulary
    raise wrong(
        "step_invalid", "The step `interrupt` needs either `form`, a list of fields, or `approve`, a list of calls."
    )


def answers(pause: Pause, decision: ResumeDecision) -> dict[str, dict[str, Any]]:
    """Arguments by call, where a person changed them. Raises Failure for a decision that does not fit the question."""
    if (pause.run_id, pause.interrupt_id) != (decision.interrupted_run_id, decision.interrupt_id):
        raise wrong("interrupt_unknown", "The decision is on another interrupt than the conversation's.")
    kind, _ = betterproto2.which_one_of(decision, "answer")
    if kind == "dismiss":
        return {}
    decisions = decision.tool_decisions.decisions if decision.tool_decisions else []
    by_call = {call.tool_call_id: call for call in decisions}
    if (
        (kind == "form_values") == bool(pause.allowed)
        or len(by_call) != len(decisions)
        or set(by_call) != set(pause.allowed)
    ):
        raise wrong("decision_invalid", "The decision does not answer what was asked.")
    edited: dict[str, dict[str, Any]] = {}
    for call_id, call in by_call.items():
        chosen, _ = betterproto2.which_one_of(call, "decision")
        if int(_KINDS[chosen]) not in pause.allowed[call_id]:
            raise wrong("decision_invalid", "A call was decided in a way that is not allowed.")
        if call.edit is not None:
            edited[call_id] = call.edit.to_dict()
    return edited


def told(decision: ResumeDecision | None) -> str:
    """The decision as the `decision` step tells it: one line of JSON."""
    if decision is None:
        plain: object = None
    elif decision.form_values is not None:
        plain = {"form": decision.form_values.to_dict()}
    elif decision.tool_decisions is not None:
        plain = {"calls": {call.tool_call_id: _plain(call) for call in decision.tool_decisions.decisions}}
    else:
        plain = {"dismiss": True}
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _plain(call: ToolDecision) -> object:
    if call.edit is not None:
        return {"edit": call.edit.to_dict()}
    return "approve" if call.reject is None else {"reject": call.reject}


def _field(item: dict[str, Any]) -> FormField:
    return FormField.from_dict({**item, "type": f"FORM_FIELD_TYPE_{str(item.get('type', 'string')).upper()}"})


def _approval(item: dict[str, Any]) -> ToolApproval:
    return ToolApproval.from_dict(
        {
            "tool_call_id": item.get("id", ""),
            "tool_name": item.get("name", ""),
            "arguments": item.get("arguments", {}),
            "allowed": [int(_KINDS[str(kind)]) for kind in item.get("allowed", ["approve", "reject"])],
        }
    )
