"""What a call leaves behind: one record, one effect, one outcome (run protocol, Tools; I11)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import grpc
import pytest

from harness.event.v1 import payload_pb2
from harness.tool.v1 import tool_provider_service_pb2
from services.common.channels import MAX_MESSAGE_BYTES
from services.common.errors import HarnessError, Reason
from services.common.store import Collection, RecordStore
from services.runs.intent import CancelReason, cancelled
from services.runs.tools import store
from services.runs.tools.record import CallRecord, Outcome, State, key_of, mark_of
from services.runs.tools.store import CallStore
from tests.runs.tools.stand import BINDING, EPOCH, PATIENCE, Answer, ProviderStatus, Stand, answer, echo

ERROR = payload_pb2.TOOL_OUTCOME_ERROR
SUCCESS = payload_pb2.TOOL_OUTCOME_SUCCESS
Asked = tool_provider_service_pb2.InvokeProviderToolRequest


def left(state: State, digest: str, run_id: str, *, broker: str = "hld-dead") -> CallRecord:
    """A record that somebody else left."""
    return CallRecord(
        binding_id=BINDING,
        epoch=EPOCH,
        tool_call_id="call-1",
        run_id=run_id,
        tool_id="echo",
        digest=digest,
        state=state,
        created_at=1,
        broker=broker,
        started_at=1,
    )


async def test_i11_acceptance_and_record_are_there_before_the_provider_is_called(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    seen: list[tuple[State, tuple[str, ...]]] = []

    async def look(asked: Asked) -> Answer:
        seen.append(((await stand.stored()).state, (await stand.again(run)).tool_calls))
        return await echo(asked)

    stand.provider.behaviour = look
    response = await stand.invoke(run)
    assert seen == [(State.STARTED, (mark_of("call-1"),))]
    assert response.completed.outcome == SUCCESS
    assert response.completed.result.struct_value.fields["got"].struct_value.fields["text"].string_value == "hi"


async def test_i11_the_same_call_again_has_the_recorded_outcome(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    await stand.replica()
    first = await stand.invoke(run)
    stand.provider.behaviour = _other
    assert await stand.invoke(run) == first
    assert await stand.invoke(run, replica=1) == first
    assert len(stand.provider.calls) == 1
    # Also once the run takes no new call any more.
    await stand.change(run, closed=True)
    assert await stand.invoke(run) == first


async def test_i11_another_call_under_the_id_is_a_conflict(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    stand.grant(run, "echo2")
    await stand.invoke(run)
    others: tuple[dict[str, Any], ...] = ({"arguments": {"text": "other"}}, {"tool_id": "echo2"})
    for more in others:
        with pytest.raises(HarnessError) as refused:
            await stand.invoke(run, **more)
        assert refused.value.reason is Reason.IDEMPOTENCY_MISMATCH
    assert len(stand.provider.calls) == 1


async def test_i11_raced_calls_have_one_effect_and_one_outcome(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    await stand.replica()
    counted = 0

    async def count(_: Asked) -> Answer:
        nonlocal counted
        counted += 1
        return answer(counted)

    stand.provider.behaviour = count
    responses = await asyncio.gather(*(stand.invoke(run, replica=number % 2) for number in range(10)))
    assert {one.completed.result.number_value for one in responses} == {1}
    assert counted == 1


async def test_a_call_that_another_broker_makes_is_waited_for(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    await stand.replica()
    go_on = asyncio.Event()

    async def slowly(asked: Asked) -> Answer:
        await go_on.wait()
        return await echo(asked)

    stand.provider.behaviour = slowly
    first = asyncio.create_task(stand.invoke(run))
    await asyncio.wait_for(stand.provider.arrived.wait(), PATIENCE)
    key = key_of(BINDING, EPOCH, "call-1")
    looks = stand.records.looks[key]
    second = asyncio.create_task(stand.invoke(run, replica=1))
    third = asyncio.create_task(stand.invoke(run))
    # All three have looked at the call while it was under way.
    await asyncio.wait_for(stand.records.looked(key, looks + 3), PATIENCE)
    go_on.set()
    assert await first == await second == await third
    assert len(stand.provider.calls) == 1


async def test_a_runtime_that_goes_away_takes_no_outcome_with_it(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    go_on = asyncio.Event()

    async def slowly(asked: Asked) -> Answer:
        await go_on.wait()
        return await echo(asked)

    stand.provider.behaviour = slowly
    gone = asyncio.create_task(stand.invoke(run))
    await asyncio.wait_for(stand.provider.arrived.wait(), PATIENCE)
    gone.cancel()
    await asyncio.wait({gone})
    again = asyncio.create_task(stand.invoke(run))
    go_on.set()
    assert (await again).completed.outcome == SUCCESS
    assert len(stand.provider.calls) == 1


async def test_i11_a_call_whose_broker_is_gone_is_lost_and_told_as_possible(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    await stand.invoke(run, "model")
    digest = (await stand.stored("model")).digest
    run = await stand.change(run, tool_calls=(mark_of("model"), mark_of("call-1")))
    dead = await stand.calls.insert(left(State.STARTED, digest, run.run_id))
    assert dead is not None
    response = await stand.lapse(asyncio.create_task(stand.invoke(run)))
    assert (response.completed.outcome, response.completed.error.code) == (ERROR, "tool_outcome_unknown")
    assert "possible" in response.completed.error.message
    assert not response.completed.error.retryable
    assert (await stand.stored()).state is State.LOST
    assert len(stand.provider.calls) == 1
    # I11: the broker was not dead after all, and comes with its outcome.
    late = replace(dead, state=State.DONE, outcome=Outcome.SUCCESS.value, result="1")
    assert await stand.calls.put(dead, late) is None
    assert await stand.invoke(run) == response


async def test_i11_a_call_of_an_idempotent_tool_goes_on_when_its_broker_is_gone(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run, idempotent=True)
    await stand.invoke(run, "model")
    digest = (await stand.stored("model")).digest
    await stand.calls.insert(left(State.STARTED, digest, run.run_id))
    response = await stand.lapse(asyncio.create_task(stand.invoke(run)))
    assert response.completed.outcome == SUCCESS
    assert (await stand.stored()).broker == "hld-1"
    assert len({call.idempotency_key for call in stand.provider.calls}) == 2  # one for each call


async def test_i11_an_outcome_that_was_taken_from_its_broker_is_not_told_by_it(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    go_on = asyncio.Event()

    async def slowly(asked: Asked) -> Answer:
        await go_on.wait()
        return await echo(asked)

    stand.provider.behaviour = slowly
    first = asyncio.create_task(stand.invoke(run))
    await asyncio.wait_for(stand.provider.arrived.wait(), PATIENCE)
    begun = await stand.stored()
    lost = await stand.calls.put(begun, replace(begun, state=State.LOST))
    assert lost is not None
    go_on.set()
    assert (await first).completed.error.code == "tool_outcome_unknown"


async def test_a_living_broker_renews_its_call(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    await stand.replica(ttl=0.1)
    go_on = asyncio.Event()

    async def slowly(asked: Asked) -> Answer:
        await go_on.wait()
        return await echo(asked)

    stand.provider.behaviour = slowly
    call = asyncio.create_task(stand.invoke(run, replica=1))
    await asyncio.wait_for(stand.provider.arrived.wait(), PATIENCE)
    async with asyncio.timeout(PATIENCE):
        while (await stand.stored()).renewals < 2:  # noqa: ASYNC110 - nothing signals a renewal
            await asyncio.sleep(0.01)
    go_on.set()
    assert (await call).completed.outcome == SUCCESS


@pytest.mark.parametrize("recorded", [False, True])
async def test_i12_a_refused_call_that_was_accepted_before_is_answered_possible(stand: Stand, recorded: bool) -> None:
    run = await stand.run()
    stand.grant(run)
    await stand.invoke(run, "model")
    digest = (await stand.stored("model")).digest
    ending = cancelled(CancelReason.CLIENT_REQUEST, 1)
    run = await stand.change(run, tool_calls=(mark_of("model"), mark_of("call-1")), intent=ending)
    if recorded:
        await stand.calls.insert(left(State.STARTED, digest, run.run_id))
    response = await stand.lapse(asyncio.create_task(stand.invoke(run)))
    assert response.completed.error.code == "tool_outcome_unknown"
    assert len(stand.provider.calls) == 1
    # Whoever accepted it and comes late finds its place taken: it invokes nothing.
    assert await stand.calls.insert(left(State.STARTED, digest, run.run_id)) is None


async def test_i12_an_idempotent_tool_is_not_called_again_for_a_run_that_ends(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run, idempotent=True)
    await stand.invoke(run, "model")
    digest = (await stand.stored("model")).digest
    run = await stand.change(run, tool_calls=(mark_of("model"), mark_of("call-1")), closed=True)
    await stand.calls.insert(left(State.STARTED, digest, run.run_id))
    response = await stand.lapse(asyncio.create_task(stand.invoke(run)))
    assert response.completed.error.code == "tool_outcome_unknown"
    assert len(stand.provider.calls) == 1


async def test_the_call_of_an_earlier_run_is_told_to_a_later_one_and_kept_as_long(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    first = await stand.invoke(run)
    later = await stand.run(agent=run.agent_id or "")
    assert await stand.invoke(later) == first
    await stand.calls.forget(run.run_id)
    assert (await stand.stored()).run_id == later.run_id
    await stand.calls.forget(later.run_id)
    assert await stand.record() is None


async def test_a_retention_deletes_all_calls_of_its_run_and_no_others(stand: Stand) -> None:
    run, other = await stand.run(), await stand.run()
    for each in (run, other):
        stand.grant(each)
    await asyncio.gather(*(stand.invoke(run, f"call-{number}") for number in range(5)), stand.invoke(other, "kept"))
    assert await stand.calls.forget(run.run_id)
    assert await stand.record("call-0") is None
    assert await stand.record("kept") is not None


async def test_i35_a_retention_deletes_so_many_calls_at_a_time_and_leaves_the_rest(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await stand.run()
    monkeypatch.setattr(store, "PAGE", 2)
    monkeypatch.setattr(store, "FORGET_PAGES", 2)
    for number in range(5):
        await stand.calls.insert(replace(left(State.DONE, "d", run.run_id), tool_call_id=f"call-{number}"))

    async def kept() -> int:
        return len([number for number in range(5) if await stand.record(f"call-{number}")])

    assert not await stand.calls.forget(run.run_id)
    assert await kept() == 1
    assert await stand.calls.forget(run.run_id)
    assert await kept() == 0


async def test_i35_a_call_that_changes_all_the_time_does_not_hold_a_retention_up(stand: Stand) -> None:
    run = await stand.run()
    dead = await stand.calls.insert(left(State.STARTED, "d", run.run_id))
    assert dead is not None
    deletions = 0

    class Renewing:
        """Whoever deletes the record comes too late: its broker has just renewed it."""

        async def delete(self, collection: Collection, key: str, rev: int) -> bool:
            nonlocal deletions
            deletions += 1
            return False

        def __getattr__(self, name: str) -> Any:
            return getattr(stand.records, name)

    assert not await CallStore(cast(RecordStore, Renewing())).forget(run.run_id)
    assert deletions == store.FORGET_PAGES


# --- providers over gRPC ---


async def _other(_: Asked) -> Answer:
    return answer("other")


async def test_a_provider_is_told_what_it_needs_and_no_more(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run, settings={"region": "x"})
    await stand.invoke(run)
    asked = stand.provider.calls[0]
    assert (asked.tool_id, asked.user_id, asked.settings["region"]) == ("echo", "owner-digest", "x")
    assert asked.idempotency_key.startswith("tcl_")
    assert BINDING not in asked.SerializeToString().decode("latin-1")


@pytest.mark.parametrize(
    ("code", "idempotent", "tries", "told"),
    [
        (grpc.StatusCode.UNAVAILABLE, True, 3, "tool_unavailable"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, True, 3, "tool_busy"),
        (grpc.StatusCode.UNAVAILABLE, False, 1, "tool_unavailable"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, False, 1, "tool_busy"),
        (grpc.StatusCode.INTERNAL, True, 1, "tool_failed"),
        (grpc.StatusCode.INVALID_ARGUMENT, True, 1, "tool_failed"),
    ],
)
async def test_i11_only_a_passing_failure_of_an_idempotent_tool_is_tried_again(
    stand: Stand, code: grpc.StatusCode, idempotent: bool, tries: int, told: str
) -> None:
    run = await stand.run()
    stand.grant(run, idempotent=idempotent, max_attempts=3)

    async def fail(_: Asked) -> Answer:
        raise ProviderStatus(code)

    stand.provider.behaviour = fail
    response = await stand.invoke(run)
    assert (response.completed.outcome, response.completed.error.code) == (ERROR, told)
    assert len(stand.provider.calls) == tries
    assert len({call.idempotency_key for call in stand.provider.calls}) == 1
    assert (await stand.stored()).attempts == tries
    assert "canary" not in str(response)  # I22
    possible = not idempotent and code is grpc.StatusCode.UNAVAILABLE
    assert ("possible" in response.completed.error.message) == possible
    if possible:
        assert not response.completed.error.retryable


async def test_a_try_that_succeeds_after_others_is_a_success(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run, idempotent=True, max_attempts=3)

    async def at_last(asked: Asked) -> Answer:
        if len(stand.provider.calls) < 3:
            raise ProviderStatus(grpc.StatusCode.UNAVAILABLE)
        return await echo(asked)

    stand.provider.behaviour = at_last
    assert (await stand.invoke(run)).completed.outcome == SUCCESS


async def test_i35_a_try_has_its_time_and_a_run_its_deadline(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run, timeout_seconds=1)

    async def never(_: Asked) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError("waits for ever")

    stand.provider.behaviour = never
    response = await stand.invoke(run)
    assert response.completed.error.code in ("tool_timeout", "tool_unavailable")  # whose timer was first
    assert "possible" in response.completed.error.message
    over = await stand.run(deadline_at=1)
    stand.grant(over)
    response = await stand.invoke(over, "late")
    assert response.completed.error.code == "tool_timeout"
    assert len(stand.provider.calls) == 1


async def test_i35_a_result_beyond_its_bound_is_an_error(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run, max_result_bytes=100)
    for size, outcome in ((98, SUCCESS), (99, ERROR)):

        async def large(_: Asked, size: int = size) -> Answer:
            return answer("x" * size)

        stand.provider.behaviour = large
        response = await stand.invoke(run, f"call-{size}")
        assert response.completed.outcome == outcome


async def test_i11_an_answer_too_large_to_be_read_is_no_call_that_may_be_repeated(stand: Stand) -> None:
    """grpc gives it the status of a provider that has no room, of whose call nothing has happened."""
    run = await stand.run()
    stand.grant(run, max_attempts=3, idempotent=True)

    async def flood(_: Asked) -> Answer:
        return answer("x" * (MAX_MESSAGE_BYTES + 1))

    stand.provider.behaviour = flood
    error = (await stand.invoke(run)).completed.error
    assert (error.code, error.retryable) == ("result_too_large", False)
    assert len(stand.provider.calls) == 1


async def test_i22_a_code_that_is_none_is_not_told(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)

    async def refuse(_: Asked) -> Answer:
        return Answer(outcome=ERROR, error=payload_pb2.ToolError(code="a line\nof a log", message="No."))

    stand.provider.behaviour = refuse
    error = (await stand.invoke(run)).completed.error
    assert (error.code, error.message) == ("tool_failed", "No.")


async def test_a_tools_own_error_is_its_outcome(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run, max_attempts=3, idempotent=True)

    async def refuse(_: Asked) -> Answer:
        error = payload_pb2.ToolError(code="no_such_city", message="There is no such city.", retryable=True)
        return Answer(outcome=ERROR, error=error)

    stand.provider.behaviour = refuse
    response = await stand.invoke(run)
    assert (response.completed.error.code, response.completed.error.retryable) == ("no_such_city", True)
    assert len(stand.provider.calls) == 1


async def test_a_provider_that_breaks_its_contract_ends_its_call_alone(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)

    async def broken(_: Asked) -> Answer:
        return Answer(outcome=payload_pb2.TOOL_OUTCOME_REJECTED)

    async def unreadable(_: Asked) -> Answer:
        deep = Answer(outcome=SUCCESS)
        value = deep.result
        for _level in range(100):
            value = value.list_value.values.add()
        return deep

    for number, behaviour in enumerate((broken, unreadable)):
        stand.provider.behaviour = behaviour
        response = await stand.invoke(run, f"call-{number}")
        assert response.completed.error.code == "tool_protocol"


async def test_i33_a_stopping_process_takes_no_new_call(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    await stand.replicas[0].tasks.close()
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(run)
    assert (refused.value.reason, refused.value.retryable) == (Reason.UNAVAILABLE, True)
    await stand.replica()
    assert (await stand.invoke(run, replica=1)).completed.outcome == SUCCESS


async def test_i33_a_stop_waits_for_the_outcome_of_a_call_that_nobody_asks_for(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    go_on = asyncio.Event()

    async def slowly(asked: Asked) -> Answer:
        await go_on.wait()
        return await echo(asked)

    stand.provider.behaviour = slowly
    gone = asyncio.create_task(stand.invoke(run))
    await asyncio.wait_for(stand.provider.arrived.wait(), PATIENCE)
    gone.cancel()
    await asyncio.wait({gone})
    at = stand.replicas[0]
    stop = asyncio.create_task(at.broker.drain(PATIENCE))
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(run, "call-2")
    assert refused.value.reason is Reason.UNAVAILABLE
    assert not stop.done()
    go_on.set()
    await asyncio.wait_for(stop, PATIENCE)
    await at.tasks.close()
    assert (await stand.stored()).state is State.DONE
    await stand.replica()
    assert (await stand.invoke(run, "call-2", replica=1)).completed.outcome == SUCCESS


async def test_i35_a_stop_waits_for_no_call_longer_than_it_may(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)

    async def never(asked: Asked) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError("it never ends")

    stand.provider.behaviour = never
    call = asyncio.create_task(stand.invoke(run))
    await asyncio.wait_for(stand.provider.arrived.wait(), PATIENCE)
    await asyncio.wait_for(stand.replicas[0].broker.drain(0.01), PATIENCE)
    assert (await stand.stored()).state is State.STARTED
    call.cancel()
    await asyncio.wait({call})
