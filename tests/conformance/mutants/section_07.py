"""Mutants of section 7, cancel."""

from typing import Any

import grpc

from harness.common.v1 import error_pb2
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_service_pb2
from tests.conformance.mutants.mutant import STREAMS, Draft, Memory, Section
from tests.conformance.mutants.wire import Call, Mutation, Refused, Responses

SECTION = Section(7)
NONE = error_pb2.SIDE_EFFECT_STATUS_NONE


@SECTION.unary("R7.1", "Forgets a cancel of a run that it does not know.", "CancelRun")
async def _(call: Call, memory: Memory) -> Any:
    if call.run_id in call.wire.last:
        return await call.proceed()
    return runtime_service_pb2.CancelRunResponse(side_effect_status=NONE)


@SECTION.request("R7.2", "Cancels for another reason than it was given.", "CancelRun")
def _(request: Any, memory: Memory) -> None:
    request.reason = payload_pb2.CANCEL_REASON_CLIENT_REQUEST


@SECTION.response("R7.3", "Says of a run that had ended that the cancel ended it.", "CancelRun")
def _(response: Any, memory: Memory) -> None:
    response.already_ended = False


@SECTION.unary("R7.4", "Refuses a second cancel.", "CancelRun")
async def _(call: Call, memory: Memory) -> Any:
    if not memory.first(call.run_id):
        raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "run_cancelled", "The run was cancelled.")
    return await call.proceed()


@SECTION.draft("R7.5", "Says of a run past its deadline that the client ended it.")
def _(draft: Draft, offset: int, memory: Memory) -> None:
    if draft.payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_DEADLINE:
        draft.payload.run_cancelled.reason = payload_pb2.CANCEL_REASON_CLIENT_REQUEST


@SECTION.mutation("R7.6", "Says of a cancelled run that nothing can have happened, whatever it showed.")
class NothingHappened(Mutation):
    async def unary(self, call: Call) -> Any:
        response = await call.proceed()
        if call.method == "CancelRun":
            response.side_effect_status = NONE
        return response

    async def stream(self, call: Call) -> Responses:
        async for response in call.proceed():
            for draft in response.batch.drafts if call.method in STREAMS else ():
                if draft.payload.HasField("run_cancelled"):
                    draft.payload.run_cancelled.side_effect_status = NONE
            yield response


@SECTION.draft("R7.7", "Tells a call as success that a cancel cut off.")
def _(draft: Draft, offset: int, memory: Memory) -> None:
    if draft.payload.HasField("tool_completed"):
        draft.payload.tool_completed.outcome = payload_pb2.TOOL_OUTCOME_SUCCESS


@SECTION.response("R7.8", "Ends a run that nobody follows as failed.", "AttachRun")
def _(response: Any, memory: Memory) -> None:
    for draft in response.batch.drafts:
        if draft.payload.HasField("run_cancelled"):
            failed = draft.payload.run_failed
            failed.code, failed.message = "nobody_there", "Nobody follows the run."
            failed.category = error_pb2.ERROR_CATEGORY_UNAVAILABLE
            failed.side_effect_status = error_pb2.SIDE_EFFECT_STATUS_POSSIBLE
