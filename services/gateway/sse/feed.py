"""One run's upstream watch, shared by its subscribers."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from harness.event.v1 import event_pb2
from harness.run.v1 import run_pb2
from services.common.errors import HarnessError, Reason
from services.common.logs import get_logger, log_incident
from services.gateway import metrics
from services.gateway.encodings import Encoding
from services.gateway.event_view import is_terminal
from services.gateway.sse.patience import Patience, may_succeed_later
from services.gateway.sse.restoring import Restorer
from services.gateway.sse.ring import Part, Ring

WRITE_BYTES = 131_072
# With many subscribers, events of a few milliseconds share one write to each: a write costs far more than an event in it.
SECONDS_PER_SUBSCRIBER = 50e-6
MAX_PAUSE_SECONDS = 0.04
FEW_SUBSCRIBERS = 20
# A watch may be silent because the process behind it is stopped, which its connection shows late: whoever hears nothing asks the log now and then, and
# more and more seldom while that has nothing either.
POLL_SECONDS = 2.0
MAX_POLL_SECONDS = 30.0
POLL_ANSWER_SECONDS = 3.0
POLL_EVENTS = 256

ENDED = frozenset(
    (
        run_pb2.RUN_STATUS_COMPLETED,
        run_pb2.RUN_STATUS_INTERRUPTED,
        run_pb2.RUN_STATUS_FAILED,
        run_pb2.RUN_STATUS_CANCELLED,
    )
)
_log = get_logger(__name__)


class Source(Protocol):
    """What a feed needs of the runs service; `services.gateway.upstream` has it."""

    async def run(self, run_id: str, subject: str) -> Any: ...

    async def page(self, run_id: str, subject: str, after: int, limit: int) -> list[event_pb2.Event]: ...

    def watch(self, run_id: str, subject: str, after: int) -> AsyncGenerator[Sequence[event_pb2.Event]]: ...


class Reader(Protocol):
    """A subscriber as its feed sees it."""

    cursor: int

    def deliver(self, part: Part, last: bool) -> bool:
        """Writes at once and without waiting; False when that is not possible, and the subscriber goes on by itself."""
        ...

    def wake(self) -> None: ...


class Feed:
    """Watches a run from a cursor on and keeps its frames in one encoding in a ring, until its last subscriber leaves."""

    def __init__(
        self,
        source: Source,
        restorer: Restorer,
        encoding: Encoding,
        run_id: str,
        subject: str,
        after: int,
        *,
        ring_bytes: int,
        retry_seconds: float,
    ) -> None:
        self.source = source
        self.restorer = restorer
        self.encoding = encoding
        self.run_id = run_id
        self.subject = subject
        self._encoder = encoding.encoder()
        self.ring = Ring(after, ring_bytes, self._encoder.encode)
        self.readers = 0
        self.finished = False
        self.failure: HarnessError | None = None
        self.answered = asyncio.Event()
        """Set once the upstream gave events, its end, or a failure."""
        self.waiting: set[Reader] = set()
        """Those who have read everything and are written to by the feed itself."""
        self._ring_bytes = ring_bytes
        self._patience = Patience(retry_seconds)
        self._front = after
        self._room = asyncio.Event()
        self._flushed_at = 0.0
        self._flush_task: asyncio.Task[None] | None = None
        self._poll_task: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._supervised(self._run()), name="feed")

    @property
    def over(self) -> bool:
        return self.finished or self.failure is not None

    @property
    def _has_room(self) -> bool:
        return self.ring.unread(self._front) <= self._ring_bytes // 2

    async def close(self) -> None:
        """Cancels the upstream watch and waits until it has ended."""
        tasks = [task for task in (self._task, self._flush_task, self._poll_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    def fail(self, error: HarnessError) -> None:
        """Ends the feed; subscribers are closed, their clients resume with their cursor."""
        if not self.over:
            self.failure = error
            self._ended()

    def reached(self, cursor: int) -> None:
        """A subscriber is at a cursor, however it came there; the furthest of them decides how far the feed reads on."""
        if cursor > self._front:
            self._front = cursor
            self._room.set()

    async def _supervised(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except HarnessError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 - logged; the subscribers are closed and resume
            incident_id = log_incident(_log, "feed_failed", error)
            self.fail(HarnessError(Reason.INTERNAL, f"Internal error. Incident id: {incident_id}"))

    async def _run(self) -> None:
        await self.restorer.bring(self._encoder, self.run_id, self.subject, self.ring.head)
        self._poll_task = asyncio.create_task(self._supervised(self._poll()), name="feed-poll")
        while not self.finished:
            try:
                await self._watch()
                if not self.finished and await self._has_ended():
                    self.finished = True
                    self._ended()
            except HarnessError as error:
                if not may_succeed_later(error):
                    raise
                if not await self._patience.wait():
                    raise
                metrics.RECONNECTS.inc()
            else:
                if not self.finished and not await self._patience.wait():
                    raise HarnessError(Reason.UNAVAILABLE, "The run's events cannot be followed now; resume later.")

    async def _watch(self) -> None:
        async with aclosing(self.source.watch(self.run_id, self.subject, self.ring.head)) as batches:
            async for events in batches:
                if not self._take(events):
                    return
                self._patience.reset()
                if self.finished:
                    return
                await self._wait_for_room()

    async def _poll(self) -> None:
        """Takes from the log what the watch should have brought (run protocol, Read: idle watchers poll the log slowly)."""
        pause = POLL_SECONDS
        while not self.over:
            head = self.ring.head
            await asyncio.sleep(pause)
            if self.ring.head == head:
                while self._has_room and await self._take_from_log():
                    continue
            pause = min(pause * 2, MAX_POLL_SECONDS) if self.ring.head == head else POLL_SECONDS

    async def _take_from_log(self) -> bool:
        """Whether the log had something that the watch has not brought by now."""
        try:
            async with asyncio.timeout(POLL_ANSWER_SECONDS):
                events = await self.source.page(self.run_id, self.subject, self.ring.head, POLL_EVENTS)
        except (HarnessError, TimeoutError) as error:
            # What is to be done about trouble the watch decides, which has the same.
            _log.debug("feed_poll_failed", run_id=self.run_id, error=type(error).__name__)
            return False
        before = self.ring.head
        return bool(events) and not self.over and self._take(events) and self.ring.head > before

    async def _has_ended(self) -> bool:
        run = await self.source.run(self.run_id, self.subject)
        return run.status in ENDED and run.last_sequence <= self.ring.head

    def _take(self, events: Sequence[event_pb2.Event]) -> bool:
        """Encodes what is new; False when something is missing between, and the log must be asked again (I7)."""
        if events[0].sequence != self.ring.head + 1:
            events = [event for event in events if event.sequence > self.ring.head]
            if not events:
                return True
            if events[0].sequence != self.ring.head + 1:
                return False
        metrics.EVENTS.inc(self.ring.put(events))
        if is_terminal(events[-1]):
            self.finished = True
        self.answered.set()
        self._flush_soon()
        return True

    async def _wait_for_room(self) -> None:
        # I14, I35: nobody has read what is there, so nothing more is read from upstream. Only the fastest counts: slower ones delay nobody.
        while not self._has_room:
            self._room.clear()
            await self._room.wait()

    def _flush_soon(self) -> None:
        count = len(self.waiting)
        if self.finished or count <= FEW_SUBSCRIBERS:
            self._flush()
            return
        if self._flush_task is not None and not self._flush_task.done():
            return
        pause = min(count * SECONDS_PER_SUBSCRIBER, MAX_PAUSE_SECONDS)
        wait = self._flushed_at + pause - asyncio.get_running_loop().time()
        if wait <= 0:
            self._flush()
        else:
            self._flush_task = asyncio.create_task(self._flush_later(wait), name="feed-flush")

    async def _flush_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._flush()

    def _flush(self) -> None:
        """Writes to everybody who waits; who cannot take it now leaves the waiting and goes on by itself."""
        self._flushed_at = asyncio.get_running_loop().time()
        head, written = self.ring.head, 0
        shared: dict[int, Part | None] = {}
        for reader in list(self.waiting):
            cursor = reader.cursor
            if cursor >= head:
                continue
            if cursor not in shared:
                shared[cursor] = self.ring.read(cursor, WRITE_BYTES)
            part = shared[cursor]
            if part is not None and reader.deliver(part, self.finished and part.cursor >= head):
                written += 1
                self.reached(part.cursor)
                if part.cursor >= head:
                    continue
            self.waiting.discard(reader)
            reader.wake()
        metrics.DELIVERIES.inc(written)
        if self.finished:
            self._ended()

    def _ended(self) -> None:
        self.answered.set()
        waiting, self.waiting = self.waiting, set()
        for reader in waiting:
            reader.wake()
