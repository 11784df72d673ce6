"""uvicorn's HTTP protocol with the bounds it does not have: connections, request heads in bytes and seconds, requests that wait (I35)."""

# pyright: standard
# uvicorn's protocol classes are only partly typed.

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

Header = tuple[bytes, bytes]
MAX_PIPELINED: Final = 64
"""Requests of one connection that may wait for the answer of the one before; with more, those are answered and the connection is closed."""


class Fault(Enum):
    """Why a connection is refused before a request of it reaches the application."""

    ALL_CONNECTIONS_USED = auto()
    HEAD_TOO_LARGE = auto()
    NO_HTTP = auto()
    UPGRADE_WITH_BODY = auto()


class Answer(NamedTuple):
    """What is written before the connection is closed. `headers` have all that it takes, `connection: close` too."""

    status: int
    headers: Sequence[Header]
    body: bytes


@dataclass(frozen=True)
class Bounds:
    """`max_header_bytes`: of a request line with its headers. `header_seconds`: for a whole head, from the connection's beginning or the head's first byte."""

    max_connections: int
    max_header_bytes: int
    header_seconds: float


def has_body(headers: Sequence[Header]) -> bool:
    """Whether a head announces a body."""
    return any(
        (name == b"content-length" and value.strip(b"0 ") != b"") or name == b"transfer-encoding"
        for name, value in headers
    )


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. A subclass has the bounds, and how a fault is answered."""

    bounds: Bounds
    answer: Callable[[Fault], Answer]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unread_bytes = 0
        self._in_head = True
        self._deaf = False
        self._fault = Fault.NO_HTTP
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.bounds.max_connections:
            self._refuse(Fault.ALL_CONNECTIONS_USED)
        else:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():
            return
        if self._in_head and self._head_timer is None:
            self._arm()
        self._unread_bytes += len(data)
        super().data_received(data)
        # The parser collects a header (or a trailer) until its end, so what is unfinished is bounded here.
        if self._unread_bytes > self.bounds.max_header_bytes and not self.transport.is_closing():
            self._refuse(Fault.HEAD_TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        # The parser reports the trailers of a chunked body as headers, after the request was handed on: they are no part of its head,
        # and must never become its credential.
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._unread_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._unread_bytes = 0
        self._disarm()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.bounds.max_header_bytes:
            self._fault = Fault.HEAD_TOO_LARGE
            raise ValueError("head too large")  # stops the parser, which reports it to data_received
        if len(self.pipeline) >= MAX_PIPELINED:
            # I35: what waits is a hundred times larger than the bytes it came in.
            raise ValueError("too many requests at once")
        parser: Any = self.parser
        if parser.should_upgrade() and has_body(self.headers):
            # The parser does not read the body of such a request, and would take what comes of it later for the next one.
            self._fault = Fault.UPGRADE_WITH_BODY
            raise ValueError("upgrade with a body")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True
        self._unread_bytes = 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._abort_unless_taken()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        async def played(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, send)
            finally:
                # Behind uvicorn, which closes the connection of an answer that has no end.
                self.loop.call_soon(self._abort_unless_taken)

        super()._start_asgi_task(cycle, played)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_unless_taken()

    def _abort_unless_taken(self) -> None:
        # I35: a transport that is closed with something still to be written waits for its reader, for ever if need be.
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self.loop.call_later(self.bounds.header_seconds, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for whatever is no HTTP; answered like anything else."""
        self._refuse(self._fault)

    def _refuse(self, fault: Fault) -> None:
        self._disarm()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started:
                # An answer is being written: nothing may come between.
                self.transport.abort()
                return
            if not cycle.more_body:
                # The whole requests before this one still get their answers, which this refusal would be taken for; then it is closed.
                self._deaf = True
                cycle.keep_alive = False
                return
        status, headers, body = type(self).answer(fault)
        lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in headers), b"\r\n", body]
        self.transport.write(b"".join(lines))
        self.transport.close()
        self._abort_unless_taken()

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(self.bounds.header_seconds, self._head_out_of_time)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_out_of_time(self) -> None:
        self._head_timer = None
        # While an answer is being written the client may say what it likes; the time between two requests is uvicorn's to watch.
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
