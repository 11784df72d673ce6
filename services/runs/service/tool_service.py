"""`harness.tool.v1.ToolBrokerService`: translates, calls, translates back. On the facade listener alone."""

from __future__ import annotations

from typing import Any, Final

import grpc.aio
from google.protobuf import json_format

from harness.common.v1 import fence_pb2
from harness.event.v1 import payload_pb2
from harness.tool.v1 import tool_broker_service_pb2 as api
from harness.tool.v1 import tool_broker_service_pb2_grpc as api_grpc
from services.common.caller import caller
from services.common.errors import HarnessError, Reason
from services.common.store import StoreFull, StoreUnavailable
from services.runs.tools.acceptance import CallFence
from services.runs.tools.approval import ALLOWED
from services.runs.tools.broker import ToolBroker, Waits
from services.runs.tools.record import Ended, Outcome

TOOL_BROKER_SERVICE: Final = api.DESCRIPTOR.services_by_name["ToolBrokerService"].full_name

Context = grpc.aio.ServicerContext[Any, Any]
add_tool_broker_servicer = api_grpc.add_ToolBrokerServiceServicer_to_server
_OUTCOMES: Final = {
    Outcome.SUCCESS: payload_pb2.TOOL_OUTCOME_SUCCESS,
    Outcome.ERROR: payload_pb2.TOOL_OUTCOME_ERROR,
    Outcome.REJECTED: payload_pb2.TOOL_OUTCOME_REJECTED,
}


class ToolBrokerServicer(api_grpc.ToolBrokerServiceServicer):
    """For runtimes, with the capability token of their run."""

    def __init__(self, broker: ToolBroker) -> None:
        self._broker = broker

    async def DescribeTools(self, request: api.DescribeToolsRequest, context: Context) -> api.DescribeToolsResponse:
        try:
            grants = await self._broker.describe(caller().require_capability(), _fence_of(request.fence))
        except (StoreUnavailable, StoreFull) as error:
            raise _store_away() from error
        return api.DescribeToolsResponse(tools=[grant.descriptor for grant in grants])

    async def InvokeTool(self, request: api.InvokeToolRequest, context: Context) -> api.InvokeToolResponse:
        try:
            answer = await self._broker.invoke(
                caller().require_capability(),
                _fence_of(request.fence),
                request.tool_call_id,
                request.tool_id,
                request.arguments,
            )
        except (StoreUnavailable, StoreFull) as error:
            raise _store_away() from error
        if isinstance(answer, Waits):
            return api.InvokeToolResponse(approval_required=_approval(answer))
        return api.InvokeToolResponse(completed=_completed(request.tool_call_id, answer))


def _approval(waits: Waits) -> payload_pb2.ToolApproval:
    message = payload_pb2.ToolApproval(tool_call_id=waits.tool_call_id, tool_name=waits.tool_id, allowed=ALLOWED)
    json_format.ParseDict(waits.given, message.arguments)
    return message


def _completed(tool_call_id: str, ended: Ended) -> payload_pb2.ToolCompleted:
    message = payload_pb2.ToolCompleted(tool_call_id=tool_call_id, outcome=_OUTCOMES[ended.outcome])
    if ended.result:
        json_format.Parse(ended.result, message.result)
    if ended.failure is not None:
        message.error.code = ended.failure.code
        message.error.message = ended.failure.message
        message.error.retryable = ended.failure.retryable
    return message


def _fence_of(message: fence_pb2.Fence) -> CallFence:
    return CallFence(
        protocol_version=message.protocol_version,
        binding_id=message.binding_id,
        epoch=message.epoch,
        runtime_generation=message.runtime_generation,
        turn=message.turn,
        run_id=message.run_id,
        run_generation=message.run_generation,
    )


def _store_away() -> HarnessError:
    return HarnessError(Reason.STORE_UNAVAILABLE, "The store cannot answer now: try again.", retry_after=1.0)
