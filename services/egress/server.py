"""The process: socket, uvicorn, readiness, and the order of a stop (I32, I33)."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Generator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import uvicorn

from services.common.capability_token import CapabilityVerifier
from services.common.channels import connect
from services.common.errors import ConfigurationError
from services.common.logs import get_logger
from services.common.metrics import MetricsListener
from services.common.process import Process
from services.common.sockets import prepare_unix_socket, private_umask
from services.egress.admission import Admission
from services.egress.clients import GET_BINDING, SessionsClient
from services.egress.endpoints import CredentialMissing, Endpoint, load_endpoints
from services.egress.proxy import Proxy
from services.egress.settings import AUDIENCE, EgressSettings

FOR_WORKERS: Final = 0o666
"""Mode of a unix socket: workers run as another user, so the folder, not the socket, limits who gets there."""
BACKLOG: Final = 1_024
_log = get_logger(__name__)


async def serve(process: Process[EgressSettings]) -> None:
    """Serves until a stop is asked for, lets running requests finish inside the grace period, and returns."""
    settings = process.settings
    # Its line for each request tells where an endpoint is, which is the operator's.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    endpoints = load_endpoints(settings.config_file)
    for endpoint in endpoints.values():
        _look_at(endpoint)
    async with AsyncExitStack() as resources:
        if settings.metrics_listen is not None:
            resources.callback(MetricsListener(settings.metrics_listen).close)
        listener, address = _bind(settings.facade_listen)
        resources.callback(_close, listener, address)
        peer = connect(settings.sessions_address, settings.outgoing_token, idempotent_methods=[GET_BINDING])
        resources.push_async_callback(peer.close)
        client = httpx.AsyncClient(follow_redirects=False, timeout=_timeout(settings), limits=_limits(settings))
        resources.push_async_callback(client.aclose)
        admission = Admission(
            CapabilityVerifier(settings.verify_keys(), AUDIENCE),
            SessionsClient(peer).holder_of,
            endpoints,
            limit=settings.max_requests,
            limit_of_run=settings.max_requests_of_run,
        )
        server = _Server(_config(Proxy(admission, client, settings), settings))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        started = asyncio.create_task(server.has_started.wait())
        await asyncio.wait((serving, started), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            started.cancel()
            serving.result()
            raise RuntimeError("the HTTP server ended while it started")
        process.announce_ready(address=address)
        await process.stop_requested.wait()
        server.should_exit = True
        impatient = asyncio.create_task(process.stop_now.wait())
        await asyncio.wait((serving, impatient), return_when=asyncio.FIRST_COMPLETED)
        server.force_exit = True
        impatient.cancel()
        await serving


def _look_at(endpoint: Endpoint) -> None:
    """Says in the log what an endpoint lacks. It serves all the same: the credential may come, and other endpoints have theirs."""
    try:
        endpoint.credential()
    except CredentialMissing as missing:
        _log.warning("model_credential_missing", endpoint=endpoint.entry.id, problem=str(missing))
    if endpoint.entry.base_url.startswith("http://"):
        _log.warning("model_endpoint_without_tls", endpoint=endpoint.entry.id)


def _timeout(settings: EgressSettings) -> httpx.Timeout:
    return httpx.Timeout(settings.silence_seconds, connect=settings.connect_seconds, pool=settings.connect_seconds)


def _limits(settings: EgressSettings) -> httpx.Limits:
    return httpx.Limits(max_connections=settings.max_requests, max_keepalive_connections=64)


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: the process has its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()


def _config(proxy: Proxy, settings: EgressSettings) -> uvicorn.Config:
    application: Any = proxy
    return uvicorn.Config(
        application,
        http="httptools",
        ws="none",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=max(1, int(settings.shutdown_grace_seconds)),
    )


def _close(listener: socket.socket, address: str) -> None:
    listener.close()
    if address.startswith("unix:"):
        Path(address.removeprefix("unix:")).unlink(missing_ok=True)


def _bind(address: str) -> tuple[socket.socket, str]:
    """The listening socket and its address with the real port. I32: `ConfigurationError` when it cannot be had."""
    try:
        if address.startswith("unix:"):
            path = Path(address.removeprefix("unix:"))
            prepare_unix_socket(path, "HARNESS_FACADE_LISTEN", folder_mode=0o711)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with private_umask():
                listener.bind(str(path))
            path.chmod(FOR_WORKERS)
            return listener, address
        host, _, port = address.rpartition(":")
        listener = socket.create_server((host.strip("[]"), int(port)), backlog=BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"HARNESS_FACADE_LISTEN: cannot listen on {address}: {error.strerror or error}."
        ) from None
    return listener, f"{host}:{listener.getsockname()[1]}"
