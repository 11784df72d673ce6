"""Starting runs over real services (run protocol, Start; I2, I3, I4, I6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from harness.run.v1 import run_pb2, run_service_pb2
from harness.session.v1 import binding_pb2, session_service_pb2
from services.common.errors import HarnessError, Reason
from services.common.ids import new_run_id
from services.runs.start import request_of
from tests.runs.mesh import Client, Mesh, kind, text

COMPLETED, CANCELLED = run_pb2.RUN_STATUS_COMPLETED, run_pb2.RUN_STATUS_CANCELLED
ENQUEUE, INTERRUPT = binding_pb2.CONFLICT_POLICY_ENQUEUE, binding_pb2.CONFLICT_POLICY_INTERRUPT


async def test_a_turn_from_start_to_end(client: Client) -> None:
    agent = await client.agent("default")
    run = await client.start(agent, "hello", "c")
    events = await client.events(run.run_id)
    assert kind(events[0]) == "run_started"
    started = events[0].payload.run_started
    assert (started.harness_id, started.agent_version, started.binding_id) == ("reference", 1, run.binding_id)
    assert kind(events[-1]) == "run_completed"
    ended = await client.get(run.run_id)
    assert (ended.status, ended.last_sequence) == (COMPLETED, len(events))
    assert (await client.settled(agent, "c")).head.run_id == run.run_id


async def test_rule_5_a_completed_run_has_a_committed_head_and_the_next_turn_knows_it(client: Client) -> None:
    agent = await client.agent("default")
    for turn in (1, 2, 3):
        run = await client.start(agent, f"message {turn}", "c")
        events = await client.events(run.run_id)
        state = events[-1].payload.run_completed.thread_state
        assert state.durable_revision == turn
        assert f"turn {turn} " in text(events)


async def test_the_context_is_for_one_turn_and_the_prompt_is_rendered(client: Client) -> None:
    agent = await client.agent("default", prompt={"system": "You are {{name}}.", "variables": {"name": "Ada"}})
    run = await client.start(agent, "hello", context="today is Monday", client_context={"a": 1})
    assert kind((await client.events(run.run_id))[-1]) == "run_completed"


async def test_i6_fifty_same_request_ids_one_run(client: Client) -> None:
    agent = await client.agent()
    runs = await asyncio.gather(*(client.start(agent, {"n": 5}, "c", client_request_id="same") for _ in range(50)))
    assert len({run.run_id for run in runs}) == 1
    await client.events(runs[0].run_id)
    assert len((await client.list(agent_id=agent)).runs) == 1
    assert (await client.start(agent, {"n": 5}, "c", client_request_id="same")).run_id == runs[0].run_id


async def test_i6_two_different_starts_give_one_run_and_conflicts_that_name_it(client: Client) -> None:
    agent = await client.agent()
    outcomes = await asyncio.gather(
        *(client.start(agent, {"script": [{"hang": True}]}, "c") for _ in range(8)), return_exceptions=True
    )
    runs = [outcome for outcome in outcomes if isinstance(outcome, run_pb2.Run)]
    refusals = [outcome for outcome in outcomes if isinstance(outcome, HarnessError)]
    assert len(runs) == 1
    assert len(refusals) == 7
    assert {refusal.reason for refusal in refusals} == {Reason.HARNESS_SESSION_CONFLICT}
    assert {refusal.metadata["run_id"] for refusal in refusals} == {runs[0].run_id}
    await client.cancel(runs[0].run_id)


async def test_i6_another_body_under_the_same_id_is_a_mismatch_also_while_busy(client: Client) -> None:
    agent = await client.agent()
    run = await client.start(agent, {"script": [{"hang": True}]}, "c", client_request_id="one")
    with pytest.raises(HarnessError) as refused:
        await client.start(agent, "another", "c", client_request_id="one")
    assert refused.value.reason is Reason.IDEMPOTENCY_MISMATCH
    await client.cancel(run.run_id)
    with pytest.raises(HarnessError) as refused:
        await client.start(agent, "another", "c", client_request_id="one")
    assert refused.value.reason is Reason.IDEMPOTENCY_MISMATCH


async def test_i6_a_repeated_request_is_never_refused_for_what_came_after_it(client: Client) -> None:
    agent = await client.agent()
    first = await client.start(agent, "hello", "c", client_request_id="one")
    await client.events(first.run_id)
    busy = await client.start(agent, {"script": [{"hang": True}]}, "c")
    assert (await client.start(agent, "hello", "c", client_request_id="one")).run_id == first.run_id
    await client.cancel(busy.run_id)
    await client.disable(agent)
    assert (await client.start(agent, "hello", "c", client_request_id="one")).run_id == first.run_id


async def test_i6_a_reservation_that_was_never_stored_is_given_up_after_its_grace(client: Client) -> None:
    agent = await client.agent()
    lost = new_run_id()
    await client.reserve(agent, "c", lost, lost)
    run = await client.start(agent, "hello", "c")
    assert run.run_id != lost
    assert kind((await client.events(run.run_id))[-1]) == "run_completed"
    with pytest.raises(HarnessError) as missing:
        await client.get(lost)
    assert missing.value.reason is Reason.NOT_FOUND


async def test_i6_the_same_request_takes_over_what_its_starter_left_unstored(client: Client) -> None:
    agent = await client.agent()
    body = run_service_pb2.StartRunRequest(
        agent_id=agent, conversation_id="c", message="hello", client_request_id="mine"
    )
    key = request_of("", body).named_key
    lost = new_run_id()
    await client.reserve(agent, "c", lost, key)
    run = await client.start(agent, "hello", "c", client_request_id="mine")
    # Not in place: its starter may be making a runtime for it, and one executor alone does that.
    assert (run.run_id, run.status) == (lost, run_pb2.RUN_STATUS_QUEUED)
    assert kind((await client.events(run.run_id))[-1]) == "run_completed"


async def test_i4_a_conversation_keeps_its_version_and_a_disabled_agent_starts_nothing(client: Client) -> None:
    agent = await client.agent()
    first = await client.start(agent, "hello", "c")
    await client.events(first.run_id)
    assert await client.save(agent, name="Other") == 2
    same = await client.start(agent, "hello", "c")
    other = await client.start(agent, "hello", "d")
    assert (same.agent_version, other.agent_version) == (1, 2)
    await client.disable(agent)
    with pytest.raises(HarnessError) as refused:
        await client.start(agent, "hello", "e")
    assert refused.value.reason is Reason.HARNESS_DISABLED


async def test_i2_another_subject_finds_nothing(client: Client, mesh: Mesh, clients: Callable[..., Client]) -> None:
    agent = await client.agent()
    run = await client.start(agent, "hello", "c")
    stranger = clients(mesh)
    for call in (
        stranger.get(run.run_id),
        stranger.cancel(run.run_id),
        stranger.events(run.run_id),
        stranger.page(run.run_id),
    ):
        with pytest.raises(HarnessError) as refused:
            await call
        assert refused.value.reason is Reason.NOT_FOUND
        assert run.run_id not in refused.value.message
    assert not (await stranger.list(agent_id=agent)).runs
    assert not (await stranger.cancel_active(agent, "c")).cancelled
    assert not (await stranger.clear(agent, "c")).cleared
    # The same names are another conversation for another subject.
    assert (await stranger.start(agent, "hello", "c")).binding_id != run.binding_id
    await client.events(run.run_id)


async def test_enqueued_runs_wait_their_turn_in_order(client: Client) -> None:
    agent = await client.agent()
    first = await client.start(agent, {"script": [{"hang": True}]}, "c")
    second = await client.start(agent, "second", "c", on_conflict=ENQUEUE)
    third = await client.start(agent, "third", "c", on_conflict=ENQUEUE)
    assert (await client.get(second.run_id)).status == run_pb2.RUN_STATUS_QUEUED
    await client.cancel(first.run_id)
    later = await asyncio.gather(client.events(second.run_id), client.events(third.run_id))
    assert [kind(events[-1]) for events in later] == ["run_completed", "run_completed"]
    assert "before that you said: second" in text(later[1])
    assert later[0][-1].time.ToNanoseconds() <= later[1][0].time.ToNanoseconds()


async def test_an_interrupting_start_supersedes_the_active_run_and_waiting_ones_of_its_policy(client: Client) -> None:
    agent = await client.agent()
    first = await client.start(agent, {"script": [{"hang": True}]}, "c")
    enqueued = await client.start(agent, "enqueued", "c", on_conflict=ENQUEUE)
    newest = await client.start(agent, "newest", "c", on_conflict=INTERRUPT)
    superseded = (await client.events(first.run_id))[-1].payload.run_cancelled
    assert superseded.reason == 5
    ended = await asyncio.gather(client.events(newest.run_id), client.events(enqueued.run_id))
    assert [kind(events[-1]) for events in ended] == ["run_completed", "run_completed"]
    assert "before that you said: newest" in text(ended[1])


async def test_lists_are_paged_newest_first(client: Client) -> None:
    agent = await client.agent()
    started = [(await client.start(agent, {"n": 1}, f"c{number}")).run_id for number in range(5)]
    found: list[str] = []
    token = ""
    while True:
        page = await client.list(agent_id=agent, page_size=2, page_token=token)
        found += [run.run_id for run in page.runs]
        token = page.next_page_token
        if not token:
            break
    assert found == started[::-1]
    assert [run.run_id for run in (await client.list(agent_id=agent, conversation_id="c3")).runs] == [started[3]]
    assert {run.run_id for run in (await client.list()).runs} == set(started)
    for token in ("x", "WzFd", "é" * 3):
        with pytest.raises(HarnessError) as refused:
            await client.list(agent_id=agent, page_token=token)
        assert refused.value.reason is Reason.INVALID_REQUEST


async def test_invoke_answers_the_whole(client: Client) -> None:
    agent = await client.agent()
    answer = await client.invoke(agent, {"script": [{"reasoning": "hm"}, {"text": "the answer"}]})
    assert (answer.content, answer.thinking) == ("the answer", "hm")
    with pytest.raises(HarnessError) as refused:
        await client.invoke(
            agent, {"script": [{"fail": {"category": "throttled", "message": "slow down", "retryable": True}}]}
        )
    assert refused.value.reason is Reason.RATE_LIMITED
    assert refused.value.metadata["run_id"]


async def test_i6_a_reservation_that_was_never_stored_sends_nobody_away(client: Client) -> None:
    agent = await client.agent()
    going = await client.start(agent, {"script": [{"text": "begun"}, {"hang": True}]}, "c")
    await client.seen(going.run_id, "content_delta")
    # Twice: once the second is buried, all that was done about the first is done.
    for number in range(2):
        await client.reserve(
            agent, "c", new_run_id(), f"key-{number}", INTERRUPT, session_service_pb2.RESERVE_OUTCOME_WAITING
        )
        async with asyncio.timeout(30):
            while (await client.binding(agent, "c")).waiting:  # noqa: ASYNC110 - nothing signals it: a bounded poll
                await asyncio.sleep(0.05)
    assert (await client.get(going.run_id)).status == run_pb2.RUN_STATUS_RUNNING
    await client.cancel(going.run_id)
