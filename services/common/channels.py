"""The client side of every call between processes of the mesh: one `Peer` per service, which finds a restarted process by itself."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import grpc
import grpc.aio
from pydantic import SecretStr

from services.common.errors import HarnessError, Reason
from services.common.exchange import ExchangeChannel
from services.common.interceptors.auth import AUTHORIZATION, SUBJECT
from services.common.replicas import LATE_SECONDS, Replicas, SpreadChannel, SpreadMethod
from services.common.settings import split_addresses
from services.common.status import from_rpc_error
from services.common.tracing import TRACEPARENT, current_traceparent

DEFAULT_TIMEOUT_SECONDS = 10.0
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
MAX_METADATA_BYTES = 128 * 1024  # holds the largest error: a hundred field issues
KEEPALIVE_MILLISECONDS = 20_000
KEEPALIVE_TIMEOUT_MILLISECONDS = 10_000
CONNECT_MILLISECONDS = 5_000
"""What a peer on a loaded machine may take to answer a new connection: one that is given up sooner is begun anew, and again too late."""
REPLICA_KEEPALIVE_MILLISECONDS = 3_000
REPLICA_KEEPALIVE_TIMEOUT_MILLISECONDS = 4_000

Request = TypeVar("Request")


def connect(
    addresses: str,
    token: SecretStr | None = None,
    *,
    idempotent_methods: Sequence[str] = (),
    idempotent: bool = False,
    exchange: bool = False,
) -> "Peer":
    """A peer at `unix:/path` or `host:port`, or at several of them, separated by commas: the replicas of one service, of which each call goes to one that
    serves. Connects when first called (to replicas at once), and again whenever a process behind it restarts.

    `token` is the service credential; None where each call brings its own (`credential=`, a capability token). `idempotent_methods`
    (`harness.run.v1.RunService/GetRun`) may be repeated, up to three times, while the peer is unavailable: at another replica, if there is one.
    `idempotent`: whatever is asked may be asked again of another replica. `exchange`: unary calls share a stream, which is for services that call each
    other all the time. Must be called on the event loop.
    """
    each = split_addresses(addresses)
    if len(each) == 1:
        return Peer(_channel(each[0], idempotent_methods, exchange=exchange), token)
    # Repeated by the peer, at another replica, never by the channel of the one that failed.
    replicas = Replicas((address, _channel(address, (), exchange=exchange, is_replica=True)) for address in each)
    return _ReplicatedPeer(SpreadChannel(replicas, idempotent_methods, every=idempotent), token)


class Peer:
    """A channel, its credential, and calls that raise `HarnessError`. Make stubs from `peer.channel`, call them through the peer:

    response = await peer.call(stub.GetRun, GetRunRequest(...), subject=subject)
    async with aclosing(peer.stream(stub.WatchRun, request, subject=subject, timeout=None)) as events: ...
    """

    def __init__(self, channel: grpc.aio.Channel, token: SecretStr | None) -> None:
        self._authorization = None if token is None else _bearer(token)
        self.channel = channel

    async def call(
        self,
        method: Callable[..., Any],
        request: Request | AsyncIterable[Request] | Iterable[Request],
        *,
        subject: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        credential: str | None = None,
        wait_for_ready: bool = False,
        idempotent: bool = False,
    ) -> Any:
        """One response (unary, or client stream). `timeout` in seconds is the whole call's deadline; with `wait_for_ready` a peer that is away is waited
        for within it instead of failing at once. `idempotent`: this call may be made again at another replica, as if its method were one of the
        idempotent ones. Raises `HarnessError`.
        """
        try:
            # I35: of a call that its peer has not read, as one that stands still, grpc keeps no deadline.
            async with asyncio.timeout(timeout + LATE_SECONDS):
                return await method(
                    request,
                    timeout=timeout,
                    metadata=self.metadata(subject=subject, credential=credential),
                    wait_for_ready=wait_for_ready,
                )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        except TimeoutError:
            raise HarnessError(Reason.DEADLINE_EXCEEDED, "A service this needs did not answer in time.") from None

    async def stream(
        self,
        method: Callable[..., Any],
        request: Request | AsyncIterable[Request],
        *,
        subject: str | None = None,
        timeout: float | None,
        credential: str | None = None,
        wait_for_ready: bool = False,
        near: str | None = None,
    ) -> AsyncGenerator[Any, None]:
        """The messages of a server or bidirectional stream. `timeout` must be said: None only for a stream that ends by its own rule.
        `near`: the place of the replica that is asked if it serves, where the answer costs less; any other gives the same.

        Leaving the loop (use `contextlib.aclosing`) cancels the call. Raises `HarnessError`.
        """
        call = method(
            request,
            timeout=timeout,
            metadata=self.metadata(subject=subject, credential=credential),
            wait_for_ready=wait_for_ready,
        )
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        finally:
            # Closing a channel does not cancel a pending read; cancelling an ended call does nothing.
            call.cancel()

    def metadata(self, *, subject: str | None = None, credential: str | None = None) -> tuple[tuple[str, str], ...]:
        """What accompanies a call: credential, subject, trace context. For calls made on a stub directly."""
        authorization = self._authorization if credential is None else f"Bearer {credential}"
        pairs = [(TRACEPARENT, current_traceparent())]
        if authorization is not None:
            pairs.append((AUTHORIZATION, authorization))
        if subject is not None:
            pairs.append((SUBJECT, subject))
        return tuple(pairs)

    async def close(self) -> None:
        """Closes the channel; calls still open are cancelled."""
        await self.channel.close(grace=None)


class _ReplicatedPeer(Peer):
    """A peer at several replicas. A stream stays where it began; its caller opens the next one."""

    async def call(
        self,
        method: Callable[..., Any],
        request: Request | AsyncIterable[Request] | Iterable[Request],
        *,
        subject: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        credential: str | None = None,
        wait_for_ready: bool = False,
        idempotent: bool = False,
    ) -> Any:
        return await _spread(method).call(
            request,
            timeout=timeout,
            metadata=self.metadata(subject=subject, credential=credential),
            wait_for_ready=wait_for_ready,
            idempotent=idempotent,
        )

    async def stream(
        self,
        method: Callable[..., Any],
        request: Request | AsyncIterable[Request],
        *,
        subject: str | None = None,
        timeout: float | None,
        credential: str | None = None,
        wait_for_ready: bool = False,
        near: str | None = None,
    ) -> AsyncGenerator[Any, None]:
        async with _spread(method).streaming(timeout=timeout, wait=wait_for_ready, near=near) as chosen:
            answers = super().stream(chosen, request, subject=subject, timeout=timeout, credential=credential)
            async with aclosing(answers):
                async for answer in answers:
                    yield answer


def _spread(method: Callable[..., Any]) -> SpreadMethod:
    if not isinstance(method, SpreadMethod):
        raise TypeError("the method is not of a stub made from this peer's channel")
    return method


def _channel(
    address: str, idempotent_methods: Sequence[str], *, exchange: bool, is_replica: bool = False
) -> grpc.aio.Channel:
    options = channel_options(address, idempotent_methods, is_replica=is_replica)
    channel = grpc.aio.insecure_channel(_target(address), options=options)
    return ExchangeChannel(channel, idempotent_methods) if exchange else channel


def channel_options(
    address: str, idempotent_methods: Sequence[str] = (), *, is_replica: bool = False
) -> list[tuple[str, Any]]:
    """Options of every client channel; the keepalive fits `server.server_options`. One of several replicas that has stopped answering is given up
    before the calls that wait for it are, so that they can go elsewhere.
    """
    keepalive, keepalive_timeout = (
        (REPLICA_KEEPALIVE_MILLISECONDS, REPLICA_KEEPALIVE_TIMEOUT_MILLISECONDS)
        if is_replica
        else (KEEPALIVE_MILLISECONDS, KEEPALIVE_TIMEOUT_MILLISECONDS)
    )
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.keepalive_time_ms", keepalive),
        ("grpc.keepalive_timeout_ms", keepalive_timeout),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # A restarted peer is found again within a second.
        ("grpc.initial_reconnect_backoff_ms", 50),
        # Its name misleads: how long one attempt to connect may take, never how long until the next one.
        ("grpc.min_reconnect_backoff_ms", CONNECT_MILLISECONDS),
        ("grpc.max_reconnect_backoff_ms", 500 if is_replica else 1_000),
        ("grpc.enable_retries", 1),
        ("grpc.service_config", _service_config(idempotent_methods)),
        # Channels of one process to one address are not shared behind our back: closing one must not touch another.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if is_replica:
        # Without it a ping may stay unanswered for a minute, whatever the keepalive says.
        options.append(("grpc.http2.ping_timeout_ms", REPLICA_KEEPALIVE_TIMEOUT_MILLISECONDS))
    if address.startswith("unix:"):
        # The socket path as authority is refused by servers in other languages.
        options.append(("grpc.default_authority", "localhost"))
    return options


def _service_config(idempotent_methods: Sequence[str]) -> str:
    config: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
    if idempotent_methods:
        names = [
            {"service": service, "method": method}
            for service, _, method in (name.rpartition("/") for name in idempotent_methods)
        ]
        retry = {
            "maxAttempts": 4,
            "initialBackoff": "0.05s",
            "maxBackoff": "0.5s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
        config["methodConfig"] = [{"name": names, "retryPolicy": retry}]
    return json.dumps(config)


def _target(address: str) -> str:
    return address if address.startswith("unix:") else f"dns:///{address}"


def _bearer(token: SecretStr) -> str:
    return f"Bearer {token.get_secret_value()}"
