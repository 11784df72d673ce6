"""Drives an adapter in a test, in this process or at an address, over the real contract.

async with served(MyAdapter) as client:
    events = await client.turn("hello")
    assert kinds(events)[-1] == "run.completed"
"""

import contextlib
import secrets
import tempfile
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio

from adapters.sdk.events import struct
from adapters.sdk.host.limits import HostLimits
from adapters.sdk.lifecycle import wire_name
from adapters.sdk.serve import AdapterFactory, serve_adapter, serve_worker
from harness.adapter.v1 import adapter_service_pb2, adapter_service_pb2_grpc
from harness.common.v1 import blueprint_pb2, capability_token_pb2, fence_pb2, placement_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.runtime.v1 import runtime_pb2, runtime_service_pb2, runtime_service_pb2_grpc
from harness.worker.v1 import worker_service_pb2, worker_service_pb2_grpc

Draft = event_pb2.EventDraft
# What `read` of a stream gives after its last message.
END = cast("Any", grpc.aio).EOF
DEFAULT_TURN_SECONDS = 60.0


@dataclass
class AdapterClient:
    """The control plane's side of one binding. `turn` creates the runtime if need be and runs one turn to its end."""

    channel: grpc.aio.Channel
    worker: bool = False
    # Accompanies every call.
    metadata: tuple[tuple[str, str], ...] = ()
    binding_id: str = field(default_factory=lambda: f"binding-{secrets.token_hex(8)}")
    epoch: int = 1
    runtime_generation: int = 1
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    profile_settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    limits: runtime_pb2.RuntimeLimits = field(default_factory=runtime_pb2.RuntimeLimits)
    # The state facade; without it runs have no thread state.
    state_address: str = ""
    # The tool facade, and the tools of the agent.
    tool_address: str = ""
    file_address: str = ""
    tools: Sequence[runtime_pb2.ToolDescriptor] = ()
    tool_policy: "blueprint_pb2.ApprovalPolicy.ValueType" = blueprint_pb2.APPROVAL_POLICY_SENSITIVE_ONLY
    persistence: "blueprint_pb2.ThreadPersistence.ValueType" = blueprint_pb2.THREAD_PERSISTENCE_DURABLE
    incarnation: str = ""
    harness_id: str = "reference"
    turns: int = 0

    def __post_init__(self) -> None:
        self.adapter = adapter_service_pb2_grpc.AdapterServiceStub(self.channel)
        self.runtime = runtime_service_pb2_grpc.RuntimeServiceStub(self.channel)
        self.sandbox = worker_service_pb2_grpc.WorkerServiceStub(self.channel)

    def another(self, **changes: Any) -> "AdapterClient":
        """A client of another binding at the same address."""
        same: dict[str, Any] = {
            "metadata": self.metadata,
            "worker": self.worker,
            "profile_settings": self.profile_settings,
            "harness_id": self.harness_id,
        }
        return AdapterClient(self.channel, **{**same, **changes})

    def fence(self, turn: int = 0, run_id: str = "", run_generation: int = 1, **changes: Any) -> fence_pb2.Fence:
        """The fence of a run of this binding, or of the binding alone."""
        return fence_pb2.Fence(
            protocol_version=changes.pop("protocol_version", 1),
            binding_id=changes.pop("binding_id", self.binding_id),
            epoch=changes.pop("epoch", self.epoch),
            runtime_generation=changes.pop("runtime_generation", self.runtime_generation),
            turn=turn,
            run_id=run_id,
            run_generation=run_generation if run_id else 0,
            **changes,
        )

    def context(self) -> runtime_pb2.RuntimeContext:
        """What the runtime is created with."""
        blueprint = blueprint_pb2.AgentBlueprint(
            id="agent",
            name="Agent",
            harness=blueprint_pb2.HarnessSelection(id=self.harness_id, options=struct(self.options)),
            thread=blueprint_pb2.ThreadSpec(persistence=self.persistence),
        )
        for tool in self.tools:
            blueprint.tools.bindings.add(tool_id=tool.tool_id, approval_policy=self.tool_policy)
        context = runtime_pb2.RuntimeContext(
            contract_version=1,
            agent_version=1,
            placement=placement_pb2.PLACEMENT_SANDBOX_POD if self.worker else placement_pb2.PLACEMENT_PROVIDER_MANAGED,
            blueprint=blueprint,
            profile_settings=struct(self.profile_settings),
            limits=self.limits,
            tools=self.tools,
        )
        if self.state_address:
            context.facades.add(audience="state", address=self.state_address)
        if self.tool_address:
            context.facades.add(audience="tool", address=self.tool_address)
        if self.file_address:
            context.facades.add(audience="files", address=self.file_address)
        return context

    async def create(self) -> bool:
        """Creates the runtime, or binds the worker. Whether it was created now."""
        if self.worker:
            request = worker_service_pb2.BindRequest(
                fence=self.fence(), harness_id=self.harness_id, context=self.context()
            )
            self.incarnation = (await self.sandbox.Bind(request, metadata=self.metadata)).incarnation
            return True
        response = await self.adapter.CreateRuntime(
            adapter_service_pb2.CreateRuntimeRequest(fence=self.fence(), context=self.context()),
            metadata=self.metadata,
        )
        self.incarnation = response.incarnation
        return response.created

    def input(
        self,
        message: str,
        *,
        token: str = "",
        tool_token: str = "",
        file_token: str = "",
        seconds: float = DEFAULT_TURN_SECONDS,
        **more: Any,
    ) -> runtime_pb2.TurnInput:
        """A turn's input with a deadline `seconds` from now and, if given, tokens for the state, the tool and the file facade."""
        turn = runtime_pb2.TurnInput(message=message, **more)
        turn.deadline.FromMicroseconds(int((time.time() + seconds) * 1e6))
        for audience, value in (("state", token), ("tool", tool_token), ("files", file_token)):
            if value:
                turn.tokens.append(
                    capability_token_pb2.CapabilityToken(audience=audience, value=value, expires_at=turn.deadline)
                )
        return turn

    def start(self, fence: fence_pb2.Fence, turn: runtime_pb2.TurnInput, incarnation: str = "") -> Any:
        """The call of StartRun: iterate it for responses with batches."""
        request = runtime_service_pb2.StartRunRequest(
            fence=fence, incarnation=incarnation or self.incarnation, turn=turn
        )
        return self.runtime.StartRun(request, metadata=self.metadata)

    def resume(
        self,
        fence: fence_pb2.Fence,
        turn: runtime_pb2.TurnInput,
        decision: runtime_pb2.ResumeDecision,
        incarnation: str = "",
    ) -> Any:
        """The call of ResumeRun: iterate it for responses with batches."""
        request = runtime_service_pb2.ResumeRunRequest(
            fence=fence, incarnation=incarnation or self.incarnation, turn=turn, decision=decision
        )
        return self.runtime.ResumeRun(request, metadata=self.metadata)

    async def pending_interrupt(self) -> runtime_pb2.PendingInterrupt | None:
        """The pause that the runtime knows of."""
        request = runtime_service_pb2.GetPendingInterruptRequest(fence=self.fence())
        response = await self.runtime.GetPendingInterrupt(request, metadata=self.metadata)
        return response.interrupt if response.HasField("interrupt") else None

    def attach(self, fence: fence_pb2.Fence, after: int = 0, incarnation: str = "") -> Any:
        """The call of AttachRun."""
        request = runtime_service_pb2.AttachRunRequest(
            fence=fence, incarnation=incarnation or self.incarnation, after_offset=after
        )
        return self.runtime.AttachRun(request, metadata=self.metadata)

    async def ack(self, fence: fence_pb2.Fence, through: int) -> None:
        """Says that drafts up to offset `through` are durable."""
        await self.runtime.AckRun(
            runtime_service_pb2.AckRunRequest(fence=fence, through_offset=through), metadata=self.metadata
        )

    async def cancel(
        self,
        fence: fence_pb2.Fence,
        reason: "payload_pb2.CancelReason.ValueType" = payload_pb2.CANCEL_REASON_CLIENT_REQUEST,
    ) -> runtime_service_pb2.CancelRunResponse:
        """Stops the run."""
        return await self.runtime.CancelRun(
            runtime_service_pb2.CancelRunRequest(fence=fence, reason=reason), metadata=self.metadata
        )

    async def cleanup(self, timeout: float = 10.0) -> bool:
        """Releases the runtime; whether all of it was released."""
        response = await self.runtime.Cleanup(
            runtime_service_pb2.CleanupRequest(fence=self.fence()), timeout=timeout, metadata=self.metadata
        )
        return not response.incomplete

    async def follow(self, call: Any, fence: fence_pb2.Fence | None = None) -> list[Draft]:
        """All drafts of a call to its end, offsets checked for gaps, acknowledged if a fence is given."""
        drafts: list[Draft] = []
        following = None
        while (response := await call.read()) is not END:
            batch = response.batch
            if not batch.drafts:
                continue
            if following is not None and batch.first_offset != following:
                raise AssertionError(f"offset {batch.first_offset} follows {following - 1}")
            following = batch.first_offset + len(batch.drafts)
            drafts.extend(batch.drafts)
            if fence is not None:
                await self.ack(fence, following - 1)
        return drafts

    async def turn(
        self, message: str, *, token: str = "", seconds: float = DEFAULT_TURN_SECONDS, **more: Any
    ) -> list[Draft]:
        """Runs the next turn to its end; its drafts."""
        if not self.incarnation:
            await self.create()
        self.turns += 1
        fence = self.fence(self.turns, f"run-{self.turns}-{secrets.token_hex(4)}")
        return await self.follow(self.start(fence, self.input(message, token=token, seconds=seconds, **more)), fence)


@contextlib.asynccontextmanager
async def connected(address: str, *, token: str = "", **settings: Any) -> AsyncGenerator[AdapterClient, None]:
    """A client of whatever is served at `unix:/path` or `host:port`."""
    if token:
        settings["metadata"] = (("authorization", f"Bearer {token}"),)
    options = [("grpc.max_receive_message_length", 8 * 1024 * 1024), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield AdapterClient(channel, **settings)


@contextlib.asynccontextmanager
async def served(
    factory: AdapterFactory, *, worker: bool = False, limits: HostLimits | None = None, **settings: Any
) -> AsyncGenerator[AdapterClient, None]:
    """Serves the adapter in this process on a unix socket of its own, with a client of it. Any listener and file is gone afterwards."""
    serve = serve_worker if worker else serve_adapter
    with tempfile.TemporaryDirectory(prefix="ha-") as folder:
        server = await serve(factory, listen=f"unix:{Path(folder) / 'a.sock'}", limits=limits)
        try:
            settings.setdefault("harness_id", server.adapter.descriptor.harness_id)
            async with connected(server.address, worker=worker, **settings) as client:
                yield client
        finally:
            await server.stop(0)


def kinds(drafts: Iterable[Draft]) -> list[str]:
    """Wire names of drafts, as clients see them."""
    return [wire_name(draft.payload.WhichOneof("kind") or "") for draft in drafts]


def text_of(drafts: Iterable[Draft]) -> str:
    """The text of all answers, joined."""
    return "".join(draft.payload.content_delta.text for draft in drafts if draft.payload.HasField("content_delta"))
