"""Serves one adapter in either placement: as an adapter host, or as the worker of one sandbox. The adapter is the same."""

# pyright: standard
# The health and reflection packages carry no types.

import asyncio
import os
import secrets
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from adapters.sdk import process
from adapters.sdk.contract import AdapterCloser, AgentReconciler, HarnessAdapter
from adapters.sdk.errors import ConfigurationError, HarnessError
from adapters.sdk.host.adapter_service import AdapterServicer
from adapters.sdk.host.boundary import Boundary
from adapters.sdk.host.limits import HostLimits
from adapters.sdk.host.reconciliation_service import ReconciliationServicer
from adapters.sdk.host.registry import RuntimeRegistry
from adapters.sdk.host.runtime_service import RuntimeServicer
from adapters.sdk.host.worker_service import WorkerServicer
from adapters.sdk.logs import configure_logging, describe, get_logger
from harness.adapter.v1 import adapter_service_pb2_grpc, reconciliation_service_pb2_grpc
from harness.runtime.v1 import runtime_service_pb2_grpc
from harness.worker.v1 import worker_service_pb2_grpc

ADAPTER_SERVICE = "harness.adapter.v1.AdapterService"
RUNTIME_SERVICE = "harness.runtime.v1.RuntimeService"
WORKER_SERVICE = "harness.worker.v1.WorkerService"
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
MAX_CONCURRENT_STREAMS = 4_096
MAX_CONCURRENT_CALLS = 16_384
# How long streams may take to hand over what is left once the runs have ended.
FLUSH_SECONDS = 2.0
# How long an adapter may take to close.
CLOSE_SECONDS = 5.0
# How long the process may take to end after everything was released.
EXIT_SECONDS = 2.0
AdapterFactory = Callable[[], HarnessAdapter]
_log = get_logger(__name__)


class AdapterServer:
    """A served adapter. Make it with `serve_adapter` or `serve_worker`; `address` is where it listens, with the real port."""

    def __init__(
        self,
        adapter: HarnessAdapter,
        limits: HostLimits,
        *,
        worker: bool,
        token: str = "",
        allow_anonymous: bool = False,
        socket_mode: int = 0o600,
    ) -> None:
        self.adapter = adapter
        self.incarnation = secrets.token_hex(16)
        self.registry = RuntimeRegistry(adapter, self.incarnation, limits)
        self.address = ""
        # Set when a Shutdown call has ended the worker.
        self.stop_requested = asyncio.Event()
        self._token = token
        self._allow_anonymous = allow_anonymous
        self._socket_mode = socket_mode
        self._health: Any = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] - set at run time
        self._server = grpc.aio.server(
            interceptors=[Boundary(token)], options=_options(), maximum_concurrent_rpcs=MAX_CONCURRENT_CALLS
        )
        runtime_service_pb2_grpc.add_RuntimeServiceServicer_to_server(RuntimeServicer(self.registry), self._server)
        if worker:
            worker_servicer = WorkerServicer(adapter, self.registry, self.stop_requested)
            worker_service_pb2_grpc.add_WorkerServiceServicer_to_server(worker_servicer, self._server)
        else:
            adapter_servicer = AdapterServicer(adapter, self.registry)
            adapter_service_pb2_grpc.add_AdapterServiceServicer_to_server(adapter_servicer, self._server)
            if isinstance(adapter, AgentReconciler):
                reconciliation_service_pb2_grpc.add_AgentReconciliationServiceServicer_to_server(
                    ReconciliationServicer(adapter), self._server
                )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._names = [RUNTIME_SERVICE, WORKER_SERVICE if worker else ADAPTER_SERVICE]
        reflection.enable_server_reflection([*self._names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server)
        self._idle_sweep = not worker
        self._closing: asyncio.Future[None] | None = None

    async def start(self, listen: str) -> None:
        """Takes the address and serves. Raises ConfigurationError if the address cannot be had, or would let in whoever comes."""
        process.check_access(listen, self._token, allow_anonymous=self._allow_anonymous)
        self.address = self._bind(listen)
        await self._server.start()
        if self._idle_sweep:
            self.registry.begin_sweeping()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    def _bind(self, listen: str) -> str:
        if not listen.startswith("unix:"):
            return f"{listen.rpartition(':')[0]}:{self._add_port(listen)}"
        path = Path(listen.removeprefix("unix:"))
        process.prepare_socket(path)
        # Never open to others between bind and chmod.
        before = os.umask(0o177)
        try:
            self._add_port(listen)
        finally:
            os.umask(before)
        path.chmod(self._socket_mode)
        return listen

    def _add_port(self, listen: str) -> int:
        try:
            return self._server.add_insecure_port(listen)
        except RuntimeError:
            raise ConfigurationError(
                f"--listen: cannot listen on {listen}: is it in use, or not of this machine?"
            ) from None

    async def stop(self, grace: float) -> None:
        """Takes no new runs, gives those at work `grace` seconds, cancels the rest, releases everything (I20, I33)."""
        self.registry.stopping = True
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self.registry.drain(grace)
        await self._server.stop(FLUSH_SECONDS if grace else 0)
        await self.registry.close()
        await self._close_adapter()

    async def _close_adapter(self) -> None:
        """Once, however often the host is stopped; bounded, and without a word to the caller, who can do nothing about it (I20)."""
        if not isinstance(self.adapter, AdapterCloser):
            return
        if self._closing is None:
            self._closing = asyncio.ensure_future(self.adapter.close())
        done, _ = await asyncio.wait({self._closing}, timeout=CLOSE_SECONDS)
        if not done:
            self._closing.cancel()
            _log.warning("adapter_not_closed", seconds=CLOSE_SECONDS)
        elif not self._closing.cancelled() and (error := self._closing.exception()) is not None:
            _log.warning("adapter_not_closed", error=describe(error))

    async def _set_health(self, status: int) -> None:
        for name in ("", *self._names):
            await self._health.set(name, status)


async def serve_adapter(
    factory: AdapterFactory,
    *,
    listen: str,
    limits: HostLimits | None = None,
    token: str = "",
    allow_anonymous: bool = False,
    socket_mode: int = 0o600,
) -> AdapterServer:
    """Serves the adapter as an adapter host at `unix:/path` or `host:port` (port 0: any), on the running loop.

    Callers on TCP need `token`; `allow_anonymous` lets them in without one, on loopback only, for development.
    """
    server = AdapterServer(
        factory(),
        limits or HostLimits(),
        worker=False,
        token=token,
        allow_anonymous=allow_anonymous,
        socket_mode=socket_mode,
    )
    await server.start(listen)
    return server


async def serve_worker(
    factory: AdapterFactory,
    *,
    listen: str,
    limits: HostLimits | None = None,
    token: str = "",
    allow_anonymous: bool = False,
    socket_mode: int = 0o600,
) -> AdapterServer:
    """Serves the adapter as the worker of one sandbox. One runtime for life: it is never dropped for being idle."""
    server = AdapterServer(
        factory(),
        limits or HostLimits(),
        worker=True,
        token=token,
        allow_anonymous=allow_anonymous,
        socket_mode=socket_mode,
    )
    await server.start(listen)
    return server


def run_adapter_main(factory: AdapterFactory, name: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """The main function of an adapter's module: `run_adapter_main(MyAdapter, "adapters.mine")`.

    `--listen ADDRESS [--worker]`; exits 0 after a stop, 2 for a wrong setting, 1 for any other failure.
    """
    raise SystemExit(_run(factory, name, sys.argv[1:] if arguments is None else arguments))


def _run(factory: AdapterFactory, name: str, arguments: Sequence[str]) -> int:
    try:
        settings = process.read_settings(name, arguments)
        configure_logging(name, settings.log_level)
        process.die_with_parent()
        ready = process.ReadinessSignal()
        with asyncio.Runner(loop_factory=process.loop_factory()) as runner:
            runner.run(_serve_until_stopped(factory, name, settings, ready))
    except ConfigurationError as error:
        sys.stderr.write(f"configuration error: {error}\n")
        return process.EXIT_CONFIGURATION
    except Exception as error:  # noqa: BLE001 - logged by type and place; the exit code says the rest
        _log.error("process_failed", error=describe(error))
        message = error.message if isinstance(error, HarnessError) else "unexpected error, see the log"
        sys.stderr.write(f"{name} stopped: {message}\n")
        return process.EXIT_FAILURE
    return 0


async def _serve_until_stopped(
    factory: AdapterFactory, name: str, settings: process.ProcessSettings, ready: process.ReadinessSignal
) -> None:
    stop_now = asyncio.Event()
    limits = HostLimits(
        max_runs=settings.max_runs,
        max_runtimes=1 if settings.worker else settings.max_runtimes,
        max_buffered_bytes=settings.max_buffered_bytes,
    )
    serve = serve_worker if settings.worker else serve_adapter
    server = await serve(
        factory,
        listen=settings.listen,
        limits=limits,
        token=settings.token,
        allow_anonymous=settings.allow_anonymous,
        socket_mode=settings.socket_mode,
    )
    process.stop_on_signals(server.stop_requested, stop_now)
    ready.announce(service=name, address=server.address, incarnation=server.incarnation, worker=settings.worker)
    await server.stop_requested.wait()
    stopping = asyncio.ensure_future(server.stop(settings.shutdown_grace))
    hurried = asyncio.ensure_future(stop_now.wait())
    await asyncio.wait({stopping, hurried}, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not stopping.done():
        stopping.cancel()
        await server.stop(0)
    _log.info("stopped")
    _exit_in_any_case()


def _exit_in_any_case() -> None:
    # What ignores its cancellation, a task or a thread of a provider, must not keep the process from ending (I20).
    timer = threading.Timer(EXIT_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()


def _options() -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_concurrent_streams", MAX_CONCURRENT_STREAMS),
        # A peer that died without a word is noticed, and its streams end, within a minute and a half.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        # The peer's bandwidth probes are pings too: counted as strikes they would end the channel of a quiet mesh.
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]
