"""Several replicas of one service as one channel: who serves, who gets the next call, and when another may be asked (I33, I34).

grpc's own balancing takes no several unix sockets in one target, and does not say whether a failed call can have run. So each replica has a channel of its
own, its health is followed on it, and a call goes to the one of those that serve which has least to do.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Sequence, Set
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.errors import HarnessError, Reason
from services.common.logs import get_logger
from services.common.status import from_rpc_error, was_not_begun

MAX_ATTEMPTS = 4
"""Tries of one call, whatever the number of replicas (I35)."""
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.5
WATCH_AGAIN_SECONDS = 0.05
NONE_THERE_SECONDS = 2.0
"""How long a call waits for a replica when none is connected: it has not been sent, so it may."""
ASK_SECONDS = 3.0
SILENT_SECONDS = 4.0
"""A replica that has calls to answer is asked so often for its health, and has so long to say it. Many times what a loaded machine needs."""
LOST_SECONDS = 0.5
"""How long after its health broke off the calls that a replica has not answered are given up. What came before the break is read within that."""
LATE_SECONDS = 0.5
"""How much later than its deadline a call is ended here, where grpc does not end it."""
_NEVER_SENT = "connections to all backends failing"
"""What grpc's balancer says of a call that it had no connection for."""
_CUT_OFF = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""How a call ends whose server died or stopped; our own cancelling is no `AioRpcError`."""

Multicallable = Any
_log = get_logger(__name__)


class Replica:
    """One process of the service: its channel, whether its health answers and says that it serves, and what it has to do for this process."""

    __slots__ = ("address", "channel", "connected", "index", "serving", "silent", "status", "streams", "waiting")

    def __init__(self, index: int, address: str, channel: grpc.aio.Channel) -> None:
        self.index = index
        self.address = address
        self.channel = channel
        self.connected = False
        self.serving = False
        self.status: int | None = None
        """What its health said last; None without a connection."""
        self.silent = False
        """Whether it let a question go unanswered."""
        self.streams = 0
        self.waiting: set[asyncio.Timeout] = set()
        """One for each call that waits for its answer; rescheduled, it gives the call up."""

    @property
    def calls(self) -> int:
        """How many calls wait for their answer."""
        return len(self.waiting)


class Replicas:
    """The replicas of one service. Made on the event loop; `close` ends what follows their health."""

    def __init__(self, channels: Iterable[tuple[str, grpc.aio.Channel]]) -> None:
        self._replicas = [Replica(index, address, channel) for index, (address, channel) in enumerate(channels)]
        self._turn = 0
        self._changed = asyncio.Event()
        self._watches = [
            asyncio.create_task(work(replica), name="replica-health")
            for replica in self._replicas
            for work in (self._follow, self._ask)
        ]

    def channels(self) -> Sequence[grpc.aio.Channel]:
        """One per replica."""
        return [replica.channel for replica in self._replicas]

    def serving(self) -> Sequence[str]:
        """The addresses of those that are connected and say that they serve."""
        return [replica.address for replica in self._replicas if replica.serving]

    async def choose(
        self,
        until: float | None,
        *,
        streams: bool = False,
        wait: bool = False,
        tried: Sequence[Replica] = (),
        near: str | None = None,
    ) -> Replica | None:
        """The replica for the next call: one that was not tried before one that was, then the one whose place `near` is, then the one with least to
        do, then in turn. Where none serves: one that is connected, for it can say why it does not; where none is, the next that comes within two
        seconds. With `wait` it has to serve, and has until `until`, on the loop's clock. None: there was none in time.

        Never one that is not connected: a call would wait on it, and for that one alone.
        """
        limit = until
        if not wait:
            patience = asyncio.get_running_loop().time() + NONE_THERE_SECONDS
            limit = patience if until is None else min(patience, until)
        while True:
            best = self.pick(streams=streams, tried=tried, near=near)
            if best is not None and (best.serving or not wait):
                return best
            try:
                async with asyncio.timeout_at(limit):
                    await self.changed()
            except TimeoutError:
                return None

    def pick(self, *, streams: bool = False, tried: Sequence[Replica] = (), near: str | None = None) -> Replica | None:
        """See `choose`, without waiting. Calls and streams are counted apart: a replica that came back has no streams, and is not to get all the calls
        for that.
        """
        count = len(self._replicas)
        self._turn = (self._turn + 1) % count
        best: Replica | None = None
        least = (True, True, True, 0)
        for step in range(count):
            replica = self._replicas[(self._turn + step) % count]
            if not replica.connected:
                continue
            busy = replica.streams if streams else replica.calls
            elsewhere = near is not None and getattr(replica.channel, "place", "") != near
            load = (not replica.serving, replica in tried, elsewhere, busy)
            if best is None or load < least:
                best, least = replica, load
        return best

    async def changed(self) -> None:
        """Returns when something is known of a replica that was not when this was called."""
        self._changed.clear()
        await self._changed.wait()

    async def close(self) -> None:
        """Ends the watches and closes the channels; calls still open are cancelled."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.wait(self._watches)
        for replica in self._replicas:
            await replica.channel.close(grace=None)

    async def _follow(self, replica: Replica) -> None:
        stub: Any = health_pb2_grpc.HealthStub(replica.channel)  # the package carries no types
        request = health_pb2.HealthCheckRequest()
        while True:
            try:
                # Waits for the connection: the channel makes it again with its own backoff, also when the process was restarted.
                async for answer in stub.Watch(request, wait_for_ready=True):
                    self._note(replica, answer.status)
            except grpc.aio.AioRpcError as error:
                # Whatever ended the watch, nothing is known of the replica until the next one answers.
                _log.debug("replica_lost", address=replica.address, code=error.code().name)
            if replica.serving:  # one that stops has said so, and answers what it has
                asyncio.get_running_loop().call_later(LOST_SECONDS, _give_up, replica, frozenset(replica.waiting))
            self._note(replica, None)
            await asyncio.sleep(WATCH_AGAIN_SECONDS)

    async def _ask(self, replica: Replica) -> None:
        """Finds out that a replica stands still where the keepalive cannot: its ping waits behind a write that the replica does not take."""
        stub: Any = health_pb2_grpc.HealthStub(replica.channel)  # the package carries no types
        while True:
            await asyncio.sleep(ASK_SECONDS)
            if not replica.waiting and not replica.silent:
                continue
            silent = False
            if replica.status is not None:
                try:
                    # Timed here: grpc keeps no deadline of a call that is in such a write.
                    async with asyncio.timeout(SILENT_SECONDS):
                        await stub.Check(health_pb2.HealthCheckRequest())
                except TimeoutError:
                    silent = True
                except grpc.aio.AioRpcError as error:  # whoever follows its health sees that as well
                    _log.debug("replica_not_asked", address=replica.address, code=error.code().name)
            if silent != replica.silent:
                replica.silent = silent
                self._note(replica, replica.status)
            if silent:
                _give_up(replica, replica.waiting)

    def _note(self, replica: Replica, status: int | None) -> None:
        replica.status = status
        replica.connected = status is not None and not replica.silent
        replica.serving = status == health_pb2.HealthCheckResponse.SERVING and not replica.silent
        self._changed.set()


def _give_up(replica: Replica, calls: Set[asyncio.Timeout]) -> None:
    # I35: grpc does not end a call of a dead connection that is in a write which its peer never took: it would wait for its deadline.
    now = asyncio.get_running_loop().time()
    for patience in calls & replica.waiting:
        if not patience.expired():
            patience.reschedule(now)


class SpreadMethod:
    """One method on every replica. Called itself, as by a stub that is used directly, it asks one replica and no other."""

    __slots__ = ("_methods", "_replicas", "_streams", "idempotent")

    def __init__(
        self, replicas: Replicas, methods: Sequence[Multicallable], *, streams: bool, idempotent: bool
    ) -> None:
        self._replicas = replicas
        self._methods = methods
        self._streams = streams
        self.idempotent = idempotent

    def on(self, replica: Replica) -> Multicallable:
        """The method on one replica's channel."""
        return self._methods[replica.index]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        replica = self._replicas.pick(streams=self._streams)
        # Without any, the call has to end as calls do: with the status of a channel that is not connected.
        return (self._methods[0] if replica is None else self.on(replica))(*arguments, **options)

    async def call(
        self,
        request: Any,
        *,
        timeout: float,
        metadata: Any,
        wait_for_ready: bool,
        idempotent: bool,
    ) -> Any:
        """One response, from whichever replica. Another is asked where nothing can have run, or where running twice is the same as once.
        Raises `HarnessError`.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        # What is sent piece by piece is gone once it was asked for.
        attempts = MAX_ATTEMPTS if isinstance(request, Message) else 1
        tried: list[Replica] = []
        store_away: HarnessError | None = None
        for attempt in range(1, attempts + 1):
            replica = await self._replicas.choose(until, wait=wait_for_ready, tried=tried)
            if replica is None:
                raise store_away or none_there()
            asked_at = loop.time()
            try:
                return await self._unless_lost(replica, request, until, metadata)
            except grpc.aio.AioRpcError as error:
                again = cannot_have_run(error) or ((idempotent or self.idempotent) and error.code() in _CUT_OFF)
                round_over = replica in tried or len(tried) + 1 == len(self._methods)
                refused_by_all = round_over and error.code() not in _CUT_OFF
                failure = from_rpc_error(error)
                if failure.reason is Reason.STORE_UNAVAILABLE:
                    store_away = failure
                    # The others keep what they have there too, and most of what it takes to say so is waiting for it.
                    again = again and loop.time() + (loop.time() - asked_at) < until
                if not again or refused_by_all or attempt == attempts or loop.time() >= until:
                    # I34: time that ran out over a store that is away is no error of another kind.
                    raise (store_away or failure if failure.reason is Reason.DEADLINE_EXCEEDED else failure) from None
            tried.append(replica)
            if round_over:
                # They are given a moment, as when the last one is just being restarted.
                pause = min(FIRST_PAUSE_SECONDS * 2**attempt, LONGEST_PAUSE_SECONDS)
                await asyncio.sleep(min(pause, max(0.0, until - loop.time())))
        raise AssertionError("the last attempt returns or raises")

    async def _unless_lost(self, replica: Replica, request: Any, until: float, metadata: Any) -> Any:
        """The replica's answer; `UNAVAILABLE` where it is lost meanwhile, however long grpc would still wait."""
        loop = asyncio.get_running_loop()
        patience = asyncio.timeout_at(until + LATE_SECONDS)
        try:
            async with patience:
                replica.waiting.add(patience)
                try:
                    return await self.on(replica)(request, timeout=max(0.0, until - loop.time()), metadata=metadata)
                finally:
                    replica.waiting.discard(patience)
        except TimeoutError:
            code = grpc.StatusCode.UNAVAILABLE if loop.time() < until else grpc.StatusCode.DEADLINE_EXCEEDED
            raise grpc.aio.AioRpcError(
                code, grpc.aio.Metadata(), grpc.aio.Metadata(), "The replica does not answer."
            ) from None

    @contextlib.asynccontextmanager
    async def streaming(
        self, *, timeout: float | None, wait: bool, near: str | None = None
    ) -> AsyncGenerator[Multicallable]:
        """The method on the replica for one more stream, which counts as open until the end of the block. Raises `HarnessError`."""
        until = None if timeout is None else asyncio.get_running_loop().time() + timeout
        replica = await self._replicas.choose(until, streams=True, wait=wait, near=near)
        if replica is None:
            raise none_there()
        replica.streams += 1
        try:
            yield self.on(replica)
        finally:
            replica.streams -= 1


class SpreadChannel(grpc.aio.Channel):
    """What stubs are made from: a method of it is that method on every replica."""

    def __init__(self, replicas: Replicas, idempotent_methods: Sequence[str], *, every: bool = False) -> None:
        """`idempotent_methods` by full name, or `every` one, may be called again on another replica."""
        self.replicas = replicas
        self._every = every
        self._idempotent = frozenset(f"/{name}" for name in idempotent_methods)

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._spread("unary_unary", method, arguments, options)

    def unary_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._spread("unary_stream", method, arguments, options)

    def stream_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._spread("stream_unary", method, arguments, options)

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._spread("stream_stream", method, arguments, options)

    def _spread(self, kind: str, method: str, arguments: Sequence[Any], options: dict[str, Any]) -> SpreadMethod:
        methods = [getattr(channel, kind)(method, *arguments, **options) for channel in self.replicas.channels()]
        idempotent = self._every or method in self._idempotent
        return SpreadMethod(self.replicas, methods, streams=kind.endswith("_stream"), idempotent=idempotent)

    async def close(self, grace: float | None = None) -> None:
        await self.replicas.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """READY while a replica serves; nothing more can be said of several connections at once."""
        return grpc.ChannelConnectivity.READY if self.replicas.serving() else grpc.ChannelConnectivity.CONNECTING

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        raise NotImplementedError("ask one replica's channel: several have no one state")

    async def channel_ready(self) -> None:
        await self.replicas.choose(None, wait=True)

    async def __aenter__(self) -> "SpreadChannel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def cannot_have_run(error: grpc.aio.AioRpcError) -> bool:
    """Whether it is certain that nothing of the call was executed: it never left, or was refused before anything was done."""
    never_sent = error.code() is grpc.StatusCode.UNAVAILABLE and (error.details() or "").startswith(_NEVER_SENT)
    return never_sent or was_not_begun(error)


def none_there() -> HarnessError:
    """The answer while no replica can be reached."""
    return HarnessError(Reason.UNAVAILABLE, "A service this needs cannot be reached now; try again.", retry_after=1.0)
