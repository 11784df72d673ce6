"""Watching within one process: the log, and being told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.common.errors import HarnessError, Reason
from services.runs.bus import NoBus
from services.runs.live import LiveHub
from services.runs.log import SegmentLog
from tests.runs.live.runlog import RunLog, open_log, settled, watched


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SegmentLog]:
    async with open_log(tmp_path) as log:
        yield log


@pytest.fixture
async def hub(log: SegmentLog) -> AsyncIterator[LiveHub]:
    hub = LiveHub(log, NoBus(), executes_here=lambda _: True)
    await hub.start()
    yield hub
    await hub.stop()


async def test_a_finished_run_is_read_from_any_cursor(hub: LiveHub, log: SegmentLog) -> None:
    run = RunLog(log)
    for count in (1, 5, 2):
        await run.append(count)
    await run.seal()
    await run.append(3, terminal=True)
    for after in range(run.last_sequence + 1):
        assert await watched(hub, after) == run.events[after:]
    assert hub.followed == 0


async def test_past_the_end_of_a_finished_run_a_watch_ends_at_once(hub: LiveHub, log: SegmentLog) -> None:
    run = RunLog(log)
    await run.append(2, terminal=True)
    for after in (2, 3, 1000, (1 << 32) - 1):
        assert await watched(hub, after) == []


async def test_watchers_are_woken_by_what_is_published(hub: LiveHub, log: SegmentLog) -> None:
    run = RunLog(log)
    watchers = [asyncio.create_task(watched(hub, after)) for after in (0, 0, 3, 7)]
    await settled(lambda: hub.followed == 1)
    for count in (1, 4, 5):
        hub.published("r", await run.append(count))
    hub.published("r", await run.append(1, terminal=True))
    for after, seen in zip((0, 0, 3, 7), await asyncio.gather(*watchers), strict=True):
        assert seen == run.events[after:]
    assert hub.followed == 0


async def test_a_cursor_that_a_running_run_has_not_reached_waits_for_it(hub: LiveHub, log: SegmentLog) -> None:
    run = RunLog(log)
    await run.append(2)
    reached, never_reached = (asyncio.create_task(watched(hub, after)) for after in (4, 40))
    await settled(lambda: hub.followed == 1)
    hub.published("r", await run.append(2))
    hub.published("r", await run.append(2, terminal=True))
    assert await reached == run.events[4:]
    assert await never_reached == []


async def test_deleted_events_are_an_expired_cursor(hub: LiveHub, log: SegmentLog) -> None:
    run = RunLog(log)
    for _ in range(3):
        await run.append(2)
    await log.delete("r", 2)
    with pytest.raises(HarnessError) as error:
        await watched(hub, 1)
    assert error.value.reason is Reason.CURSOR_EXPIRED
    with pytest.raises(HarnessError) as error:
        await hub.page("r", 1, 0, 10)
    assert error.value.reason is Reason.CURSOR_EXPIRED
    assert await watched(hub, 4, until=6) == run.events[4:]


async def test_a_stop_ends_watches_with_a_retryable_error(hub: LiveHub, log: SegmentLog) -> None:
    await RunLog(log).append(1)
    watcher = asyncio.create_task(watched(hub))
    await settled(lambda: hub.followed == 1)
    await hub.stop()
    with pytest.raises(HarnessError) as error:
        await watcher
    assert error.value.reason is Reason.UNAVAILABLE
    assert error.value.retryable
    assert hub.followed == 0
