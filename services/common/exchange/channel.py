"""The caller's side: a channel whose unary calls to contracts of the mesh go over one stream to the process behind it."""

# pyright: standard
# What grpc.aio makes of a method is untyped.

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import grpc.aio
from google.rpc import status_pb2

from harness.exchange.v1 import exchange_service_pb2 as api
from harness.exchange.v1 import exchange_service_pb2_grpc as api_grpc
from services.common.caller import MAX_SUBJECT_CHARACTERS
from services.common.errors import HarnessError, Reason
from services.common.interceptors.auth import AUTHORIZATION, SUBJECT
from services.common.status import GRPC_STATUS_CODES, STATUS_TRAILER, to_status
from services.common.tracing import TRACEPARENT

MAX_REQUEST_BYTES: Final = 64 << 10
"""A larger request is a call of its own: whatever else is under way would wait behind it."""
MAX_CALLS: Final = 1_024
"""Under way on one stream; more are calls of their own (I35)."""
BATCH_CALLS: Final = 256
BATCH_BYTES: Final = 1 << 20
"""Of the requests in one message, which is far below what a message may have."""
ACCEPTED: Final = "harness-exchange"
"""Metadata with which the other side says, as soon as the stream is there, that it takes calls."""
PLACE: Final = "harness-place"
"""Metadata beside it: what stands for the process in ids that it makes."""
_OURS: Final = "/harness."


class ExchangeChannel(grpc.aio.Channel):
    """A channel to one process. Streams, large requests and calls that wait for the process to be there are made on the channel as it is, and so is
    everything if the process offers no exchange. Stubs made from it return plain awaitables for unary calls, which raise what the channel would.
    """

    def __init__(self, channel: grpc.aio.Channel, idempotent_methods: Sequence[str] = ()) -> None:
        """`idempotent_methods`: those that `channel` repeats by itself while the process is away; it is asked after a broken exchange."""
        self._channel = channel
        self._idempotent = frozenset(f"/{name}" for name in idempotent_methods)
        self._open: Any = api_grpc.ExchangeServiceStub(channel).Exchange
        self._stream: _Stream | None = None
        self._streams: set[_Stream] = set()
        self._offered = True
        self.place = ""
        """What stands for the process behind the channel in ids that it makes, as far as it has said so."""

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, *rest: Any, **options: Any
    ) -> Any:
        plain = self._channel.unary_unary(method, request_serializer, response_deserializer, *rest, **options)
        if not method.startswith(_OURS):
            return plain
        return _Method(self, method, plain, request_serializer, response_deserializer)

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._channel.unary_stream(*arguments, **options)

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        return self._channel.stream_unary(*arguments, **options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        return self._channel.stream_stream(*arguments, **options)

    def may_repeat(self, method: str) -> bool:
        """Whether the channel itself repeats the method."""
        return method in self._idempotent

    def stream(self, authorization: str) -> "_Stream | None":
        """The stream for one more call with this credential, None when the call has to be made alone."""
        if not self._offered:
            return None
        stream = self._stream
        if stream is None or not stream.takes_calls:
            stream = self._stream = _Stream(self._open, authorization, self._said_place, self._ended)
            self._streams.add(stream)
        return stream if stream.authorization == authorization and stream.under_way < MAX_CALLS else None

    def _said_place(self, place: str) -> None:
        self.place = place

    def _ended(self, stream: "_Stream", error: Exception) -> None:
        self._streams.discard(stream)
        if isinstance(error, NotOffered):
            self._offered = False

    async def close(self, grace: float | None = None) -> None:
        self._offered = False
        for stream in tuple(self._streams):
            await stream.close()
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    async def __aenter__(self) -> "ExchangeChannel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class NotOffered(Exception):
    """The process knows no exchange: nothing was called."""


class _Method:
    """A unary method. Called, it returns the response or raises `AioRpcError`."""

    __slots__ = ("_channel", "_deserialize", "_method", "_plain", "_serialize")

    def __init__(
        self,
        channel: ExchangeChannel,
        method: str,
        plain: Any,
        serialize: Callable[[Any], bytes],
        deserialize: Callable[[bytes], Any],
    ) -> None:
        self._channel = channel
        self._method = method
        self._plain = plain
        self._serialize = serialize
        self._deserialize = deserialize

    async def __call__(
        self, request: Any, *, timeout: float | None = None, metadata: Any = (), wait_for_ready: bool = False
    ) -> Any:
        if not wait_for_ready:
            given = dict(metadata)
            data = self._serialize(request)
            subject = given.get(SUBJECT, "")
            # What the contract of the exchange refuses would end it, and all that is under way there: it is refused by itself.
            fits = len(data) <= MAX_REQUEST_BYTES and len(subject) <= MAX_SUBJECT_CHARACTERS
            stream = self._channel.stream(given.get(AUTHORIZATION, "")) if fits else None
            if stream is not None:
                loop = asyncio.get_running_loop()
                until = None if timeout is None else loop.time() + timeout
                call = api.Call(
                    method=self._method,
                    request=data,
                    subject=subject,
                    traceparent=given.get(TRACEPARENT, ""),
                )
                try:
                    return self._deserialize(await stream.call(call, until))
                except NotOffered:
                    pass
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE or not self._channel.may_repeat(self._method):
                        raise
                if until is not None:
                    timeout = max(0.0, until - loop.time())
        return await self._plain(request, timeout=timeout, metadata=metadata, wait_for_ready=wait_for_ready)


class _Stream:
    """One stream with all that is under way on it. While one message is being sent the next one gathers, so load makes messages larger, not more."""

    def __init__(
        self,
        open_stream: Any,
        authorization: str,
        on_place: Callable[[str], None],
        on_end: Callable[["_Stream", Exception], None],
    ) -> None:
        self.authorization = authorization
        self._on_place = on_place
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._calls: dict[int, api.Call] = {}  # not sent yet; what is given up before it is sent never is
        self._given_up: list[int] = []
        self._filled = asyncio.Event()
        self._closing = False
        self._accepted = False
        self._rpc = open_stream(metadata=((AUTHORIZATION, authorization),) if authorization else None)
        self._tasks = (asyncio.create_task(self._read(), name="exchange"), asyncio.create_task(self._write()))

    @property
    def takes_calls(self) -> bool:
        """Whether a call may still be sent on it."""
        return not self._closing

    @property
    def under_way(self) -> int:
        """Calls that wait for their answer."""
        return len(self._waiting)

    async def call(self, call: api.Call, until: float | None) -> bytes:
        """The serialized response. `until` is the deadline on the loop's clock. Raises `AioRpcError`, or `NotOffered` if nothing was called."""
        self._last_id = call.call_id = self._last_id % 0xFFFFFFFF + 1
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[call.call_id] = future
        timer = None
        if until is not None:
            call.timeout_ms = max(1, round((until - self._loop.time()) * 1000))
            timer = self._loop.call_at(until, self._too_late, call.call_id)
        self._calls[call.call_id] = call
        self._filled.set()
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()
            if self._waiting.pop(call.call_id, None) is not None:
                self._give_up(call.call_id)  # the caller was cancelled
            if self._closing:  # the last one ends the stream
                self._filled.set()

    async def close(self) -> None:
        """Ends the stream; calls under way fail as cancelled."""
        self._closing = True
        self._rpc.cancel()
        await asyncio.wait(self._tasks)

    def _too_late(self, call_id: int) -> None:
        future = self._waiting.pop(call_id, None)
        if future is not None and not future.done():
            future.set_exception(_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
            self._give_up(call_id)

    def _give_up(self, call_id: int) -> None:
        # I35: what nobody waits for any more is not kept, and not executed once a peer that stands still goes on.
        if self._calls.pop(call_id, None) is None:
            self._given_up.append(call_id)
            self._filled.set()

    async def _write(self) -> None:
        # Nothing is sent before the other side takes calls: of a message sent into a refusal, grpc.aio would tell as an internal error, and the refusal be
        # lost.
        said = dict(await self._rpc.initial_metadata())
        if ACCEPTED not in said:
            return
        self._accepted = True
        self._on_place(said.get(PLACE, ""))
        while True:
            calls, given_up = self._next_calls(), self._given_up
            self._given_up = []
            if calls or given_up:
                try:
                    await self._rpc.write(api.ExchangeRequest(calls=calls, given_up=given_up))
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return  # it broke, and the reader ends the calls
            elif self._closing and not self._waiting:
                break  # not before: a stop must not wait for a call that its caller gave up (I33)
            else:
                self._filled.clear()
                await self._filled.wait()
        await self._rpc.done_writing()

    def _next_calls(self) -> list[api.Call]:
        size, calls = 0, list[api.Call]()
        for call in self._calls.values():
            size += len(call.request)
            if len(calls) == BATCH_CALLS or (calls and size > BATCH_BYTES):
                break
            calls.append(call)
        for call in calls:
            del self._calls[call.call_id]
        return calls

    async def _read(self) -> None:
        # Whatever grpc says of a stream that stood: of its calls nobody knows whether they were executed.
        error: Exception = _error(grpc.StatusCode.UNAVAILABLE, "The exchange broke before the call was answered.")
        try:
            async for response in self._rpc:
                for answer in response.answers:
                    self._answered(answer)
                if response.closing:  # what is called from now on, is called on another stream
                    self._closing = True
                    self._filled.set()
        except grpc.aio.AioRpcError as ended:
            if ended.code() is grpc.StatusCode.UNIMPLEMENTED:
                error = NotOffered()
            elif not self._accepted:
                error = ended
        finally:
            self._closing = True
            self._tasks[1].cancel()
            unsent, self._calls = self._calls, {}
            waiting, self._waiting = self._waiting, {}
            for call_id, future in waiting.items():
                if not future.done():
                    future.set_exception(_unsent(error) if call_id in unsent else error)
            self._on_end(self, error)

    def _answered(self, answer: api.Answer) -> None:
        future = self._waiting.pop(answer.call_id, None)
        if future is None or future.done():  # given up
            return
        if answer.HasField("error"):
            future.set_exception(_failed(answer.error))
        else:
            future.set_result(answer.response)


def _unsent(error: Exception) -> Exception:
    """Of a call that had not left: another process may be asked (I34), unless this one refused every call."""
    if not isinstance(error, grpc.aio.AioRpcError) or error.code() is not grpc.StatusCode.UNAVAILABLE:
        return error
    return _failed(
        to_status(
            HarnessError(Reason.UNAVAILABLE, "A service this needs cannot be reached now; try again.", not_begun=True)
        )
    )


def _failed(status: status_pb2.Status) -> grpc.aio.AioRpcError:
    code = GRPC_STATUS_CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    return _error(code, status.message, (STATUS_TRAILER, status.SerializeToString()))


def _error(code: grpc.StatusCode, message: str, *trailers: tuple[str, bytes]) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), message)
