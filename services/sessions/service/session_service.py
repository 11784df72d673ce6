"""`harness.session.v1.SessionService`: translates, calls, translates back."""

from typing import Any, Final

import grpc.aio

from harness.session.v1 import session_service_pb2 as api
from harness.session.v1 import session_service_pb2_grpc as api_grpc
from services.common.caller import caller
from services.sessions.bindings import Bindings
from services.sessions.head import Pending
from services.sessions.service.wire import (
    answer_of,
    asked_of,
    binding_message,
    fence_of,
    milliseconds_of,
    outcome_message,
    outcome_text,
    pin_of,
    policy_of,
    runtime_ref_of,
)
from services.sessions.turn import Reservation

SESSION_SERVICE: Final = api.DESCRIPTOR.services_by_name["SessionService"].full_name
DEFAULT_PAGE: Final = 100

Context = grpc.aio.ServicerContext[Any, Any]
add_session_servicer = api_grpc.add_SessionServiceServicer_to_server


class SessionServicer(api_grpc.SessionServiceServicer):
    """For the services of the mesh; the rpcs that name a conversation act for the caller's subject (I2)."""

    def __init__(self, bindings: Bindings) -> None:
        self._bindings = bindings

    async def FindBinding(self, request: api.FindBindingRequest, context: Context) -> api.FindBindingResponse:
        document = await self._bindings.find(caller().require_subject(), request.agent_id, request.conversation_id)
        return api.FindBindingResponse(binding=binding_message(document))

    async def GetBinding(self, request: api.GetBindingRequest, context: Context) -> api.GetBindingResponse:
        document, archived = await self._bindings.get(request.binding_id)
        return api.GetBindingResponse(binding=binding_message(document), archived=archived)

    async def ReserveTurn(self, request: api.ReserveTurnRequest, context: Context) -> api.ReserveTurnResponse:
        asked = Reservation(
            run_id=request.run_id,
            request_key=request.request_key,
            policy=policy_of(request.on_conflict),
            pin=pin_of(request.pin),
            answers=answer_of(request.answers) if request.HasField("answers") else None,
            expected_revision=request.expected_revision if request.HasField("expected_revision") else None,
        )
        document, (outcome, run_id) = await self._bindings.reserve(
            caller().require_subject(), request.agent_id, request.conversation_id, asked
        )
        return api.ReserveTurnResponse(
            outcome=outcome_message(outcome), run_id=run_id, binding=binding_message(document)
        )

    async def ReleaseTurn(self, request: api.ReleaseTurnRequest, context: Context) -> api.ReleaseTurnResponse:
        document, released = await self._bindings.release(
            request.binding_id,
            request.run_id,
            stored=request.stored,
            issued=request.issued,
            interrupted=request.interrupted,
        )
        return api.ReleaseTurnResponse(released=released, binding=binding_message(document))

    async def WithdrawTurn(self, request: api.WithdrawTurnRequest, context: Context) -> api.WithdrawTurnResponse:
        document, withdrawn = await self._bindings.withdraw(request.binding_id, request.run_id)
        return api.WithdrawTurnResponse(withdrawn=withdrawn, binding=binding_message(document))

    async def ClaimTurn(self, request: api.ClaimTurnRequest, context: Context) -> api.ClaimTurnResponse:
        document = await self._bindings.claim(request.binding_id, request.run_id, request.run_generation)
        return api.ClaimTurnResponse(binding=binding_message(document))

    async def AdvanceRuntime(self, request: api.AdvanceRuntimeRequest, context: Context) -> api.AdvanceRuntimeResponse:
        document = await self._bindings.advance_runtime(fence_of(request.fence))
        return api.AdvanceRuntimeResponse(binding=binding_message(document))

    async def RecordRuntime(self, request: api.RecordRuntimeRequest, context: Context) -> api.RecordRuntimeResponse:
        await self._bindings.record_runtime(fence_of(request.fence), runtime_ref_of(request.runtime_ref))
        return api.RecordRuntimeResponse()

    async def RecordNativeSession(
        self, request: api.RecordNativeSessionRequest, context: Context
    ) -> api.RecordNativeSessionResponse:
        revision = await self._bindings.record_native_session(fence_of(request.fence), request.native_session_id)
        return api.RecordNativeSessionResponse(session_revision=revision)

    async def CommitHead(self, request: api.CommitHeadRequest, context: Context) -> api.CommitHeadResponse:
        pending = (
            Pending(tuple(request.pending.part_refs), request.pending.replace) if request.HasField("pending") else None
        )
        runtime_ref = runtime_ref_of(request.runtime_ref) if request.HasField("runtime_ref") else None
        asked = asked_of(request.interrupt) if request.HasField("interrupt") else None
        revision = await self._bindings.commit_head(
            fence_of(request.fence), pending, outcome_text(request.outcome), runtime_ref, asked
        )
        return api.CommitHeadResponse(revision=revision)

    async def BeginClear(self, request: api.BeginClearRequest, context: Context) -> api.BeginClearResponse:
        document, closing = await self._bindings.begin_clear(
            caller().require_subject(), request.agent_id, request.conversation_id
        )
        return api.BeginClearResponse(closing=closing, binding=None if document is None else binding_message(document))

    async def FinishClear(self, request: api.FinishClearRequest, context: Context) -> api.FinishClearResponse:
        return api.FinishClearResponse(next_epoch=await self._bindings.finish_clear(request.binding_id))

    async def ListUnsettledBindings(
        self, request: api.ListUnsettledBindingsRequest, context: Context
    ) -> api.ListUnsettledBindingsResponse:
        documents, next_page = await self._bindings.unsettled(
            milliseconds_of(request.before), request.page_size or DEFAULT_PAGE, request.page_token or None
        )
        return api.ListUnsettledBindingsResponse(
            bindings=[binding_message(document) for document in documents], next_page_token=next_page or ""
        )

    async def ListBoundAgents(
        self, request: api.ListBoundAgentsRequest, context: Context
    ) -> api.ListBoundAgentsResponse:
        bound = await self._bindings.bound_agents(request.harness_id, request.profile_id, list(request.agent_ids))
        return api.ListBoundAgentsResponse(agent_ids=bound)
