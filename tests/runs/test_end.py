"""How runs end: cancels, deadlines, failures, clears (run protocol, End, Cancel, Clear; I5, I9, I12, I19, I22)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from harness.common.v1 import error_pb2
from harness.event.v1 import payload_pb2
from harness.run.v1 import run_pb2
from harness.session.v1 import binding_pb2
from services.common.errors import HarnessError, Reason
from tests.runs.mesh import Client, Mesh, kind, text

COMPLETED, CANCELLED, FAILED = (
    run_pb2.RUN_STATUS_COMPLETED,
    run_pb2.RUN_STATUS_CANCELLED,
    run_pb2.RUN_STATUS_FAILED,
)
HANG = {"script": [{"text": "begun"}, {"hang": True}]}
CANARY = "canary-83b1f0"
# Around the time a cancel takes; the last one leaves completion no chance.
DELAYS = (0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.04, 30.0)


async def test_i12_a_cancel_is_answered_once_the_terminal_is_in_the_log(client: Client) -> None:
    agent = await client.agent()
    run = await client.start(agent, HANG)
    await client.seen(run.run_id, "content_delta")
    ended = await client.cancel(run.run_id)
    assert ended.status == CANCELLED
    events = await client.events(run.run_id)
    assert ended.last_sequence == len(events)
    assert events[-1].payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_CLIENT_REQUEST
    # Idempotent, and nothing follows.
    assert (await client.cancel(run.run_id)).last_sequence == len(events)


async def test_i12_cancel_races_completion(client: Client) -> None:
    agent = await client.agent()

    async def race(number: int) -> int:
        run = await client.start(agent, {"n": 3, "delay": DELAYS[number % len(DELAYS)]})
        for _ in range(number % 7):
            await asyncio.sleep(0)
        ended, again = await asyncio.gather(client.cancel(run.run_id), client.cancel(run.run_id))
        assert ended.status == again.status
        events = await client.events(run.run_id)
        terminals = [event for event in events if kind(event).startswith("run_") and kind(event) != "run_started"]
        assert [event.sequence for event in terminals] == [len(events)] == [ended.last_sequence]
        assert ended.status == (COMPLETED if kind(events[-1]) == "run_completed" else CANCELLED)
        return ended.status

    outcomes = [outcome for _ in range(6) for outcome in await asyncio.gather(*(race(n) for n in range(20)))]
    assert set(outcomes) <= {COMPLETED, CANCELLED}
    assert CANCELLED in outcomes


async def test_i12_a_queued_run_is_cancelled_without_ever_being_issued(client: Client) -> None:
    agent = await client.agent()
    first = await client.start(agent, HANG, "c")
    waiting = await client.start(agent, "later", "c", on_conflict=binding_pb2.CONFLICT_POLICY_ENQUEUE)
    assert (await client.cancel(waiting.run_id)).status == CANCELLED
    events = await client.events(waiting.run_id)
    assert [kind(event) for event in events] == ["run_started", "run_cancelled"]
    assert events[-1].payload.run_cancelled.side_effect_status == error_pb2.SIDE_EFFECT_STATUS_NONE
    async with asyncio.timeout(90):
        # It leaves the line after its terminal, and nothing signals that: a bounded poll.
        while (await client.binding(agent, "c")).waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await client.cancel_active(agent, "c")).run_id == first.run_id


async def test_cancel_active_cancels_what_holds_the_conversation(client: Client) -> None:
    agent = await client.agent()
    assert not (await client.cancel_active(agent, "c")).cancelled
    run = await client.start(agent, HANG, "c")
    answer = await client.cancel_active(agent, "c")
    assert (answer.cancelled, answer.run_id) == (True, run.run_id)
    assert not (await client.cancel_active(agent, "c")).cancelled


async def test_a_deadline_cancels(client: Client) -> None:
    agent = await client.agent(limits={"max_run_seconds": 1})
    run = await client.start(agent, HANG)
    terminal = (await client.events(run.run_id))[-1].payload
    assert terminal.run_cancelled.reason == payload_pb2.CANCEL_REASON_DEADLINE
    assert (await client.get(run.run_id)).HasField("deadline_at")


def _delta(**fields: Any) -> dict[str, Any]:
    return {"emit": {"content_delta": fields}}


@pytest.mark.parametrize(
    "bad",
    [
        {"emit": {"run_started": {"harness_id": "reference", "agent_version": 1, "binding_id": "b"}}},
        {"emit": {"tool_completed": {"tool_call_id": "never", "outcome": 1}}},
        {"emit": {"content_delta": {"message_id": f"bad id {CANARY}", "text": CANARY}}},
        {"emit": {"subagent_completed": {"agent_id": "none", "parent_tool_call_id": "t", "outcome": 1}}},
        {"emit": {}},
    ],
    ids=["second start", "call not open", "bad id", "namespace not open", "empty"],
)
async def test_i19_a_bad_stream_ends_in_a_protocol_failure(client: Client, bad: dict[str, Any]) -> None:
    agent = await client.agent()
    run = await client.start(agent, {"script": [{"text": "good"}, bad, {"text": "never"}]})
    events = await client.events(run.run_id)
    failed = events[-1].payload.run_failed
    assert failed.category == error_pb2.ERROR_CATEGORY_PROTOCOL
    assert "never" not in text(events)
    assert CANARY.encode() not in b"".join(event.SerializeToString() for event in events)
    assert (await client.get(run.run_id)).status == FAILED


async def test_i22_a_canary_in_a_providers_error_reaches_nobody(client: Client) -> None:
    agent = await client.agent()
    for step in (
        {"raise": f"secret {CANARY}"},
        {"fail": {"category": "internal", "message": "Broken.", "provider_code": CANARY}},
    ):
        run = await client.start(agent, {"script": [{"text": "x"}, step]})
        events = await client.events(run.run_id)
        assert kind(events[-1]) == "run_failed"
        ended = await client.get(run.run_id)
        assert ended.error_code == events[-1].payload.run_failed.code
        seen = b"".join(event.SerializeToString() for event in events) + ended.SerializeToString()
        assert CANARY.encode() not in seen


async def test_what_is_open_is_closed_before_the_terminal(client: Client) -> None:
    agent = await client.agent()
    started = {"emit": {"tool_started": {"tool_call_id": "t1", "tool_name": "search"}}}
    run = await client.start(agent, {"script": [started, {"hang": True}]})
    await client.seen(run.run_id, "tool_started")
    await client.cancel(run.run_id)
    events = await client.events(run.run_id)
    assert [kind(event) for event in events[-2:]] == ["tool_completed", "run_cancelled"]
    assert events[-2].payload.tool_completed.outcome == payload_pb2.TOOL_OUTCOME_CANCELLED


async def test_i5_clear_ends_what_runs_and_opens_the_next_epoch_once(client: Client) -> None:
    agent = await client.agent()
    assert not (await client.clear(agent, "c")).cleared
    run = await client.start(agent, HANG, "c")
    waiting = await client.start(agent, "later", "c", on_conflict=binding_pb2.CONFLICT_POLICY_ENQUEUE)
    await client.seen(run.run_id, "content_delta")
    answers = await asyncio.gather(*(client.clear(agent, "c") for _ in range(5)))
    assert {answer.next_epoch for answer in answers} == {2}
    assert {answer.closed_binding_id for answer in answers if answer.cleared} == {run.binding_id}
    for run_id in (run.run_id, waiting.run_id):
        cancelled = (await client.events(run_id))[-1].payload.run_cancelled
        assert cancelled.reason == payload_pb2.CANCEL_REASON_SESSION_CLEARED
    assert not (await client.clear(agent, "c")).cleared
    await client.save(agent, name="Second")
    after = await client.start(agent, "hello", "c")
    assert (after.agent_version, after.binding_id != run.binding_id) == (2, True)
    assert "turn 1 " in text(await client.events(after.run_id))


async def test_i5_clear_races_starts_and_no_run_is_left_in_the_old_epoch(client: Client) -> None:
    agent = await client.agent()
    first = await client.start(agent, "hello", "c")
    await client.events(first.run_id)
    outcomes = await asyncio.gather(
        *(client.start(agent, {"n": 2}, "c") for _ in range(6)),
        client.clear(agent, "c"),
        *(client.start(agent, {"n": 2}, "c") for _ in range(6)),
        return_exceptions=True,
    )
    for outcome in outcomes:
        if isinstance(outcome, HarnessError):
            assert outcome.reason is Reason.HARNESS_SESSION_CONFLICT
        elif isinstance(outcome, run_pb2.Run):
            await client.events(outcome.run_id)
        else:
            assert not isinstance(outcome, BaseException), outcome
    binding = await client.settled(agent, "c")
    assert binding.epoch == 2


async def test_i27_a_short_run_leaves_its_runtime_to_the_next(client: Client) -> None:
    agent = await client.agent()
    for turn in (1, 2):
        run = await client.start(agent, "hello", "c")
        assert f"turn {turn} " in text(await client.events(run.run_id))
        binding = await client.settled(agent, "c")
        assert binding.runtime_ref.incarnation
        assert binding.runtime_generation == 1


async def test_i2_a_run_that_is_executed_now_is_watched_by_its_owner_alone(
    client: Client, mesh: Mesh, clients: Callable[..., Client]
) -> None:
    run = await client.start(await client.agent(), HANG)
    await client.seen(run.run_id, "content_delta")
    with pytest.raises(HarnessError) as refused:
        await clients(mesh).events(run.run_id)
    assert refused.value.reason is Reason.NOT_FOUND
    await client.cancel(run.run_id)


async def test_i14_a_watcher_that_never_reads_delays_nobody(
    client: Client, mesh: Mesh, clients: Callable[..., Client]
) -> None:
    agent = await client.agent()
    run = await client.start(agent, {"n": 20_000, "size": 200})
    stuck = clients(mesh, client.subject).watch(run.run_id)
    await anext(stuck)
    events = await client.events(run.run_id)
    assert kind(events[-1]) == "run_completed"
    await stuck.aclose()


async def test_a_cursor_continues_exactly_where_it_stopped(client: Client) -> None:
    agent = await client.agent()
    run = await client.start(agent, {"n": 300})
    whole = await client.events(run.run_id)
    for after in (0, 1, 17, 299, len(whole) - 1, len(whole), len(whole) + 5):
        rest = [event async for event in client.watch(run.run_id, after)]
        assert [event.SerializeToString() for event in rest] == [event.SerializeToString() for event in whole[after:]]
    page = await client.page(run.run_id, after=10, limit=20)
    assert [event.sequence for event in page.events] == list(range(11, 31))
    assert page.run.status == COMPLETED
