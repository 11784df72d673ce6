"""Watching within one process: the log, and being told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.common.errors import HarnessError, Reason
from services.runs.bus import NoBus, Notice
from services.runs.live import LiveHub, metrics
from services.runs.live.hub import PAGE_BYTES
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


async def test_a_watch_of_a_log_that_was_deleted_once_it_was_let_in_ends(log: SegmentLog) -> None:
    run, ended = RunLog(log), set[str]()

    async def has_ended(run_id: str) -> bool:
        if run_id == "late":
            await late.append(1, terminal=True)
        return run_id in ended

    hub = LiveHub(log, NoBus(), executes_here=lambda _: False, has_ended=has_ended)
    async with asyncio.timeout(90):
        waiting = asyncio.create_task(watched(hub, 0))
        await settled(lambda: hub.followed == 1)
        await run.append(2, terminal=True)
        await hub.poll_once()
        assert await waiting == run.events  # it had not ended: its first event was waited for
        while await log.delete("r"):
            continue
        ended |= {"r", "late"}
        with pytest.raises(HarnessError) as error:
            await watched(hub, 0)
        assert error.value.reason is Reason.CURSOR_EXPIRED
        assert hub.followed == 0
        # One that began and ended between the two looks has its log.
        late = RunLog(log, "late")
        assert await hub.wait_terminal("late", 10)
    await hub.stop()


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


@pytest.mark.parametrize("missing", [2, 3])
async def test_i34_less_than_is_known_to_be_there_is_an_expired_cursor_only_of_a_trimmed_run(
    log: SegmentLog, missing: int
) -> None:
    trimmed: list[bool] = []

    async def is_trimmed(run_id: str) -> bool:
        return bool(trimmed)

    hub = LiveHub(log, NoBus(), executes_here=lambda _: True, is_trimmed=is_trimmed)
    run = RunLog(log)
    for _ in range(3):
        await run.append(2)
    waiting = asyncio.create_task(watched(hub, 6))
    await hub.wait_terminal("r", 0)
    await log.delete("r", missing)  # what a store that answers from before the appends shows as well
    for reason in (Reason.STORE_UNAVAILABLE, Reason.CURSOR_EXPIRED):
        with pytest.raises(HarnessError) as error:
            await watched(hub, 2)
        assert error.value.reason is reason
        trimmed.append(True)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait({waiting})
    await hub.stop()


async def test_i34_a_notice_over_a_hole_is_no_lost_run(log: SegmentLog) -> None:
    async def is_trimmed(run_id: str) -> bool:
        return False

    hub = LiveHub(log, NoBus(), executes_here=lambda _: False, is_trimmed=is_trimmed, poll_seconds=3600)
    run = RunLog(log)
    await run.append(2)
    waiting = asyncio.create_task(watched(hub, 2))
    await hub.wait_terminal("r", 0)
    for terminal in (False, True):
        await run.append(2, terminal=terminal)
    await log.delete("r", 2)
    await hub.poll_once()
    # Neither skipped nor given up: whoever waits goes on to wait for the store.
    assert not await hub.wait_terminal("r", 0.05)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.wait({waiting})
    await hub.stop()


@pytest.mark.parametrize("deleted", [2, 3, 4])
async def test_i7_what_is_deleted_while_it_is_waited_for_is_an_expired_cursor(log: SegmentLog, deleted: int) -> None:
    hub = LiveHub(log, NoBus(), executes_here=lambda _: False, poll_seconds=3600)
    run = RunLog(log)
    await run.append(2)
    watchers = metrics.WATCHERS._value.get()
    waiting: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(ask)
        for ask in (watched(hub, 2), hub.page("r", 2, 3600, 10), hub.wait_terminal("r", 3600))
    ]
    await settled(lambda: metrics.WATCHERS._value.get() == watchers + 3)  # the page has been read, and waits too
    await hub.wait_terminal("r", 0)  # opens the follower for all of them
    # All of this was done elsewhere, and no notice came through.
    for terminal in (False, False, True):
        await run.append(2, terminal=terminal)
    await log.delete("r", deleted)
    async with asyncio.timeout(60):
        while hub.followed:
            await hub.poll_once()
            await asyncio.sleep(0)
    for task in waiting:
        with pytest.raises(HarnessError) as error:
            await task
        assert error.value.reason is Reason.CURSOR_EXPIRED
    await hub.stop()


class _SlowTail:
    """A real log whose answer about the end is on its way for as long as the test wants."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log
        self.read = asyncio.Event()
        self.arrived = asyncio.Event()
        self.arrived.set()

    async def tail(self, run_id: str) -> Any:
        tail = await self._log.tail(run_id)
        self.read.set()
        await self.arrived.wait()
        return tail

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


async def test_i7_a_run_that_began_while_the_log_was_asked_for_its_end_is_not_lost(log: SegmentLog) -> None:
    slow: Any = _SlowTail(log)
    hub = LiveHub(slow, NoBus(), executes_here=lambda _: False, poll_seconds=3600)
    run = RunLog(log)
    watcher = asyncio.create_task(watched(hub))
    await slow.read.wait()
    await settled(lambda: hub.followed == 1)
    slow.read.clear()
    slow.arrived.clear()
    polling = asyncio.create_task(hub.poll_once())
    await slow.read.wait()
    first = await run.append(1)
    hub.noticed(Notice("r", 1, first))
    slow.arrived.set()
    await polling
    hub.noticed(Notice("r", 3, await run.append(2, terminal=True)))
    assert await watcher == run.events
    await hub.stop()


async def test_i34_an_answer_from_before_the_run_loses_nothing_of_it_unless_it_is_trimmed(log: SegmentLog) -> None:
    trimmed = False

    async def is_trimmed(run_id: str) -> bool:
        return trimmed

    hub = LiveHub(log, NoBus(), executes_here=lambda _: False, is_trimmed=is_trimmed, poll_seconds=3600)
    run = RunLog(log)
    await run.append(2)
    watcher = asyncio.create_task(watched(hub, 2))
    await hub.wait_terminal("r", 0)
    await log.delete("r")
    await hub.poll_once()
    assert not await hub.wait_terminal("r", 0)
    assert not watcher.done()
    trimmed = True
    await hub.poll_once()
    with pytest.raises(HarnessError) as lost:
        await watcher
    assert lost.value.reason is Reason.CURSOR_EXPIRED
    await hub.stop()


async def test_a_queued_runs_watch_ends_when_it_ended_and_was_deleted_unheard_of(log: SegmentLog) -> None:
    over: list[bool] = []

    async def has_ended(run_id: str) -> bool:
        return bool(over)

    hub = LiveHub(log, NoBus(), executes_here=lambda _: False, has_ended=has_ended, poll_seconds=3600)
    waiting = asyncio.create_task(watched(hub))
    await hub.wait_terminal("r", 0)
    await hub.poll_once()
    assert not waiting.done()
    over.append(True)
    async with asyncio.timeout(60):
        while hub.followed:
            await hub.poll_once()
            await asyncio.sleep(0)
    with pytest.raises(HarnessError) as error:
        await waiting
    assert error.value.reason is Reason.CURSOR_EXPIRED
    await hub.stop()


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


async def test_pages_follow_on_and_are_bounded_by_their_limit(hub: LiveHub, log: SegmentLog) -> None:
    run = RunLog(log)
    for count in (1, 7, 0, 5, 30):
        await (run.append(count) if count else run.seal())
    await run.append(1, terminal=True)
    for limit in (1, 3, 8, 1000):
        seen: list[bytes] = []
        cursor = 0
        while (page := await hub.page("r", cursor, 30, limit)).events:
            assert len(page.events) == min(limit, run.last_sequence - cursor)
            seen += [event.SerializeToString() for event in page.events]
            cursor = page.next_cursor
            assert cursor == page.events[-1].sequence
        assert seen == run.events
        # The run has ended: the page that asked to wait came at once, with the cursor it was asked for.
        assert page.next_cursor == run.last_sequence
    assert (await hub.page("r", (1 << 32) - 1, 0, 10)).events == []


async def test_i35_a_page_ends_at_about_a_mebibyte_but_never_without_an_event(hub: LiveHub, log: SegmentLog) -> None:
    run = RunLog(log)
    sizes: list[int] = []
    await run.append(4, text="x" * 300_000)
    await run.append(1, text="x" * (PAGE_BYTES + 1))
    await run.append(3, text="x" * 300_000, terminal=True)
    cursor = 0
    while (page := await hub.page("r", cursor, 0, 1000)).events:
        sizes.append(len(page.events))
        assert page.ByteSize() < PAGE_BYTES or len(page.events) == 1
        cursor = page.next_cursor
    assert sizes == [3, 1, 1, 3]


async def test_a_long_poll_is_woken_by_the_next_event_and_by_the_end(hub: LiveHub, log: SegmentLog) -> None:
    run = RunLog(log)
    await run.append(1)
    woken = asyncio.create_task(hub.page("r", 1, 3600, 10))
    beyond = asyncio.create_task(hub.page("r", 50, 3600, 10))
    await settled(lambda: hub.followed == 1)
    hub.published("r", await run.append(2))
    page = await woken
    assert [event.sequence for event in page.events] == [2, 3]
    hub.published("r", await run.append(1, terminal=True))
    page = await beyond
    assert (list(page.events), page.next_cursor) == ([], 50)
    assert hub.followed == 0


async def test_a_long_poll_ends_when_its_time_is_over(hub: LiveHub, log: SegmentLog) -> None:
    await RunLog(log).append(1)
    page = await hub.page("r", 1, 0.01, 10)
    assert (list(page.events), page.next_cursor) == ([], 1)
    assert hub.followed == 0


async def test_i12_a_wait_for_the_end_sees_the_terminal_alone(hub: LiveHub, log: SegmentLog) -> None:
    run = RunLog(log)
    await run.append(1)
    assert not await hub.wait_terminal("r", 0.01)
    waiting = asyncio.create_task(hub.wait_terminal("r", 3600))
    await settled(lambda: hub.followed == 1)
    hub.published("r", await run.append(3))
    await asyncio.sleep(0)
    assert not waiting.done()
    hub.published("r", await run.append(1, terminal=True))
    assert await waiting
    assert await hub.wait_terminal("r", 0)


async def test_a_run_that_is_no_longer_executed_here_is_polled(log: SegmentLog) -> None:
    here = {"r"}
    hub = LiveHub(log, NoBus(), executes_here=here.__contains__, poll_seconds=3600)
    run = RunLog(log)
    watcher = asyncio.create_task(watched(hub))
    await settled(lambda: hub.followed == 1)
    hub.published("r", await run.append(1))
    await run.append(2, terminal=True)  # by its next executor, which told nobody
    polls = metrics.READS_OF_POLLS._value.get()
    await hub.poll_once()
    assert metrics.READS_OF_POLLS._value.get() == polls
    here.clear()
    await hub.poll_once()
    assert metrics.READS_OF_POLLS._value.get() == polls + 1
    assert await watcher == run.events
    await hub.stop()


async def test_one_poll_per_run_whatever_the_number_of_watchers(log: SegmentLog) -> None:
    hub = LiveHub(log, NoBus(), executes_here=lambda _: False, poll_seconds=3600)
    run = RunLog(log)
    await run.append(1)
    seen = [0] * 500

    async def watch(number: int) -> None:
        async for response in hub.watch("r", 1):
            seen[number] += len(response.events)

    watchers = [asyncio.create_task(watch(number)) for number in range(500)]
    await hub.wait_terminal("r", 0)  # opens the follower for all of them
    await run.append(2, terminal=True)
    counts = (metrics.READS_OF_POLLS, metrics.READS_OF_FOLLOWERS, metrics.READS_OF_WATCHERS)
    before = [count._value.get() for count in counts]
    await hub.poll_once()
    await asyncio.gather(*watchers)
    assert seen == [2] * 500
    assert [count._value.get() for count in counts] == [before[0] + 1, before[1] + 1, before[2]]
    await hub.stop()


async def test_a_notice_of_what_is_not_there_costs_one_read(hub: LiveHub, log: SegmentLog) -> None:
    run = RunLog(log)
    watcher = asyncio.create_task(watched(hub))
    await settled(lambda: hub.followed == 1)
    hub.published("r", await run.append(2))
    reads = metrics.READS_OF_FOLLOWERS._value.get()
    hub.noticed(Notice("r", 1000, None))
    for _ in range(20):
        await log.tail("r")  # each as slow as a read of the follower
    assert metrics.READS_OF_FOLLOWERS._value.get() == reads + 1
    hub.published("r", await run.append(1, terminal=True))
    assert await watcher == run.events


async def test_i34_trouble_of_the_store_is_retryable_and_the_watch_goes_on_from_its_cursor(tmp_path: Path) -> None:
    async with open_log(tmp_path) as log:
        await RunLog(log).append(3, terminal=True)
    hub = LiveHub(log, NoBus(), executes_here=lambda _: False)  # the store behind this log is closed
    for ask in (watched(hub), hub.page("r", 0, 0, 1), hub.wait_terminal("r", 1)):
        with pytest.raises(HarnessError) as error:
            await ask
        assert error.value.reason is Reason.STORE_UNAVAILABLE
        assert error.value.retryable
    assert hub.followed == 0
