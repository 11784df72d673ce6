"""One subscriber: a cursor into its feed, never a queue (I14)."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from services.common.errors import HarnessError, Reason
from services.gateway import metrics
from services.gateway.sse.feed import WRITE_BYTES, Feed
from services.gateway.sse.patience import Patience, may_succeed_later
from services.gateway.sse.ring import Part, Ring

FIRST_PAGE_EVENTS = 64
MAX_PAGE_EVENTS = 1_000
KEEP_ALIVE = b": keep-alive\n\n"
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Connection(Protocol):
    """The subscriber's connection; `services.gateway.http_protocol` has it."""

    @property
    def writable(self) -> bool:
        """Whether a send would return at once."""
        ...

    def abort(self) -> None:
        """Drops the connection with everything that is still to be written."""
        ...


class Subscriber:
    """Follows its feed to the end of the run: by the ring while it keeps up, by pages of the log when it fell out of it.

    While it has read everything, the feed writes to it directly, without waking a task; a write that would have to wait is always done here.
    """

    def __init__(
        self,
        feed: Feed,
        send: Send,
        connection: Connection,
        cursor: int,
        *,
        keep_alive: float,
        stall: float,
        retry: float,
    ) -> None:
        self.feed = feed
        self.cursor = cursor
        self.complete = False
        """The answer was ended."""
        self._send = send
        self._connection = connection
        self._keep_alive = keep_alive
        self._stall = stall
        self._retry = retry
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._written_at = self._loop.time()
        self._page: Part | None = None
        self._page_events = FIRST_PAGE_EVENTS
        self._encoder = feed.encoding.encoder()
        """For pages of the log; it stands where the last of them ended."""

    def wake(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """The process stops: a subscriber that does not read is dropped, others end their answer."""
        if not self._connection.writable:
            self._connection.abort()

    async def prepare(self) -> None:
        """Makes sure that there is something to read after the cursor. Raises what the client must hear instead of a stream (`cursor_expired`)."""
        await self.feed.answered.wait()
        if self.feed.failure is not None:
            raise self.feed.failure
        if self.cursor < self.feed.ring.kept_after:
            self._page = await self._read_log()

    def deliver(self, part: Part, last: bool) -> bool:
        """Called by the feed: the send runs to its end without waiting, which holds as long as the connection is writable."""
        if not part.body and not last:
            # Its encoding shows nothing of these events. No write, so that the keep-alive still counts the silence.
            self.cursor = part.cursor
            return True
        if not self._connection.writable:
            return False
        step = self._send({"type": "http.response.body", "body": part.body, "more_body": not last}).__await__()
        try:
            next(step)
        except StopIteration:
            self.cursor = part.cursor
            self.complete = last
            self._written_at = self._loop.time()
            return True
        # It would have waited, although it was asked before: only a defect of the server could do that.
        self._connection.abort()
        return False

    async def follow(self) -> None:
        """Sends frames until the run, the feed or the process ends. Returns with the answer ended."""
        feed = self.feed
        while not self.complete:
            feed.reached(self.cursor)
            if feed.failure is not None:
                metrics.ABANDONED.inc()
                await self._write(b"", last=True)
            elif self._page is not None:
                await self._write_part(self._page)
                self._page = None
            elif self.cursor < feed.ring.head:
                part = feed.ring.read(self.cursor, WRITE_BYTES)
                if part is None:
                    metrics.FALLBACKS.inc()
                    self._page = await self._read_log()
                else:
                    await self._write_part(part)
            elif feed.finished:
                await self._write(b"", last=True)
            else:
                await self._wait()

    async def _wait(self) -> None:
        self._wake.clear()
        self.feed.waiting.add(self)
        try:
            while not self._wake.is_set():
                silence = self._loop.time() - self._written_at
                if silence >= self._keep_alive:
                    if self._connection.writable:
                        await self._write(KEEP_ALIVE, last=False)
                    self._written_at, silence = self._loop.time(), 0.0
                try:
                    async with asyncio.timeout(self._keep_alive - silence):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            self.feed.waiting.discard(self)

    async def _write_part(self, part: Part) -> None:
        await self._write(part.body, last=self.feed.finished and part.cursor >= self.feed.ring.head)
        self.cursor = part.cursor

    async def _write(self, body: bytes, *, last: bool) -> None:
        if not body and not last:
            return
        message = {"type": "http.response.body", "body": body, "more_body": not last}
        if self._connection.writable:
            await self._send(message)
        else:
            try:
                async with asyncio.timeout(self._stall):
                    await self._send(message)
            except TimeoutError:
                # I14, I35: it has read nothing for that long; what it did not take is dropped with the connection.
                self._connection.abort()
                raise
        metrics.DELIVERIES.inc()
        self._written_at = self._loop.time()
        self.complete = last

    async def _read_log(self) -> Part:
        """The next page of the log, up to where the feed is."""
        patience = Patience(self._retry)
        feed = self.feed
        await feed.restorer.bring(self._encoder, feed.run_id, feed.subject, self.cursor)
        while True:
            try:
                events = await feed.source.page(feed.run_id, feed.subject, self.cursor, self._page_events)
                break
            except HarnessError as error:
                if not may_succeed_later(error) or not await patience.wait():
                    raise
        events = [event for event in events if event.sequence <= feed.ring.head]
        # I7: a hole is never shown; the client resumes at its cursor.
        if not events or events[0].sequence != self.cursor + 1:
            raise HarnessError(Reason.UNAVAILABLE, "The run's log cannot be read now; resume later.")
        page = Ring(self.cursor, sys.maxsize, self._encoder.encode)
        page.put(events)
        # I14: a page waits in memory for a subscriber that may never take it, so pages are as large as one write.
        self._page_events = max(1, min(WRITE_BYTES * len(events) // max(1, page.total), MAX_PAGE_EVENTS))
        part = page.read(self.cursor, sys.maxsize)
        if part is None:
            raise AssertionError("a new ring holds what was put in")
        return part
