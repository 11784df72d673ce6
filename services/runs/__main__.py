"""The process of the runs service: `python -m services.runs`."""

from __future__ import annotations

from services.common.capability_token import CapabilitySigner, CapabilityVerifier
from services.common.channels import Peer, connect
from services.common.clock import SystemClock
from services.common.errors import ConfigurationError
from services.common.ids import Identity, new_holder_id, place_of
from services.common.server import Facade, Registration, Service, ServiceContext, run_service
from services.common.settings import load_settings
from services.common.store import StoreUnavailable
from services.common.store.service_store import open_service_store
from services.runs.bus import open_bus
from services.runs.cancelling import Canceller
from services.runs.clearing import Clearer
from services.runs.clients.catalog import CatalogClient
from services.runs.clients.runtime import RuntimeClient
from services.runs.clients.sessions import SessionsClient
from services.runs.dispatch import Dispatcher
from services.runs.engine import TOOL_AUDIENCE, Engine
from services.runs.lease import RENEW_SHARE
from services.runs.live import LiveHub
from services.runs.log import open_segment_log
from services.runs.queries import Queries
from services.runs.resuming import Resumer
from services.runs.service import (
    RUN_SERVICE,
    TOOL_BROKER_SERVICE,
    Parts,
    RunServicer,
    ToolBrokerServicer,
    add_run_servicer,
    add_tool_broker_servicer,
)
from services.runs.settings import RunsSettings
from services.runs.starting import Starter
from services.runs.store import RUNS, RunStore
from services.runs.sweep import Sweep
from services.runs.tools.approving import Approvals
from services.runs.tools.broker import ToolBroker
from services.runs.tools.invoking import Invoker
from services.runs.tools.store import TOOL_CALLS, CallStore

SETTLE_SECONDS = 2.0
TRIM_SECONDS = 60.0
STORE_CHECK_SECONDS = 5.0
CALLS_SHARE = 0.3
"""Share of the grace that tool calls under way get once the runs ended or were handed over; calls that somebody waits for get what is left as well."""


async def build(context: ServiceContext[RunsSettings]) -> Service:
    """Puts the service together; see `services.common.server`."""
    settings, clock = context.settings, SystemClock()
    records = await open_service_store("runs", settings, [RUNS, TOOL_CALLS])
    context.resources.push_async_callback(records.close)
    log = await open_segment_log(records)
    store, calls = RunStore(records), CallStore(records)
    holder = new_holder_id()
    bus = open_bus(settings.bus_url, settings.environment, holder, settings.lease_ttl_seconds)
    context.resources.push_async_callback(bus.close)

    def executes_here(run_id: str) -> bool:
        return dispatcher.holds(run_id)  # made after the hub, which asks of runs that are executed here

    hub = LiveHub(log, bus, executes_here=executes_here, has_ended=store.has_ended, is_trimmed=store.is_trimmed)
    signer = _signer(settings)
    engine = Engine(
        settings=settings,
        store=store,
        calls=calls,
        log=log,
        publisher=hub,
        bus=bus,
        catalog=CatalogClient(_peer(context, settings.catalog_address), clock),
        sessions=SessionsClient(
            _peer(context, settings.sessions_address), _peer(context, settings.state_facade_address, trusted=False)
        ),
        runtimes=_runtimes(context),
        signer=signer,
        identity=Identity(settings.identity_key.get_secret_value().encode("utf-8"), settings.environment),
        tasks=context.tasks,
        clock=clock,
        holder=holder,
    )
    dispatcher = Dispatcher(engine)
    canceller = Canceller(engine, dispatcher, hub)
    clearer = Clearer(engine, canceller)
    starter = Starter(engine, dispatcher, canceller, clearer)
    sweep = Sweep(engine, dispatcher, canceller, clearer, starter)

    async def report_store() -> None:
        try:
            await records.check()
        except StoreUnavailable:
            # I34: health says so until the store is back; calls answer with a retryable error meanwhile.
            await context.set_serving(False)
            raise
        await context.set_serving(True)

    async def begin() -> None:
        await bus.start()
        await hub.start()
        dispatcher.listen()
        context.tasks.every("take-over", settings.sweep_interval_seconds, sweep.take_over)
        context.tasks.every("pick-up", settings.sweep_interval_seconds, sweep.pick_up)
        context.tasks.every("settle-bindings", SETTLE_SECONDS, sweep.settle_bindings)
        context.tasks.every("trim", min(TRIM_SECONDS, settings.retention_seconds / 4), sweep.trim)
        context.tasks.every("check-store", STORE_CHECK_SECONDS, report_store)
        context.tasks.every("renew-leases", settings.lease_ttl_seconds * RENEW_SHARE / 4, dispatcher.renew_leases)

    parts = Parts(
        starter,
        Resumer(engine, dispatcher, starter, Approvals(calls, engine.catalog)),
        canceller,
        clearer,
        Queries(engine, dispatcher.run_of),
        hub,
    )
    broker = _broker(context, engine)

    async def finish_calls() -> None:
        if broker is not None:
            await broker.drain(settings.shutdown_grace_seconds * CALLS_SHARE)

    return Service(
        [Registration(RUN_SERVICE, add_run_servicer, RunServicer(parts))],
        facade=None if broker is None else _tool_facade(settings, signer, broker),
        on_start=[begin],
        # Runs first: those that end here may need their tools until then.
        on_stop=[dispatcher.drain, hub.stop, finish_calls],
        place=place_of(holder),
    )


def _peer(context: ServiceContext[RunsSettings], address: str, *, trusted: bool = True) -> Peer:
    """A peer that is closed with the process. Only services get the service credential, the facade for runtimes does not. What is asked of them
    here may be asked again of another replica: every change is a compare-and-set that its repetition finds done.
    """
    peer = connect(address, context.settings.service_tokens[0] if trusted else None, idempotent=True, exchange=trusted)
    context.resources.push_async_callback(peer.close)
    return peer


def _runtimes(context: ServiceContext[RunsSettings]) -> RuntimeClient:
    address = context.settings.sandbox_address
    runtimes = RuntimeClient(None if address is None else _peer(context, address))
    context.resources.push_async_callback(runtimes.close)
    return runtimes


def _broker(context: ServiceContext[RunsSettings], engine: Engine) -> ToolBroker | None:
    if engine.settings.tool_facade_listen is None:
        return None
    invoker = Invoker(engine.clock)
    context.resources.push_async_callback(invoker.close)
    return ToolBroker(
        engine.store,
        engine.calls,
        engine.catalog,
        invoker,
        context.tasks,
        engine.clock,
        holder=engine.holder,
        ttl=engine.settings.lease_ttl_seconds,
        per_provider=engine.settings.tool_calls_per_provider,
    )


def _tool_facade(settings: RunsSettings, signer: CapabilitySigner, broker: ToolBroker) -> Facade | None:
    if settings.tool_facade_listen is None:
        return None
    # Whichever replica issued a token, the others open it: they sign with the same key, or while it is being changed with one of those.
    verifier = CapabilityVerifier([signer.public_key_pem, *settings.verify_keys()], TOOL_AUDIENCE)
    servicer = Registration(TOOL_BROKER_SERVICE, add_tool_broker_servicer, ToolBrokerServicer(broker))
    return Facade(settings.tool_facade_listen, verifier, [servicer])


def _signer(settings: RunsSettings) -> CapabilitySigner:
    try:
        return CapabilitySigner(settings.capability_signing_key.get_secret_value())
    except ValueError as error:
        raise ConfigurationError(f"HARNESS_CAPABILITY_SIGNING_KEY: {error}.") from None


if __name__ == "__main__":
    run_service("runs", load_settings(RunsSettings), build)
