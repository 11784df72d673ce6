"""Runtimes, in adapter hosts and in sandbox workers: from their making on, both are `harness.runtime.v1.RuntimeService`.

No service credential ever travels to a runtime: what it may call it gets as capability tokens, for one run (I28).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from harness.adapter.v1 import adapter_service_pb2, adapter_service_pb2_grpc
from harness.common.v1 import error_pb2, fence_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.runtime.v1 import runtime_pb2, runtime_service_pb2, runtime_service_pb2_grpc
from harness.sandbox.v1 import lease_pb2, sandbox_service_pb2, sandbox_service_pb2_grpc
from services.common.channels import Peer, connect
from services.common.errors import HarnessError, Reason
from services.common.status import CODE_KEY
from services.runs.host import Host

MAX_PEERS: Final = 1_024
"""Channels kept open; idle ones are closed first, ones in use never."""

Batches = AsyncGenerator[event_pb2.EventBatch]


@dataclass(slots=True)
class _Dialled:
    peer: Peer
    users: int = 0
    runtime: Any = field(init=False)
    adapter: Any = field(init=False)

    def __post_init__(self) -> None:
        self.runtime = runtime_service_pb2_grpc.RuntimeServiceStub(self.peer.channel)
        self.adapter = adapter_service_pb2_grpc.AdapterServiceStub(self.peer.channel)


class RuntimeClient:
    """Calls to runtimes by their hosts. Every call raises `HarnessError`; a code outside our table is in its metadata under `code`."""

    def __init__(self, sandbox: Peer | None) -> None:
        self._sandbox = sandbox
        self._sandboxes = None if sandbox is None else sandbox_service_pb2_grpc.SandboxServiceStub(sandbox.channel)
        self._dialled: OrderedDict[Host, _Dialled] = OrderedDict()

    async def create(
        self, host: Host, fence: fence_pb2.Fence, context: runtime_pb2.RuntimeContext, timeout: float
    ) -> str:
        """Make the binding's runtime in an adapter host, or find it; the incarnation of the host."""
        request = adapter_service_pb2.CreateRuntimeRequest(fence=fence, context=context)
        response: adapter_service_pb2.CreateRuntimeResponse = await self._call(
            host, "adapter", "CreateRuntime", request, timeout
        )
        return response.incarnation

    async def open_session(self, host: Host, request: adapter_service_pb2.OpenSessionRequest, timeout: float) -> str:
        """The provider's native session of the binding, opened or found again; empty if it has no name yet. Idempotent."""
        response: adapter_service_pb2.OpenSessionResponse = await self._call(
            host, "adapter", "OpenSession", request, timeout
        )
        return response.native_session_id

    async def close_session(self, host: Host, request: adapter_service_pb2.CloseSessionRequest, timeout: float) -> None:
        """End the provider's native session. Idempotent."""
        await self._call(host, "adapter", "CloseSession", request, timeout)

    async def acquire_sandbox(
        self, request: sandbox_service_pb2.AcquireSandboxRequest, timeout: float
    ) -> lease_pb2.Lease:
        """The binding's sandbox, its worker bound."""
        peer, stub = self._sandbox_service()
        response = await peer.call(stub.AcquireSandbox, request, timeout=timeout)
        return response.lease

    async def renew_sandbox(self, fence: fence_pb2.Fence, timeout: float) -> None:
        """Let the idle time of the binding's sandbox start anew."""
        peer, stub = self._sandbox_service()
        await peer.call(stub.RenewSandbox, sandbox_service_pb2.RenewSandboxRequest(fence=fence), timeout=timeout)

    async def release_sandbox(self, fence: fence_pb2.Fence, timeout: float) -> None:
        """Destroy the binding's sandbox of this generation and older ones. Idempotent."""
        peer, stub = self._sandbox_service()
        await peer.call(stub.ReleaseSandbox, sandbox_service_pb2.ReleaseSandboxRequest(fence=fence), timeout=timeout)

    async def start(self, host: Host, request: runtime_service_pb2.StartRunRequest) -> Batches:
        """Start the turn and follow its drafts."""
        async with aclosing(self._stream(host, "StartRun", request)) as responses:
            async for response in responses:
                yield response.batch

    async def resume(self, host: Host, request: runtime_service_pb2.ResumeRunRequest) -> Batches:
        """Start the turn that answers an interrupt and follow its drafts."""
        async with aclosing(self._stream(host, "ResumeRun", request)) as responses:
            async for response in responses:
                yield response.batch

    async def attach(self, host: Host, request: runtime_service_pb2.AttachRunRequest) -> Batches:
        """Follow a run that was started earlier, after the last durable offset."""
        async with aclosing(self._stream(host, "AttachRun", request)) as responses:
            async for response in responses:
                if response.HasField("batch"):
                    yield response.batch

    async def acknowledge(self, host: Host, fence: fence_pb2.Fence, through_offset: int, timeout: float) -> None:
        """The runtime may forget drafts up to this offset."""
        request = runtime_service_pb2.AckRunRequest(fence=fence, through_offset=through_offset)
        await self._call(host, "runtime", "AckRun", request, timeout)

    async def cancel(
        self, host: Host, fence: fence_pb2.Fence, reason: payload_pb2.CancelReason.ValueType, timeout: float
    ) -> error_pb2.SideEffectStatus.ValueType:
        """Stop the run wherever it stands; what the runtime says may have happened outside."""
        request = runtime_service_pb2.CancelRunRequest(fence=fence, reason=reason)
        request.grace.FromMilliseconds(int(timeout * 800))
        response: runtime_service_pb2.CancelRunResponse = await self._call(
            host, "runtime", "CancelRun", request, timeout
        )
        return response.side_effect_status

    async def clean_up(self, host: Host, fence: fence_pb2.Fence, timeout: float) -> str:
        """Release everything the runtime holds; what the host says is left all the same, empty when nothing is. Idempotent."""
        request = runtime_service_pb2.CleanupRequest(fence=fence)
        response: runtime_service_pb2.CleanupResponse = await self._call(host, "runtime", "Cleanup", request, timeout)
        # A host of an older contract says no more than that something is.
        return (response.left or "not said") if response.incomplete else ""

    async def close(self) -> None:
        """Close every channel."""
        while self._dialled:
            _, dialled = self._dialled.popitem()
            await dialled.peer.close()

    def _sandbox_service(self) -> tuple[Peer, sandbox_service_pb2_grpc.SandboxServiceStub]:
        if self._sandbox is None or self._sandboxes is None:
            raise HarnessError(
                Reason.HARNESS_UNAVAILABLE,
                "This agent's profile needs sandboxes, and no sandbox service is configured.",
            )
        return self._sandbox, self._sandboxes

    async def _call(self, host: Host, kind: str, method: str, request: Any, timeout: float) -> Any:
        dialled = self._use(host)
        try:
            return await dialled.peer.call(getattr(getattr(dialled, kind), method), request, timeout=timeout)
        finally:
            await self._leave(dialled)

    async def _stream(self, host: Host, method: str, request: Any) -> AsyncGenerator[Any]:
        dialled = self._use(host)
        try:
            # No timeout: the run's own deadline ends it, and a dead peer is found by the channel's keepalive.
            async with aclosing(
                dialled.peer.stream(getattr(dialled.runtime, method), request, timeout=None)
            ) as responses:
                async for response in responses:
                    yield response
        finally:
            await self._leave(dialled)

    def _use(self, host: Host) -> _Dialled:
        dialled = self._dialled.get(host)
        if dialled is None:
            dialled = self._dialled[host] = _Dialled(connect(host.address, host.credential))
        self._dialled.move_to_end(host)
        dialled.users += 1
        return dialled

    async def _leave(self, dialled: _Dialled) -> None:
        dialled.users -= 1
        if len(self._dialled) <= MAX_PEERS:
            return
        idle = next((host for host, other in self._dialled.items() if not other.users), None)
        if idle is not None:
            await self._dialled.pop(idle).peer.close()


def code_of(error: HarnessError) -> str:
    """The machine code a peer gave, also one outside our own table (`runtime_unknown`, `run_unknown`, `incarnation_mismatch`)."""
    return error.metadata.get(CODE_KEY, error.reason.value)
