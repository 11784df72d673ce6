"""The bounded lane between event loop and threads (I35)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from services.common.store import StoreUnavailable
from services.common.store.lane import Jobs, Lane, LaneBounds, Server


class Gate(Server):
    """Serves nothing until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.batches: list[int] = []

    def serve(self, jobs: Jobs) -> None:
        self.open.wait()
        self.batches.append(len(jobs))
        for job in jobs:
            job.result = job.operation()

    def finish(self) -> None:
        self.open.set()


@pytest.fixture
def gate() -> Gate:
    return Gate()


def bounds(patience: float = 60.0) -> LaneBounds:
    return LaneBounds(jobs=3, bytes=100, batch_jobs=2, batch_bytes=50, patience=patience)


@pytest.fixture
async def lane(gate: Gate) -> AsyncIterator[Lane]:
    lane = Lane("test", [gate], bounds())
    yield lane
    gate.open.set()
    await lane.close()


async def started(*calls) -> list[asyncio.Future]:
    futures = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    return futures


async def test_i35_a_full_lane_makes_callers_wait_in_order(lane: Lane, gate: Gate) -> None:
    order: list[int] = []
    futures = await started(*(lane.run(lambda n=n: order.append(n)) for n in range(10)))
    assert lane._jobs == 3
    assert len(lane._line) == 7
    gate.open.set()
    await asyncio.gather(*futures)
    assert order == list(range(10))
    assert max(gate.batches) <= 2
    assert (lane._jobs, lane._bytes, len(lane._line)) == (0, 0, 0)


async def test_i35_bytes_count_too_but_a_large_job_goes_alone(lane: Lane, gate: Gate) -> None:
    futures = await started(lane.run(int, 60), lane.run(int, 60), lane.run(int, 500))
    assert (lane._jobs, lane._bytes) == (1, 60)
    gate.open.set()
    await asyncio.gather(*futures)
    assert gate.batches == [1, 1, 1]


async def test_i35_patience_ends_with_a_retryable_error(gate: Gate) -> None:
    lane = Lane("test", [gate], bounds(patience=0.01))
    futures = await started(*(lane.run(int) for _ in range(3)))
    with pytest.raises(StoreUnavailable, match="queue of 3 stayed full"):
        await lane.run(int)
    gate.open.set()
    await asyncio.gather(*futures)
    assert await lane.run(int) == 0
    await lane.close()


async def test_a_caller_that_leaves_the_line_holds_nobody_up(lane: Lane, gate: Gate) -> None:
    futures = await started(*(lane.run(int, size) for size in (45, 45, 60, 1)))
    assert (lane._jobs, len(lane._line)) == (2, 2)  # the small one waits its turn, though it would fit
    futures[2].cancel()
    await asyncio.wait([futures[2]])
    assert (lane._jobs, len(lane._line)) == (3, 0)
    gate.open.set()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [int, int, asyncio.CancelledError, int]
    assert (lane._jobs, lane._bytes) == (0, 0)


async def test_a_caller_cancelled_as_it_is_let_in_gives_its_place_back(lane: Lane, gate: Gate) -> None:
    futures = await started(*(lane.run(int) for _ in range(5)))
    lane._leave(0)  # as if one job were done
    lane._admit()
    futures[3].cancel()
    await asyncio.wait([futures[3]])
    assert (lane._jobs, len(lane._line)) == (3, 0)  # the fifth has its place
    lane._enter(0)
    gate.open.set()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [int, int, int, asyncio.CancelledError, int]
    assert (lane._jobs, lane._bytes) == (0, 0)


async def test_close_turns_away_who_waits_in_line(gate: Gate) -> None:
    lane = Lane("test", [gate], bounds())
    futures = await started(*(lane.run(int) for _ in range(5)))
    closing = asyncio.ensure_future(lane.close())
    await asyncio.sleep(0)
    gate.open.set()
    await closing
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [int, int, int, StoreUnavailable, StoreUnavailable]


async def test_the_loop_stands_aside_again_and_again_while_a_job_is_in_the_lane(
    lane: Lane, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    (worker,) = lane._workers
    aside: asyncio.Queue[None] = asyncio.Queue()
    let_run = worker.let_run
    monkeypatch.setattr(worker, "let_run", lambda: (let_run(), aside.put_nowait(None)))
    for _ in range(2):
        (job,) = await started(lane.run(int))
        for _ in range(3):
            await aside.get()
        assert not job.done()
        gate.open.set()
        await job
        gate.open.clear()


async def test_the_loop_waits_for_no_thread_of_a_lane_that_gets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    gates = [Gate(), Gate()]
    lane = Lane("test", gates, bounds())
    waits: list[int] = []
    loop, noted = asyncio.get_running_loop(), asyncio.Event()
    for number, worker in enumerate(lane._workers):
        note = worker.has_served
        monkeypatch.setattr(worker, "has_served", lambda note=note: (note(), loop.call_soon_threadsafe(noted.set)))
        monkeypatch.setattr(worker, "let_run", lambda number=number: waits.append(number))
    for gate in gates:
        gate.open.set()
    await lane.run(int)
    await noted.wait()  # the thread notes it after its answer
    for gate in gates:
        gate.open.clear()
    (job,) = await started(lane.run(int))
    lane._stand_aside()
    assert waits == []
    lane._stand_aside()
    assert len(waits) == 1
    for gate in gates:
        gate.open.set()
    await job
    await lane.close()
