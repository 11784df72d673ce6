"""Whether a decision is one that an interrupt allows: its fields, its calls, its edited arguments (events; I25). Pure."""

from __future__ import annotations

from typing import Final

from google.protobuf import struct_pb2

from harness.event.v1 import payload_pb2
from harness.run.v1 import run_service_pb2
from harness.runtime.v1 import runtime_pb2
from services.common.errors import FieldIssue
from services.runs import json_bounds

MAX_TEXT: Final = 65_536
"""Characters of one value of a form (I35)."""
_ALLOWED: Final = {
    "approve": payload_pb2.APPROVAL_DECISION_KIND_APPROVE,
    "reject": payload_pb2.APPROVAL_DECISION_KIND_REJECT,
    "edit": payload_pb2.APPROVAL_DECISION_KIND_EDIT,
}
_KINDS: Final = {
    payload_pb2.FORM_FIELD_TYPE_STRING: ("string_value", "a text"),
    payload_pb2.FORM_FIELD_TYPE_NUMBER: ("number_value", "a number"),
    payload_pb2.FORM_FIELD_TYPE_BOOLEAN: ("bool_value", "true or false"),
    payload_pb2.FORM_FIELD_TYPE_CHOICE: ("string_value", "one of the options"),
}


def issues_of(asked: payload_pb2.InterruptRequested, decided: run_service_pb2.ResumeRunRequest) -> list[FieldIssue]:
    """Everything in which the decision does not fit what was asked; nothing: it may be consumed. A dismissal always fits."""
    answer = decided.WhichOneof("answer")
    if answer == "dismiss":
        return []
    form = asked.interrupt_type == payload_pb2.INTERRUPT_TYPE_FORM_INPUT
    wanted = "form_values" if form else "tool_decisions"
    if answer != wanted:
        message = f"This interrupt is answered with {wanted}, or dismissed."
        return [FieldIssue(answer or "answer", "other_interrupt_type", message)]
    return _form_issues(asked, decided.form_values) if form else _call_issues(asked, decided.tool_decisions)


def _form_issues(asked: payload_pb2.InterruptRequested, values: struct_pb2.Struct) -> list[FieldIssue]:
    issues = json_bounds.issues_of(values, "form_values")
    known = {field.name: field for field in asked.fields}
    for name in sorted(set(values.fields) - set(known)):
        issues.append(FieldIssue(f"form_values.{name}", "unknown_field", "The form has no such field."))
    for name, field in known.items():
        path = f"form_values.{name}"
        if name not in values.fields:
            if field.required:
                issues.append(FieldIssue(path, "required", "The form needs this value."))
            continue
        problem = _value_problem(field, values.fields[name])
        if problem:
            issues.append(FieldIssue(path, "wrong_value", problem))
    return issues


def _value_problem(field: payload_pb2.FormField, value: struct_pb2.Value) -> str:
    kind, wanted = _KINDS[field.type]
    if value.WhichOneof("kind") != kind:
        return f"Expected {wanted}."
    if field.type == payload_pb2.FORM_FIELD_TYPE_CHOICE and value.string_value not in field.options:
        return f"Expected {wanted}: {', '.join(field.options)}."
    if len(value.string_value) > MAX_TEXT:
        return f"A text may have {MAX_TEXT} characters."
    if field.required and field.type == payload_pb2.FORM_FIELD_TYPE_STRING and not value.string_value:
        return "The form needs a text here, not an empty one."
    return ""


def _call_issues(asked: payload_pb2.InterruptRequested, decided: runtime_pb2.ToolDecisions) -> list[FieldIssue]:
    issues: list[FieldIssue] = []
    open_calls = {approval.tool_call_id: approval for approval in asked.tool_approvals}
    for position, decision in enumerate(decided.decisions):
        path = f"tool_decisions.decisions[{position}]"
        approval = open_calls.pop(decision.tool_call_id, None)
        if approval is None:
            issues.append(
                FieldIssue(
                    f"{path}.tool_call_id", "unknown_call", "No such call awaits a decision, or it has one already."
                )
            )
            continue
        kind = decision.WhichOneof("decision") or ""
        if _ALLOWED.get(kind) not in approval.allowed:
            # I25: a decision never widens what was allowed.
            issues.append(FieldIssue(f"{path}.{kind}", "not_allowed", f"The call may not be answered with {kind}."))
        elif kind == "edit":
            # I25: as it would have been checked when the call was proposed.
            issues += json_bounds.issues_of(decision.edit, f"{path}.edit", max_bytes=json_bounds.MAX_ARGUMENTS_BYTES)
    for call_id in open_calls:
        issues.append(FieldIssue("tool_decisions.decisions", "missing", f"The call {call_id} has no decision."))
    return issues
