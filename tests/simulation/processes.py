"""The processes of the simulated mesh, put together by the product's own `build` functions."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path
from typing import Any, Final

from adapters.sdk.host.adapter_service import AdapterServicer
from adapters.sdk.host.limits import HostLimits
from adapters.sdk.host.registry import RuntimeRegistry
from adapters.sdk.host.runtime_service import RuntimeServicer
from adapters.sdk.lifecycle import EventLimits
from harness.adapter.v1 import descriptor_pb2
from harness.catalog.v1 import agent_pb2, resolution_service_pb2
from harness.common.v1 import blueprint_pb2, capability_pb2, placement_pb2
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2
from harness.tool.v1 import tool_provider_service_pb2
from services.common.capability_token import CapabilitySigner, generate_private_key
from services.common.errors import not_found
from services.common.server import Service, ServiceContext
from services.common.tasks import BackgroundTasks
from services.runs import __main__ as runs_main
from services.runs.settings import RunsSettings
from services.runs.tools.arguments import plain
from services.sessions import __main__ as sessions_main
from services.sessions.settings import SessionsSettings
from tests.simulation.adapter import ScriptedAdapter
from tests.simulation.loop import Life

RUNS: Final = "runs:1"
SESSIONS: Final = "sessions:1"
FACADE: Final = "facade:1"
TOOLS: Final = "tools:1"
CATALOG: Final = "catalog:1"
STOP_SECONDS: Final = 2.0
LEASE_TTL: Final = 2.0
HOST_EVENTS: Final = EventLimits(delta_bytes=128 * 1024)
"""A host that splits less than the control plane does: one draft becomes several events only there."""


@cache
def runs_settings(max_active: int) -> RunsSettings:
    """Short times, so that a schedule is short; the same proportions as the defaults."""
    return RunsSettings(
        listen="runs:1",
        data_dir=Path("/nonexistent"),
        identity_key="an identity key of tests",  # pyright: ignore[reportArgumentType]
        service_tokens="a-token-of-the-simulation",  # pyright: ignore[reportArgumentType]
        catalog_address=CATALOG,
        sessions_address=SESSIONS,
        state_facade_address=FACADE,
        tool_facade_listen=TOOLS,
        capability_signing_key="none",  # pyright: ignore[reportArgumentType]
        lease_ttl_seconds=LEASE_TTL,
        sweep_interval_seconds=0.5,
        cancel_grace_seconds=0.6,
        reservation_grace_seconds=1.0,
        reattach_seconds=1.5,
        commit_seconds=2.0,
        runtime_start_seconds=3.0,
        queue_seconds=40.0,
        max_active_runs=max_active,
        shutdown_grace_seconds=STOP_SECONDS,
    )


@cache
def sessions_settings(max_waiting: int) -> SessionsSettings:
    """As above."""
    return SessionsSettings(
        listen="sessions:1",
        data_dir=Path("/nonexistent"),
        identity_key="an identity key of tests",  # pyright: ignore[reportArgumentType]
        service_tokens="a-token-of-the-simulation",  # pyright: ignore[reportArgumentType]
        facade_listen=FACADE,
        capability_verify_keys=CapabilitySigner(generate_private_key()).public_key_pem,  # pyright: ignore[reportArgumentType]
        max_waiting_turns=max_waiting,
    )


class _Health:
    async def set(self, name: str, status: Any) -> None:
        return


class ServiceProcess:
    """One life of a service, from its start to its orderly end."""

    def __init__(self, world: Any, life: Life) -> None:
        self._world = world
        self._life = life
        self._service: Service | None = None

    async def start(self) -> None:
        """Serve."""
        world, life = self._world, self._life
        is_runs = life.name.startswith("runs")
        settings: Any = (
            runs_settings(world.scenario.max_active) if is_runs else sessions_settings(world.scenario.max_waiting)
        )
        self._tasks = BackgroundTasks()
        self._stopping = asyncio.Event()
        context: Any = ServiceContext(settings, AsyncExitStack(), self._tasks, self._stopping, _Health())
        build: Any = runs_main.build if is_runs else sessions_main.build
        service: Service = await build(context)
        self._service = service
        for hook in service.on_start:
            await hook()
        servicers = {one.full_name: one.servicer for one in service.registrations}
        world.network.serve(RUNS if is_runs else SESSIONS, life, servicers)
        world.network.serve(life.name, life, servicers)
        if service.facade is not None:
            world.network.serve(
                TOOLS if is_runs else FACADE,
                life,
                {one.full_name: one.servicer for one in service.facade.registrations},
            )
        world.started(life, self)

    async def stop(self) -> None:
        """What a process does when it is asked to end (I33); whatever it takes too long for is left."""
        self._stopping.set()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                if self._service is not None:
                    for hook in self._service.on_stop:
                        await hook()
        except TimeoutError:
            self._world.history.count("stop_out_of_time")
        self._world.network.leave(self._life)
        await asyncio.sleep(0.05)
        self._world.ended(self._life)


class HostProcess:
    """One incarnation of an adapter host."""

    def __init__(self, world: Any, life: Life) -> None:
        self._world = world
        self._life = life

    async def start(self) -> None:
        """Serve."""
        world, life = self._world, self._life
        incarnation = f"{life.name}-{life.incarnation}"
        adapter = ScriptedAdapter(world, life, incarnation)
        registry = RuntimeRegistry(
            adapter,
            incarnation,
            HostLimits(cancel_grace_seconds=0.5, stop_seconds=0.5, cleanup_seconds=2.0, events=HOST_EVENTS),
        )
        registry.begin_sweeping()
        servicers = {
            "harness.adapter.v1.AdapterService": AdapterServicer(adapter, registry),
            "harness.runtime.v1.RuntimeService": RuntimeServicer(registry),
        }
        world.network.serve(f"{life.name}:1", life, servicers)
        world.started(life, self)

    async def stop(self) -> None:
        """Hosts are not asked: they die."""


class Catalog:
    """Answers what stands behind agents and profiles; knows a host's incarnation as it saw it last, which may be a while ago."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.seen: dict[str, str] = {}

    async def ResolveAgent(self, request: Any, context: Any) -> resolution_service_pb2.ResolveAgentResponse:
        agent = AGENTS.get(request.agent_id)
        if agent is None:
            raise not_found("agent")
        record = agent_pb2.AgentRecord(
            agent_id=request.agent_id, current_version=1, revision=1, enabled=True, harness_id=agent.harness.id
        )
        response = resolution_service_pb2.ResolveAgentResponse(record=record)
        if not request.record_only:
            response.version.CopyFrom(agent_pb2.AgentVersion(agent_id=request.agent_id, version=1, blueprint=agent))
            response.tools.extend(GRANTS[binding.tool_id] for binding in agent.tools.bindings)
        return response

    async def ResolveProfile(self, request: Any, context: Any) -> resolution_service_pb2.ResolveProfileResponse:
        host = HOST_OF[request.harness_id]
        return resolution_service_pb2.ResolveProfileResponse(
            descriptor=DESCRIPTORS[request.harness_id],
            adapter_address=f"{host}:1",
            adapter_incarnation=self.seen.get(host, ""),
            placement=placement_pb2.PLACEMENT_PROVIDER_MANAGED,
            contract_version=1,
        )


class Provider:
    """A team's own tools: what they do is counted, and takes some time or too much."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self._done = 0

    async def InvokeProviderTool(
        self, request: Any, context: Any
    ) -> tool_provider_service_pb2.InvokeProviderToolResponse:
        world = self._world
        await asyncio.sleep(world.random.choice((0.0, 0.0, 0.05, 0.5, 1.5)))
        world.check("tool_called", request.idempotency_key, request.tool_id, plain(request.arguments))
        self._done += 1
        response = tool_provider_service_pb2.InvokeProviderToolResponse(outcome=payload_pb2.TOOL_OUTCOME_SUCCESS)
        response.result.number_value = self._done  # no two answers are alike
        await asyncio.sleep(world.random.choice((0.0, 0.0, 0.05, 0.5)))
        return response


HOST_OF: Final = {"first": "host-a", "second": "host-b"}
_NATIVE: Final = capability_pb2.Capability(level=capability_pb2.CAPABILITY_LEVEL_NATIVE)
_ASKS: Final = {"interrupt.form_input": _NATIVE, "interrupt.tool_approval": _NATIVE, "tool.builtin": _NATIVE}
DESCRIPTORS: Final = {
    "first": descriptor_pb2.Descriptor(
        harness_id="first",
        adapter_version="1.0.0",
        thread_state_strategy=descriptor_pb2.THREAD_STATE_STRATEGY_ADAPTER_STORE,
        session_id_style=descriptor_pb2.SESSION_ID_STYLE_EVENT_ASSIGNED,
        capabilities=_ASKS,
    ),
    "second": descriptor_pb2.Descriptor(
        harness_id="second",
        adapter_version="1.0.0",
        thread_state_strategy=descriptor_pb2.THREAD_STATE_STRATEGY_ADAPTER_STORE,
        session_id_style=descriptor_pb2.SESSION_ID_STYLE_CALLER_ASSIGNED,
        capabilities=_ASKS,
    ),
}


def _agent(harness: str, seconds: int, *, tools: bool = False) -> blueprint_pb2.AgentBlueprint:
    agent = blueprint_pb2.AgentBlueprint(
        id="agent",
        name="Agent",
        harness=blueprint_pb2.HarnessSelection(id=harness, profile_id="default"),
        limits=blueprint_pb2.LimitsSpec(max_run_seconds=seconds),
    )
    if tools:
        agent.tools.bindings.extend(blueprint_pb2.ToolBinding(tool_id=tool_id) for tool_id in GRANTS)
    return agent


def _grant(tool_id: str, *, sensitive: bool = False, idempotent: bool = False) -> resolution_service_pb2.ToolGrant:
    return resolution_service_pb2.ToolGrant(
        descriptor=runtime_pb2.ToolDescriptor(
            tool_id=tool_id, provider_name=tool_id, sensitive=sensitive, idempotent=idempotent
        ),
        approval_policy=blueprint_pb2.APPROVAL_POLICY_SENSITIVE_ONLY,
        provider=PROVIDER,
        timeout_seconds=1,
        max_attempts=2 if idempotent else 1,
        max_result_bytes=1_024,
    )


PROVIDER: Final = "provider:1"
GRANTS: Final = {
    "act": _grant("act"),
    "look": _grant("look", idempotent=True),
    "ask": _grant("ask", sensitive=True),
}
"""Tools whose every call has an effect, has one however often it is made, and waits for a person."""


AGENTS: Final = {
    "plain": _agent("first", 20),
    "brief": _agent("first", 2),
    "tools": _agent("first", 20, tools=True),
    "named": _agent("second", 20),
}
