"""Room on two replicas: the bus hands out what one has no room for, and one profile's flood keeps nobody else's runs (I23, I35)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from harness.run.v1 import run_pb2
from services.common.errors import HarnessError, Reason
from services.runs.bus.redis_dispatch import dispatch_key
from tests.e2e.two_runs import TwoRuns, assert_whole, two_runs, until, whole
from tests.runs.mesh import Client

HANG = {"script": [{"hang": True}]}
KEY = dispatch_key("local")
QUEUED, RUNNING, COMPLETED = run_pb2.RUN_STATUS_QUEUED, run_pb2.RUN_STATUS_RUNNING, run_pb2.RUN_STATUS_COMPLETED
ROOM, LINE = 4, 24
"""Of each replica: executions, and runs of a profile that may wait."""


@pytest.fixture(scope="module")
def narrow() -> Iterator[TwoRuns]:
    with two_runs(HARNESS_MAX_ACTIVE_RUNS=str(ROOM), HARNESS_MAX_QUEUED_RUNS=str(LINE)) as two:
        yield two


@pytest.fixture
async def here(narrow: TwoRuns) -> AsyncIterator[Client]:
    """A client of the first replica; what its subject left running is ended."""
    async with AsyncExitStack() as stack:
        client = Client(narrow.mesh)
        stack.push_async_callback(client.close)
        yield client
        # The other replica was killed by none of these tests.
        ending = Client(narrow.mesh, client.subject, "runs-b")
        stack.push_async_callback(ending.close)
        left = [run.run_id for run in (await ending.list(page_size=200)).runs if run.status in (QUEUED, RUNNING)]
        await asyncio.gather(*(ending.cancel(run_id) for run_id in left))


async def statuses(client: Client, run_ids: list[str]) -> dict[str, run_pb2.RunStatus.ValueType]:
    found = await asyncio.gather(*(client.get(run_id) for run_id in run_ids))
    return {run.run_id: run.status for run in found}


async def flooded(client: Client, count: int) -> list[str]:
    """So many runs that never end, of which as many as both replicas have room for are executed."""
    agent = await client.agent("faults")
    runs = [(await client.start(agent, HANG, f"flood-{number}")).run_id for number in range(count)]

    async def both_are_full() -> bool:
        return list((await statuses(client, runs)).values()).count(RUNNING) == 2 * ROOM

    await until(both_are_full, "both replicas to be full")
    return runs


async def test_a_run_that_finds_room_where_it_is_started_is_announced_to_nobody(narrow: TwoRuns, here: Client) -> None:
    async with narrow.valkey.client() as client:

        async def announced() -> int:
            return (await client.xinfo_stream(KEY))["entries-added"]

        agent, before = await here.agent("default"), await announced()
        for number in range(3):
            run = await here.start(agent, {"n": 1}, f"c{number}")
            assert run.status == RUNNING
            assert assert_whole(await whole(here, run.run_id)) == "run_completed"
        assert await announced() == before
        # One that finds none is, once the first replica has seen that there is another.
        await flooded(here, 2 * ROOM)
        full = await announced()

        async def one_is_announced() -> bool:
            try:
                waiting = await here.start(agent, {"n": 1}, "w")
            except HarnessError as error:
                # Those that were cancelled stand in the line until the next sweep.
                if error.reason is not Reason.CAPACITY:
                    raise
                return False
            assert waiting.status == QUEUED
            await here.cancel(waiting.run_id)
            return await announced() > full

        await until(one_is_announced, "a run to be announced")


async def test_i23_a_flood_of_one_profile_on_both_replicas_starves_no_other(narrow: TwoRuns, here: Client) -> None:
    flood = await flooded(here, 2 * ROOM + LINE - 4)
    other = await here.start(await here.agent("default"), {"n": 1}, "other")
    assert (await here.get(other.run_id)).status == QUEUED
    # Everything that is executed ends at once: what waits is served in turn, so the other profile is among the first of its replica.
    executed = [run_id for run_id, status in (await statuses(here, flood)).items() if status == RUNNING]
    await asyncio.gather(*(here.cancel(run_id) for run_id in executed))
    assert assert_whole(await whole(here, other.run_id)) == "run_completed"
    waiting = list((await statuses(here, flood)).values()).count(QUEUED)
    assert waiting >= LINE - 4 - 2 * ROOM


async def line_filled(client: Client, agent: str) -> HarnessError:
    """Starts runs that never end until one is refused; the refusal."""
    for number in range(2 * LINE):
        try:
            await client.start(agent, HANG, f"more-{number}")
        except HarnessError as error:
            return error
    raise AssertionError(f"{2 * LINE} runs were let into a line of {LINE}")


async def test_i35_a_full_line_refuses_its_own_profile_and_says_when_to_ask_again(
    narrow: TwoRuns, here: Client
) -> None:
    await flooded(here, 2 * ROOM)
    refused = await line_filled(here, await here.agent("faults"))
    assert (refused.reason, refused.retryable) == (Reason.CAPACITY, True)
    assert refused.retry_after
    run = await here.start(await here.agent("default"), {"n": 1}, "other")  # I23: its line is its own
    assert run.status == QUEUED


async def test_i35_what_another_replica_has_ended_leaves_the_line(narrow: TwoRuns, here: Client) -> None:
    flood = await flooded(here, 2 * ROOM)
    agent = await here.agent("faults")
    assert (await line_filled(here, agent)).reason is Reason.CAPACITY
    # From elsewhere: the replica that has them in line executes none of them, for nothing that it executes ends.
    there = Client(narrow.mesh, here.subject, "runs-b")
    try:
        waiting = [run.run_id for run in (await there.list(page_size=200)).runs if run.status == QUEUED]
        assert not set(waiting) & set(flood)
        await asyncio.gather(*(there.cancel(run_id) for run_id in waiting))
    finally:
        await there.close()

    async def is_let_in() -> bool:
        try:
            await here.start(agent, HANG, "let-in")
        except HarnessError as error:
            if error.reason is not Reason.CAPACITY:
                raise
            return False
        return True

    await until(is_let_in, "the line to have a place again")


async def test_i9_what_waits_at_a_replica_that_dies_is_executed_by_the_other(narrow: TwoRuns, here: Client) -> None:
    there = Client(narrow.mesh, here.subject, "runs-b")
    try:
        flood = await flooded(here, 2 * ROOM)
        agent = await here.agent("default")
        waiting = [(await here.start(agent, {"n": 2}, f"w{number}")).run_id for number in range(6)]
        narrow.mesh.runs.end(signal.SIGKILL)
        await asyncio.gather(*(there.cancel(run_id) for run_id in flood))
        for run_id in waiting:
            assert assert_whole(await whole(there, run_id)) == "run_completed"
    finally:
        await there.close()
        narrow.heal()
