"""A tool broker with everything real around it in one process: SQLite, gRPC on unix sockets, a provider, a catalog that grants what a test says."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf import json_format, struct_pb2
from pydantic import SecretStr

from harness.catalog.v1 import agent_pb2, resolution_service_pb2, resolution_service_pb2_grpc
from harness.common.v1 import blueprint_pb2, fence_pb2
from harness.event.v1 import payload_pb2
from harness.run.v1 import resumed_turn_pb2
from harness.runtime.v1 import runtime_pb2
from harness.tool.v1 import (
    tool_broker_service_pb2,
    tool_broker_service_pb2_grpc,
    tool_provider_service_pb2,
    tool_provider_service_pb2_grpc,
)
from services.common.caller import Capability
from services.common.capability_token import CapabilitySigner, CapabilityVerifier, generate_private_key
from services.common.channels import connect
from services.common.interceptors import CapabilityAuthenticator, ServiceAuthenticator, ServiceInterceptor
from services.common.store import RecordStore, open_record_store
from services.common.tasks import BackgroundTasks
from services.runs.clients.catalog import CatalogClient
from services.runs.engine import TOOL_AUDIENCE
from services.runs.run import Issued, Run, Status
from services.runs.service.tool_service import ToolBrokerServicer, add_tool_broker_servicer
from services.runs.store import RUNS, RunStore
from services.runs.tools.broker import ToolBroker
from services.runs.tools.grant import mark_of
from services.runs.tools.invoking import Invoker
from services.runs.tools.record import CallRecord, key_of
from services.runs.tools.store import TOOL_CALLS, CallStore
from tests.runs.tools.lossy import LossyStore

PATIENCE = 90.0
"""Of one call."""
TTL = 600.0
"""So long that no living broker ever counts as dead, however slow the machine; `StandClock.pass_by` lets it pass."""
TOKEN = "token-of-the-provider"
BINDING, EPOCH = "bnd-1", 3
_numbers = itertools.count(1)


class StandClock:
    """The machine's clocks; the monotonic one may be put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def pass_by(self, seconds: float) -> None:
        self.ahead += seconds


Answer = tool_provider_service_pb2.InvokeProviderToolResponse
Behaviour = Callable[[tool_provider_service_pb2.InvokeProviderToolRequest], Awaitable[Answer]]


def answer(result: Any) -> Answer:
    """A success with a result."""
    response = Answer(outcome=payload_pb2.TOOL_OUTCOME_SUCCESS)
    json_format.ParseDict(result, response.result)
    return response


async def echo(request: tool_provider_service_pb2.InvokeProviderToolRequest) -> Answer:
    """What a provider does unless a test says otherwise."""
    return answer({"got": json_format.MessageToDict(request.arguments)})


class ProviderStatus(Exception):
    """A failure of the provider itself."""

    def __init__(self, code: grpc.StatusCode, text: str = "canary-of-the-provider") -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Provider(tool_provider_service_pb2_grpc.ToolProviderServiceServicer):
    """A team's own tools. `calls` is what arrived; `behaviour` what it does with it."""

    def __init__(self) -> None:
        self.calls: list[tool_provider_service_pb2.InvokeProviderToolRequest] = []
        self.behaviour: Behaviour = echo
        self.arrived = asyncio.Event()

    async def ListProviderTools(
        self, request: Any, context: Any
    ) -> tool_provider_service_pb2.ListProviderToolsResponse:
        return tool_provider_service_pb2.ListProviderToolsResponse()

    async def InvokeProviderTool(
        self, request: tool_provider_service_pb2.InvokeProviderToolRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> Answer:
        self.calls.append(request)
        self.arrived.set()
        try:
            return await self.behaviour(request)
        except ProviderStatus as failure:
            await context.abort(failure.code, failure.text)
            raise AssertionError("abort raises") from None


class Catalog(resolution_service_pb2_grpc.ResolutionServiceServicer):
    """Grants by agent."""

    def __init__(self) -> None:
        self.grants: dict[str, list[resolution_service_pb2.ToolGrant]] = defaultdict(list)
        self.max_tool_calls: dict[str, int] = {}

    async def ResolveAgent(self, request: Any, context: Any) -> resolution_service_pb2.ResolveAgentResponse:
        blueprint = blueprint_pb2.AgentBlueprint(id=request.agent_id, name="Tests")
        if request.agent_id in self.max_tool_calls:
            blueprint.limits.max_tool_calls = self.max_tool_calls[request.agent_id]
        version = agent_pb2.AgentVersion(agent_id=request.agent_id, version=1, blueprint=blueprint)
        return resolution_service_pb2.ResolveAgentResponse(version=version, tools=self.grants[request.agent_id])

    async def ResolveProfile(self, request: Any, context: Any) -> resolution_service_pb2.ResolveProfileResponse:
        raise AssertionError("the broker asks for no profile")


@dataclass
class Replica:
    """One broker and how it is reached."""

    broker: ToolBroker
    stub: tool_broker_service_pb2_grpc.ToolBrokerServiceStub
    peer: Any
    tasks: BackgroundTasks


@dataclass
class Stand:
    """Everything. `invoke` is what a runtime does."""

    folder: Path
    records: LossyStore
    runs: RunStore
    calls: CallStore
    catalog: Catalog
    provider: Provider
    provider_address: str
    catalog_client: CatalogClient
    clock: StandClock
    signer: CapabilitySigner
    resources: AsyncExitStack
    replicas: list[Replica] = field(default_factory=list[Replica])

    async def replica(self, *, ttl: float = TTL, per_provider: int = 200) -> Replica:
        """Another process's broker, as far as the store and its callers see."""
        number = len(self.replicas) + 1
        tasks, invoker = BackgroundTasks(), Invoker(self.clock)
        self.resources.push_async_callback(invoker.close)
        self.resources.push_async_callback(tasks.close)
        broker = ToolBroker(
            self.runs,
            self.calls,
            self.catalog_client,
            invoker,
            tasks,
            self.clock,
            holder=f"hld-{number}",
            ttl=ttl,
            per_provider=per_provider,
        )
        verifier = CapabilityVerifier([self.signer.public_key_pem], TOOL_AUDIENCE)
        interceptor = ServiceInterceptor(
            CapabilityAuthenticator(verifier), default_deadline_seconds=PATIENCE, exempt_services=()
        )
        address = f"unix:{self.folder}/b{number}.sock"
        server = grpc.aio.server(interceptors=[interceptor])
        add_tool_broker_servicer(ToolBrokerServicer(broker), server)
        server.add_insecure_port(address)
        await server.start()
        self.resources.push_async_callback(server.stop, None)
        peer = connect(address)
        self.resources.push_async_callback(peer.close)
        made = Replica(broker, tool_broker_service_pb2_grpc.ToolBrokerServiceStub(peer.channel), peer, tasks)
        self.replicas.append(made)
        return made

    async def another_provider(self, name: str) -> tuple[Provider, str]:
        """A provider beside the first, and its address."""
        provider, address = Provider(), f"unix:{self.folder}/{name}.sock"
        server = grpc.aio.server()
        tool_provider_service_pb2_grpc.add_ToolProviderServiceServicer_to_server(provider, server)
        server.add_insecure_port(address)
        await server.start()
        self.resources.push_async_callback(server.stop, None)
        return provider, address

    async def run(
        self, *, agent: str = "", resumed: tuple[Run, runtime_pb2.ResumeDecision] | None = None, **more: Any
    ) -> Run:
        """A run that is executed, of a new agent unless one is named; with a stored decision if it resumes another run."""
        number = next(_numbers)
        run = Run(
            run_id=f"run-{number}",
            owner="owner-digest",
            agent_id=agent or f"agent-{number}",
            conversation_id="c",
            request_key=f"key-{number}",
            client_request_id="",
            body_digest="",
            binding_id=BINDING,
            epoch=EPOCH,
            turn=number,
            agent_version=1,
            harness_id="reference",
            profile_id="default",
            policy="reject",
            status=Status.RUNNING,
            created_at=1,
            updated_at=1,
            run_generation=1,
            holder="hld-executor",
            issued=Issued("unix:/runtime", "inc-1", 1),
            deadline_at=int((time.time() + 600) * 1000),
        )
        stored = b""
        if resumed is not None:
            run = replace(run, resumed_from=resumed[0].run_id, agent_id=resumed[0].agent_id)
            stored = resumed_turn_pb2.ResumedTurn(decision=resumed[1]).SerializeToString()
        run = replace(run, **more)
        inserted = await self.runs.insert(run, stored)
        assert isinstance(inserted, Run)
        return inserted

    async def change(self, run: Run, **facts: Any) -> Run:
        """What the run's executor, or a cancel, writes on it."""
        changed, _ = await self.runs.change(run, lambda current: replace(current, **facts))
        return changed

    def grant(self, run: Run, tool_id: str = "echo", **more: Any) -> resolution_service_pb2.ToolGrant:
        """Bind a tool of the provider to the run's agent."""
        schema = more.pop(
            "schema",
            {
                "type": "object",
                "properties": {"text": {"type": "string", "maxLength": 9}},
                "additionalProperties": False,
            },
        )
        grant = resolution_service_pb2.ToolGrant(
            descriptor=runtime_pb2.ToolDescriptor(
                tool_id=tool_id,
                provider_name=tool_id,
                sensitive=more.pop("sensitive", False),
                idempotent=more.pop("idempotent", False),
            ),
            approval_policy=more.pop("policy", blueprint_pb2.APPROVAL_POLICY_SENSITIVE_ONLY),
            provider=more.pop("provider", self.provider_address),
            provider_token=TOKEN,
            timeout_seconds=more.pop("timeout_seconds", 90),
            max_attempts=more.pop("max_attempts", 1),
            max_result_bytes=more.pop("max_result_bytes", 65_536),
        )
        json_format.ParseDict(schema, grant.descriptor.input_schema)
        json_format.ParseDict(more.pop("settings", {}), grant.settings)
        assert not more
        self.catalog.grants[run.agent_id or ""].append(grant)
        return grant

    def token(self, run: Run, audience: str = TOOL_AUDIENCE, **more: Any) -> str:
        """The token the run's runtime got."""
        tools = tuple(mark_of(one.descriptor.tool_id) for one in self.catalog.grants[run.agent_id or ""])
        facts: dict[str, Any] = {
            "binding_id": run.binding_id,
            "epoch": run.epoch,
            "runtime_generation": 1,
            "run_id": run.run_id,
            "tool_ids": tools,
        } | more
        return self.signer.sign(Capability(audience=audience, **facts), deadline_at=time.time() + 600)

    async def invoke(
        self,
        run: Run,
        call_id: str = "call-1",
        arguments: dict[str, Any] | struct_pb2.Struct | None = None,
        *,
        tool_id: str = "echo",
        replica: int = 0,
        token: str | None = None,
        **fence: Any,
    ) -> tool_broker_service_pb2.InvokeToolResponse:
        """One call, as the run's runtime makes it. Errors: `HarnessError`."""
        at = self.replicas[replica]
        request = tool_broker_service_pb2.InvokeToolRequest(
            fence=fence_of(run, **fence), tool_call_id=call_id, tool_id=tool_id
        )
        if isinstance(arguments, struct_pb2.Struct):
            request.arguments.CopyFrom(arguments)
        else:
            json_format.ParseDict({"text": "hi"} if arguments is None else arguments, request.arguments)
        return await at.peer.call(
            at.stub.InvokeTool, request, credential=self.token(run) if token is None else token, timeout=PATIENCE
        )

    async def describe(self, run: Run, **fence: Any) -> list[str]:
        at = self.replicas[0]
        request = tool_broker_service_pb2.DescribeToolsRequest(fence=fence_of(run, **fence))
        response = await at.peer.call(at.stub.DescribeTools, request, credential=self.token(run), timeout=PATIENCE)
        return [tool.tool_id for tool in response.tools]

    async def record(self, call_id: str = "call-1") -> CallRecord | None:
        """What is stored of a call."""
        return await self.calls.get(key_of(BINDING, EPOCH, call_id))

    async def stored(self, call_id: str = "call-1") -> CallRecord:
        found = await self.record(call_id)
        assert found is not None
        return found

    async def again(self, run: Run) -> Run:
        """The run as it is stored."""
        found = await self.runs.get(run.run_id)
        assert found is not None
        return found

    async def lapse(self, work: asyncio.Task[Any]) -> Any:
        """Let the lifetime of a silent broker pass, as often as it takes whoever looks to have seen it stand still."""
        async with asyncio.timeout(PATIENCE):
            while not work.done():
                self.clock.pass_by(TTL)
                await asyncio.sleep(0.02)
        return work.result()


def fence_of(run: Run, **more: Any) -> fence_pb2.Fence:
    """The fence under which the run's runtime calls."""
    facts: dict[str, Any] = {
        "protocol_version": 1,
        "binding_id": run.binding_id,
        "epoch": run.epoch,
        "runtime_generation": 1,
        "turn": run.turn,
        "run_id": run.run_id,
        "run_generation": run.run_generation,
    }
    return fence_pb2.Fence(**facts | more)


async def make_stand(folder: Path, resources: AsyncExitStack) -> Stand:
    """One broker, its provider and its catalog, closed with `resources`."""
    records = LossyStore(await open_record_store(f"sqlite://{folder}/runs.sqlite3", [RUNS, TOOL_CALLS]))
    resources.push_async_callback(records.close)
    catalog, provider = Catalog(), Provider()
    addresses = {name: f"unix:{folder}/{name}.sock" for name in ("catalog", "provider")}
    authenticated = ServiceInterceptor(ServiceAuthenticator([SecretStr(TOKEN)]), default_deadline_seconds=PATIENCE)
    for name, interceptors in (("catalog", []), ("provider", [authenticated])):
        server = grpc.aio.server(interceptors=interceptors)
        if name == "catalog":
            resolution_service_pb2_grpc.add_ResolutionServiceServicer_to_server(catalog, server)
        else:
            tool_provider_service_pb2_grpc.add_ToolProviderServiceServicer_to_server(provider, server)
        server.add_insecure_port(addresses[name])
        await server.start()
        resources.push_async_callback(server.stop, None)
    peer = connect(addresses["catalog"])
    resources.push_async_callback(peer.close)
    clock = StandClock()
    stand = Stand(
        folder=folder,
        records=records,
        runs=RunStore(cast(RecordStore, records)),
        calls=CallStore(cast(RecordStore, records)),
        catalog=catalog,
        provider=provider,
        provider_address=addresses["provider"],
        catalog_client=CatalogClient(peer, clock),
        clock=clock,
        signer=CapabilitySigner(generate_private_key()),
        resources=resources,
    )
    await stand.replica()
    return stand
