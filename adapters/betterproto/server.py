"""Serves the adapter: what every call passes, the address, readiness, signals (adapter process)."""

import asyncio
import hmac
import json
import logging
import os
import secrets
import signal
import socket
import stat
from collections.abc import Awaitable, Callable
from typing import Any

from betterproto_contracts.harness.common.v1 import ErrorCategory
from grpclib import GRPCError
from grpclib.const import Status as Code
from grpclib.encoding.proto import ProtoCodec
from grpclib.events import RecvRequest, listen
from grpclib.exceptions import ProtocolError, StreamTerminatedError
from grpclib.health.check import ServiceStatus
from grpclib.health.service import Health
from grpclib.server import Server, Stream

from adapters.betterproto.constraints import check
from adapters.betterproto.errors import Details, Refusal, full, invalid
from adapters.betterproto.runtimes import Runtimes
from adapters.betterproto.services import DEADLINE, Adapter, Runtime

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
FLUSH_SECONDS = 2.0
_HEALTH = "/grpc.health.v1.Health/"
_log = logging.getLogger(__name__)


class Codec(ProtoCodec):
    """Bounded, and honest about bytes that are no message."""

    def decode(self, data: bytes, message_type: Any) -> Any:
        """The message, within the contract's constraints. Raises Refusal."""
        if len(data) > MAX_MESSAGE_BYTES:
            raise full(f"A message may have {MAX_MESSAGE_BYTES} bytes.")
        try:
            message = message_type.FromString(data)
        except Exception:  # noqa: BLE001 - whatever the parser stumbled over, the bytes are no such message
            raise invalid("the message", "its bytes are none of the request's type") from None
        check(message)
        return message


class Gate:
    """What every call passes: the token, if there is one, and the form that refusals have on the wire."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode() if token else b""

    async def on_request(self, event: RecvRequest) -> None:
        """Lets the call in, or answers it."""
        if self._expected and not event.method_name.startswith(_HEALTH):
            given = str(event.metadata.get("authorization", "")).encode()
            if not hmac.compare_digest(given, self._expected):
                message = "A valid bearer token is needed."
                refusal = Refusal(Code.UNAUTHENTICATED, "unauthenticated", message, ErrorCategory.AUTHENTICATION)
                raise refusal.on_the_wire()
        method: Any = _answered(event.method_func)
        event.method_func = method


def _answered(call: Callable[[Stream[Any, Any]], Awaitable[None]]) -> Callable[[Stream[Any, Any]], Awaitable[None]]:
    async def answered(stream: Stream[Any, Any]) -> None:
        DEADLINE.set(stream.deadline)
        try:
            await call(stream)
        except Refusal as refusal:
            raise refusal.on_the_wire() from None
        except (GRPCError, ProtocolError, StreamTerminatedError, TimeoutError):
            raise
        except Exception as error:  # noqa: BLE001 - everything becomes a status, and nothing of its text leaves
            _log.error("call failed: %s", type(error).__name__)
            message = "The adapter failed unexpectedly."
            raise Refusal(Code.INTERNAL, "adapter_defect", message, ErrorCategory.INTERNAL).on_the_wire() from None

    return answered


async def serve(listen_at: str, *, token: str, mode: int, grace: float, announce: Callable[[str, str], None]) -> None:
    """Serves until SIGTERM or SIGINT, then lets runs end for `grace` seconds. `announce` is told address and incarnation."""
    incarnation, runtimes, serving = secrets.token_hex(16), Runtimes(), ServiceStatus()
    services = [Adapter(runtimes, incarnation), Runtime(runtimes, incarnation)]
    health = Health({service: [serving] for service in services})
    server = Server([*services, health], codec=Codec(), status_details_codec=Details())
    listen(server, RecvRequest, Gate(token).on_request)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    path = listen_at.removeprefix("unix:") if listen_at.startswith("unix:") else ""
    bound = _unix_socket(path, mode) if path else _port(listen_at)
    await server.start(sock=bound)
    address = listen_at if path else f"{listen_at.rpartition(':')[0]}:{bound.getsockname()[1]}"
    serving.set(True)
    announce(address, incarnation)
    await stop.wait()
    serving.set(False)
    await runtimes.drain(grace)
    server.close()
    try:
        async with asyncio.timeout(FLUSH_SECONDS):
            await server.wait_closed()
    except TimeoutError:
        _log.warning("streams were cut off")
    if path:
        os.unlink(path)


def _unix_socket(path: str, mode: int) -> socket.socket:
    # What a dead process left is in the way; anything else is not ours to remove.
    if os.path.exists(path) and stat.S_ISSOCK(os.lstat(path).st_mode):
        os.unlink(path)
    bound = socket.socket(socket.AF_UNIX)
    # Never open to others between bind and chmod.
    before = os.umask(0o177)
    try:
        bound.bind(path)
    finally:
        os.umask(before)
    os.chmod(path, mode)
    return bound


def _port(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_server(
        (host.strip("[]"), int(port)), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    )


def announcer() -> Callable[[str, str], None]:
    """Writes one line of JSON to the descriptor in HARNESS_READY_FD, if it is set, and closes it."""
    descriptor = int(os.environ.pop("HARNESS_READY_FD", "-1"))
    if descriptor >= 0:
        os.set_inheritable(descriptor, False)

    def announce(address: str, incarnation: str) -> None:
        _log.info("serving at %s", address)
        if descriptor >= 0:
            facts = {
                "pid": os.getpid(),
                "service": "adapters.betterproto",
                "address": address,
                "incarnation": incarnation,
            }
            with os.fdopen(descriptor, "w") as ready:
                ready.write(json.dumps(facts) + "\n")

    return announce
