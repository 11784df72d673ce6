"""Cancel, clear, deadline and supersede reach a run wherever it is executed, and end it once (I12). Two processes of runs, one bus.

Where a test shows that a signal is enough, leases are renewed and force is used only after longer than any call waits.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from harness.event.v1 import payload_pb2
from harness.run.v1 import run_pb2
from harness.session.v1 import binding_pb2
from services.common.errors import HarnessError, Reason
from tests.e2e.two_runs import TwoRuns, assert_whole, send, two_runs, until, whole
from tests.e2e.watching import stopped_outside_of_a_write
from tests.runs.mesh import Client, kind

HANG = {"script": [{"text": "begun"}, {"hang": True}]}
INTERRUPT, ENQUEUE = binding_pb2.CONFLICT_POLICY_INTERRUPT, binding_pb2.CONFLICT_POLICY_ENQUEUE
CANCELLED = run_pb2.RUN_STATUS_CANCELLED
NO_HELP = {"HARNESS_LEASE_TTL_SECONDS": "300", "HARNESS_CANCEL_GRACE_SECONDS": "60"}
"""Neither a renewal nor force comes in time."""

Pair = tuple[Client, Client]
Pairs = Callable[[TwoRuns], Pair]


@pytest.fixture(scope="module")
def signalled_processes() -> Iterator[TwoRuns]:
    with two_runs(**NO_HELP) as pair:
        yield pair


@pytest.fixture
def signalled(signalled_processes: TwoRuns) -> TwoRuns:
    """Two replicas on which only a signal ends a run that another one executes."""
    signalled_processes.heal()
    return signalled_processes


@pytest.fixture(scope="module")
def brisk_processes() -> Iterator[TwoRuns]:
    with two_runs(HARNESS_CANCEL_GRACE_SECONDS="1") as pair:
        yield pair


@pytest.fixture
def brisk(brisk_processes: TwoRuns) -> TwoRuns:
    """Two replicas with short leases and little grace."""
    brisk_processes.heal()
    return brisk_processes


@pytest.fixture
async def pairs() -> AsyncIterator[Pairs]:
    """One subject's clients of both replicas."""
    async with AsyncExitStack() as stack:

        def make(two: TwoRuns) -> Pair:
            first = Client(two.mesh)
            second = Client(two.mesh, first.subject, "runs-b")
            for client in (first, second):
                stack.push_async_callback(client.close)
            return first, second

        yield make


async def begun(client: Client, agent: str, conversation: str) -> str:
    """A run that is executed by the client's replica and goes on until it is ended."""
    run = await client.start(agent, HANG, conversation)
    await client.seen(run.run_id, "content_delta")
    return run.run_id


async def test_i12_a_cancel_reaches_the_executor_on_another_replica_by_a_signal(
    signalled: TwoRuns, pairs: Pairs
) -> None:
    here, there = pairs(signalled)
    run_id = await begun(there, await here.agent(), "c")
    ended = await here.cancel(run_id)
    assert ended.status == CANCELLED
    events = await whole(here, run_id)
    assert assert_whole(events) == "run_cancelled"
    assert events[-1].payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_CLIENT_REQUEST
    assert await here.cancel(run_id) == ended == await there.cancel(run_id)


async def test_i12_a_clear_reaches_the_executor_on_another_replica_by_a_signal(
    signalled: TwoRuns, pairs: Pairs
) -> None:
    here, there = pairs(signalled)
    agent = await here.agent()
    run_id = await begun(there, agent, "c")
    waiting = await there.start(agent, "next", "c", on_conflict=ENQUEUE)
    cleared = await here.clear(agent, "c")
    assert (cleared.cleared, cleared.next_epoch) == (True, 2)
    for one in (run_id, waiting.run_id):
        events = await whole(here, one)
        assert assert_whole(events) == "run_cancelled"
        assert events[-1].payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_SESSION_CLEARED


async def test_i12_a_run_is_superseded_on_another_replica_by_a_signal(signalled: TwoRuns, pairs: Pairs) -> None:
    here, there = pairs(signalled)
    agent = await here.agent()
    run_id = await begun(there, agent, "c")
    newer = await here.start(agent, {"n": 1}, "c", on_conflict=INTERRUPT)
    events = await whole(here, run_id)
    assert assert_whole(events) == "run_cancelled"
    assert events[-1].payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_SUPERSEDED
    assert assert_whole(await whole(there, newer.run_id)) == "run_completed"


async def test_i12_a_lost_signal_is_made_up_for_by_the_next_renewal(brisk: TwoRuns) -> None:
    # Two more replicas of which nobody hears anything, and whose grace is longer than a call waits: no signal, and no force.
    alone = {"HARNESS_BUS_URL": f"unix://{brisk.mesh.folder}/nowhere", "HARNESS_CANCEL_GRACE_SECONDS": "60"}
    parts = [brisk.mesh.runs_part(name, **alone) for name in ("runs-c", "runs-d")]
    for part in parts:
        part.begin()
    here, there = Client(brisk.mesh, "someone", "runs-c"), Client(brisk.mesh, "someone", "runs-d")
    try:
        for part in parts:
            part.wait_ready()
        run_id = await begun(there, await here.agent(), "c")
        assert (await here.cancel(run_id)).status == CANCELLED
        assert assert_whole(await whole(here, run_id)) == "run_cancelled"
    finally:
        await here.close()
        await there.close()
        for part in parts:
            part.end(signal.SIGKILL)


async def test_i12_a_run_whose_executor_stands_still_is_ended_by_force_and_once(brisk: TwoRuns, pairs: Pairs) -> None:
    here, there = pairs(brisk)
    agent = await here.agent()
    run_id = await begun(there, agent, "c")
    assert brisk.second.process is not None
    await asyncio.to_thread(stopped_outside_of_a_write, brisk.mesh.folder, brisk.second.process.pid, "runs.sqlite3")
    try:
        assert (await here.cancel(run_id)).status == CANCELLED
        seen = await whole(here, run_id)
        assert assert_whole(seen) == "run_cancelled"
        newer = await here.start(agent, {"n": 1}, "c")
    finally:
        send(brisk.second, signal.SIGCONT)
    assert assert_whole(await whole(here, newer.run_id)) == "run_completed"
    # I10: whoever wakes up with it writes nothing more.
    assert (await there.cancel(run_id)).status == CANCELLED
    assert await whole(there, run_id) == seen


async def test_i12_a_run_whose_executor_died_is_cancelled_where_it_is_asked_for(brisk: TwoRuns, pairs: Pairs) -> None:
    here, there = pairs(brisk)
    run_id = await begun(there, await here.agent(), "c")
    brisk.second.end(signal.SIGKILL)
    assert (await here.cancel(run_id)).status == CANCELLED
    assert assert_whole(await whole(here, run_id)) == "run_cancelled"


async def test_i12_a_run_that_waits_for_an_executor_on_another_replica_is_cancelled(
    brisk: TwoRuns, pairs: Pairs
) -> None:
    here, there = pairs(brisk)
    agent = await here.agent("single")  # one at a time in each process
    holding = [await begun(client, agent, f"h{number}") for number, client in enumerate((here, there))]
    waiting = await there.start(agent, {"n": 1}, "w")
    assert (await here.get(waiting.run_id)).status == run_pb2.RUN_STATUS_QUEUED
    assert (await here.cancel(waiting.run_id)).status == CANCELLED
    assert assert_whole(await whole(there, waiting.run_id)) == "run_cancelled"
    for run_id in holding:
        await there.cancel(run_id)


async def test_i12_a_deadline_ends_a_run_although_its_executor_died_before_it(brisk: TwoRuns, pairs: Pairs) -> None:
    here, there = pairs(brisk)
    run = await there.start(await here.agent("default", limits={"max_run_seconds": 10}), {"n": 1000, "rate": 5}, "c")
    await there.seen(run.run_id, "content_delta")
    brisk.second.end(signal.SIGKILL)
    events = await whole(here, run.run_id)
    assert assert_whole(events) == "run_cancelled"
    assert events[-1].payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_DEADLINE


async def test_i12_cancels_from_everywhere_race_the_end_to_one_terminal(brisk: TwoRuns, pairs: Pairs) -> None:
    here, there = pairs(brisk)
    agent = await here.agent()

    async def raced(number: int) -> None:
        starter, other = (here, there) if number % 2 else (there, here)
        run = await starter.start(agent, {"n": 3, "rate": 300}, f"c{number}")
        asked = [starter.cancel, other.cancel, other.cancel][: 1 + number % 3]
        answers = await asyncio.gather(*(cancel(run.run_id) for cancel in asked))
        events = await asyncio.gather(whole(here, run.run_id), whole(there, run.run_id))
        assert events[0] == events[1]
        ended = {"run_cancelled": CANCELLED, "run_completed": run_pb2.RUN_STATUS_COMPLETED}[assert_whole(events[0])]
        assert {answer.status for answer in answers} == {ended}

    await asyncio.gather(*(raced(number) for number in range(24)))


async def test_i12_clears_and_cancels_from_both_replicas_race_starts_and_every_run_ends_once(
    brisk: TwoRuns, pairs: Pairs
) -> None:
    both = pairs(brisk)
    agent = await both[0].agent()
    started: list[str] = []

    async def attempt(client: Client, number: int) -> None:
        try:
            match number % 4:
                case 0:
                    await client.clear(agent, "c")
                case 1:
                    await client.cancel_active(agent, "c")
                case _:
                    policy = INTERRUPT if number % 8 == 2 else ENQUEUE
                    started.append((await client.start(agent, {"n": 2}, "c", on_conflict=policy)).run_id)
        except HarnessError as refused:
            if not _is_busy(refused):
                raise

    await asyncio.gather(*(attempt(both[number // 4 % 2], number) for number in range(40)))
    assert started
    for run_id in started:
        seen = await asyncio.gather(*(whole(client, run_id) for client in both))
        assert seen[0] == seen[1]
        assert_whole(seen[0])

    async def goes_on() -> bool:
        try:
            run = await both[1].start(agent, {"n": 1}, "c")
        except HarnessError as refused:
            if not _is_busy(refused):
                raise
            return False
        return kind((await whole(both[0], run.run_id))[-1]) == "run_completed"

    await until(goes_on, "the conversation to go on")


def _is_busy(refused: HarnessError) -> bool:
    """Whether the same may be asked again later."""
    return refused.retryable or refused.reason is Reason.HARNESS_SESSION_CONFLICT
