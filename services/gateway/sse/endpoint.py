"""`GET /api/v1/runs/{run_id}/events/stream`: who may follow a run, from where, and how the stream ends (REST API)."""

import asyncio
from typing import Any

from services.common.errors import HarnessError, Reason
from services.gateway import metrics
from services.gateway.encodings import CANONICAL, Encoding
from services.gateway.settings import GatewaySettings
from services.gateway.sse.feed import ENDED, Feed, Source
from services.gateway.sse.restoring import Restorer
from services.gateway.sse.subscriber import Connection, Send, Subscriber

ANSWER_SECONDS = 0.2
"""How long a stream from the start waits for its watch before it asks runs who may see the run: a queued run's stream begins that much later."""
_Key = tuple[str, str, int]
_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)


class Streams:
    """Every stream of this process: feeds by run and encoding, and the bound on subscribers."""

    def __init__(self, source: Source, settings: GatewaySettings) -> None:
        self._source = source
        self._settings = settings
        self._restorer = Restorer(source, settings.stream_retry_seconds)
        self._feeds: dict[_Key, Feed] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._subscribers: set[Subscriber] = set()
        self._active = 0
        self._stopping = False

    async def serve(self, request: Any, subject: str, send: Send, connection: Connection) -> None:
        """Answers one subscriber from start to end. Raises `HarnessError` only before the answer has begun."""
        if self._stopping:
            raise _stopping()
        if self._active >= self._settings.max_streams:
            raise HarnessError(
                Reason.CAPACITY,
                f"All {self._settings.max_streams} event streams are in use; try again.",
                retry_after=2.0,
            )
        self._active += 1
        metrics.STREAMS.inc()
        try:
            await self._serve(request, subject, send, connection)
        finally:
            self._active -= 1
            metrics.STREAMS.dec()

    async def _serve(self, request: Any, subject: str, send: Send, connection: Connection) -> None:
        run_id, after, encoding = request.run_id, request.after, CANONICAL
        protocol = request.protocol or encoding.protocol
        # From the start of a run the watch is opened before anything is known of the caller: it is made for the caller's subject, so what runs answers to
        # it says as well whether the caller may see the run, and saves the question. Other encodings need to know the run's conversation.
        feed = self._join(run_id, subject, 0, encoding) if after == 0 and protocol == encoding.protocol else None
        try:
            last_sequence = 1
            if feed is None or not await _answers_soon(feed):
                # I2: every subscriber is authorised by runs, for its own subject, before it is told anything.
                run = await self._source.run(run_id, subject)
                last_sequence = run.last_sequence
                if protocol != encoding.protocol:
                    encoding = Encoding(protocol, run.conversation_id)
                if run.status in ENDED and after >= last_sequence:
                    await _start(send)
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    return
            if feed is None:
                feed = self._join(run_id, subject, min(after, last_sequence), encoding)
            subscriber = self._subscriber(feed, after, send, connection)
            if after < last_sequence:
                # There are events after the cursor, or were: which of both decides the status.
                await subscriber.prepare()
            await self._follow(subscriber, send)
        finally:
            if feed is not None:
                self._leave(feed)

    def _subscriber(self, feed: Feed, after: int, send: Send, connection: Connection) -> Subscriber:
        settings = self._settings
        return Subscriber(
            feed,
            send,
            connection,
            after,
            keep_alive=settings.stream_keep_alive_seconds,
            stall=settings.stream_stall_seconds,
            retry=settings.stream_retry_seconds,
        )

    async def _follow(self, subscriber: Subscriber, send: Send) -> None:
        if self._stopping:
            raise _stopping()
        self._subscribers.add(subscriber)
        try:
            await _start(send)
            try:
                await subscriber.follow()
            except (HarnessError, TimeoutError):
                # The answer has begun, so its early end is all that can be said; the client resumes with its cursor.
                metrics.ABANDONED.inc()
            if not subscriber.complete:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._subscribers.discard(subscriber)

    def _join(self, run_id: str, subject: str, start: int, encoding: Encoding) -> Feed:
        # A run has one owner, so the subject in the key separates nobody who may see it, and keeps everybody else apart.
        key = (run_id, subject, encoding.protocol)
        feed = self._feeds.get(key)
        if feed is None or feed.failure is not None:
            feed = self._feeds[key] = Feed(
                self._source,
                self._restorer,
                encoding,
                run_id,
                subject,
                start,
                ring_bytes=self._settings.stream_ring_bytes,
                retry_seconds=self._settings.stream_retry_seconds,
            )
            metrics.FEEDS.inc()
        feed.readers += 1
        return feed

    def _leave(self, feed: Feed) -> None:
        feed.readers -= 1
        if feed.readers:
            return
        key = (feed.run_id, feed.subject, feed.encoding.protocol)
        if self._feeds.get(key) is feed:
            del self._feeds[key]
        metrics.FEEDS.dec()
        closing = asyncio.create_task(feed.close(), name="feed-close")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """I33: no new streams; those open end now, and their clients resume elsewhere with their cursor."""
        self._stopping = True
        for feed in list(self._feeds.values()):
            feed.fail(_stopping())
        for subscriber in list(self._subscribers):
            subscriber.stop()
        if self._closing:
            await asyncio.wait(self._closing)


def _stopping() -> HarnessError:
    return HarnessError(Reason.UNAVAILABLE, "The gateway is stopping; try again.", retry_after=1.0)


async def _answers_soon(feed: Feed) -> bool:
    """Whether the watch answers before it would be quicker to ask. A run that waits for its turn says nothing for long."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await feed.answered.wait()
    except TimeoutError:
        return False
    return True


async def _start(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
