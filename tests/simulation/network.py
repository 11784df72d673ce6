"""The simulated network: calls between lives of processes, by the generated stubs and to the real servicers, with every mishap in between.

A message may be late, lost before or after it was executed, or executed twice; a stream may be cut; a process that crashes resets what was open to it, at
once or only when somebody notices. Requests and responses are copied as bytes: nothing is shared between processes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Final

import grpc
import grpc.aio
from google.rpc import code_pb2, error_details_pb2, status_pb2

from adapters.sdk.host.refusal import Refusal
from harness.session.v1 import session_service_pb2
from services.common.caller import Caller, set_caller
from services.common.errors import HarnessError, Reason
from services.common.interceptors.error_mapping import classified
from services.common.status import from_status, to_status, trailing_metadata
from services.common.store import StoreError
from tests.simulation.loop import LIFE, Life, SimulatedLoop
from tests.simulation.store import CALL
from tests.simulation.weather import Weather

DEFAULT_TIMEOUT: Final = 10.0
RESET_SECONDS: Final = 0.02
ROUNDING: Final = 1e-6
NOT_DOUBLED: Final = frozenset({"BeginClear", "InvokeProviderTool"})
"""Calls of which each is another wish: executed twice, one after the other, is twice what the caller asked for. To a provider of tools nothing but the
broker repeats a call.
"""


CANCEL: Final = ["harness.runtime.v1.RuntimeService", "CancelRun"]
STREAMS_OF_A_RUN: Final = ("StartRun", "ResumeRun", "AttachRun")
"""Calls by which a holder gets the events of its run from the runtime."""


class Method(str):
    """A method's path, which is also callable where product code calls a stub itself: it raises what grpc raises."""

    peer: SimulatedPeer

    async def __call__(self, request: Any, *, timeout: float, metadata: Any) -> Any:
        try:
            return await self.peer.call(self, request, timeout=timeout, **dict(metadata))
        except HarnessError as error:
            raise rpc_error(error) from None


class Channel:
    """What generated stubs are made from: every method becomes its path."""

    def __init__(self, peer: SimulatedPeer) -> None:
        self._peer = peer

    def unary_unary(self, path: str, **_: Any) -> Method:
        method = Method(path)
        method.peer = self._peer
        return method

    unary_stream = stream_unary = stream_stream = unary_unary

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Connected while anybody serves there."""
        served = self._peer.is_served
        return grpc.ChannelConnectivity.READY if served else grpc.ChannelConnectivity.TRANSIENT_FAILURE


class Network:
    """Who serves at which address, and what is under way."""

    def __init__(self, loop: SimulatedLoop, weather: Weather, random: Any) -> None:
        self.loop = loop
        self.weather = weather
        self._random = random
        self._served: dict[str, dict[str, tuple[Life, dict[str, Any]]]] = {}
        self._open: dict[Life, dict[Call, None]] = {}
        self.verify: Any = None
        """Finds the capability of a token."""

    def serve(self, address: str, life: Life, servicers: dict[str, Any]) -> None:
        """The life serves at the address, beside others of other processes."""
        self._served.setdefault(address, {})[life.name] = (life, servicers)

    def leave(self, life: Life) -> None:
        """The life serves nowhere any more: new calls find the others, or nobody."""
        for replicas in self._served.values():
            if replicas.get(life.name, (None, None))[0] is life:
                del replicas[life.name]

    def died(self, life: Life) -> None:
        """The life crashed: whoever waits for it hears so, mostly soon."""
        self.leave(life)
        for call in list(self._open.pop(life, {})):
            slow = self._random.random() < 0.1
            self.loop.later(3.0 if slow else RESET_SECONDS * self._random.random(), call.broken)

    def pick(self, address: str) -> tuple[Life, dict[str, Any]] | None:
        """One of those who serve at the address."""
        replicas = list(self._served.get(address, {}).values())
        return self._random.choice(replicas) if replicas else None

    def is_served(self, address: str) -> bool:
        """Whether anybody serves at the address."""
        return bool(self._served.get(address))

    def began(self, call: Call, life: Life) -> None:
        """The call is in the hands of a life."""
        self._open.setdefault(life, {})[call] = None

    def ended(self, call: Call, life: Life) -> None:
        """It is no more."""
        self._open.get(life, {}).pop(call, None)

    def connect(self, address: str, token: Any = None, **_: Any) -> SimulatedPeer:
        """Stands in for `services.common.channels.connect`."""
        return SimulatedPeer(self, address)


def unavailable(message: str = "A service this needs cannot be reached now; try again.") -> HarnessError:
    """What a broken connection looks like."""
    return HarnessError(Reason.UNAVAILABLE, message, metadata={"grpc_code": "UNAVAILABLE"})


class Call:
    """One call under way. `answered` gets its response or error, at most once; `sent` collects the messages of a stream."""

    __slots__ = (
        "answer",
        "arrived",
        "caller",
        "credential",
        "is_over",
        "method",
        "network",
        "queue",
        "request",
        "serving",
        "subject",
        "task",
    )

    def __init__(
        self, network: Network, path: str, request: Any, subject: str | None, credential: str | None, answer: Any
    ) -> None:
        self.network = network
        self.method = path.rsplit("/", 2)
        self.request = request
        self.subject = subject
        self.credential = credential
        self.answer = answer
        self.caller = LIFE.get()
        if self.method[1] == CANCEL[0] and self.method[2] in STREAMS_OF_A_RUN:
            fence = request.fence
            network.loop.world.check("sends", self.caller, self.method[2], fence.run_id, fence.run_generation)
        self.queue: deque[Any] | None = None
        self.arrived: asyncio.Future[None] | None = None
        self.serving: Life | None = None
        self.task: Any = None
        self.is_over = False

    # --- at the caller's ---

    def succeed(self, response: Any) -> None:
        """The response arrived."""
        if not self.answer.done():
            self.answer.set_result(response)

    def fail(self, error: BaseException) -> None:
        """An error arrived; for a stream, after the messages that arrived before."""
        if self.queue is not None:
            self.push(error)
        elif not self.answer.done():
            self.answer.set_exception(error)

    def push(self, item: Any) -> None:
        """The next message of a stream arrived, its error, or None for its end."""
        if self.is_over or self.queue is None:
            return
        if item is None or isinstance(item, BaseException):
            self.is_over = True
        self.queue.append(item)
        if self.arrived is not None and not self.arrived.done():
            self.arrived.set_result(None)

    def broken(self) -> None:
        """The connection is gone."""
        self.fail(unavailable())

    # --- at the server's ---

    def deliver(self, address: str, doubled: bool = False) -> None:
        """The request reaches whoever serves there."""
        found = self.network.pick(address)
        if found is None:
            if not doubled:
                self.network.loop.later(self.network.weather.message_delay(), self.broken)
            return
        life, servicers = found
        servicer = servicers.get(self.method[1])
        if servicer is None:
            raise AssertionError(f"nobody serves {self.method}")
        context = life.context.copy()
        request = copied(self.request)
        context.run(CALL.set, (self.method[2], request))
        capability = None
        if self.credential is not None and self.network.verify is not None:
            capability = self.network.verify(self.credential)
        context.run(set_caller, Caller(subject=self.subject, capability=capability))
        handler = getattr(servicer, self.method[2])
        if self.method[2] == "AckRun":
            self.network.loop.world.check("acknowledged", request.fence.run_id, request.through_offset)
        if self.queue is None:
            if doubled:
                if self.method[2] == "ClearSession":
                    self.network.loop.world.asked_again_to_clear(request)
                self.network.loop.task_in(life, self._serve_again(handler, request), context)
                return
            self.serving = life
            self.network.began(self, life)
            self.task = self.network.loop.task_in(life, self._serve(handler, request, life), context)
        else:
            self.serving = life
            self.network.began(self, life)
            self.task = self.network.loop.task_in(life, self._serve_stream(handler, request, life), context)

    async def _serve(self, handler: Any, request: Any, life: Life) -> None:
        network = self.network
        try:
            response = await handler(request, ServerContext(life))
            self._told_to_stop(life)
            if self.method[2] == "InvokeTool":
                network.loop.world.check("tool_answered", request, response)
            if self.method[2] == "ReserveTurn" and response.outcome == session_service_pb2.RESERVE_OUTCOME_CLOSING:
                network.loop.world.check("met_closing", request.request_key, response.binding.binding_id)
        except asyncio.CancelledError:
            network.ended(self, life)
            raise
        except Exception as error:  # noqa: BLE001 - becomes the call's status, as at a real server
            self._told_to_stop(life)
            failure = as_status(error, self.method[2], life, network)
            if self.method[2] == "InvokeTool":
                network.loop.world.check("tool_refused", request, failure.reason.value, failure.retryable)
            self._back(life, self.fail, failure)
        else:
            self._back(life, self.succeed, copied(response))

    def _told_to_stop(self, life: Life) -> None:
        if self.method[1:] == CANCEL:
            self.network.loop.world.check("stopped", f"{life.name}-{life.incarnation}", self.request.fence.run_id)

    def _back(self, life: Life, arrive: Any, what: Any) -> None:
        network = self.network
        network.ended(self, life)
        if network.weather.is_lost("message_lost"):
            network.loop.later(network.weather.message_delay(), self.broken)
            return
        network.loop.later(network.weather.message_delay(), arrive, what)

    async def _serve_again(self, handler: Any, request: Any) -> None:
        try:
            await handler(request, ServerContext(None))
        except (HarnessError, Refusal, StoreError):
            return

    async def _serve_stream(self, handler: Any, request: Any, life: Life) -> None:
        network, weather, loop = self.network, self.network.weather, self.network.loop
        due = loop.now
        try:
            async for response in handler(request, ServerContext(life)):
                if weather.is_lost("stream_cut"):
                    loop.later(weather.message_delay(), self.broken)
                    return
                # Messages of one stream arrive in order: each a little after the one before, for moments are rounded.
                due = max(due + ROUNDING, loop.now + weather.message_delay())
                loop.later(due - loop.now, self.push, copied(response))
            loop.later(max(due - loop.now, 0) + weather.message_delay(), self.push, None)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            failure = as_status(error, self.method[2], life, network)
            loop.later(max(due - loop.now, 0) + weather.message_delay(), self.push, failure)
        finally:
            network.ended(self, life)

    def abandon(self) -> None:
        """The caller is not interested any more: the server notices a moment later."""
        self.is_over = True
        if self.task is not None and self.serving is not None and not self.serving.dead:
            self.network.loop.later(self.network.weather.message_delay(), self._cancel)

    def _cancel(self) -> None:
        if self.task is not None and self.serving is not None and not self.serving.dead:
            self.task.cancel()


class SimulatedPeer:
    """Stands in for `services.common.channels.Peer`."""

    def __init__(self, network: Network, address: str) -> None:
        self.address = address
        self.channel = Channel(self)
        self._network = network

    @property
    def is_served(self) -> bool:
        """Whether there is anybody to connect to."""
        return self._network.is_served(self.address)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """As the peer's: nothing here asks who calls."""
        return ()

    async def call(
        self,
        method: Any,
        request: Any,
        *,
        subject: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        credential: str | None = None,
        wait_for_ready: bool = False,
        **_: Any,
    ) -> Any:
        network, loop, weather = self._network, self._network.loop, self._network.weather
        call = Call(network, method, request, subject, credential, loop.create_future())
        if call.method[1:] == CANCEL:
            loop.world.check("told_to_stop", request.fence.run_id)
        delay = weather.message_delay() + self._late()
        if weather.is_lost("message_lost") or self._lost():
            loop.later(delay, call.broken)
        else:
            loop.later(delay, call.deliver, self.address)
            if weather.is_lost("message_doubled") and call.method[2] not in NOT_DOUBLED:
                loop.later(delay + weather.message_delay() * 10, call.deliver, self.address, True)
        timer = loop.call_later(timeout, call.fail, _timed_out())
        try:
            return await call.answer
        finally:
            timer.cancel()
            if call.task is not None and not call.answer.done():
                call.abandon()
            if call.answer.cancelled() and call.task is not None:
                call.abandon()

    async def stream(
        self,
        method: Any,
        request: Any,
        *,
        subject: str | None = None,
        timeout: float | None,
        credential: str | None = None,
        wait_for_ready: bool = False,
        **_: Any,
    ) -> AsyncGenerator[Any, None]:
        network, loop, weather = self._network, self._network.loop, self._network.weather
        call = Call(network, method, request, subject, credential, None)
        call.queue = deque()
        delay = weather.message_delay() + self._late()
        if weather.is_lost("message_lost") or self._lost():
            loop.later(delay, call.broken)
        else:
            loop.later(delay, call.deliver, self.address)
        try:
            while True:
                while not call.queue:
                    call.arrived = loop.create_future()
                    await call.arrived
                item = call.queue.popleft()
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            call.abandon()

    async def close(self) -> None:
        return

    def _late(self) -> float:
        return self._network.weather.late_at_a_host() if self.address.startswith("host") else 0.0

    def _lost(self) -> bool:
        return self.address.startswith("host") and self._network.weather.is_lost("runtime_lost")


class ServerContext:
    """What a servicer may ask of its call."""

    __slots__ = ("_life",)

    def __init__(self, life: Life | None) -> None:
        self._life = life

    def time_remaining(self) -> float | None:
        """Servicers of the host shorten their work by this."""
        return None


def copied(message: Any) -> Any:
    """The message as the other side decodes it."""
    if isinstance(message, bytes):
        return message
    return type(message).FromString(message.SerializeToString())


def _timed_out() -> HarnessError:
    return HarnessError(Reason.DEADLINE_EXCEEDED, "A service this needs did not answer in time.")


def as_status(error: Exception, method: str, life: Life, network: Network) -> HarnessError:
    """What the caller gets for what a servicer raised, by way of the status on the wire."""
    if isinstance(error, Refusal):
        return from_status(_refused(error))
    failure = classified(error, method)
    if not isinstance(error, HarnessError):
        network.loop.on_error(life, {"message": f"{method} failed unexpectedly", "exception": error})
    return from_status(to_status(failure))


def _refused(reason: Refusal) -> status_pb2.Status:
    status = status_pb2.Status(code=code_pb2.Code.Value(reason.grpc_code), message=reason.message)
    info = error_details_pb2.ErrorInfo(reason=reason.reason, domain="harness")
    info.metadata["category"] = reason.category
    info.metadata["retryable"] = "true" if reason.retryable else "false"
    status.details.add().Pack(info)
    return status


def rpc_error(error: HarnessError) -> grpc.aio.AioRpcError:
    """The error as a stub of grpc raises it."""
    status = to_status(error)
    code = next(one for one in grpc.StatusCode if one.value[0] == status.code)
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing_metadata(status)), details=error.message
    )
