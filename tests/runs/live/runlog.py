"""A run's log as an executor writes it, and what watchers are expected to see of it. Everything is stored in a real SQLite file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from harness.event.v1 import event_pb2
from harness.run.v1 import run_service_pb2
from services.common.store import Collection, open_record_store
from services.runs.live import LiveHub
from services.runs.log import Appended, SegmentHeader, SegmentLog, open_segment_log
from services.runs.segment import TERMINAL, Segment


@asynccontextmanager
async def open_log(folder: Path) -> AsyncGenerator[SegmentLog]:
    """The log in this folder; several may be open at once, as in several replicas."""
    store = await open_record_store(f"sqlite://{folder}/runs.db", [Collection("runs")])
    try:
        yield await open_segment_log(store)
    finally:
        await store.close()


class RunLog:
    """Appends consecutive segments of one run."""

    def __init__(self, log: SegmentLog, run_id: str = "r") -> None:
        self._log = log
        self.run_id = run_id
        self.index = 0
        self.last_sequence = 0
        self.events: list[bytes] = []
        """Every event so far, as it is stored: the truth that each watcher has to see (I8)."""

    async def append(self, count: int, *, terminal: bool = False, text: str = "x") -> Segment:
        """A segment of `count` events, durable when this returns and told to nobody."""
        response = run_service_pb2.WatchRunResponse()
        for sequence in range(self.last_sequence + 1, self.last_sequence + 1 + count):
            event = response.events.add(version=1, run_id=self.run_id, sequence=sequence)
            event.payload.content_delta.text = text
        if terminal:
            response.events[-1].payload.run_completed.SetInParent()
        segment = Segment(
            self.run_id,
            self.index + 1,
            self.last_sequence + 1,
            self.last_sequence + count,
            terminal,
            response.SerializeToString(),
        )
        await self._store(segment)
        self.events += [event.SerializeToString() for event in response.events]
        return segment

    async def seal(self) -> Segment:
        """A seal, as another executor leaves it."""
        segment = Segment(self.run_id, self.index + 1, self.last_sequence + 1, self.last_sequence, False, b"")
        await self._store(segment)
        return segment

    async def _store(self, segment: Segment) -> None:
        state = {TERMINAL: True} if segment.terminal else {}
        header = SegmentHeader(
            self.run_id, segment.index, segment.first_sequence, segment.last_sequence, 1, f"n{segment.index}", state
        )
        assert await self._log.append(header, segment.packed) == Appended()
        self.index = segment.index
        self.last_sequence = segment.last_sequence


def events_of(packed: bytes) -> list[event_pb2.Event]:
    return list(run_service_pb2.WatchRunResponse.FromString(packed).events)


async def watched(hub: LiveHub, after: int = 0, run_id: str = "r", until: int | None = None) -> list[bytes]:
    """What a watcher sees to its end, or up to a sequence, each event as bytes; checks the order on the way (I7)."""
    seen: list[bytes] = []
    cursor = after
    async with aclosing(hub.watch_packed(run_id, after)) as chunks:
        async for packed in chunks:
            for event in events_of(packed):
                cursor += 1
                assert event.sequence == cursor
                seen.append(event.SerializeToString())
            if until is not None and cursor >= until:
                break
    return seen


async def settled(condition: Callable[[], bool]) -> None:
    """Wait until something is so that nothing signals."""
    while not condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.001)
