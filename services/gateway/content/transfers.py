"""Uploads and downloads of this process: how many at once, for how long, and what becomes of those that break off (REST API; I14, I35)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from services.common.errors import HarnessError, Reason
from services.gateway import metrics
from services.gateway.content.body import Body, Receive, too_large
from services.gateway.content.heads import announced_size, content_headers, media_type_of
from services.gateway.operations import Operation
from services.gateway.requests import Headers
from services.gateway.settings import GatewaySettings

LATE_SECONDS: Final = 5.0
"""How much longer than the body may take the answer to it may: what was received at the last moment is kept."""
PIECE_BYTES: Final = 65_536
"""Content is written in pieces of this size, so that a slow reader is told from one that does not read."""
RETRY_SECONDS: Final = 1.0
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Source(Protocol):
    """Where files are kept."""

    async def upload(
        self, operation: Operation, messages: AsyncIterator[Message], subject: str, *, timeout: float
    ) -> Any:
        """One call with a stream of messages."""
        ...

    def download(self, operation: Operation, request: Message, subject: str, *, timeout: float) -> Any:
        """The messages of a call."""
        ...


class Connection(Protocol):
    """What can be done to a connection beyond sending."""

    def abort(self) -> None:
        """Drops it with everything that is still to be written."""
        ...


class Transfers:
    """Every upload and download of this process."""

    def __init__(self, source: Source, settings: GatewaySettings) -> None:
        self._source = source
        self._settings = settings
        self._active = 0

    async def upload(
        self, operation: Operation, request: Message, subject: str, headers: Headers, receive: Receive
    ) -> Any:
        """The response, once the whole body is kept. Raises `HarnessError`, `Refused`, `ClientGone`."""
        settings = self._settings
        first: Any = request
        first.media_type = media_type_of(headers)
        size = announced_size(headers)
        if size is not None:
            if size > settings.max_file_bytes:
                raise too_large(settings.max_file_bytes)
            first.size = size
        body = Body(
            receive,
            first,
            max_bytes=settings.max_file_bytes,
            seconds=settings.file_transfer_seconds,
            seconds_of_a_piece=settings.body_timeout_seconds,
        )
        with self._one():
            return await self._sent(operation, body, subject)

    async def _sent(self, operation: Operation, body: Body, subject: str) -> Any:
        timeout = self._settings.file_transfer_seconds + LATE_SECONDS
        sending = asyncio.ensure_future(self._source.upload(operation, body.messages(), subject, timeout=timeout))
        reading = asyncio.ensure_future(body.read())
        try:
            # Who refuses the file does not wait for the rest of it. Who goes away before the end of it takes the call along, and nothing is kept.
            await asyncio.wait((sending, reading), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                reading.result()
            return await sending
        finally:
            reading.cancel()
            sending.cancel()
            await asyncio.gather(reading, sending, return_exceptions=True)
            body.end()

    async def download(
        self, operation: Operation, request: Message, subject: str, send: Send, connection: Connection
    ) -> None:
        """Answers with the content. Raises `HarnessError` only before the answer has begun; one that breaks off later is shorter than it says."""
        with self._one():
            timeout = self._settings.file_transfer_seconds
            messages = self._source.download(operation, request, subject, timeout=timeout)
            async with aclosing(messages):
                first = await anext(messages)
                await send({"type": "http.response.start", "status": 200, "headers": list(content_headers(first.file))})
                try:
                    async with asyncio.timeout(timeout):
                        await self._write(first.chunk, send)
                        async for message in messages:
                            await self._write(message.chunk, send)
                        await send({"type": "http.response.body", "body": b"", "more_body": False})
                except (HarnessError, TimeoutError):
                    # Also of a reader that does not read: a connection that is only closed would wait for it with what it has not taken.
                    metrics.BROKEN_DOWNLOADS.inc()
                    connection.abort()

    async def _write(self, chunk: bytes, send: Send) -> None:
        for start in range(0, len(chunk), PIECE_BYTES):
            async with asyncio.timeout(self._settings.stream_stall_seconds):
                await send(
                    {"type": "http.response.body", "body": chunk[start : start + PIECE_BYTES], "more_body": True}
                )

    @contextmanager
    def _one(self) -> Generator[None]:
        if self._active >= self._settings.max_file_transfers:
            raise HarnessError(
                Reason.CAPACITY,
                f"All {self._settings.max_file_transfers} transfers of files are in use; try again.",
                retry_after=RETRY_SECONDS,
            )
        self._active += 1
        metrics.TRANSFERS.inc()
        try:
            yield
        finally:
            self._active -= 1
            metrics.TRANSFERS.dec()
