"""Watching, paging and waiting for runs, and telling whoever does (run protocol, Read; I7, I8, I14)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from typing import Final, TypeVar

from harness.run.v1 import run_service_pb2
from services.common.errors import HarnessError, Reason
from services.common.logs import get_logger
from services.common.store import StoreError
from services.common.tasks import BackgroundTasks
from services.runs.bus.port import LiveBus, Notice
from services.runs.live import metrics
from services.runs.live.follower import Follower
from services.runs.live.packed import drop_first, take_first
from services.runs.live.recent import CHUNK_BYTES, Chunk, RecentMemory, chunk_after
from services.runs.log.port import MAX_READ_SEGMENTS, SegmentHeader, SegmentLog
from services.runs.segment import Segment

PAGE_BYTES: Final = 1 << 20
"""A page ends at about this many bytes of events; its first event always comes."""
MAX_PAGE_EVENTS: Final = 1000
MAX_SEQUENCE: Final = (1 << 31) - 1
"""No log reaches this; a cursor beyond it is as good as this one."""
CATCH_UP_BYTES: Final = 1 << 20
POLL_SECONDS: Final = 1.5
"""Between two looks at the log of a followed run that is not executed here."""
POLLS_AT_ONCE: Final = 16
MAX_KEPT: Final = 512
"""Runs executed here whose events are kept though nobody watches yet (I35)."""
KEPT_BYTES: Final = 256 << 10
"""Of one of them, at most."""
T = TypeVar("T")
_log = get_logger(__name__)


def serialized(response: bytes | run_service_pb2.WatchRunResponse) -> bytes:
    """The `response_serializer` of a WatchRun handler whose servicer forwards `LiveHub.watch_packed` as it is."""
    return response if isinstance(response, bytes) else response.SerializeToString()


class LiveHub:
    """The read side of one process. One event loop; ownership of a run is checked by whoever calls.

    Every read follows the same order: follow the run first, then read the log, then go on with what is heard of. The bus and the slow poll
    only ever say that there is more to read, so a lost, doubled or late notice costs time and nothing else (I34).

    `executes_here` says whether a run is executed in this process now: its segments then come through `published` alone, no notice can
    be lost, and neither bus nor poll is asked about it. It may be a lambda over something that is made later. `has_ended` says whether a run
    is over, or gone: asked only where a log is empty; None where no log is ever deleted. `is_trimmed` says whether its events may be
    deleted already: asked only where a read found less than is known to be there; None where nothing but a deletion does that.
    """

    def __init__(
        self,
        log: SegmentLog,
        bus: LiveBus,
        *,
        executes_here: Callable[[str], bool],
        has_ended: Callable[[str], Awaitable[bool]] | None = None,
        is_trimmed: Callable[[str], Awaitable[bool]] | None = None,
        memory: RecentMemory | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._log = log
        self._bus = bus
        self._executes_here = executes_here
        self._has_ended = has_ended
        self._is_trimmed = is_trimmed
        self._memory = memory or RecentMemory()
        self._poll_seconds = poll_seconds
        self._followers: dict[str, Follower] = {}
        self._kept: OrderedDict[str, bool] = OrderedDict()
        """Followers that stay without a watcher; True: until the next look."""
        self._tasks = BackgroundTasks()
        self._stopping = False
        bus.listen(self.noticed)

    @property
    def followed(self) -> int:
        """Runs that somebody watches now."""
        return sum(1 for follower in self._followers.values() if follower.watchers)

    async def start(self) -> None:
        """Begin the slow poll. Call it once, before the first watch."""
        self._tasks.every("live_poll", self._poll_seconds, self.poll_once)

    async def stop(self) -> None:
        """End every watch with a retryable error and stop. For the service's `on_stop`, after runs were handed over; repeating it is harmless."""
        self._stopping = True
        for follower in self._followers.values():
            follower.wake()
        await self._tasks.close()

    # --- what is told ---

    def published(self, run_id: str, segment: Segment) -> None:
        """The segment is durable (I8): wake its watchers here and tell other replicas. Never blocks, never raises."""
        follower = self._followers.get(run_id) or self._kept_from_now(run_id, segment)
        if follower is not None:
            self._offer(follower, segment)
            if not follower.watchers and follower.recent.size > KEPT_BYTES:
                self._let_go(run_id)
        if not segment.is_seal:
            self._bus.publish(segment)

    def noticed(self, notice: Notice) -> None:
        """A notice came over the bus. Never blocks, never raises."""
        follower = self._followers.get(notice.run_id)
        if follower is None:
            self._bus.unfollow(notice.run_id)
            return
        if notice.segment is None:
            follower.hint(notice.last_sequence)
            self._catch_up_if_behind(follower)
        else:
            self._offer(follower, notice.segment)

    # --- what is asked ---

    async def watch_packed(self, run_id: str, after: int) -> AsyncGenerator[bytes, None]:
        """Serialized `WatchRunResponse`s with every event after the cursor, once, in order; ends after the terminal.

        A cursor at or past the end of a finished run ends at once. Past the end of a running one, it waits until the log has passed it.
        Nothing is decoded or queued here: what the caller has not asked for stays in the log, so a slow caller holds one message (I14).
        Errors: `cursor_expired` when the events after the cursor are deleted; `store_unavailable`; `unavailable` when the service stops:
        after both, watch again from the last event. Close the iterator (`aclosing`) to leave at once.
        """
        cursor = min(after, MAX_SEQUENCE)
        with self._following(run_id) as follower:
            await self._open(follower)
            while (chunk := await self._next(follower, cursor)) is not None:
                cursor = chunk.last_sequence
                yield chunk.packed

    async def watch(self, run_id: str, after: int) -> AsyncGenerator[run_service_pb2.WatchRunResponse, None]:
        """As `watch_packed`, decoded: for whoever reads the events in this process."""
        async with aclosing(self.watch_packed(run_id, after)) as chunks:
            async for packed in chunks:
                yield run_service_pb2.WatchRunResponse.FromString(packed)

    async def page(self, run_id: str, after: int, wait: float, limit: int) -> run_service_pb2.ListEventsResponse:
        """Up to `limit` (1–1,000) events after the cursor and about 1 MiB, without the run; `next_cursor` is where to go on.

        If there is none yet and the run has not ended, it waits up to `wait` seconds for one. Errors: as `watch_packed`.
        """
        cursor = min(after, MAX_SEQUENCE)
        limit = max(1, min(limit, MAX_PAGE_EVENTS))
        page = await self._read_page(run_id, cursor, limit)
        if page.events or wait <= 0:
            return page
        if await self._wait(run_id, wait, lambda follower: follower.known > cursor or follower.is_over(cursor)):
            return await self._read_page(run_id, cursor, limit)
        return page

    async def wait_terminal(self, run_id: str, timeout: float) -> bool:
        """Whether the run's terminal is in the log, waiting up to `timeout` seconds for it (I12). Errors: as `watch_packed`."""
        return await self._wait(run_id, timeout, lambda follower: follower.ended is not None)

    # --- following ---

    @contextmanager
    def _following(self, run_id: str) -> Generator[Follower]:
        follower = self._followers.get(run_id)
        if follower is None:
            follower = self._followers[run_id] = Follower(run_id, self._memory)
        if not follower.watchers:
            metrics.FOLLOWERS.inc()
        follower.watchers += 1
        metrics.WATCHERS.inc()
        try:
            yield follower
        finally:
            metrics.WATCHERS.dec()
            follower.watchers -= 1
            if not follower.watchers:
                metrics.FOLLOWERS.dec()
                self._bus.unfollow(run_id)
                if run_id not in self._kept:  # I14: nothing of another process's run outlives its last watcher
                    self._close(follower)
                elif follower.ended is None:
                    follower.opened = False  # it may go on elsewhere until somebody watches again

    def _close(self, follower: Follower) -> None:
        del self._followers[follower.run_id]
        follower.close()
        metrics.RECENT_BYTES.set(self._memory.size)

    # --- keeping for whoever comes soon ---

    def _kept_from_now(self, run_id: str, segment: Segment) -> Follower | None:
        """Who starts a short run and then watches it often comes after its end: a run that begins here is kept until a moment after that, watched or not,
        so that its first watcher needs no read.
        """
        if segment.first_sequence != 1 or segment.is_seal or not self._executes_here(run_id):
            return None
        if len(self._kept) >= MAX_KEPT:
            self._let_go(next(iter(self._kept)))
        self._kept[run_id] = False
        follower = self._followers[run_id] = Follower(run_id, self._memory)
        return follower

    def _let_go(self, run_id: str) -> None:
        """Keep the run no longer than somebody watches it."""
        del self._kept[run_id]
        follower = self._followers[run_id]
        if not follower.watchers:
            self._close(follower)

    def _let_go_of_old(self) -> None:
        for run_id, is_old in list(self._kept.items()):
            if is_old:
                self._let_go(run_id)
            else:
                self._kept[run_id] = not self._executes_here(run_id)

    async def _open(self, follower: Follower) -> None:
        async with follower.opening:
            if follower.opened or follower.ended is not None:  # I9: nothing follows the end
                return
            if not self._executes_here(follower.run_id):
                self._bus.follow(follower.run_id)
            follower.open(await _from_store(self._tail(follower.run_id)))
            self._catch_up_if_behind(follower)
            if follower.ended is not None:
                self._bus.unfollow(follower.run_id)

    async def _tail(self, run_id: str) -> SegmentHeader | None:
        """The log's end. Errors: `cursor_expired` for a log that was deleted after its watcher was let in: it would wait for ever."""
        tail, has_ended = await self._log.tail(run_id), self._has_ended
        if tail is None and has_ended and not self._executes_here(run_id) and await has_ended(run_id):
            # Once more, for the run may have begun and ended between the two reads.
            tail = await self._log.tail(run_id)
            if tail is None:
                raise _expired(0)
        return tail

    async def _next(self, follower: Follower, cursor: int) -> Chunk | None:
        """The next chunk after the cursor, from what is kept or from the log, as soon as there is one; None when none will ever come."""
        while not follower.is_over(cursor):
            self._check_running()
            chunk = follower.recent.after(cursor)
            if chunk is not None:
                return chunk
            if cursor < follower.known:
                return await self._read_for_watcher(follower, cursor)
            if follower.lost:
                raise _expired(cursor)
            await follower.changed.wait()
        return None

    async def _wait(self, run_id: str, seconds: float, done: Callable[[Follower], bool]) -> bool:
        with self._following(run_id) as follower:
            await self._open(follower)
            try:
                async with asyncio.timeout(seconds):
                    while not done(follower):
                        self._check_running()
                        if follower.lost:
                            raise _expired(follower.known)
                        await follower.changed.wait()
            except TimeoutError:
                return False
            return True

    def _check_running(self) -> None:
        if self._stopping:
            raise HarnessError(Reason.UNAVAILABLE, "The service is stopping: go on from the last event you have.")

    def _offer(self, follower: Follower, segment: Segment) -> None:
        follower.offer(segment)
        metrics.RECENT_BYTES.set(self._memory.size)
        self._catch_up_if_behind(follower)

    # --- reading the log ---

    async def _read_for_watcher(self, follower: Follower, cursor: int) -> Chunk:
        """The log is the memory of the slow: a watcher behind what is kept reads it itself, one step at a time (I14)."""
        metrics.READS_OF_WATCHERS.inc()
        segments = await self._read(follower.run_id, cursor, CHUNK_BYTES, MAX_READ_SEGMENTS)
        if not segments:
            raise await self._missing(follower.run_id, cursor)
        for segment in segments:
            self._offer(follower, segment)
        return chunk_after(segments, cursor)

    async def _read(self, run_id: str, cursor: int, max_bytes: int, limit: int) -> list[Segment]:
        """Consecutive segments without seals, the first of which contains cursor + 1. Errors: `cursor_expired`, `store_unavailable`."""
        logged = await _from_store(self._log.read(run_id, cursor, max_bytes=max_bytes, limit=limit))
        segments = [Segment.from_log(one) for one in logged if not one.header.is_seal]
        if segments and segments[0].first_sequence > cursor + 1:
            raise await self._missing(run_id, cursor)
        return segments

    async def _missing(self, run_id: str, cursor: int) -> HarnessError:
        """What it means that the log does not show an event that is known to have been there."""
        return _expired(cursor) if await _from_store(self._may_be_deleted(run_id)) else _unreadable()

    async def _may_be_deleted(self, run_id: str) -> bool:
        # I34: a store that answers from before an append has lost nothing.
        return self._is_trimmed is None or await self._is_trimmed(run_id)

    async def _read_page(self, run_id: str, cursor: int, limit: int) -> run_service_pb2.ListEventsResponse:
        page = run_service_pb2.ListEventsResponse(next_cursor=cursor)
        budget = PAGE_BYTES
        for segment in await self._read(run_id, cursor, PAGE_BYTES, limit):
            rest = drop_first(segment.packed, page.next_cursor + 1 - segment.first_sequence)
            taken, count = take_first(rest, limit - len(page.events), budget)
            if page.events and len(taken) > budget:
                break
            page.events.extend(run_service_pb2.WatchRunResponse.FromString(taken).events)
            page.next_cursor += count
            budget -= len(taken)
            if len(page.events) >= limit or budget <= 0 or len(taken) < len(rest):
                break
        return page

    def _catch_up_if_behind(self, follower: Follower) -> None:
        if follower.is_behind and follower.opened and not follower.catching_up and not self._stopping:
            follower.catching_up = True
            self._tasks.spawn("live_catch_up", self._catch_up(follower))

    async def _catch_up(self, follower: Follower) -> None:
        """A notice skipped ahead: read what lies between from the log, once for all watchers of the run."""
        try:
            while follower.is_behind and follower.watchers:
                metrics.READS_OF_FOLLOWERS.inc()
                wanted, known = follower.wanted, follower.known
                logged = await self._log.read(follower.run_id, known, max_bytes=CATCH_UP_BYTES)
                segments = [Segment.from_log(one) for one in logged if not one.header.is_seal]
                hole = bool(segments) and segments[0].first_sequence > follower.known + 1
                if hole and await self._may_be_deleted(follower.run_id):
                    follower.lose()  # I7: deleted in between, never skipped
                for segment in segments:
                    follower.offer(segment)
                if follower.known == known:
                    follower.give_up(wanted)
        except StoreError as error:
            # The slow poll asks again.
            _log.warning("live_catch_up_failed", run_id=follower.run_id, error=type(error).__name__)
        finally:
            follower.catching_up = False
            metrics.RECENT_BYTES.set(self._memory.size)

    # --- the slow poll ---

    async def poll_once(self) -> None:
        """Look at the log of every followed run of which a notice may have been lost (run protocol, Read: the last one may be)."""
        self._let_go_of_old()
        due = [follower for follower in self._followers.values() if self._must_poll(follower)]
        for first in range(0, len(due), POLLS_AT_ONCE):
            await asyncio.gather(*(self._poll_follower(follower) for follower in due[first : first + POLLS_AT_ONCE]))

    def _must_poll(self, follower: Follower) -> bool:
        if not follower.opened or follower.ended is not None or not follower.watchers:
            return False
        if self._executes_here(follower.run_id):
            self._bus.unfollow(follower.run_id)
            return follower.is_behind
        # It may have been executed here until now.
        self._bus.follow(follower.run_id)
        return True

    async def _poll_follower(self, follower: Follower) -> None:
        metrics.READS_OF_POLLS.inc()
        known = follower.known
        try:
            tail = await self._tail(follower.run_id)
            # I7: what was known before the log was asked. A run may have begun since, and the answer be from before that.
            deleted = tail is None and known > 0 and await self._may_be_deleted(follower.run_id)
        except StoreError as error:
            _log.warning("live_poll_failed", run_id=follower.run_id, error=type(error).__name__)
        except HarnessError:
            follower.lose()
        else:
            if tail is not None:
                follower.hint(tail.last_sequence)
                self._catch_up_if_behind(follower)
            elif deleted:  # there were events, and there are none: the run's retention is over
                follower.lose()


async def _from_store(work: Awaitable[T]) -> T:
    """What the store answers; its trouble as a retryable error (I34)."""
    try:
        return await work
    except StoreError as error:
        raise _unreadable() from error


def _unreadable() -> HarnessError:
    return HarnessError(Reason.STORE_UNAVAILABLE, "The event log cannot be read now: try again.", retry_after=1.0)


def _expired(cursor: int) -> HarnessError:
    return HarnessError(
        Reason.CURSOR_EXPIRED, f"The events after {cursor} are no longer kept: the run's retention is over."
    )
