"""One request from its head to its answer: route, authenticate, translate, call, translate back (REST API). No rule, no state."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any

from services.common.errors import HarnessError, Reason, internal
from services.common.http_protocol import has_body
from services.common.logs import get_logger, log_incident
from services.common.tracing import TRACEPARENT, accept_traceparent, set_traceparent
from services.gateway import metrics
from services.gateway.codec import dump, message_encoder
from services.gateway.content import Transfers
from services.gateway.credentials import Credentials
from services.gateway.envelope import Refused, Reply, failure, success
from services.gateway.http_protocol import CONNECTION
from services.gateway.operations import Match, Operation, Router
from services.gateway.requests import (
    MAX_BODIES,
    BodySpace,
    ClientGone,
    build_request,
    check_content_type,
    header_values,
    read_body,
)
from services.gateway.settings import GatewaySettings
from services.gateway.sse.endpoint import Streams
from services.gateway.upstream import Upstream

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Page = Callable[[], Awaitable[Reply]]
_UNKNOWN_ROUTE = "unknown"
_CLIENT_GONE_STATUS = 499
DISCARD_SECONDS = 1.0
_log = get_logger(__name__)


class Gateway:
    """The ASGI application. `pages` are the operational paths, which need no credential."""

    def __init__(
        self,
        settings: GatewaySettings,
        operations: tuple[Operation, ...],
        upstream: Upstream,
        streams: Streams,
        transfers: Transfers,
        pages: Mapping[str, Page],
    ) -> None:
        self._settings = settings
        self._router = Router(operations)
        self._credentials = Credentials(settings.accepted_tokens())
        self._upstream = upstream
        self._streams = streams
        self._transfers = transfers
        self._pages = pages
        self._space = BodySpace(MAX_BODIES * settings.max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = perf_counter()
        traces = header_values(scope["headers"], TRACEPARENT.encode("ascii"))
        set_traceparent(accept_traceparent(traces[0].decode("latin-1") if len(traces) == 1 else None))
        exchange = _Exchange(scope, receive, send, self._settings.stream_stall_seconds)
        reply: Reply | None
        try:
            reply = await self._answer(scope, exchange)
        except ClientGone:
            reply = None
        except HarnessError as error:
            reply = failure(error)
        except Refused as refused:
            reply = refused.reply
        except asyncio.CancelledError:
            # I33: uvicorn cancels what the stop's grace was too short for; the client is told in our form that it is worth repeating.
            reply = failure(HarnessError(Reason.UNAVAILABLE, "The gateway is stopping; try again.", retry_after=1.0))
        except Exception as error:  # noqa: BLE001 - logged; the client gets the incident id (I22)
            reply = failure(internal(log_incident(_log, "request_failed", error, route=exchange.route)))
        finally:
            self._space.give_back(exchange.body_bytes)
        if reply is not None:
            await exchange.finish(reply)
        method = scope["method"] if exchange.route != _UNKNOWN_ROUTE else "any"
        metrics.REQUESTS.labels(method, exchange.route, exchange.status or _CLIENT_GONE_STATUS).inc()
        if not exchange.streamed:
            metrics.SECONDS.labels(exchange.route).observe(perf_counter() - started)

    async def _answer(self, scope: Scope, exchange: "_Exchange") -> Reply | None:
        page = self._pages.get(scope["path"])
        method: str = scope["method"]
        if page is not None:
            exchange.route = scope["path"]
            if method not in ("GET", "HEAD"):
                raise _method_not_allowed(("GET", "HEAD"))
            return await page()
        match = self._router.match(scope["raw_path"])
        if match is None:
            raise HarnessError(Reason.NOT_FOUND, "There is no such path.")
        # Whoever is not known learns nothing but which paths there are.
        subject = self._credentials.subject(scope["headers"])
        operation = match.operations.get(method)
        if operation is None:
            raise _method_not_allowed(sorted(match.operations))
        exchange.route = operation.template
        return await self._operate(operation, match, subject, scope, exchange)

    async def _operate(
        self, operation: Operation, match: Match, subject: str, scope: Scope, exchange: "_Exchange"
    ) -> Reply | None:
        headers = scope["headers"]
        body = None
        if operation.has_body and not operation.uploads:
            body = await self._body(headers, exchange)
        elif has_body(headers) and not operation.uploads:
            raise Refused(422, "This operation takes no request body.")
        request = build_request(operation, match.values, scope["query_string"], body, headers)
        if operation.streams:
            work = self._streams.serve(request, subject, exchange.send, scope["extensions"][CONNECTION])
            await _while_connected(work, exchange.receive)
            return None
        if operation.downloads:
            connection = scope["extensions"][CONNECTION]
            work = self._transfers.download(operation, request, subject, exchange.send, connection)
            await _while_connected(work, exchange.receive)
            return None
        if operation.uploads:
            response = await self._transfers.upload(operation, request, subject, headers, exchange.receive)
            exchange.is_read = True
            return success(encode_response(operation, response), operation.success_status)
        call = self._upstream.call(operation, request, subject)
        # A client that leaves frees what only waits for it; what changes something is finished, whoever is still there (I13).
        waits = operation.http_method == "GET" or operation.name == "Invoke"
        response = await (_while_connected(call, exchange.receive) if waits else call)
        return success(encode_response(operation, response), operation.success_status)

    async def _body(self, headers: Any, exchange: "_Exchange") -> bytes:
        check_content_type(headers)
        settings = self._settings

        def take(size: int) -> None:
            self._space.take(size)
            exchange.body_bytes += size

        body = await read_body(
            headers, exchange.receive, take, max_bytes=settings.max_body_bytes, timeout=settings.body_timeout_seconds
        )
        exchange.is_read = True
        return body


def encode_response(operation: Operation, response: Any) -> bytes:
    """The `data` of an answer."""
    field = operation.response_field
    if field is None:
        return dump(message_encoder(operation.response)(response))
    if field.message_type is None:
        raise TypeError(f"{operation.rpc}: response_body must name a message")
    if not response.HasField(field.name):
        return b"null"
    return dump(message_encoder(field.message_type)(getattr(response, field.name)))


class _Exchange:
    """What has been read and sent of one request."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, stall: float) -> None:
        self.receive = receive
        self._connection = scope["extensions"][CONNECTION]
        self._stall = stall
        self.route = _UNKNOWN_ROUTE
        self.status = 0
        self.streamed = False
        self.body_bytes = 0
        self.is_read = not has_body(scope["headers"])
        self._send = send

    async def send(self, message: dict[str, Any]) -> None:
        if not self.status:
            self.status, self.streamed = message["status"], True
        await self._send(message)

    async def finish(self, reply: Reply) -> None:
        """Sends the answer. When the request was not read to its end, its connection is closed afterwards."""
        if self.status:
            # The answer has begun, as a stream: nothing can be said any more, and uvicorn closes the connection.
            return
        self.status = reply.status
        if not self.is_read:
            reply = reply._replace(close=True)
        connection = self._connection
        if connection.writable:
            await self._write(reply)
            return
        # I35: the client sends requests but takes no answers.
        try:
            async with asyncio.timeout(self._stall):
                await self._write(reply)
        except TimeoutError:
            connection.abort()

    async def _write(self, reply: Reply) -> None:
        await self._send(reply.start())
        if not self.is_read:
            # Closing on unread data resets the connection, and the answer could be lost: the rest is thrown away for a moment, then it is closed.
            await self._send({"type": "http.response.body", "body": reply.body, "more_body": True})
            await self._discard()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await self._send({"type": "http.response.body", "body": reply.body, "more_body": False})

    async def _discard(self) -> None:
        try:
            async with asyncio.timeout(DISCARD_SECONDS):
                while (await self.receive()).get("more_body", False):
                    continue
        except TimeoutError:
            return


async def _while_connected(work: Any, receive: Receive) -> Any:
    """The result of `work`, which is cancelled when the client goes away."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


def _method_not_allowed(methods: Any) -> Refused:
    allowed = ", ".join(methods)
    return Refused(405, f"This path takes {allowed}.", headers=((b"allow", allowed.encode("ascii")),))
