"""Bindings, as the runs service uses them. Every call raises `HarnessError`."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.timestamp_pb2 import Timestamp

from harness.common.v1 import fence_pb2, runtime_ref_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.files.v1 import file_library_service_pb2, file_library_service_pb2_grpc, file_pb2
from harness.session.v1 import binding_pb2, session_service_pb2, session_service_pb2_grpc
from harness.state.v1 import thread_state_service_pb2, thread_state_service_pb2_grpc
from services.common.channels import Peer

Binding = binding_pb2.Binding


class SessionsClient:
    """SessionService, and of the thread-state facade the one call that the engine makes itself."""

    def __init__(self, peer: Peer, facade: Peer) -> None:
        self._peer = peer
        self._stub = session_service_pb2_grpc.SessionServiceStub(peer.channel)
        self._files = file_library_service_pb2_grpc.FileLibraryServiceStub(peer.channel)
        self._facade = facade
        self._state = thread_state_service_pb2_grpc.ThreadStateServiceStub(facade.channel)

    async def find(self, subject: str, agent_id: str, conversation_id: str) -> Binding:
        """The caller's binding of a conversation; `not_found` when there is none."""
        request = session_service_pb2.FindBindingRequest(agent_id=agent_id, conversation_id=conversation_id)
        response = await self._peer.call(self._stub.FindBinding, request, subject=subject)
        return response.binding

    async def get(self, binding_id: str) -> tuple[Binding, bool]:
        """A binding by its id, and whether it is an archived epoch."""
        request = session_service_pb2.GetBindingRequest(binding_id=binding_id)
        response = await self._peer.call(self._stub.GetBinding, request)
        return response.binding, response.archived

    async def reserve(
        self, subject: str, request: session_service_pb2.ReserveTurnRequest
    ) -> session_service_pb2.ReserveTurnResponse:
        """Ask for the slot; a conflict is an outcome, not an error."""
        return await self._peer.call(self._stub.ReserveTurn, request, subject=subject)

    async def files(self, owner: str, file_ids: Iterable[str], keep_until: float) -> dict[str, file_pb2.File]:
        """What is known of those of the files that the owner has, by id; they are kept until then at least (Unix seconds)."""
        request = file_library_service_pb2.ResolveFilesRequest(
            owner_id=owner, file_ids=file_ids, keep_until=timestamp(keep_until)
        )
        response = await self._peer.call(self._files.ResolveFiles, request)
        return {file.file_id: file for file in response.files}

    async def release(
        self, binding_id: str, run_id: str, *, stored: bool, issued: bool, interrupted: bool
    ) -> session_service_pb2.ReleaseTurnResponse:
        """Give the slot back if it is still the run's. `issued`: it may have reached a runtime; `interrupted`: it ended so. Idempotent."""
        request = session_service_pb2.ReleaseTurnRequest(
            binding_id=binding_id, run_id=run_id, stored=stored, issued=issued, interrupted=interrupted
        )
        return await self._peer.call(self._stub.ReleaseTurn, request)

    async def withdraw(self, binding_id: str, run_id: str) -> Binding:
        """Take a run out of the waiting list. Idempotent."""
        request = session_service_pb2.WithdrawTurnRequest(binding_id=binding_id, run_id=run_id)
        response = await self._peer.call(self._stub.WithdrawTurn, request)
        return response.binding

    async def claim(self, binding_id: str, run_id: str, run_generation: int) -> Binding:
        """Make a higher run generation the slot's; `STALE_LEASE` when the slot is not the run's."""
        request = session_service_pb2.ClaimTurnRequest(
            binding_id=binding_id, run_id=run_id, run_generation=run_generation
        )
        response = await self._peer.call(self._stub.ClaimTurn, request)
        return response.binding

    async def advance_runtime(self, fence: fence_pb2.Fence) -> Binding:
        """Raise the runtime generation before a replacement starts (I27)."""
        request = session_service_pb2.AdvanceRuntimeRequest(fence=fence)
        response = await self._peer.call(self._stub.AdvanceRuntime, request)
        return response.binding

    async def record_runtime(self, fence: fence_pb2.Fence, ref: runtime_ref_pb2.RuntimeRef) -> None:
        """Record where the runtime of the current generation is. Idempotent."""
        request = session_service_pb2.RecordRuntimeRequest(fence=fence, runtime_ref=ref)
        await self._peer.call(self._stub.RecordRuntime, request)

    async def record_native_session(self, fence: fence_pb2.Fence, native_session_id: str) -> int:
        """Store the native id on the binding; the session's revision after it."""
        request = session_service_pb2.RecordNativeSessionRequest(fence=fence, native_session_id=native_session_id)
        response = await self._peer.call(self._stub.RecordNativeSession, request)
        return response.session_revision

    async def commit_head(
        self,
        fence: fence_pb2.Fence,
        pending: event_pb2.PendingHead | None,
        outcome: payload_pb2.RunCompleted,
        runtime_ref: runtime_ref_pb2.RuntimeRef | None,
        interrupt: binding_pb2.Interrupt | None = None,
    ) -> int:
        """Commit the thread's head and how its run ended, in one write, with the runtime if it is not recorded and the interrupt it ends with;
        the head's revision. Idempotent for a run.
        """
        request = session_service_pb2.CommitHeadRequest(
            fence=fence, pending=pending, outcome=outcome, runtime_ref=runtime_ref, interrupt=interrupt
        )
        response = await self._peer.call(self._stub.CommitHead, request)
        return response.revision

    async def mark_uncertain(self, fence: fence_pb2.Fence, capability: str) -> bool:
        """Block later commits of the run; True when it had been committed after all."""
        request = thread_state_service_pb2.MarkUncertainRequest(fence=fence)
        response = await self._facade.call(self._state.MarkUncertain, request, credential=capability)
        return response.already_committed

    async def begin_clear(
        self, subject: str, agent_id: str, conversation_id: str
    ) -> session_service_pb2.BeginClearResponse:
        """Refuse turns, heads and facade writes of this epoch from now on."""
        request = session_service_pb2.BeginClearRequest(agent_id=agent_id, conversation_id=conversation_id)
        return await self._peer.call(self._stub.BeginClear, request, subject=subject)

    async def finish_clear(self, binding_id: str) -> int:
        """Archive the epoch and open the next; its number. Idempotent."""
        request = session_service_pb2.FinishClearRequest(binding_id=binding_id)
        response = await self._peer.call(self._stub.FinishClear, request)
        return response.next_epoch

    async def unsettled(self, before: float, page_token: str) -> tuple[list[Binding], str]:
        """A page of bindings with slots held or awaited, or clears not finished, unchanged since `before` (Unix seconds)."""
        request = session_service_pb2.ListUnsettledBindingsRequest(before=timestamp(before), page_token=page_token)
        response = await self._peer.call(self._stub.ListUnsettledBindings, request)
        return list(response.bindings), response.next_page_token


def timestamp(seconds: float) -> Timestamp:
    """Unix seconds as the contracts write them."""
    stamp = Timestamp()
    stamp.FromNanoseconds(int(seconds * 1e9))
    return stamp
