"""A run that begins here is kept until a moment after its end, so that whoever comes right after it needs no read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.runs.bus import NoBus
from services.runs.live import LiveHub
from services.runs.live.hub import KEPT_BYTES, MAX_KEPT
from services.runs.live.recent import RecentMemory
from services.runs.log import SegmentHeader, SegmentLog
from services.runs.log.port import Segment as Logged
from tests.runs.live.runlog import RunLog, open_log, settled, watched


class CountingLog:
    """The log, counting how often it is read."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log
        self.reads = 0

    async def append(self, header: SegmentHeader, events: bytes) -> object:
        return await self._log.append(header, events)

    async def tail(self, run_id: str) -> SegmentHeader | None:
        self.reads += 1
        return await self._log.tail(run_id)

    async def read(self, run_id: str, after: int, **bounds: int) -> list[Logged]:
        self.reads += 1
        return await self._log.read(run_id, after, **bounds)

    async def delete(self, run_id: str) -> int:
        return await self._log.delete(run_id)


class Here:
    """One process: what it executes, and what it keeps."""

    def __init__(self, log: SegmentLog) -> None:
        self.log = CountingLog(log)
        self.executed: set[str] = set()
        self.memory = RecentMemory()
        self.hub = LiveHub(
            self.log,  # type: ignore[arg-type]  # it passes on what the log answers
            NoBus(),
            executes_here=lambda run_id: run_id in self.executed,
            memory=self.memory,
            poll_seconds=3600,
        )

    async def executed_run(self, run_id: str = "r") -> RunLog:
        run = RunLog(self.log, run_id)  # type: ignore[arg-type]  # as above
        self.executed.add(run_id)
        self.hub.published(run_id, await run.append(2))
        return run

    async def end(self, run: RunLog) -> None:
        self.hub.published(run.run_id, await run.append(3, terminal=True))
        self.executed.discard(run.run_id)


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Here]:
    async with open_log(tmp_path) as log:
        here = Here(log)
        yield here
        await here.hub.stop()


async def test_whoever_comes_after_the_end_of_a_run_that_was_executed_here_reads_nothing(here: Here) -> None:
    run = await here.executed_run()
    await here.end(run)
    for after in (0, 1, 2, 5, 9):
        assert await watched(here.hub, after) == run.events[after:]
    assert here.log.reads == 0
    assert here.hub.followed == 0


async def test_nothing_is_kept_for_long(here: Here) -> None:
    ended, running = await here.executed_run("ended"), await here.executed_run("running")
    await here.end(ended)
    kept = here.memory.size
    await here.hub.poll_once()
    assert here.memory.size == kept  # a moment
    await here.hub.poll_once()
    assert 0 < here.memory.size < kept
    await here.end(running)
    await here.hub.poll_once()
    await here.hub.poll_once()
    assert here.memory.size == 0
    assert await watched(here.hub, run_id="ended") == ended.events


async def test_i7_i10_what_another_process_appended_after_this_one_lost_the_run_is_seen(here: Here) -> None:
    run = await here.executed_run()
    here.executed.discard("r")
    await run.append(4)
    await run.append(1, terminal=True)
    assert await watched(here.hub) == run.events


async def test_i7_a_watcher_in_the_middle_sees_the_rest_as_it_comes(here: Here) -> None:
    run = await here.executed_run()
    watcher = asyncio.create_task(watched(here.hub))
    await settled(lambda: here.hub.followed == 1)
    await here.end(run)
    assert await watcher == run.events


async def test_i35_what_is_kept_is_bounded_by_number_and_by_bytes(here: Here) -> None:
    large = await here.executed_run("large")
    for _ in range(4):
        here.hub.published("large", await large.append(1, text="x" * (KEPT_BYTES // 3)))
    assert here.memory.size == 0
    first = await here.executed_run("first")
    for number in range(MAX_KEPT):
        await here.executed_run(f"r{number}")
    reads = here.log.reads
    await here.end(first)
    assert await watched(here.hub, run_id="first") == first.events
    assert here.log.reads > reads
    await here.end(large)
    assert await watched(here.hub, run_id="large") == large.events
