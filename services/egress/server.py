"""The process: socket, uvicorn, readiness, and the order of a stop (I32, I33)."""

import logging
import socket
from contextlib import AsyncExitStack
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Final

import httpx

from services.common.capability_token import CapabilityVerifier
from services.common.channels import connect
from services.common.errors import ConfigurationError
from services.common.http_server import serve_http
from services.common.logs import get_logger
from services.common.metrics import MetricsListener
from services.common.open_files import room_for
from services.common.process import Process
from services.common.sockets import prepare_unix_socket, private_umask
from services.egress.admission import Admission
from services.egress.clients import GET_BINDING, SessionsClient
from services.egress.endpoints import CredentialMissing, Endpoint, load_endpoints
from services.egress.http_protocol import protocol
from services.egress.proxy import Proxy
from services.egress.settings import AUDIENCE, EgressSettings
from services.egress.standing import Standing

FOR_WORKERS: Final = 0o666
"""Mode of a unix socket: workers run as another user, so the folder, not the socket, limits who gets there."""
BACKLOG: Final = 1_024
SPARE_FILES: Final = 128  # the connection to sessions, logs, and what the libraries open
_log = get_logger(__name__)


async def serve(process: Process[EgressSettings]) -> None:
    """Serves until a stop is asked for, lets running requests finish inside the grace period, and returns."""
    settings = _with_open_files(process.settings)
    # Their lines tell where an endpoint is and what it answers, which is the operator's.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
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
        client = httpx.AsyncClient(
            follow_redirects=False, timeout=_timeout(settings), limits=_limits(settings), cookies=_no_cookies()
        )
        resources.push_async_callback(client.aclose)
        admission = Admission(
            CapabilityVerifier(settings.verify_keys(), AUDIENCE),
            SessionsClient(peer).holder_of,
            endpoints,
            limit=settings.max_requests,
            limit_of_run=settings.max_requests_of_run,
            look_again_seconds=settings.look_again_seconds,
        )
        proxy = Proxy(admission, Standing(endpoints, settings.service_tokens), client, settings)
        await serve_http(process, proxy, protocol(settings), listener, address, backlog=BACKLOG, date_header=False)


def _with_open_files(settings: EgressSettings) -> EgressSettings:
    """Raises the process's limit of open files, or lowers a default that this machine has no room for."""
    asked_for = "max_connections" in settings.model_fields_set
    others = settings.max_requests + SPARE_FILES
    room = room_for(settings.max_connections, others, "HARNESS_MAX_CONNECTIONS", asked_for=asked_for)
    return settings.model_copy(update={"max_connections": room})


def _look_at(endpoint: Endpoint) -> None:
    """Says in the log what an endpoint lacks. It serves all the same: the credential may come, and other endpoints have theirs."""
    try:
        endpoint.credential()
    except CredentialMissing as missing:
        _log.warning("model_credential_missing", endpoint=endpoint.entry.id, problem=str(missing))
    if endpoint.entry.base_url.startswith("http://"):
        _log.warning("model_endpoint_without_tls", endpoint=endpoint.entry.id)


def _no_cookies() -> CookieJar:
    """A jar that takes none. I28: what an endpoint gives to one run must not go along with another's request."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


def _timeout(settings: EgressSettings) -> httpx.Timeout:
    return httpx.Timeout(settings.silence_seconds, connect=settings.connect_seconds, pool=settings.connect_seconds)


def _limits(settings: EgressSettings) -> httpx.Limits:
    return httpx.Limits(max_connections=settings.max_requests, max_keepalive_connections=64)


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
