"""What an auditor finds in the log: who was refused what, and which decision let a call pass or not; never what was asked or answered."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from services.common.caller import Capability
from services.common.errors import HarnessError, Reason
from services.runs.tools import audit
from services.runs.tools.record import State, mark_of
from tests.runs.tools.stand import BINDING, EPOCH, Stand, StandClock
from tests.runs.tools.test_approvals import resumed, waiting

CANARY = "canary-of-the-arguments"
WHO = {"binding_id", "epoch", "run_id", "tool_call_id", "tool_id"}


def lines(said: list[Any], event: str) -> list[dict[str, Any]]:
    return [line for line in said if line["event"] == event]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"tool_id": "foreign"}, Reason.PERMISSION_DENIED),
        ({"arguments": {"text": CANARY}}, Reason.INVALID_REQUEST),
        ({"call_id": "known", "arguments": {"text": "other"}}, Reason.IDEMPOTENCY_MISMATCH),
        ({"turn": 999}, Reason.STALE_LEASE),
    ],
)
async def test_a_refused_call_leaves_a_line_without_what_was_asked(
    stand: Stand, call: dict[str, Any], reason: Reason
) -> None:
    run = await stand.run()
    stand.grant(run)
    await stand.invoke(run, "known")
    with capture_logs() as said, pytest.raises(HarnessError) as refused:
        await stand.invoke(run, **call)
    assert refused.value.reason is reason
    (line,) = lines(said, "tool_call_refused")
    assert line == {
        "event": "tool_call_refused",
        "log_level": "info",
        "binding_id": BINDING,
        "epoch": EPOCH,
        "run_id": run.run_id,
        "tool_call_id": call.get("call_id", "call-1"),
        "tool_id": call.get("tool_id", "echo"),
        "reason": reason.value,
        "retryable": False,
        "refusals_not_logged": 0,
    }


async def test_a_call_that_is_carried_out_leaves_no_line_of_a_refusal(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    with capture_logs() as said:
        await stand.invoke(run)
        await stand.change(run, closed=True)
        await stand.invoke(run)  # told, though the run takes no call any more
    assert not lines(said, "tool_call_refused")
    (line,) = lines(said, "tool_call_ended")
    assert line.keys() >= WHO
    assert "decision" not in line


async def test_who_was_refused_is_what_the_token_says(stand: Stand) -> None:
    run, other = await stand.run(), await stand.run()
    for each in (run, other):
        stand.grant(each)
    with capture_logs() as said, pytest.raises(HarnessError):
        await stand.invoke(other, token=stand.token(run))
    (line,) = lines(said, "tool_call_refused")
    assert line["run_id"] == run.run_id


def not_logged() -> float:
    return REGISTRY.get_sample_value("harness_tool_refusals_not_logged_total") or 0.0


def test_i35_lines_of_refusals_are_bounded_and_what_is_left_out_is_counted() -> None:
    class Still(StandClock):
        def monotonic(self) -> float:
            return self.ahead

    clock, before = Still(), not_logged()
    refusals = audit.Refusals(clock)
    capability = Capability(
        audience="tool", binding_id="b" * 9_000, epoch=1, runtime_generation=1, run_id="r" * 9_000, tool_ids=()
    )
    error = HarnessError(Reason.STALE_LEASE, CANARY)
    with capture_logs() as said:
        for _ in range(audit.REFUSALS_AT_ONCE + 50):
            refusals.refused(capability, "c" * 9_000, "t" * 9_000, error)
    assert len(said) == audit.REFUSALS_AT_ONCE
    assert max(len(repr(line)) for line in said) < 1_000
    assert CANARY not in repr(said)
    assert not_logged() == before + 50
    clock.pass_by(1)
    with capture_logs() as said:
        for _ in range(100):
            refusals.refused(capability, "c", "t", error)
    assert len(said) == int(audit.REFUSALS_PER_SECOND)
    assert [line["refusals_not_logged"] for line in said] == [50] + [0] * (len(said) - 1)


@pytest.mark.parametrize(
    ("decided", "decision", "outcome"),
    [
        ({"approve": True}, "approve", "success"),
        ({"edit": {"text": "edited"}}, "edit", "success"),
        ({"edit": {"text": "0123456789"}}, "edit", "error"),
        ({"reject": "not today"}, "reject", "rejected"),
        ({}, "dismiss", "rejected"),
    ],
)
async def test_i25_the_audit_names_the_decision(
    stand: Stand, decided: dict[str, Any], decision: str, outcome: str
) -> None:
    run = await resumed(stand, await waiting(stand), **decided)
    with capture_logs() as said:
        await stand.invoke(run)
    named = {"decision": decision, "interrupt_id": "i", "decided_by": run.run_id}
    (line,) = lines(said, "tool_call_ended")
    assert line["outcome"] == outcome
    assert named.items() <= line.items()
    passed = lines(said, "tool_call_approved")
    assert len(passed) == (outcome == "success")
    assert all(named.items() <= one.items() for one in passed)
    # The record says it as long as it is kept, whichever run asks for the outcome later.
    record = await stand.stored()
    assert (record.state, record.decision, record.interrupt_id, record.decided_by) == (
        State.DONE,
        decision,
        "i",
        run.run_id,
    )
    assert mark_of("call-1") in (await stand.again(run)).tool_calls
