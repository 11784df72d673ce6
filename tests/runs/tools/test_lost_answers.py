"""Writes that were applied although their answer was lost: the effect stays one, and is told (I11, I34)."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2
from services.common.errors import HarnessError, Reason
from services.runs.tools.record import State
from tests.runs.tools.stand import PATIENCE, TTL, ProviderStatus, Stand, answer, echo
from tests.runs.tools.test_calls import left

SUCCESS = payload_pb2.TOOL_OUTCOME_SUCCESS


def state(wanted: str, renewals: int = 0) -> Any:
    return lambda _, document: document.get("state") == wanted and document.get("renewals", 0) >= renewals


async def test_i11_an_outcome_survives_a_renewal_whose_answer_was_lost(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run, idempotent=True)
    await stand.replica(ttl=0.2)
    stand.records.lose(state("started", renewals=1))

    async def until_lost(asked: Any) -> Any:
        await stand.records.lost.wait()
        return await echo(asked)

    stand.provider.behaviour = until_lost
    response = await stand.invoke(run, replica=1)
    assert response.completed.outcome == SUCCESS
    assert (await stand.stored()).state is State.DONE
    assert len(stand.provider.calls) == 1


async def test_i11_a_call_that_ended_in_a_lost_answer_has_one_effect_and_is_told(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    stand.records.lose(state("done"))
    assert (await stand.invoke(run)).completed.outcome == SUCCESS
    assert stand.records.lost.is_set()
    assert len(stand.provider.calls) == 1


async def test_i11_a_call_that_began_in_a_lost_answer_is_made_when_it_is_asked_for_again(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    stand.records.lose(state("started"))
    with pytest.raises(HarnessError) as away:
        await stand.invoke(run)
    assert away.value.reason is Reason.STORE_UNAVAILABLE
    assert away.value.retryable
    assert not stand.provider.calls
    assert (await stand.invoke(run)).completed.outcome == SUCCESS
    assert len(stand.provider.calls) == 1


async def test_i25_an_approval_whose_use_was_lost_is_not_used_up(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run, sensitive=True)
    assert (await stand.invoke(run)).HasField("approval_required")
    decision = runtime_pb2.ResumeDecision()
    decision.tool_decisions.decisions.add(tool_call_id="call-1").edit.update({"text": "edited"})
    resumed = await stand.run(resumed=(run, decision))
    stand.records.lose(state("started"))
    with pytest.raises(HarnessError):
        await stand.invoke(resumed)
    response = await stand.invoke(resumed)
    assert response.completed.outcome == SUCCESS
    assert [dict(call.arguments) for call in stand.provider.calls] == [{"text": "edited"}]


# --- what is known is told, whatever was changed since ---


async def test_an_ended_call_is_told_after_its_tool_was_taken_away(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    token = stand.token(run)
    first = await stand.invoke(run, token=token)
    stand.catalog.grants[run.agent_id or ""].clear()
    stand.clock.pass_by(TTL)
    assert await stand.invoke(run, token=token) == first
    # Also to a later run, and a call that nobody made is refused as ever.
    later = await stand.run(agent=run.agent_id or "")
    assert await stand.invoke(later) == first
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(run, "call-2", token=token)
    assert refused.value.reason is Reason.PERMISSION_DENIED


async def test_a_call_that_waits_is_refused_after_its_tool_was_taken_away(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run, sensitive=True)
    token = stand.token(run)
    await stand.invoke(run, token=token)
    stand.catalog.grants[run.agent_id or ""].clear()
    stand.clock.pass_by(TTL)
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(run, token=token)
    assert refused.value.reason is Reason.PERMISSION_DENIED


# --- after a cancel nothing is begun ---


async def test_i12_no_further_try_is_made_once_the_run_takes_no_calls(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run, idempotent=True, max_attempts=5)

    async def cancelled_meanwhile(_: Any) -> Any:
        if len(stand.provider.calls) == 1:
            await stand.change(run, closed=True)
            raise ProviderStatus(grpc.StatusCode.UNAVAILABLE)
        return answer("must not be reached")

    stand.provider.behaviour = cancelled_meanwhile
    response = await stand.invoke(run)
    assert response.completed.outcome == payload_pb2.TOOL_OUTCOME_ERROR
    assert len(stand.provider.calls) == 1


async def test_i12_a_call_of_a_dead_broker_is_not_begun_again_for_a_run_that_takes_no_calls(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run, idempotent=True)
    await stand.invoke(run, "model")
    digest = (await stand.stored("model")).digest
    await stand.calls.insert(left(State.STARTED, digest, run.run_id))
    key = (await stand.stored()).key
    seen = stand.records.looks[key]
    call = asyncio.create_task(stand.invoke(run))
    # It is accepted and waits for the broker that is gone.
    await asyncio.wait_for(stand.records.looked(key, seen + 1), PATIENCE)
    await stand.change(await stand.again(run), closed=True)
    with pytest.raises(HarnessError) as refused:
        await stand.lapse(call)
    assert refused.value.reason is Reason.STALE_LEASE
    assert len(stand.provider.calls) == 1
    told = await stand.lapse(asyncio.create_task(stand.invoke(run)))
    assert told.completed.error.code == "tool_outcome_unknown"
