"""The gateway's connections: their bounds, how they are refused, and what a stream needs to know of its own (I35)."""

# pyright: standard
# uvicorn's protocol classes are only partly typed.

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.common.errors import HarnessError, Reason
from services.common.http_protocol import Answer, BoundedHttpProtocol, Bounds, Fault
from services.gateway import metrics
from services.gateway.envelope import Reply, failure
from services.gateway.settings import GatewaySettings

CONNECTION = "harness.connection"
"""The name of the connection among `scope["extensions"]`."""


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


class GatewayHttpProtocol(BoundedHttpProtocol):
    """One connection, counted, and known to the requests on it."""

    def connection_made(self, transport: Any) -> None:
        metrics.CONNECTIONS.inc()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        metrics.CONNECTIONS.dec()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CONNECTION: Connection(self)}  # type: ignore[typeddict-item]


def protocol(settings: GatewaySettings) -> type[GatewayHttpProtocol]:
    """The protocol class with the bounds of these settings."""

    def answer(fault: Fault) -> Answer:
        reply = _reply(fault, settings)
        return Answer(reply.status, reply.start()["headers"], reply.body)

    bounds = Bounds(settings.max_connections, settings.max_header_bytes, settings.header_timeout_seconds)
    return type("BoundGatewayHttpProtocol", (GatewayHttpProtocol,), {"bounds": bounds, "answer": staticmethod(answer)})


def _reply(fault: Fault, settings: GatewaySettings) -> Reply:
    match fault:
        case Fault.ALL_CONNECTIONS_USED:
            message = "All connections of this gateway are in use; try again."
            return failure(HarnessError(Reason.CAPACITY, message, retry_after=1.0), close=True)
        case Fault.HEAD_TOO_LARGE:
            message, status = f"The request line and headers may have {settings.max_header_bytes} bytes together.", 431
        case Fault.UPGRADE_WITH_BODY:
            message = "This gateway speaks HTTP/1.1 only: send a request that has a body without the header Upgrade."
            status = 400
        case _:
            message, status = "This is not a valid HTTP request.", 400
    return failure(HarnessError(Reason.INVALID_REQUEST, message), status=status, close=True)
