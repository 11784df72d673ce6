"""The proxy itself: one request in, the same to an endpoint with the operator's credential, its answer back without holding anything back."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping
from contextlib import AsyncExitStack
from typing import Any

import httpx

from services.common.caller import Capability
from services.common.logs import get_logger
from services.egress import metrics, passage
from services.egress.admission import Admission
from services.egress.endpoints import CredentialMissing, Endpoint
from services.egress.refusal import Refusal
from services.egress.settings import EgressSettings
from services.egress.standing import Standing

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_NONE = "none"
_log = get_logger(__name__)


class Gone(Exception):
    """The worker went away."""


class Proxy:
    """An ASGI application. `client` is shared by all endpoints and follows no redirect: an endpoint cannot send a credential elsewhere."""

    def __init__(
        self, admission: Admission, standing: Standing, client: httpx.AsyncClient, settings: EgressSettings
    ) -> None:
        self._admission = admission
        self._standing = standing
        self._client = client
        self._settings = settings

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request. Whatever goes wrong before the answer's head is an answer of our own; after it, the connection breaks off."""
        if scope["type"] != "http":
            return
        exchange = Exchange(send)
        try:
            await self._serve(scope, receive, exchange)
        except Refusal as refusal:
            await exchange.refuse(refusal)
        except Gone:
            # Nobody is there to be answered; what was asked of the endpoint is broken off with its connection.
            return

    async def _serve(self, scope: Message, receive: Receive, exchange: "Exchange") -> None:
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        if (scope["method"], scope["path"]) == ("GET", passage.HEALTH):
            await exchange.begin(200, {"content-length": "0"})
            await exchange.finish()
            return
        if (body := self._standing.answer(scope["method"], scope["path"], headers)) is not None:
            await exchange.begin(200, {"content-type": "application/json", "content-length": str(len(body))})
            await exchange.finish(body)
            return
        if not passage.passes(scope["method"], scope["path"]):
            raise Refusal(404, "Only the Messages API passes here: POST /v1/messages and /v1/messages/count_tokens.")
        token = passage.presented_token(headers)
        capability = self._admission.capability(token)
        with self._admission.place(capability.run_id), metrics.AT_WORK.track_inprogress():
            endpoint = await self._admission.endpoint(capability)
            exchange.endpoint = endpoint.entry.id
            try:
                async with asyncio.timeout(self._settings.response_seconds):
                    # I10, I27: what a run asked for goes on no longer than the run has its conversation.
                    await _first_of(
                        self._pass_on(scope, headers, receive, exchange, endpoint, capability),
                        self._admission.until_over(token),
                    )
            except TimeoutError:
                raise Refusal(504, "The request took longer than any may.") from None

    async def _pass_on(
        self,
        scope: Message,
        headers: list[tuple[str, str]],
        receive: Receive,
        exchange: "Exchange",
        endpoint: Endpoint,
        capability: Capability,
    ) -> None:
        started = time.monotonic()
        body = Body(receive, self._settings.max_body_bytes, self._settings.silence_seconds)
        async with AsyncExitStack() as resources:
            left = asyncio.ensure_future(body.gone())
            resources.callback(left.cancel)
            response = await self._asked(scope, headers, body, left, endpoint, resources)
            metrics.FIRST_BYTE.labels(endpoint.entry.id).observe(time.monotonic() - started)
            _log.debug(
                "model_request", endpoint=endpoint.entry.id, status=response.status_code, run_id=capability.run_id
            )
            _check_answer(response, endpoint)
            await exchange.begin(response.status_code, passage.response_headers(response.headers.items()))
            try:
                await exchange.stream(response.aiter_raw(), left)
            except httpx.HTTPError as error:
                # Left without an end, so that the SDK sees a broken answer and not a short one.
                metrics.BROKEN.labels(endpoint.entry.id).inc()
                _log.warning("model_answer_broken", endpoint=endpoint.entry.id, kind=type(error).__name__)

    async def _asked(
        self,
        scope: Message,
        headers: list[tuple[str, str]],
        body: "Body",
        left: "asyncio.Future[None]",
        endpoint: Endpoint,
        resources: AsyncExitStack,
    ) -> httpx.Response:
        """The endpoint's answer, its head read. What cannot have reached the endpoint says so."""
        try:
            name, value = endpoint.authorization()
        except CredentialMissing as missing:
            _log.error("model_credential_missing", endpoint=endpoint.entry.id, problem=str(missing))
            raise Refusal(
                401, f"The model endpoint {endpoint.entry.id} has no credential: see the log of the egress."
            ) from None
        sent = passage.request_headers(headers)
        if int(sent.get("content-length", "0") or 0) > self._settings.max_body_bytes:
            raise _too_large(self._settings.max_body_bytes)
        query = passage.query_that_passes(scope["query_string"].decode("latin-1"))
        url = f"{endpoint.entry.base_url}{scope['path']}{'?' + query if query else ''}"
        request = self._client.build_request("POST", url, headers={**sent, name: value}, content=body.chunks())
        try:
            response = await _unless(left, self._client.send(request, stream=True))
        except (httpx.ConnectTimeout, httpx.ConnectError, httpx.PoolTimeout):
            raise Refusal(502, "The model endpoint cannot be reached.", again=True) from None
        except httpx.TimeoutException:
            raise Refusal(504, "The model endpoint did not answer in time.") from None
        except httpx.HTTPError as error:
            _log.warning("model_request_broken", endpoint=endpoint.entry.id, kind=type(error).__name__)
            raise Refusal(502, "The model endpoint broke off before it answered.") from None
        resources.push_async_callback(response.aclose)
        return response


class Body:
    """The body of a request, as it comes in: bounded in bytes, and in the time between two pieces (I35)."""

    def __init__(self, receive: Receive, max_bytes: int, silence_seconds: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._silence_seconds = silence_seconds
        self._was_read = asyncio.Event()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Its pieces. Raises `Refusal` for a body that is too large or too slow, `Gone`."""
        try:
            async for piece in self._pieces():
                yield piece
        finally:
            self._was_read.set()

    async def _pieces(self) -> AsyncIterator[bytes]:
        size, more = 0, True
        while more:
            try:
                async with asyncio.timeout(self._silence_seconds):
                    message = await self._receive()
            except TimeoutError:
                raise Refusal(408, "The body of the request did not come.", again=True) from None
            if message["type"] == "http.disconnect":
                raise Gone
            piece: bytes = message.get("body", b"")
            size += len(piece)
            if size > self._max_bytes:
                raise _too_large(self._max_bytes)
            more = message.get("more_body", False)
            if piece:
                yield piece

    async def gone(self) -> None:
        """Returns when the worker goes away after its body was read."""
        await self._was_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Exchange:
    """The answer to one request."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False
        self.endpoint = _NONE

    async def begin(self, status: int, headers: dict[str, str]) -> None:
        """The head."""
        metrics.REQUESTS.labels(self.endpoint, str(status)).inc()
        self._begun = True
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def stream(self, pieces: AsyncIterator[bytes], left: "asyncio.Future[None]") -> None:
        """The body, piece by piece as they come. Raises `Gone` once `left` is done."""
        while True:
            piece = asyncio.ensure_future(anext(pieces, None))
            try:
                await asyncio.wait((piece, left), return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not piece.done():
                    piece.cancel()
            if not piece.done() or piece.cancelled():
                raise Gone
            if (data := piece.result()) is None:
                break
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
        await self.finish()

    async def finish(self, body: bytes = b"") -> None:
        """The end, with the last piece of the body."""
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def refuse(self, refusal: Refusal) -> None:
        """An answer of our own; nothing once an answer began, whose connection is broken off by its missing end."""
        if self._begun:
            return
        body = refusal.body()
        await self.begin(refusal.status, {**refusal.headers(), "content-length": str(len(body))})
        await self.finish(body)


async def _first_of(work: Coroutine[Any, Any, None], watch: Coroutine[Any, Any, None]) -> None:
    """What comes first ends the other: the end of `work`, or what `watch` raises."""
    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(watch)
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.wait((working, watching))
    await (watching if working.cancelled() else working)


async def _unless(left: "asyncio.Future[None]", sending: Coroutine[Any, Any, httpx.Response]) -> httpx.Response:
    """The answer's head. Raises `Gone` when the worker leaves before it comes; what comes all the same is closed."""
    asking = asyncio.ensure_future(sending)
    answered = False
    try:
        await asyncio.wait((asking, left), return_when=asyncio.FIRST_COMPLETED)
        answered = asking.done()
    finally:
        if not answered:
            asking.cancel()
            await asyncio.wait((asking,))
            if not asking.cancelled() and asking.exception() is None:
                await asking.result().aclose()
    if not answered:
        raise Gone
    return asking.result()


def _check_answer(response: httpx.Response, endpoint: Endpoint) -> None:
    """Refuses what must not go into the sandbox as the endpoint says it."""
    if response.is_redirect:
        raise Refusal(502, "The model endpoint answered with a redirect, which is not followed.")
    if response.status_code in (401, 403):
        # I28, I22: it is about the operator's credential, which some endpoints quote.
        _log.error("model_credential_refused", endpoint=endpoint.entry.id, status=response.status_code)
        raise Refusal(
            response.status_code,
            f"The model endpoint {endpoint.entry.id} refuses the credential of the mesh, or what it may do: the operator has to look.",
        )


def _too_large(max_bytes: int) -> Refusal:
    return Refusal(413, f"The body of the request is larger than {max_bytes} bytes.")
