"""How the sandbox service is put together."""

from harness.sandbox.v1.sandbox_service_pb2_grpc import add_SandboxServiceServicer_to_server
from services.common.channels import connect
from services.common.clock import SystemClock
from services.common.server import Registration, Service, ServiceContext
from services.common.store.service_store import open_service_store
from services.sandbox.backends.local.backend import LocalBackend, LocalOptions
from services.sandbox.clients import RESOLVE_PROFILE, CatalogClient, WorkerClient
from services.sandbox.leasing import Leasing
from services.sandbox.service import SERVICE, SandboxServicer
from services.sandbox.settings import SandboxSettings
from services.sandbox.store import LEASES, LeaseStore

REAP_SECONDS = 1.0
# I27: what another process of the service replaced is cut off here within 2 s.
SWEEP_SECONDS = 1.0


async def build(context: ServiceContext[SandboxSettings]) -> Service:
    """Everything wired; leases of a former process are recovered before the first call is served."""
    settings = context.settings
    options = LocalOptions(
        root=settings.sandbox_root(),
        bwrap=settings.sandbox_bwrap,
        limits=settings.sandbox_limits,
        uid_base=settings.sandbox_uid_base,
        uid_count=settings.sandbox_uid_count,
        start_seconds=settings.sandbox_start_seconds,
        lifeline_fd=settings.lifeline_fd,
    )
    records = await open_service_store("sandbox", settings, [LEASES])
    context.resources.push_async_callback(records.close)
    catalog = connect(settings.catalog_address, settings.service_tokens[0], idempotent_methods=[RESOLVE_PROFILE])
    context.resources.push_async_callback(catalog.close)
    backend = await LocalBackend.open(options)
    context.resources.push_async_callback(backend.close)
    leasing = Leasing(
        LeaseStore(records),
        backend,
        CatalogClient(catalog),
        WorkerClient(),
        SystemClock(),
        max_sandboxes=settings.max_sandboxes,
        start_seconds=settings.sandbox_start_seconds,
    )
    context.resources.push_async_callback(leasing.close)

    async def start() -> None:
        await leasing.recover()
        context.tasks.every("expire-leases", REAP_SECONDS, leasing.expire_due)
        context.tasks.every("sweep-orphans", SWEEP_SECONDS, leasing.sweep)

    registration = Registration(SERVICE, add_SandboxServiceServicer_to_server, SandboxServicer(leasing))
    return Service([registration], on_start=[start])
