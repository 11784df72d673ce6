"""Appends and seals on the real log: one writer at a time, durable before visible (I7, I8, I10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from harness.event.v1 import event_pb2
from harness.run.v1 import run_service_pb2
from services.common.clock import SystemClock
from services.common.store import StoreUnavailable, open_record_store
from services.runs.appending import Fenced, RunAppender
from services.runs.held import Halt, HeldRun
from services.runs.log import Appended, DuplicateSegment, SegmentHeader, SegmentLog, open_segment_log
from services.runs.sealing import seal
from services.runs.segment import Segment
from services.runs.segmenting import Packer, Tail
from services.runs.store import RUNS
from tests.runs.test_domain_rules import RUNNING
from tests.runs.test_segmenting import batch, completed, content, started

TIME = Timestamp(seconds=1)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[SegmentLog]:
    store = await open_record_store(f"sqlite://{tmp_path}/runs.sqlite3", [RUNS])
    yield await open_segment_log(store)
    await store.close()


class Watchers:
    """Takes what is published, and looks whether it is durable at that moment."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []

    def published(self, run_id: str, segment: Segment) -> None:
        self.segments.append(segment)


def appender(log: SegmentLog, packer: Packer, watchers: Watchers, generation: int, tail: Tail) -> RunAppender:
    return RunAppender(
        log,
        watchers,
        packer,
        run_id="r",
        run_generation=generation,
        durable=tail,
        on_failure=lambda: None,
    )


def pack(packer: Packer, *drafts: event_pb2.EventDraft) -> None:
    packer.pack(batch(packer.offset + 1, *drafts), TIME)


async def test_i8_what_is_published_is_durable_and_the_same_bytes(log: SegmentLog) -> None:
    packer, watchers = started(Packer("r", Tail())), Watchers()
    writer = appender(log, packer, watchers, 1, Tail())
    for word in ("a", "b", "c"):
        pack(packer, content(word))
        await writer.drain()
    packer.end(completed(), "completed", TIME)
    await writer.drain()
    logged = [Segment.from_log(segment) for segment in await log.read("r", 0)]
    assert logged == watchers.segments
    assert [segment.terminal for segment in logged] == [False, False, False, True]
    assert writer.durable_offset == 3


async def test_one_append_gathers_what_comes_while_another_is_in_flight(log: SegmentLog) -> None:
    packer, watchers = started(Packer("r", Tail())), Watchers()
    writer = appender(log, packer, watchers, 1, Tail())
    writer.kick()
    for number in range(50):
        pack(packer, content(str(number)))
        writer.kick()
    await writer.drain()
    assert len(watchers.segments) <= 2
    assert watchers.segments[-1].last_sequence == 51


async def test_i10_a_sealed_log_takes_nothing_from_the_old_holder(log: SegmentLog) -> None:
    old_packer, watchers = started(Packer("r", Tail())), Watchers()
    old = appender(log, old_packer, watchers, 1, Tail())
    pack(old_packer, content("durable"))
    await old.drain()
    tail = await seal(log, "r", 2)
    assert (tail.last_sequence, tail.through_offset, tail.index) == (2, 1, 2)
    pack(old_packer, content("late"))
    with pytest.raises(Fenced):
        await old.drain()
    with pytest.raises(Fenced):
        await old.drain()
    new_packer = Packer("r", tail)
    new = appender(log, new_packer, watchers, 2, tail)
    pack(new_packer, content("again"))
    new_packer.end(completed(), "completed", TIME)
    await new.drain()
    texts = [
        event.payload.content_delta.text
        for segment in watchers.segments
        for event in _events(segment)
        if event.payload.HasField("content_delta")
    ]
    assert texts == ["durable", "again"]
    assert [s.first_sequence for s in watchers.segments[1:]] == [s.last_sequence + 1 for s in watchers.segments[:-1]]


async def test_i10_an_old_holder_cannot_seal_and_a_terminal_ends_the_quarrel(log: SegmentLog) -> None:
    await seal(log, "r", 3)
    with pytest.raises(Fenced):
        await seal(log, "r", 2)
    tail = await seal(log, "r", 4)
    packer, watchers = Packer("r", tail), Watchers()
    writer = appender(log, started(packer), watchers, 4, tail)
    packer.end(completed(), "completed", TIME)
    await writer.drain()
    found = await seal(log, "r", 5)
    assert (found.terminal_status, found.last_sequence) == ("completed", 2)
    header = await log.tail("r")
    assert header is not None
    assert header.run_generation == 4


async def test_an_append_whose_answer_was_lost_is_recognised_by_its_own_nonce(log: SegmentLog) -> None:
    class AnswerLost:
        """The real log, but the answer to the first append does not arrive."""

        def __init__(self) -> None:
            self.lose = True

        def __getattr__(self, name: str) -> Any:
            return getattr(log, name)

        async def append(self, header: SegmentHeader, events: bytes) -> Appended | DuplicateSegment:
            outcome = await log.append(header, events)
            if self.lose:
                self.lose = False
                raise StoreUnavailable("the answer was lost")
            return outcome

    packer, watchers = started(Packer("r", Tail())), Watchers()
    losing: Any = AnswerLost()
    writer = appender(losing, packer, watchers, 1, Tail())
    pack(packer, content("once"))
    await writer.drain()
    pack(packer, content("twice"))
    await writer.drain()
    assert [segment.last_sequence for segment in watchers.segments] == [2, 3]
    assert len(await log.headers("r")) == 2


async def test_a_stopped_writer_appends_nothing_more(log: SegmentLog) -> None:
    packer, watchers = started(Packer("r", Tail())), Watchers()
    writer = appender(log, packer, watchers, 1, Tail())
    await writer.stop()
    pack(packer, content("late"))
    writer.kick()
    with pytest.raises(Fenced):
        await writer.drain()
    assert await log.tail("r") is None


async def test_i10_a_lost_lease_ends_an_append_that_is_repeated_while_the_store_is_away() -> None:
    class Away:
        """A log whose store never answers."""

        def __init__(self) -> None:
            self.asked = asyncio.Event()

        async def append(self, header: SegmentHeader, events: bytes) -> Appended | DuplicateSegment:
            self.asked.set()
            raise StoreUnavailable("away")

    away = Away()
    parts: Any = SimpleNamespace(
        settings=SimpleNamespace(lease_ttl_seconds=5.0), clock=SystemClock(), log=away, publisher=Watchers()
    )
    held = HeldRun(parts, RUNNING, run_service_pb2.StartRunRequest(), None, Tail())
    # It is being ended already, so nobody looks at a further reason to stop.
    held.halt(Halt.INTENT)
    held.packer.end(completed(), "completed", TIME)
    drained = asyncio.ensure_future(held.appender.drain())
    await away.asked.wait()
    held.halt(Halt.LOST)
    async with asyncio.timeout(90):
        with pytest.raises(Fenced):
            await drained


def _events(segment: Segment) -> list[event_pb2.Event]:
    return list(run_service_pb2.WatchRunResponse.FromString(segment.packed).events)
