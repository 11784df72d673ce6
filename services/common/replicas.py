"""Several replicas of one service as one channel: who serves, who gets the next call, and when another may be asked (I33, I34).

grpc's own balancing takes no several unix sockets in one target, and does not say whether a failed call can have run. So each replica has a channel of its
own, its health is followed on it, and a call goes to the one of those that serve which has least to do.
"""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.status import from_rpc_error, was_not_begun

MAX_ATTEMPTS = 4
"""Tries of one call, whatever the number of replicas (I35)."""
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.5
WATCH_AGAIN_SECONDS = 0.05
_NEVER_SENT = "connections to all backends failing"
"""What grpc's balancer says of a call that it had no connection for."""
_CUT_OFF = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""How a call ends whose server died or stopped; our own cancelling is no `AioRpcError`."""

Method = Callable[..., Any]
Multicallable = Any


class Replica:
    """One process of the service: its channel, whether it serves, and what it has to do for this process."""

    __slots__ = ("address", "calls", "channel", "index", "serving", "streams")

    def __init__(self, index: int, address: str, channel: grpc.aio.Channel) -> None:
        self.index = index
        self.address = address
        self.channel = channel
        self.serving = False
        self.calls = 0
        self.streams = 0


class Replicas:
    """The replicas of one service. Made on the event loop; `close` ends what follows their health."""

    def __init__(self, channels: Iterable[tuple[str, grpc.aio.Channel]]) -> None:
        self._replicas = [Replica(index, address, channel) for index, (address, channel) in enumerate(channels)]
        self._turn = 0
        self._changed = asyncio.Event()
        self._watches = [
            asyncio.create_task(self._follow(replica), name="replica-health") for replica in self._replicas
        ]

    def channels(self) -> Sequence[grpc.aio.Channel]:
        """One per replica."""
        return [replica.channel for replica in self._replicas]

    def serving(self) -> Sequence[str]:
        """The addresses of those that are connected and say that they serve."""
        return [replica.address for replica in self._replicas if replica.serving]

    def pick(self, *, streams: bool = False, tried: Sequence[Replica] = ()) -> Replica:
        """The replica for the next call: one that serves before one that does not, then the one with least to do, then in turn. Calls and streams are
        counted apart: a replica that came back has no streams, and is not to get all the calls for that.
        """
        count = len(self._replicas)
        self._turn = (self._turn + 1) % count
        best, least = self._replicas[self._turn], (True, True, 0)
        for step in range(count):
            replica = self._replicas[(self._turn + step) % count]
            load = (replica in tried, not replica.serving, replica.streams if streams else replica.calls)
            if step == 0 or load < least:
                best, least = replica, load
        return best

    async def one_serves(self, until: float | None) -> None:
        """Returns when a replica serves, or at `until` on the loop's clock."""
        while not any(replica.serving for replica in self._replicas):
            self._changed.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
            except TimeoutError:
                return

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
                    self._note(replica, serving=answer.status == health_pb2.HealthCheckResponse.SERVING)
            except grpc.aio.AioRpcError:
                # Whatever ended the watch, nothing is known of the replica until the next one answers.
                self._note(replica, serving=False)
            self._note(replica, serving=False)
            await asyncio.sleep(WATCH_AGAIN_SECONDS)

    def _note(self, replica: Replica, *, serving: bool) -> None:
        replica.serving = serving
        self._changed.set()


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
        return self.on(self._replicas.pick(streams=self._streams))(*arguments, **options)

    async def call(self, request: Any, *, timeout: float, metadata: Any, wait_for_ready: bool, idempotent: bool) -> Any:
        """One response, from whichever replica. Another is asked where nothing can have run, or where running twice is the same as once.
        Raises `HarnessError`.
        """
        loop, replicas = asyncio.get_running_loop(), self._replicas
        until = loop.time() + timeout
        # What is sent piece by piece is gone once it was asked for.
        attempts = MAX_ATTEMPTS if isinstance(request, Message) else 1
        tried: list[Replica] = []
        for attempt in range(1, attempts + 1):
            if wait_for_ready:
                await replicas.one_serves(until)
            replica = replicas.pick(tried=tried)
            replica.calls += 1
            try:
                return await self.on(replica)(
                    request,
                    timeout=max(0.0, until - loop.time()),
                    metadata=metadata,
                    wait_for_ready=wait_for_ready and attempt == 1,
                )
            except grpc.aio.AioRpcError as error:
                again = cannot_have_run(error) or ((idempotent or self.idempotent) and error.code() in _CUT_OFF)
                if not again or attempt == attempts or loop.time() >= until:
                    raise from_rpc_error(error) from None
            finally:
                replica.calls -= 1
            tried.append(replica)
            if len(tried) % len(replicas.channels()) == 0:
                # Every one has failed: they are given a moment, as when the last one is just being restarted.
                tried.clear()
                pause = min(FIRST_PAUSE_SECONDS * 2**attempt, LONGEST_PAUSE_SECONDS)
                await asyncio.sleep(min(pause, max(0.0, until - loop.time())))
        raise AssertionError("the last attempt returns or raises")

    @contextlib.contextmanager
    def streaming(self) -> Generator[Multicallable]:
        """The method on the replica for one more stream, which counts as open until the end of the block."""
        replica = self._replicas.pick(streams=True)
        replica.streams += 1
        try:
            yield self.on(replica)
        finally:
            replica.streams -= 1

    async def one_serves(self, timeout: float | None) -> None:
        """Returns when a replica serves, or after `timeout` seconds."""
        await self._replicas.one_serves(None if timeout is None else asyncio.get_running_loop().time() + timeout)


class SpreadChannel(grpc.aio.Channel):
    """What stubs are made from: a method of it is that method on every replica."""

    def __init__(self, replicas: Replicas, idempotent_methods: Sequence[str]) -> None:
        self._replicas = replicas
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
        methods = [getattr(channel, kind)(method, *arguments, **options) for channel in self._replicas.channels()]
        return SpreadMethod(
            self._replicas, methods, streams=kind.endswith("_stream"), idempotent=method in self._idempotent
        )

    async def close(self, grace: float | None = None) -> None:
        await self._replicas.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """READY while a replica serves; nothing more can be said of several connections at once."""
        return grpc.ChannelConnectivity.READY if self._replicas.serving() else grpc.ChannelConnectivity.CONNECTING

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        raise NotImplementedError("ask one replica's channel: several have no one state")

    async def channel_ready(self) -> None:
        await self._replicas.one_serves(None)

    async def __aenter__(self) -> "SpreadChannel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def cannot_have_run(error: grpc.aio.AioRpcError) -> bool:
    """Whether it is certain that nothing of the call was executed: it never left, or was refused before anything was done."""
    never_sent = error.code() is grpc.StatusCode.UNAVAILABLE and (error.details() or "").startswith(_NEVER_SENT)
    return never_sent or was_not_begun(error)
