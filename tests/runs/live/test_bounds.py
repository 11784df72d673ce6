"""What a watcher may cost, and what it may see: a slow one costs bounded memory and delays nobody; nothing is seen before it is durable."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import tracemalloc
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from harness.event.v1 import event_pb2, payload_pb2
from services.runs.appending import RunAppender
from services.runs.bus import NoBus
from services.runs.live import LiveHub
from services.runs.live.recent import CHUNK_BYTES, RUN_BYTES, RecentMemory
from services.runs.log import SegmentLog
from services.runs.segmenting import Packer, Tail
from tests.runs.live.runlog import RunLog, events_of, open_log, settled, watched

SEGMENT_BYTES = 200_000


@pytest.fixture
async def log(tmp_path: Path) -> AsyncGenerator[SegmentLog]:
    async with open_log(tmp_path) as log:
        yield log


async def test_i14_slow_watcher_bounded(log: SegmentLog) -> None:
    memory = RecentMemory()
    hub = LiveHub(log, NoBus(), executes_here=lambda _: True, memory=memory)
    run = RunLog(log)
    stuck = [hub.watch_packed("r", 0) for _ in range(10)]
    first = await run.append(1)
    assert [await anext(watcher) for watcher in stuck] == [first.packed] * 10  # and then they stop reading
    fast = asyncio.create_task(_count(hub))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    segments = 150
    for number in range(segments):
        hub.published("r", await run.append(1, text="x" * SEGMENT_BYTES, terminal=number == segments - 1))
        run.events.clear()
        assert memory.size <= RUN_BYTES
    # The one that reads is done while ten others stand still.
    assert await fast == run.last_sequence
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    held = RUN_BYTES + len(stuck) * (CHUNK_BYTES + SEGMENT_BYTES)
    assert after - before < held < segments * SEGMENT_BYTES / 2
    for watcher in stuck:
        seen = 1
        async for packed in watcher:
            assert len(packed) <= CHUNK_BYTES + SEGMENT_BYTES
            for event in events_of(packed):
                seen += 1
                assert event.sequence == seen
        assert seen == run.last_sequence
    assert (memory.size, hub.followed) == (0, 0)
    await hub.stop()


async def _count(hub: LiveHub) -> int:
    return len(await watched(hub))


async def test_i14_a_watcher_that_is_cancelled_in_the_middle_leaves_nothing(log: SegmentLog) -> None:
    memory = RecentMemory()
    hub = LiveHub(log, NoBus(), executes_here=lambda _: True, memory=memory)
    run = RunLog(log)
    watchers = [asyncio.create_task(watched(hub)) for _ in range(20)]
    await settled(lambda: hub.followed == 1)
    hub.published("r", await run.append(5))
    assert memory.size > 0
    for watcher in watchers:
        watcher.cancel()
    await asyncio.wait(watchers)
    assert (memory.size, hub.followed) == (0, 0)
    hub.published("r", await run.append(5))
    assert (memory.size, hub.followed) == (0, 0)  # nobody watches, nothing is kept
    await hub.stop()


async def test_nothing_grows_with_runs_that_are_over(log: SegmentLog) -> None:
    memory = RecentMemory()
    hub = LiveHub(log, NoBus(), executes_here=lambda _: True, memory=memory)
    for number in range(100):
        run = RunLog(log, f"r{number}")
        watcher = asyncio.create_task(watched(hub, run_id=run.run_id))
        await settled(lambda: hub.followed == 1)
        hub.published(run.run_id, await run.append(2, terminal=True))
        assert await watcher == run.events
        assert (memory.size, hub.followed) == (0, 0)
    await hub.stop()


async def test_i8_a_segment_is_visible_only_after_its_append(log: SegmentLog, tmp_path: Path) -> None:
    memory = RecentMemory()
    hub = LiveHub(log, NoBus(), executes_here=lambda _: True, memory=memory)
    packer = Packer("r", Tail())
    appender = RunAppender(
        log,
        hub,
        packer,
        run_id="r",
        run_generation=1,
        durable=Tail(),
        on_failure=lambda: pytest.fail("the append failed"),
    )
    watcher = asyncio.create_task(watched(hub))
    await settled(lambda: hub.followed == 1)
    other = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # nobody else can commit now
    packer.start(payload_pb2.RunStarted(harness_id="reference", agent_version=1, binding_id="b"), Timestamp())
    appender.kick()
    for _ in range(100):
        await asyncio.sleep(0)
        assert memory.size == 0
    other.execute("ROLLBACK")
    await appender.drain()
    assert memory.size > 0
    assert other.execute("SELECT count(*) FROM segments").fetchone() == (1,)
    draft = event_pb2.EventDraft(
        payload=payload_pb2.EventPayload(run_completed=payload_pb2.RunCompleted(stop_reason="end"))
    )
    packer.end(draft, "completed", Timestamp())
    appender.kick()
    await appender.drain()
    seen = await watcher
    stored = [
        event
        for (packed,) in other.execute("SELECT events FROM segments ORDER BY number")
        for event in events_of(packed)
    ]
    assert seen == [event.SerializeToString() for event in stored]  # I8: byte for byte what every replay shows
    assert await watched(hub) == seen
    other.close()
    await hub.stop()
