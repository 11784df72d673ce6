"""The process: socket, uvicorn, readiness, and the order of a stop (I32, I33)."""

import socket
from contextlib import AsyncExitStack
from pathlib import Path

from services.common.errors import ConfigurationError
from services.common.http_server import serve_http
from services.common.metrics import MetricsListener
from services.common.open_files import room_for
from services.common.process import Process
from services.common.sockets import PRIVATE, prepare_unix_socket, private_umask
from services.gateway.app import Gateway
from services.gateway.content import Transfers
from services.gateway.http_protocol import protocol
from services.gateway.operational import Operational
from services.gateway.operations import public_operations
from services.gateway.settings import GatewaySettings
from services.gateway.sse.endpoint import Streams
from services.gateway.upstream import Upstream

BACKLOG = 4_096
SEND_BUFFER_BYTES = 131_072
"""What the kernel keeps (it doubles the number) for a client that does not read; left alone it grows to megabytes for each of them (I14, I35)."""
SPARE_FILES = 256  # upstream channels, logs, and what the libraries open


async def serve(process: Process[GatewaySettings]) -> None:
    """Serves until a stop is asked for, then ends streams, lets running requests finish inside the grace period, and returns."""
    settings = _with_open_files(process.settings)
    operations = public_operations()
    async with AsyncExitStack() as resources:
        if settings.metrics_listen is not None:
            resources.callback(MetricsListener(settings.metrics_listen).close)
        listener, address = _bind(settings.listen)
        resources.callback(listener.close)
        upstream = Upstream(
            {
                "catalog": settings.catalog_address,
                "runs": settings.runs_address,
                "sessions": settings.sessions_address,
            },
            settings.outgoing_token,
            operations,
            settings.invoke_timeout_seconds,
        )
        resources.push_async_callback(upstream.close)
        streams = Streams(upstream, settings)
        operational = Operational(upstream, operations, process.stop_requested)
        gateway = Gateway(settings, operations, upstream, streams, Transfers(upstream, settings), operational.pages())
        await serve_http(
            process,
            gateway,
            protocol(settings),
            listener,
            address,
            backlog=BACKLOG,
            keep_alive_seconds=settings.keep_alive_timeout_seconds,
            before_stop=streams.close,
        )


def _with_open_files(settings: GatewaySettings) -> GatewaySettings:
    """Raises the process's limit of open files, or lowers a default that this machine has no room for."""
    asked_for = "max_connections" in settings.model_fields_set
    room = room_for(settings.max_connections, SPARE_FILES, "HARNESS_MAX_CONNECTIONS", asked_for=asked_for)
    return settings.model_copy(update={"max_connections": room})


def _bind(address: str) -> tuple[socket.socket, str]:
    """The listening socket and its address with the real port. I32: `ConfigurationError` when it cannot be had."""
    try:
        if address.startswith("unix:"):
            path = Path(address.removeprefix("unix:"))
            prepare_unix_socket(path, "HARNESS_LISTEN")
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with private_umask():
                listener.bind(str(path))
            path.chmod(PRIVATE)
            return listener, address
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # inherited by every connection
    except OSError as error:
        raise ConfigurationError(f"HARNESS_LISTEN: cannot listen on {address}: {error.strerror or error}.") from None
    shown = f"[{host}]" if ":" in host else host
    return listener, f"{shown}:{listener.getsockname()[1]}"
