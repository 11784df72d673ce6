"""Start-up and stop of a gRPC service: nothing half-starts (I32), a stop finishes what runs (I33)."""

# pyright: standard
# The health and reflection packages carry no types.

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.common.capability_token import CapabilityVerifier
from services.common.channels import KEEPALIVE_MILLISECONDS, KEEPALIVE_TIMEOUT_MILLISECONDS, MAX_MESSAGE_BYTES
from services.common.errors import ConfigurationError
from services.common.exchange import ExchangeServicer
from services.common.interceptors import CapabilityAuthenticator, ServiceAuthenticator, ServiceInterceptor
from services.common.logs import get_logger, log_incident
from services.common.metrics import MetricsListener
from services.common.process import Process, run_process
from services.common.settings import ServiceSettings
from services.common.sockets import PRIVATE, prepare_unix_socket, private_umask
from services.common.tasks import BackgroundTasks

MAX_CONCURRENT_STREAMS = 4_096
QUIET_LOOKS = 3
QUIET_LOOK_SECONDS = 0.1
QUIET_SHARE = 0.25
"""Share of what is left of the grace that a stop waits for callers to go elsewhere."""
S = TypeVar("S", bound=ServiceSettings)
Hook = Callable[[], Awaitable[None]]
_log = get_logger(__name__)


@dataclass(frozen=True)
class Registration:
    """One servicer of a listener.

    `full_name` is the proto service ("harness.run.v1.RunService"), `add_to_server` the generated `add_RunServiceServicer_to_server`.
    """

    full_name: str
    add_to_server: Callable[[Any, grpc.aio.Server], None]
    servicer: Any


@dataclass(frozen=True)
class Facade:
    """A second listener for workers: capability tokens only, no health, no reflection (worker protocol, "Facades").

    `socket_mode` applies to a unix address: workers run as another user, so the folder, not the socket, limits who gets there.
    """

    listen: str
    verifier: CapabilityVerifier
    registrations: Sequence[Registration]
    socket_mode: int = 0o666


@dataclass(frozen=True)
class Service:
    """What `build` returns: the servicers, and what to do around them.

    `on_start` runs before the first call is served (recovery, sweeps that must come first). `on_stop` runs after health says NOT_SERVING and
    before the listeners drain: stop taking work, hand over leases, end watch streams. Both in order; a failing start ends the process.
    """

    registrations: Sequence[Registration]
    facade: Facade | None = None
    on_start: Sequence[Hook] = ()
    on_stop: Sequence[Hook] = ()
    place: str = ""
    """What stands for this process in ids that it makes, told to whoever has an exchange with it."""


@dataclass(frozen=True)
class ServiceContext(Generic[S]):
    """What `build` gets.

    Push whatever must be closed (stores, peers) on `resources`: closed in reverse order after the listeners, also when the start fails.
    `tasks` are cancelled before that. `stopping` is set when a stop was asked for: long streams end themselves on it.
    """

    settings: S
    resources: AsyncExitStack
    tasks: BackgroundTasks
    stopping: asyncio.Event
    _health: Any = field(repr=False)
    _names: list[str] = field(default_factory=list[str], repr=False)

    async def set_serving(self, serving: bool) -> None:
        """Changes what health says, as while the store is away. After a stop was asked for it stays NOT_SERVING."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *self._names):
            await self._health.set(name, status)


Build = Callable[[ServiceContext[S]], Awaitable[Service]]


def run_service(name: str, settings: S, build: Build[S]) -> NoReturn:
    """Runs a service to its end and exits (0 stopped, 2 configuration, 1 otherwise): `run_service("runs", load_settings(RunsSettings), build)`."""

    async def main(process: Process[S]) -> None:
        await _serve(process, build)

    run_process(name, settings, main)


def server_options() -> list[tuple[str, Any]]:
    """Options of every listener; the smallest ping interval lies below the clients' keepalive, else they would be cut off."""
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_concurrent_streams", MAX_CONCURRENT_STREAMS),
        ("grpc.max_metadata_size", 32 * 1024),
        ("grpc.keepalive_time_ms", KEEPALIVE_MILLISECONDS * 3),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MILLISECONDS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MILLISECONDS // 2),
        # The peer's bandwidth probes are pings too: counted as strikes they would end the channel of a quiet mesh.
        ("grpc.http2.max_ping_strikes", 0),
        # Two processes on one port would share its calls by chance; the second must fail to start instead.
        ("grpc.so_reuseport", 0),
    ]


class Listener:
    """One address, its server and its interceptor."""

    def __init__(
        self, setting: str, address: str, interceptor: ServiceInterceptor, *, max_concurrent_rpcs: int, socket_mode: int
    ) -> None:
        self._setting = setting
        self._address = address
        self._interceptor = interceptor
        self._socket_mode = socket_mode
        self._exchange: ExchangeServicer | None = None
        self.server = grpc.aio.server(
            interceptors=[interceptor], options=server_options(), maximum_concurrent_rpcs=max_concurrent_rpcs
        )

    def bind(self) -> str:
        """Takes the address and returns it, with the real port. `ConfigurationError` when it cannot be had."""
        if not self._address.startswith("unix:"):
            host, _, _ = self._address.rpartition(":")
            return f"{host}:{self._add_port()}"
        path = Path(self._address.removeprefix("unix:"))
        # Others may only pass through the folder of a socket that is open to them.
        folder_mode = 0o700 if self._socket_mode == PRIVATE else 0o711
        prepare_unix_socket(path, self._setting, folder_mode=folder_mode)
        with private_umask():
            self._add_port()
        path.chmod(self._socket_mode)
        return self._address

    def _add_port(self) -> int:
        try:
            return self.server.add_insecure_port(self._address)
        except RuntimeError:
            raise ConfigurationError(
                f"{self._setting}: cannot listen on {self._address}: is it in use, or not an address of this machine?"
            ) from None

    async def quiet(self, until: float) -> None:
        """Returns once nobody calls any more: those who follow our health were told that we stop, and ask others as soon as they hear of it (I33). A call
        that arrives when the server is closing is cut off, and whoever made it cannot know whether it was executed. At `until`, on the loop's clock, at
        the latest; at once where nobody follows.
        """
        loop, interceptor = asyncio.get_running_loop(), self._interceptor
        seen, still = interceptor.calls, 0
        while interceptor.is_watched and still < QUIET_LOOKS and loop.time() < until:
            await asyncio.sleep(QUIET_LOOK_SECONDS)
            still = still + 1 if interceptor.calls == seen else 0
            seen = interceptor.calls

    def offer_exchange(self, service: Service, settings: ServiceSettings) -> None:
        """Lets other services make their unary calls over one stream."""
        self._exchange = ExchangeServicer(
            [(registration.add_to_server, registration.servicer) for registration in service.registrations],
            default_deadline_seconds=settings.default_deadline_seconds,
            max_calls=settings.max_concurrent_rpcs,
            called=self._interceptor.count_call,
            place=service.place,
        )
        self._exchange.add_to(self.server)

    async def stop(self, grace: float) -> None:
        """Refuses new calls and lets running ones finish for `grace` seconds."""
        self._interceptor.end_exempt_calls()
        if self._exchange is not None:
            self._exchange.close()
        await self.server.stop(grace)


async def _serve(process: Process[S], build: Build[S]) -> None:
    settings = process.settings
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"HARNESS_DATA_DIR: cannot make the folder {settings.data_dir}: {error.strerror}."
        ) from None
    health_servicer: Any = health.aio.HealthServicer()  # pyright: ignore[reportAttributeAccessIssue] - set at run time
    tasks = BackgroundTasks()
    async with AsyncExitStack() as resources:
        if settings.metrics_listen is not None:
            resources.callback(MetricsListener(settings.metrics_listen).close)
        context = ServiceContext(settings, resources, tasks, process.stop_requested, health_servicer)
        try:
            service = await build(context)
            listeners = _listeners(settings, service, health_servicer)
            context._names.extend(registration.full_name for registration in service.registrations)  # pyright: ignore[reportPrivateUsage]
            await _run(process, context, service, listeners)
        finally:
            await tasks.close()


def _listeners(settings: ServiceSettings, service: Service, health_servicer: Any) -> list[Listener]:
    interceptor = ServiceInterceptor(
        ServiceAuthenticator(settings.service_tokens), default_deadline_seconds=settings.default_deadline_seconds
    )
    internal = Listener(
        "HARNESS_LISTEN",
        settings.listen,
        interceptor,
        max_concurrent_rpcs=settings.max_concurrent_rpcs,
        socket_mode=PRIVATE,
    )
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, internal.server)
    names = [registration.full_name for registration in service.registrations]
    reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], internal.server)
    _register(service.registrations, internal)
    internal.offer_exchange(service, settings)
    if service.facade is None:
        return [internal]
    facade_interceptor = ServiceInterceptor(
        CapabilityAuthenticator(service.facade.verifier),
        default_deadline_seconds=settings.default_deadline_seconds,
        exempt_services=(),
    )
    facade = Listener(
        "facade address",
        service.facade.listen,
        facade_interceptor,
        max_concurrent_rpcs=settings.max_concurrent_rpcs,
        socket_mode=service.facade.socket_mode,
    )
    _register(service.facade.registrations, facade)
    return [internal, facade]


def _register(registrations: Sequence[Registration], listener: Listener) -> None:
    for registration in registrations:
        registration.add_to_server(registration.servicer, listener.server)


async def _run(process: Process[S], context: ServiceContext[S], service: Service, listeners: list[Listener]) -> None:
    await context.set_serving(False)
    try:
        # I32: every address is taken and every start-up step done before the first call is served.
        addresses = [listener.bind() for listener in listeners]
        for hook in service.on_start:
            await hook()
        for listener in listeners:
            await listener.server.start()
    except BaseException:
        for listener in listeners:
            await listener.server.stop(0)
        raise
    await context.set_serving(True)
    process.announce_ready(**dict(zip(("address", "facade"), addresses, strict=False)))
    await process.stop_requested.wait()
    await _stop(process, context, service, listeners)


async def _stop(process: Process[S], context: ServiceContext[S], service: Service, listeners: list[Listener]) -> None:
    """I33: no new work, then hand over, then let running calls finish, all inside one grace period."""
    deadline = asyncio.get_running_loop().time() + context.settings.shutdown_grace_seconds
    await context._health.enter_graceful_shutdown()  # pyright: ignore[reportPrivateUsage]
    for hook in service.on_stop:
        await _bounded_hook(hook, deadline)

    async def at_once() -> None:
        await process.stop_now.wait()
        for listener in listeners:
            await listener.server.stop(0)

    impatient = asyncio.create_task(at_once())
    loop = asyncio.get_running_loop()
    quiet_until = loop.time() + QUIET_SHARE * max(0.0, deadline - loop.time())
    await _unless_at_once(process, asyncio.gather(*(listener.quiet(quiet_until) for listener in listeners)))
    remaining = max(0.0, deadline - loop.time())
    await asyncio.gather(*(listener.stop(remaining) for listener in listeners))
    impatient.cancel()


async def _unless_at_once(process: Process[S], waiting: Awaitable[Any]) -> None:
    """Waits, unless a second signal asks for the end now."""
    waited, at_once = asyncio.ensure_future(waiting), asyncio.ensure_future(process.stop_now.wait())
    await asyncio.wait({waited, at_once}, return_when=asyncio.FIRST_COMPLETED)
    for task in (waited, at_once):
        task.cancel()
    await asyncio.gather(waited, at_once, return_exceptions=True)


async def _bounded_hook(hook: Hook, deadline: float) -> None:
    # One step that fails or hangs must not keep the others from their stop.
    try:
        async with asyncio.timeout_at(deadline):
            await hook()
    except TimeoutError:
        _log.warning("stop_step_out_of_time", step=getattr(hook, "__qualname__", repr(hook)))
    except Exception as error:  # noqa: BLE001 - logged; the other steps still run
        log_incident(_log, "stop_step_failed", error, step=getattr(hook, "__qualname__", repr(hook)))
