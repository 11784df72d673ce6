"""A tool broker that answers what a test tells it to, over real gRPC, and keeps what it was asked."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf import json_format

from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2
from harness.tool.v1 import tool_broker_service_pb2 as pb
from harness.tool.v1 import tool_broker_service_pb2_grpc as pb_grpc
from services.common.errors import TABLE, HarnessError
from services.common.status import grpc_status_code, to_status, trailing_metadata

TOKEN = "canary-capability-token"
ALLOWED = (
    payload_pb2.APPROVAL_DECISION_KIND_APPROVE,
    payload_pb2.APPROVAL_DECISION_KIND_REJECT,
    payload_pb2.APPROVAL_DECISION_KIND_EDIT,
)
Answer = payload_pb2.ToolCompleted | payload_pb2.ToolApproval | HarnessError
Behaviour = Callable[[pb.InvokeToolRequest], Awaitable[Answer]]


def tool(tool_id: str, *, sensitive: bool = False, provider_name: str = "") -> runtime_pb2.ToolDescriptor:
    name = provider_name or tool_id
    descriptor = runtime_pb2.ToolDescriptor(tool_id=tool_id, provider_name=name, sensitive=sensitive)
    descriptor.description = f"Does {tool_id}."
    descriptor.input_schema.update({"type": "object"})
    return descriptor


def success(result: Any = None) -> payload_pb2.ToolCompleted:
    completed = payload_pb2.ToolCompleted(tool_call_id="not-the-call", outcome=payload_pb2.TOOL_OUTCOME_SUCCESS)
    if result is not None:
        json_format.ParseDict(result, completed.result)
    return completed


def error(code: str, message: str, *, retryable: bool = False) -> payload_pb2.ToolCompleted:
    said = payload_pb2.ToolError(code=code, message=message, retryable=retryable)
    return payload_pb2.ToolCompleted(tool_call_id="x", outcome=payload_pb2.TOOL_OUTCOME_ERROR, error=said)


def rejected(reason: str) -> payload_pb2.ToolCompleted:
    said = payload_pb2.ToolError(code="rejected", message=reason)
    return payload_pb2.ToolCompleted(tool_call_id="x", outcome=payload_pb2.TOOL_OUTCOME_REJECTED, error=said)


def waits(request: pb.InvokeToolRequest) -> payload_pb2.ToolApproval:
    return payload_pb2.ToolApproval(
        tool_call_id=request.tool_call_id, tool_name=request.tool_id, arguments=request.arguments, allowed=ALLOWED
    )


class Broker(pb_grpc.ToolBrokerServiceServicer):
    """Answers each tool as `behaviours` has it, by tool id: a coroutine function, or what is answered to the first call, to the second, and so on."""

    def __init__(self, **behaviours: Behaviour | list[Any]) -> None:
        self.behaviours = behaviours
        self.requests: list[pb.InvokeToolRequest] = []
        self.credentials: list[str] = []
        self.asked = asyncio.Event()
        self.given_up = asyncio.Event()
        self.address = ""

    @property
    def calls(self) -> list[tuple[str, str, Any]]:
        """Call id, tool and arguments of every request."""
        return [(r.tool_call_id, r.tool_id, json_format.MessageToDict(r.arguments)) for r in self.requests]

    async def DescribeTools(self, request: pb.DescribeToolsRequest, context: Any) -> pb.DescribeToolsResponse:
        raise AssertionError("a runtime was told its tools when it was made")

    async def InvokeTool(self, request: pb.InvokeToolRequest, context: Any) -> pb.InvokeToolResponse:
        self.requests.append(request)
        self.credentials += [str(value) for key, value in context.invocation_metadata() if key == "authorization"]
        self.asked.set()
        behaviour = self.behaviours[request.tool_id]
        try:
            answer = behaviour.pop(0) if isinstance(behaviour, list) else await behaviour(request)
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        if isinstance(answer, payload_pb2.ToolCompleted):
            return pb.InvokeToolResponse(completed=answer)
        if isinstance(answer, HarnessError):
            status = to_status(answer)
            code = grpc_status_code(TABLE[answer.reason].grpc_code)
            await context.abort(code, status.message, trailing_metadata(status))
            raise AssertionError("abort returned")
        return pb.InvokeToolResponse(approval_required=answer)


@contextlib.asynccontextmanager
async def brokered(**behaviours: Behaviour | list[Any]) -> AsyncGenerator[Broker]:
    """A served broker on a socket of its own."""
    broker = Broker(**behaviours)
    with tempfile.TemporaryDirectory(prefix="tb-") as folder:
        server = grpc.aio.server()
        pb_grpc.add_ToolBrokerServiceServicer_to_server(broker, server)
        broker.address = f"unix:{Path(folder) / 'b.sock'}"
        server.add_insecure_port(broker.address)
        await server.start()
        try:
            yield broker
        finally:
            await server.stop(0)
