"""`python -m services.catalog`."""

from __future__ import annotations

import os
import time

from harness.catalog.v1.agent_service_pb2_grpc import add_AgentServiceServicer_to_server
from harness.catalog.v1.harness_service_pb2_grpc import add_HarnessServiceServicer_to_server
from harness.catalog.v1.resolution_service_pb2_grpc import add_ResolutionServiceServicer_to_server
from services.catalog import provider_check
from services.catalog.adapter_watch import Pace
from services.catalog.agents import Agents
from services.catalog.clients import AdapterClient, ProviderClient, SessionsClient
from services.catalog.egress_client import EgressClient
from services.catalog.endpoint_watch import EndpointWatch
from services.catalog.operator_file import load_operator_file
from services.catalog.publish import Publisher
from services.catalog.reconciling import Reconciler
from services.catalog.registry import Registry
from services.catalog.service.agent_service import AgentServicer
from services.catalog.service.harness_service import HarnessServicer
from services.catalog.service.resolution_service import ResolutionServicer
from services.catalog.settings import CatalogSettings
from services.catalog.store import COLLECTIONS, CatalogStore
from services.common.channels import connect
from services.common.ids import new_nonce
from services.common.server import Registration, Service, ServiceContext, run_service
from services.common.settings import load_settings
from services.common.store.service_store import open_service_store

AREA = "harness.catalog.v1"


async def build(context: ServiceContext[CatalogSettings]) -> Service:
    """Puts the catalog together."""
    settings = context.settings
    operator = load_operator_file(settings.config_file, settings.data_dir, os.environ)
    records = await open_service_store("catalog", settings, COLLECTIONS)
    context.resources.push_async_callback(records.close)
    store = CatalogStore(records)
    registry = Registry(
        operator,
        store,
        lambda adapter: AdapterClient(adapter, settings.adapter_timeout_seconds),
        Pace(settings.adapter_poll_seconds, time.monotonic),
        _endpoints(context),
    )
    context.resources.push_async_callback(registry.close)
    agents = Agents(store, Publisher(store, lambda: time.time_ns() // 1_000_000, new_nonce), registry)

    sessions = _sessions(context)

    async def start() -> None:
        await registry.start(context.tasks)
        for harness_id, adapter in operator.adapters.items():
            if adapter.enabled:
                Reconciler(harness_id, registry, agents, sessions).start(context.tasks, settings.reconcile_seconds)
        provider_check.start(
            operator.tools, lambda tool: ProviderClient(tool, settings.adapter_timeout_seconds), context.tasks
        )

    return Service(
        [
            Registration(f"{AREA}.HarnessService", add_HarnessServiceServicer_to_server, HarnessServicer(registry)),
            Registration(f"{AREA}.AgentService", add_AgentServiceServicer_to_server, AgentServicer(agents)),
            Registration(
                f"{AREA}.ResolutionService",
                add_ResolutionServiceServicer_to_server,
                ResolutionServicer(agents, registry),
            ),
        ],
        on_start=[start],
    )


def _endpoints(context: ServiceContext[CatalogSettings]) -> EndpointWatch | None:
    settings = context.settings
    if settings.model_egress_address is None:
        return None
    client = EgressClient(settings.model_egress_address, settings.outgoing_token, settings.adapter_timeout_seconds)
    context.resources.push_async_callback(client.close)
    return EndpointWatch(client.endpoints, settings.adapter_poll_seconds)


def _sessions(context: ServiceContext[CatalogSettings]) -> SessionsClient | None:
    settings = context.settings
    if settings.sessions_address is None:
        return None
    peer = connect(settings.sessions_address, settings.service_tokens[0], idempotent=True)
    context.resources.push_async_callback(peer.close)
    return SessionsClient(peer)


if __name__ == "__main__":
    run_service("catalog", load_settings(CatalogSettings), build)
