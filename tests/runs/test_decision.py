"""Which decisions an interrupt allows (I25): every problem is found, and nothing that is allowed is refused. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from harness.event.v1 import payload_pb2
from harness.run.v1 import run_service_pb2
from services.runs.decision import MAX_TEXT, issues_of
from services.runs.resume import decision_of, request_of
from services.runs.run import Run, Status
from services.runs.start import request_of as start_of

FIELDS = [
    {"name": "city", "type": "FORM_FIELD_TYPE_STRING", "required": True},
    {"name": "nights", "type": "FORM_FIELD_TYPE_NUMBER"},
    {"name": "late", "type": "FORM_FIELD_TYPE_BOOLEAN"},
    {"name": "size", "type": "FORM_FIELD_TYPE_CHOICE", "options": ["s", "m"]},
]
ALL = ["APPROVAL_DECISION_KIND_APPROVE", "APPROVAL_DECISION_KIND_REJECT", "APPROVAL_DECISION_KIND_EDIT"]
FORM = json_format.ParseDict(
    {"interrupt_id": "i", "revision": 1, "interrupt_type": "INTERRUPT_TYPE_FORM_INPUT", "fields": FIELDS},
    payload_pb2.InterruptRequested(),
)


def calls(**allowed: list[str]) -> payload_pb2.InterruptRequested:
    approvals = [{"tool_call_id": call, "tool_name": "t", "allowed": kinds} for call, kinds in allowed.items()]
    document = {
        "interrupt_id": "i",
        "revision": 1,
        "interrupt_type": "INTERRUPT_TYPE_TOOL_APPROVAL",
        "tool_approvals": approvals,
    }
    return json_format.ParseDict(document, payload_pb2.InterruptRequested())


def decided(**answer: Any) -> run_service_pb2.ResumeRunRequest:
    return json_format.ParseDict(
        {"run_id": "r", "interrupt_id": "i", "revision": 1, **answer}, run_service_pb2.ResumeRunRequest()
    )


def decisions(*made: dict[str, Any]) -> run_service_pb2.ResumeRunRequest:
    return decided(tool_decisions={"decisions": list(made)})


def paths(asked: payload_pb2.InterruptRequested, made: run_service_pb2.ResumeRunRequest) -> list[str]:
    return [issue.path for issue in issues_of(asked, made)]


def test_i25_a_form_takes_values_of_its_fields_alone() -> None:
    assert not paths(FORM, decided(form_values={"city": "Rome"}))
    assert not paths(FORM, decided(form_values={"city": "Rome", "nights": 2.5, "late": False, "size": "m"}))
    wrong = {"city": None, "nights": "2", "late": 1, "size": "xl", "more": 1}
    assert sorted(paths(FORM, decided(form_values=wrong))) == sorted(f"form_values.{name}" for name in wrong)
    assert paths(FORM, decided(form_values={})) == ["form_values.city"]
    assert paths(FORM, decided(form_values={"city": "x" * (MAX_TEXT + 1)})) == ["form_values", "form_values.city"]


def test_i25_a_decision_is_of_the_kind_that_was_asked_for() -> None:
    assert paths(FORM, decisions({"tool_call_id": "a", "approve": True})) == ["tool_decisions"]
    assert paths(calls(a=ALL), decided(form_values={})) == ["form_values"]
    for asked in (FORM, calls(a=ALL)):
        assert not paths(asked, decided(dismiss=True))
        assert paths(asked, decided()) == ["answer"]


@pytest.mark.parametrize(
    ("kind", "value"),
    [(ALL[0], {"approve": True}), (ALL[1], {"reject": "no"}), (ALL[2], {"edit": {"a": 1}})],
)
def test_i25_each_call_takes_what_is_allowed_for_it(kind: str, value: dict[str, Any]) -> None:
    assert not paths(calls(a=[kind]), decisions({"tool_call_id": "a", **value}))
    (name,) = value
    others = [other for other in ALL if other != kind]
    assert paths(calls(a=others), decisions({"tool_call_id": "a", **value})) == [f"tool_decisions.decisions[0].{name}"]


def test_i25_every_call_is_decided_once() -> None:
    approve = [{"tool_call_id": call, "approve": True} for call in ("a", "b")]
    assert not paths(calls(a=ALL, b=ALL), decisions(*approve))
    assert paths(calls(a=ALL, b=ALL), decisions(approve[0])) == ["tool_decisions.decisions"]
    twice = "tool_decisions.decisions[1].tool_call_id"
    assert paths(calls(a=ALL), decisions(approve[0], approve[0])) == [twice]
    assert paths(calls(a=ALL), decisions(*approve)) == [twice]


def test_i25_edited_arguments_are_as_bounded_as_proposed_ones() -> None:
    deep: Any = 1
    for _ in range(9):
        deep = {"a": deep}
    for wrong in (deep, {"a": "x" * (128 * 1024)}, {str(n): 1 for n in range(257)}):
        made = decisions({"tool_call_id": "a", "edit": wrong})
        assert paths(calls(a=ALL), made) == ["tool_decisions.decisions[0].edit"]


@given(st.permutations(["a", "b", "c"]))
def test_i24_the_order_of_calls_is_no_part_of_a_decision(order: list[str]) -> None:
    made = [
        decisions(*({"tool_call_id": call, "reject": call} for call in calls_)) for calls_ in (order, ["a", "b", "c"])
    ]
    assert decision_of(made[0]) == decision_of(made[1])


def interrupted() -> Run:
    return Run(
        run_id="r", owner="own", agent_id="a", conversation_id="c", request_key="k", client_request_id="", body_digest="d",
        binding_id="b", epoch=1, turn=1, agent_version=1, harness_id="h", profile_id="p", policy="reject",
        status=Status.INTERRUPTED, created_at=1, updated_at=1,
    )  # fmt: skip


def test_i24_a_decision_names_its_request_unless_the_client_does() -> None:
    stored = run_service_pb2.StartRunRequest(
        agent_id="a", conversation_id="c", message="secret", context="Monday", client_request_id="first"
    ).SerializeToString()
    rome, oslo = ({"form_values": {"city": city}} for city in ("Rome", "Oslo"))
    plain = request_of(interrupted(), stored, decided(**rome))
    again = request_of(interrupted(), stored, decided(**rome))
    named = request_of(interrupted(), stored, decided(**rome, client_request_id="n"))
    other = request_of(interrupted(), stored, decided(**oslo, client_request_id="n"))
    assert (plain.named_key, plain.digest) == (again.named_key, again.digest)
    assert plain.digest == named.digest != other.digest
    assert named.named_key == other.named_key != plain.named_key
    # The context goes on, the message and the name of the first request do not; the same name is the same key as that of a start.
    assert (plain.body.context, plain.body.message, plain.body.client_request_id) == ("Monday", "", "")
    start = run_service_pb2.StartRunRequest(agent_id="a", conversation_id="c", message="m", client_request_id="n")
    assert start_of("own", start).named_key == named.named_key
