"""What dies, and what is left of it (run protocol, Take; I6, I7, I9, I10, I11, I13, I33)."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest

from harness.common.v1 import error_pb2
from harness.event.v1 import event_pb2
from harness.run.v1 import run_pb2
from harness.session.v1 import binding_pb2
from services.common.errors import HarnessError, Reason
from tests.runs.mesh import KILL, TERMINATE, Client, Mesh, Part, fence_of, kind, text

COMPLETED, FAILED = run_pb2.RUN_STATUS_COMPLETED, run_pb2.RUN_STATUS_FAILED
HANG = {"script": [{"text": "begun"}, {"hang": True}]}
ENQUEUE = binding_pb2.CONFLICT_POLICY_ENQUEUE
Clients = Callable[..., Client]


@pytest.fixture
def caller(rough_mesh: Mesh, clients: Clients) -> Client:
    return clients(rough_mesh)


def one_terminal(events: list[event_pb2.Event]) -> str:
    """The one terminal, which is last; the one start, which is first."""
    kinds = [kind(event) for event in events]
    terminals = [one for one in kinds if one in ("run_completed", "run_failed", "run_cancelled", "run_interrupted")]
    assert kinds.count("run_started") == 1
    assert kinds[0] == "run_started"
    assert [kinds[-1]] == terminals
    if kinds[-1] == "run_failed":
        print(events[-1].payload)  # noqa: T201 - shown when the test fails
    return kinds[-1]


async def test_i9_the_death_of_the_adapter_host_ends_its_runs_truthfully(rough_mesh: Mesh, caller: Client) -> None:
    agent = await caller.agent()
    run = await caller.start(agent, HANG, "c")
    await caller.seen(run.run_id, "content_delta")
    rough_mesh.reference.end(KILL)
    events = await caller.events(run.run_id)
    failed = events[-1].payload.run_failed
    assert (failed.code, failed.category) == ("unavailable", error_pb2.ERROR_CATEGORY_UNAVAILABLE)
    # I11: it may have had effects, so nobody is told to run it again.
    assert failed.side_effect_status == error_pb2.SIDE_EFFECT_STATUS_POSSIBLE
    assert not failed.retryable
    rough_mesh.reference.start()
    next_run = await started_again(caller, agent, "c")
    assert one_terminal(await caller.events(next_run.run_id)) == "run_completed"
    assert (await caller.settled(agent, "c")).runtime_generation > 1


async def started_again(caller: Client, agent: str, conversation: str) -> run_pb2.Run:
    """Start as soon as the catalog has found the adapter again: nothing signals that, so this asks again, bounded."""
    async with asyncio.timeout(90):
        while True:
            try:
                return await caller.start(agent, "hello", conversation)
            except HarnessError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(0.05)


async def test_i33_sigkill_in_the_middle_of_a_run_and_the_run_goes_on(rough_mesh: Mesh, caller: Client) -> None:
    agent = await caller.agent()
    run = await caller.start(agent, {"n": 400, "rate": 200}, "c")
    seen = await first(caller, run.run_id, 20)
    rough_mesh.runs.restart(KILL)
    events = await caller.events(run.run_id)
    # What one subscriber saw, every later replay shows, byte for byte (I8).
    assert [event.SerializeToString() for event in events[:20]] == [event.SerializeToString() for event in seen]
    assert one_terminal(events) == "run_completed"
    assert sum(kind(event) == "content_delta" for event in events) == 400
    assert (await caller.settled(agent, "c")).head.run_id == run.run_id


async def first(caller: Client, run_id: str, count: int) -> list[event_pb2.Event]:
    events: list[event_pb2.Event] = []
    stream = caller.watch(run_id)
    async for event in stream:
        events.append(event)
        if len(events) == count:
            break
    await stream.aclose()
    return events


async def test_i9_the_log_begins_as_ever_when_its_first_executor_died_before_the_first_append(
    rough_mesh: Mesh, caller: Client
) -> None:
    agent = await caller.agent()
    run = await caller.start(agent, {"script": [{"sleep": 3}, {"text": "late"}]}, "c")
    await caller.seen(run.run_id, "run_started")
    rough_mesh.runs.end(KILL)
    # As if the append had not come through: the runtime has the run, the log has nothing of it.
    with closing(sqlite3.connect(rough_mesh.folder / "runs.sqlite3", isolation_level=None)) as store:
        assert store.execute("DELETE FROM segments WHERE run_id = ?", (run.run_id,)).rowcount
    rough_mesh.runs.start()
    events = await caller.events(run.run_id)
    assert one_terminal(events) == "run_completed"
    assert text(events) == "late"
    assert events[0].payload.run_started.adapter_version


async def test_i9_a_run_whose_executor_died_before_it_made_the_runtime_is_started_where_it_was_issued(
    rough_mesh: Mesh, caller: Client
) -> None:
    agent = await caller.agent()
    # Without a connection to the host: nothing is sent before the host has answered its opening.
    rough_mesh.runs.restart(TERMINATE)
    await caller.list()
    send(rough_mesh.reference, signal.SIGSTOP)
    try:
        run = await caller.start(agent, "hello", "c")
        rough_mesh.runs.end(KILL)
    finally:
        send(rough_mesh.reference, signal.SIGCONT)
    rough_mesh.runs.start()
    assert one_terminal(await caller.events(run.run_id)) == "run_completed"
    binding = await caller.settled(agent, "c")
    assert (binding.head.run_id, binding.runtime_generation) == (run.run_id, 1)


async def test_i33_sigterm_hands_running_runs_over_and_exits_0(rough_mesh: Mesh, caller: Client) -> None:
    # Leases that outlive the test: only what was handed over can be taken in time.
    changed = {"HARNESS_SHUTDOWN_GRACE_SECONDS": "4", "HARNESS_LEASE_TTL_SECONDS": "300"}
    before = dict(rough_mesh.runs.environment)
    rough_mesh.runs.environment |= changed
    try:
        rough_mesh.runs.restart(TERMINATE)
        agent = await caller.agent()
        going = await caller.start(agent, {"n": 1_000, "rate": 200}, "going")
        hung = await caller.start(agent, HANG, "hung")
        queued = await caller.start(agent, "queued", "hung", on_conflict=ENQUEUE)
        await caller.seen(hung.run_id, "content_delta")
        await first(caller, going.run_id, 10)
        assert await asyncio.to_thread(rough_mesh.runs.end, TERMINATE) == 0
        rough_mesh.runs.start()
        events = await caller.events(going.run_id)
        assert one_terminal(events) == "run_completed"
        assert sum(kind(event) == "content_delta" for event in events) == 1_000
        assert (await caller.cancel(hung.run_id)).status == run_pb2.RUN_STATUS_CANCELLED
        assert one_terminal(await caller.events(queued.run_id)) == "run_completed"
    finally:
        rough_mesh.runs.environment = before
        rough_mesh.runs.restart(TERMINATE)


async def test_i33_sigkill_at_many_instants_and_every_accepted_run_ends(rough_mesh: Mesh, caller: Client) -> None:
    agent = await caller.agent()
    accepted: list[run_pb2.Run] = []
    for round_number in range(3):
        starts = [
            asyncio.ensure_future(caller.start(agent, {"n": 30, "rate": 300}, f"c{round_number}-{number}"))
            for number in range(20)
        ]
        # Somewhere between reserving, storing, issuing and ending: where exactly differs with every run of the test.
        await asyncio.wait(starts, return_when=asyncio.FIRST_COMPLETED)
        for _ in range(round_number * 50):
            await asyncio.sleep(0)
        rough_mesh.runs.restart(KILL)
        for outcome in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(outcome, run_pb2.Run):
                accepted.append(outcome)
            else:
                assert isinstance(outcome, HarnessError)
                assert outcome.retryable
    assert accepted
    for events in await asyncio.gather(*(caller.events(run.run_id) for run in accepted)):
        assert one_terminal(events) in ("run_completed", "run_failed")
    for run in accepted:
        assert not (await caller.settled(agent, run.conversation_id)).HasField("active")


async def test_i9_runs_and_adapter_host_killed_together(rough_mesh: Mesh, caller: Client) -> None:
    agent = await caller.agent()
    run = await caller.start(agent, HANG, "c")
    await caller.seen(run.run_id, "content_delta")
    rough_mesh.runs.end(KILL)
    rough_mesh.reference.restart(KILL)
    rough_mesh.runs.start()
    events = await caller.events(run.run_id)
    assert one_terminal(events) == "run_failed"
    # Another incarnation at the same address is known at once for what it is.
    assert events[-1].payload.run_failed.code == "unavailable"
    assert events[-1].payload.run_failed.side_effect_status == error_pb2.SIDE_EFFECT_STATUS_POSSIBLE


async def test_i9_sessions_away_at_the_end_of_a_run(rough_mesh: Mesh, caller: Client) -> None:
    agent = await caller.agent()
    run = await caller.start(agent, {"n": 50, "rate": 100}, "c")
    await first(caller, run.run_id, 5)
    rough_mesh.sessions.end(KILL)
    with pytest.raises(HarnessError) as refused:
        await caller.start(agent, "hello", "d")
    assert refused.value.retryable
    rough_mesh.sessions.start()
    assert one_terminal(await caller.events(run.run_id)) == "run_completed"
    assert (await caller.settled(agent, "c")).head.run_id == run.run_id


async def test_i13_the_client_is_gone_and_the_run_goes_on(rough_mesh: Mesh, caller: Client, clients: Clients) -> None:
    passing = clients(rough_mesh, caller.subject)
    agent = await caller.agent()
    run = await passing.start(agent, {"n": 100, "rate": 200})
    await first(passing, run.run_id, 3)
    await passing.close()
    assert one_terminal(await caller.events(run.run_id)) == "run_completed"


async def test_i12_a_cancel_works_from_any_replica(rough_mesh: Mesh, caller: Client, clients: Clients) -> None:
    other = rough_mesh.runs_part("other")
    other.start()
    try:
        elsewhere = clients(rough_mesh, caller.subject, "other")
        agent = await caller.agent()
        run = await caller.start(agent, HANG)
        await elsewhere.seen(run.run_id, "content_delta")
        assert (await elsewhere.cancel(run.run_id)).status == run_pb2.RUN_STATUS_CANCELLED
        assert one_terminal(await caller.events(run.run_id)) == "run_cancelled"
    finally:
        other.end(KILL)


async def test_i12_once_a_cancel_is_answered_no_state_of_the_run_is_accepted(rough_mesh: Mesh, caller: Client) -> None:
    agent = await caller.agent()
    run = await caller.start(agent, HANG, "c")
    await caller.seen(run.run_id, "content_delta")
    fence = fence_of(await caller.binding(agent, "c"))
    await caller.write_part(fence)
    # Nobody can give the slot back: the terminal is in the log, and the answer has to wait.
    send(rough_mesh.sessions, signal.SIGSTOP)
    try:
        cancel = asyncio.ensure_future(caller.cancel(run.run_id))
        assert one_terminal(await caller.events(run.run_id)) == "run_cancelled"
        answered, _ = await asyncio.wait({cancel}, timeout=0.5)
        assert not answered
    finally:
        send(rough_mesh.sessions, signal.SIGCONT)
    assert (await cancel).status == run_pb2.RUN_STATUS_CANCELLED
    for attempt in (caller.write_part, caller.commit_head):
        with pytest.raises(HarnessError) as refused:
            await attempt(fence)
        assert refused.value.reason is Reason.STALE_LEASE
    assert not (await caller.binding(agent, "c")).HasField("head")


async def test_i10_a_holder_that_was_stopped_beyond_its_lease_changes_nothing(
    rough_mesh: Mesh, caller: Client, clients: Clients
) -> None:
    other = rough_mesh.runs_part("stopped")
    other.start()
    try:
        there = clients(rough_mesh, caller.subject, "stopped")
        agent = await caller.agent()
        run = await there.start(agent, {"n": 1_500, "rate": 150}, "c")
        await first(caller, run.run_id, 5)
        await stop_outside_of_a_write(other, caller, agent)
        # The other replica takes it over and goes on; the stopped one comes back in the middle of that.
        await first(caller, run.run_id, 900)
        send(other, signal.SIGCONT)
        events = await caller.events(run.run_id)
        assert one_terminal(events) == "run_completed"
        assert sum(kind(event) == "content_delta" for event in events) == 1_500
        assert (await there.get(run.run_id)).last_sequence == len(events)
    finally:
        other.end(KILL)


def send(part: Part, number: int) -> None:
    assert part.process is not None
    part.process.send_signal(number)


async def stop_outside_of_a_write(part: Part, caller: Client, agent: str) -> None:
    """Stop the process while it does not hold the write lock of the SQLite file both replicas use, or nobody could go on at all."""
    for _ in range(20):
        send(part, signal.SIGSTOP)
        try:
            async with asyncio.timeout(1.5):
                await caller.start(agent, {"n": 1})
        except TimeoutError:
            send(part, signal.SIGCONT)
        else:
            return
    raise AssertionError("the process was never found outside of a write")


async def test_i5_a_clear_that_died_half_way_is_finished_by_whoever_comes_next(
    rough_mesh: Mesh, caller: Client
) -> None:
    agent = await caller.agent()
    run = await caller.start(agent, HANG, "c")
    await caller.seen(run.run_id, "content_delta")
    await caller.begin_clear(agent, "c")
    after = await caller.start(agent, "hello", "c")
    assert after.binding_id != run.binding_id
    assert one_terminal(await caller.events(run.run_id)) == "run_cancelled"
    assert "turn 1 " in text(await caller.events(after.run_id))


async def test_i5_the_sweep_finishes_a_clear_that_nobody_asks_for_again(rough_mesh: Mesh, caller: Client) -> None:
    agent = await caller.agent()
    run = await caller.start(agent, HANG, "c")
    await caller.begin_clear(agent, "c")
    assert one_terminal(await caller.events(run.run_id)) == "run_cancelled"
    async with asyncio.timeout(90):
        while (await caller.binding(agent, "c")).epoch == 1:  # noqa: ASYNC110 - nothing signals it: a bounded poll
            await asyncio.sleep(0.02)


async def test_i9_whoever_gives_a_place_back_executes_who_is_next(clients: Clients) -> None:
    # So seldom a look for queued runs that nobody else could execute this one in time.
    mesh = Mesh(settings={"HARNESS_LEASE_TTL_SECONDS": "300", "HARNESS_SWEEP_INTERVAL_SECONDS": "60"}).start()
    try:
        caller = clients(mesh)
        agent = await caller.agent()
        await caller.reserve(agent, "c", "run_never_stored", "key_never_stored")
        run = await caller.start(agent, "hello", "c", on_conflict=ENQUEUE)
        assert one_terminal(await caller.events(run.run_id)) == "run_completed"
    finally:
        mesh.close()


async def test_i33_state_written_after_a_takeover_is_committed(rough_mesh: Mesh, caller: Client) -> None:
    agent = await caller.agent()
    steps = [{"text": "before"}, {"sleep": 5}, {"state": "abc"}, {"text": " after"}]
    run = await caller.start(agent, {"script": steps}, "c")
    await caller.seen(run.run_id, "content_delta")
    rough_mesh.runs.restart(KILL)
    events = await caller.events(run.run_id)
    assert one_terminal(events) == "run_completed"
    assert text(events) == "before after"
    head = (await caller.settled(agent, "c")).head
    assert (head.run_id, bool(head.part_refs)) == (run.run_id, True)
