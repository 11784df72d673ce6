"""uvicorn's HTTP protocol with the bounds it does not have: connections, request heads in bytes and seconds (I35)."""

# pyright: standard
# uvicorn's protocol classes are only partly typed.

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from services.common.errors import HarnessError, Reason
from services.gateway import metrics
from services.gateway.envelope import Reply, failure
from services.gateway.requests import has_body
from services.gateway.settings import GatewaySettings

CONNECTION = "harness.connection"
"""The name of the connection among `scope["extensions"]`."""
MAX_PIPELINED = 64
"""Requests of one connection that may wait for the answer of the one before; with more, those are answered and the connection is closed."""


class Connection:
    """What a stream needs to know of its connection, beyond ASGI."""

    __slots__ = ("_flow", "_transport")

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._flow = protocol.flow
        self._transport = protocol.transport

    @property
    def writable(self) -> bool:
        """Whether a send returns at once: less than the high-water mark is still to be written."""
        return not self._flow.write_paused

    def abort(self) -> None:
        """Drops the connection with everything that is still to be written."""
        self._transport.abort()


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection. `limits` is set by `bounded`."""

    limits: GatewaySettings

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unread_bytes = 0
        self._in_head = True
        self._deaf = False
        self._refusal: Reply | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        metrics.CONNECTIONS.inc()
        if len(self.connections) > self.limits.max_connections:
            self._refuse(
                failure(
                    HarnessError(
                        Reason.CAPACITY, "All connections of this gateway are in use; try again.", retry_after=1.0
                    ),
                    close=True,
                )
            )
        else:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        metrics.CONNECTIONS.dec()
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
        if self._unread_bytes > self.limits.max_header_bytes and not self.transport.is_closing():
            self._refuse(self._head_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: Connection(self)}  # type: ignore[typeddict-item]

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
        if size > self.limits.max_header_bytes:
            self._refusal = self._head_too_large()
            raise ValueError("head too large")  # stops the parser, which reports it to data_received
        if len(self.pipeline) >= MAX_PIPELINED:
            # I35: what waits is a hundred times larger than the bytes it came in.
            raise ValueError("too many requests at once")
        parser: Any = self.parser
        if parser.should_upgrade() and has_body(self.headers):
            # The parser does not read the body of such a request, and would take what comes of it later for the next one.
            self._refusal = _upgrade_with_body()
            raise ValueError("upgrade with a body")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True
        self._unread_bytes = 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._abort_unless_taken()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_unless_taken()

    def _abort_unless_taken(self) -> None:
        # I35: a transport that is closed with something still to be written waits for its reader, for ever if need be.
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self.loop.call_later(self.limits.header_timeout_seconds, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for whatever is no HTTP; answered in the envelope like anything else."""
        self._refuse(
            self._refusal
            or failure(
                HarnessError(Reason.INVALID_REQUEST, "This is not a valid HTTP request."), status=400, close=True
            )
        )

    def _head_too_large(self) -> Reply:
        message = f"The request line and headers may have {self.limits.max_header_bytes} bytes together."
        return failure(HarnessError(Reason.INVALID_REQUEST, message), status=431, close=True)

    def _refuse(self, reply: Reply) -> None:
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
        start = reply.start()
        lines = [
            STATUS_LINE[reply.status],
            *(b"%b: %b\r\n" % header for header in start["headers"]),
            b"\r\n",
            reply.body,
        ]
        self.transport.write(b"".join(lines))
        self.transport.close()
        self._abort_unless_taken()

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.header_timeout_seconds, self._head_out_of_time)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_out_of_time(self) -> None:
        self._head_timer = None
        # While an answer is being written the client may say what it likes; the time between two requests is uvicorn's to watch.
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


def _upgrade_with_body() -> Reply:
    message = "This gateway speaks HTTP/1.1 only: send a request that has a body without the header Upgrade."
    return failure(HarnessError(Reason.INVALID_REQUEST, message), status=400, close=True)


def bounded(settings: GatewaySettings) -> type[BoundedHttpProtocol]:
    """The protocol class with the bounds of these settings."""
    return type("BoundedHttpProtocol", (BoundedHttpProtocol,), {"limits": settings})
