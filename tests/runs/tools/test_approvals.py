"""Calls that wait for a person: nothing runs before its approval, nothing runs wider than what was approved (I24, I25)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import json_format

from harness.common.v1 import blueprint_pb2
from harness.event.v1 import payload_pb2
from harness.run.v1 import run_service_pb2
from harness.runtime.v1 import runtime_pb2
from harness.session.v1 import binding_pb2
from services.common.errors import HarnessError, Reason
from services.runs.run import Run
from services.runs.tools.approving import Approvals
from services.runs.tools.record import State
from tests.runs.tools.stand import BINDING, EPOCH, Stand

NEVER = blueprint_pb2.APPROVAL_POLICY_NEVER
SENSITIVE = blueprint_pb2.APPROVAL_POLICY_SENSITIVE_ONLY
ALWAYS = blueprint_pb2.APPROVAL_POLICY_ALWAYS
REJECTED, SUCCESS = payload_pb2.TOOL_OUTCOME_REJECTED, payload_pb2.TOOL_OUTCOME_SUCCESS


def decision(interrupted: Run, call_id: str = "call-1", **decided: Any) -> runtime_pb2.ResumeDecision:
    """What a resume stores."""
    stored = runtime_pb2.ResumeDecision(interrupt_id="i", revision=1, interrupted_run_id=interrupted.run_id)
    if not decided:
        stored.dismiss = True
        return stored
    json_format.ParseDict({"tool_call_id": call_id, **decided}, stored.tool_decisions.decisions.add())
    return stored


async def waiting(stand: Stand, call_id: str = "call-1") -> Run:
    """A run with a call that waits."""
    run = await stand.run()
    stand.grant(run, policy=ALWAYS)
    response = await stand.invoke(run, call_id)
    assert response.HasField("approval_required")
    return run


async def resumed(stand: Stand, interrupted: Run, **decided: Any) -> Run:
    """The run that goes on from it."""
    await stand.change(interrupted, closed=True)
    return await stand.run(resumed=(interrupted, decision(interrupted, **decided)))


@pytest.mark.parametrize(
    ("policy", "sensitive", "waits"),
    [
        (NEVER, True, False),
        (SENSITIVE, False, False),
        (SENSITIVE, True, True),
        (ALWAYS, False, True),
        (blueprint_pb2.APPROVAL_POLICY_UNSPECIFIED, True, True),
    ],
)
async def test_i25_the_policy_decides_which_calls_wait(
    stand: Stand, policy: blueprint_pb2.ApprovalPolicy.ValueType, sensitive: bool, waits: bool
) -> None:
    run = await stand.run()
    stand.grant(run, policy=policy, sensitive=sensitive)
    response = await stand.invoke(run)
    assert response.HasField("approval_required") == waits
    assert bool(stand.provider.calls) != waits
    assert (await stand.stored()).state is (State.WAITING if waits else State.DONE)


async def test_i24_a_waiting_call_says_what_it_would_run_with_as_often_as_it_is_asked(stand: Stand) -> None:
    run = await waiting(stand)
    first = (await stand.invoke(run)).approval_required
    assert (first.tool_call_id, first.tool_name) == ("call-1", "echo")
    assert json_format.MessageToDict(first.arguments) == {"text": "hi"}
    assert list(first.allowed) == [
        payload_pb2.APPROVAL_DECISION_KIND_APPROVE,
        payload_pb2.APPROVAL_DECISION_KIND_REJECT,
        payload_pb2.APPROVAL_DECISION_KIND_EDIT,
    ]
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(run, arguments={"text": "other"})
    assert refused.value.reason is Reason.IDEMPOTENCY_MISMATCH
    assert len((await stand.again(run)).tool_calls) == 1  # I35: it counts against the limit
    assert not stand.provider.calls


async def test_i25_an_approved_call_runs_once_with_what_was_recorded(stand: Stand) -> None:
    run = await resumed(stand, await waiting(stand), approve=True)
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(run, arguments={"text": "wider"})
    assert refused.value.reason is Reason.IDEMPOTENCY_MISMATCH
    assert not stand.provider.calls
    await stand.replica()
    answers = await asyncio.gather(*(stand.invoke(run, replica=number % 2) for number in range(6)))
    assert {one.completed.outcome for one in answers} == {SUCCESS}
    assert [json_format.MessageToDict(call.arguments) for call in stand.provider.calls] == [{"text": "hi"}]
    record = await stand.stored()
    assert (record.run_id, record.edited) == (run.run_id, "")


@pytest.mark.parametrize("sent", [{"text": "hi"}, {"text": "edited"}])
async def test_i25_an_edited_call_runs_with_the_edit_whatever_its_runtime_sends(
    stand: Stand, sent: dict[str, Any]
) -> None:
    run = await resumed(stand, await waiting(stand), edit={"text": "edited"})
    first = await stand.invoke(run, arguments=sent)
    assert first.completed.outcome == SUCCESS
    assert [json_format.MessageToDict(call.arguments) for call in stand.provider.calls] == [{"text": "edited"}]
    for again in ({"text": "hi"}, {"text": "edited"}):
        assert await stand.invoke(run, arguments=again) == first
    assert len(stand.provider.calls) == 1


async def test_i25_an_edit_is_held_to_the_schema_again_when_it_runs(stand: Stand) -> None:
    run = await resumed(stand, await waiting(stand), edit={"text": "0123456789"})
    response = await stand.invoke(run)
    assert response.completed.error.code == "arguments_invalid"
    assert not stand.provider.calls


@pytest.mark.parametrize("decided", [{"reject": "not today"}, {}])
async def test_i25_a_rejected_or_dismissed_call_never_runs(stand: Stand, decided: dict[str, Any]) -> None:
    run = await resumed(stand, await waiting(stand), **decided)
    first = await stand.invoke(run)
    assert (first.completed.outcome, first.completed.error.code) == (REJECTED, "rejected")
    if decided:
        assert first.completed.error.message == "not today"
    later = await stand.run(agent=run.agent_id or "")
    assert await stand.invoke(later) == first
    assert not stand.provider.calls


async def test_i25_a_decision_counts_for_the_run_it_was_stored_with_alone(stand: Stand) -> None:
    interrupted = await waiting(stand)
    others = [
        await stand.run(agent=interrupted.agent_id or ""),  # decides nothing
        await stand.run(
            resumed=(interrupted, decision(interrupted, "call-2", approve=True))
        ),  # decides on another call
    ]
    for other in others:
        assert (await stand.invoke(other)).HasField("approval_required")
    # By now it waits in the last of them, so what was decided about the first is void.
    late = await stand.run(resumed=(interrupted, decision(interrupted, approve=True)))
    assert (await stand.invoke(late)).HasField("approval_required")
    assert not stand.provider.calls
    asked_last = await resumed(stand, late, approve=True)
    assert (await stand.invoke(asked_last)).completed.outcome == SUCCESS


async def test_i24_an_approved_call_that_nobody_recorded_waits_first(stand: Stand) -> None:
    """A runtime that shows a call of its own making gets no portable tool by it."""
    shown = await stand.run()
    stand.grant(shown, policy=ALWAYS)
    run = await resumed(stand, shown, approve=True)
    assert (await stand.invoke(run)).HasField("approval_required")
    assert not stand.provider.calls


async def test_i12_an_approved_call_does_not_pass_a_run_that_ends(stand: Stand) -> None:
    run = await resumed(stand, await waiting(stand), approve=True)
    await stand.change(run, closed=True)
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(run)
    assert refused.value.reason is Reason.STALE_LEASE
    assert not stand.provider.calls
    assert (await stand.stored()).state is State.WAITING


async def test_i11_an_edited_call_of_an_idempotent_tool_goes_on_with_its_edit(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run, policy=ALWAYS, idempotent=True)
    await stand.invoke(run)
    run = await resumed(stand, run, edit={"text": "edited"})
    await stand.invoke(run)
    done = await stand.stored()
    # As if its broker had died before it wrote the outcome.
    dead = replace(done, state=State.STARTED, broker="hld-dead", outcome="", result="")
    assert await stand.calls.put(done, dead) is not None
    again = await stand.run(agent=run.agent_id or "")
    response = await stand.lapse(asyncio.create_task(stand.invoke(again)))
    assert response.completed.outcome == SUCCESS
    assert [json_format.MessageToDict(call.arguments)["text"] for call in stand.provider.calls] == ["edited"] * 2


# --- when the decision is made (ResumeRun) ---


async def refused_paths(stand: Stand, run: Run, shown: dict[str, Any], decided: dict[str, Any]) -> set[str]:
    """At which fields a decision is refused before the interrupt is consumed by it."""
    binding = binding_pb2.Binding(binding_id=BINDING, epoch=EPOCH, agent_id=run.agent_id or "")
    binding.pin.agent_version = 1
    binding.interrupt.run_id = run.run_id
    binding.interrupt.requested.interrupt_id = "i"
    json_format.ParseDict(
        {"tool_call_id": "call-1", "tool_name": "echo", **shown}, binding.interrupt.requested.tool_approvals.add()
    )
    asked = run_service_pb2.ResumeRunRequest(run_id=run.run_id, interrupt_id="i", revision=1)
    json_format.ParseDict({"tool_call_id": "call-1", **decided}, asked.tool_decisions.decisions.add())
    try:
        await Approvals(stand.calls, stand.catalog_client).check(binding, asked)
    except HarnessError as error:
        refusal = error
    else:
        return set()
    assert refusal.reason is Reason.INVALID_REQUEST
    return {issue.path for issue in refusal.details}


AT = "tool_decisions.decisions[0]"


@pytest.mark.parametrize(
    ("shown", "decided", "paths"),
    [
        ({"arguments": {"text": "hi"}}, {"approve": True}, set()),
        ({"arguments": {"text": "harmless"}}, {"approve": True}, {f"{AT}.approve"}),
        ({"tool_name": "harmless", "arguments": {"text": "hi"}}, {"approve": True}, {f"{AT}.approve"}),
        ({"arguments": {"text": "harmless"}}, {"reject": "no"}, set()),
        ({"arguments": {"text": "hi"}}, {"edit": {"text": "fits"}}, set()),
        ({"tool_name": "harmless", "arguments": {"text": "hi"}}, {"edit": {"text": "fits"}}, {f"{AT}.edit"}),
        ({"arguments": {"text": "harmless"}}, {"edit": {"text": "fits"}}, {f"{AT}.edit"}),
        ({"arguments": {"text": "hi"}}, {"edit": {"text": "0123456789"}}, {f"{AT}.edit.text"}),
        ({"arguments": {"text": "hi"}}, {"edit": {"text": "x", "more": 1}}, {f"{AT}.edit"}),
    ],
)
async def test_i25_a_decision_is_held_to_the_call_that_waits(
    stand: Stand, shown: dict[str, Any], decided: dict[str, Any], paths: set[str]
) -> None:
    assert await refused_paths(stand, await waiting(stand), shown, decided) == paths


async def test_i25_a_tool_that_was_taken_away_is_not_approved(stand: Stand) -> None:
    run = await waiting(stand)
    stand.catalog.grants[run.agent_id or ""].clear()
    stand.clock.pass_by(10)
    shown = {"arguments": {"text": "hi"}}
    assert await refused_paths(stand, run, shown, {"approve": True}) == {f"{AT}.approve"}
    assert await refused_paths(stand, run, shown, {"reject": "no"}) == set()


async def test_a_call_of_the_harness_itself_is_its_own_to_judge(stand: Stand) -> None:
    run = await stand.run()
    assert await refused_paths(stand, run, {"arguments": {"any": 1}}, {"edit": {"other": 2}}) == set()
