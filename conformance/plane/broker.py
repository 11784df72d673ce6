"""`harness.tool.v1.ToolBrokerService`, played by the kit: each case scripts what its tools answer, and sees every call."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import json_format

from conformance.plane.grants import Grants
from conformance.plane.refusals import refuse
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2
from harness.tool.v1 import tool_broker_service_pb2 as pb2
from harness.tool.v1 import tool_broker_service_pb2_grpc

ECHO = "kit.echo"
SUM = "kit.sum"
PAY = "kit.pay"


@dataclass(frozen=True, slots=True)
class Succeed:
    """The tool answers `result`."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Break:
    """The tool fails."""

    code: str = "tool_failed"
    message: str = "The tool failed."
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Reject:
    """A person or a policy refuses the call, and says why."""

    message: str = "A person refused the call."


@dataclass(frozen=True, slots=True)
class AskFirst:
    """The call waits for a person; `then` is what comes once it is approved, `edited` once it is edited."""

    then: "Answer" = field(default_factory=Succeed)
    edited: "Answer" = field(default_factory=Succeed)
    allowed: tuple["payload_pb2.ApprovalDecisionKind.ValueType", ...] = (
        payload_pb2.APPROVAL_DECISION_KIND_APPROVE,
        payload_pb2.APPROVAL_DECISION_KIND_REJECT,
        payload_pb2.APPROVAL_DECISION_KIND_EDIT,
    )


@dataclass(frozen=True, slots=True)
class Refuse:
    """The broker itself refuses, with a gRPC status."""

    code: grpc.StatusCode
    reason: str


@dataclass(frozen=True, slots=True)
class Stall:
    """The broker does not answer until the caller gives up."""


Answer = Succeed | Break | Reject | AskFirst | Refuse | Stall


@dataclass
class ToolCall:
    """One InvokeTool as it came."""

    tool_call_id: str
    tool_id: str
    arguments: dict[str, Any]
    run_id: str
    traceparent: str


@dataclass
class Tools:
    """The tools of one binding: what they answer, what was asked of them, and what a person decided."""

    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    # What a call was first made with: the same call with other arguments is another call.
    first: dict[str, ToolCall] = field(default_factory=dict[str, ToolCall])
    outcomes: dict[str, payload_pb2.ToolCompleted] = field(default_factory=dict[str, payload_pb2.ToolCompleted])
    decisions: dict[str, runtime_pb2.ToolDecision] = field(default_factory=dict[str, runtime_pb2.ToolDecision])
    # Calls that were carried out, in order.
    done: list[str] = field(default_factory=list[str])
    # Set when a call came, and when a stalled one was given up by its caller.
    came: asyncio.Event = field(default_factory=asyncio.Event)
    given_up: asyncio.Event = field(default_factory=asyncio.Event)

    def decide(self, decisions: runtime_pb2.ToolDecisions) -> None:
        """A person's decisions, stored where the broker reads them."""
        for decision in decisions.decisions:
            self.decisions[decision.tool_call_id] = decision

    def calls_of(self, tool_call_id: str) -> list[ToolCall]:
        """All invocations under one id."""
        return [call for call in self.calls if call.tool_call_id == tool_call_id]


def descriptors() -> list[runtime_pb2.ToolDescriptor]:
    """The portable tools that every runtime of a certification may call."""
    made: list[runtime_pb2.ToolDescriptor] = []
    for tool_id, name, properties in (
        (ECHO, "kit_echo", {"text": {"type": "string"}}),
        (SUM, "kit_sum", {"numbers": {"type": "array", "items": {"type": "number"}}}),
        (PAY, "kit_pay", {"to": {"type": "string"}, "amount": {"type": "number"}}),
    ):
        tool = runtime_pb2.ToolDescriptor(
            tool_id=tool_id, provider_name=name, description="A tool of the certification kit."
        )
        tool.sensitive = tool_id == PAY
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        json_format.ParseDict(schema, tool.input_schema)
        made.append(tool)
    return made


class ToolBrokerServicer(tool_broker_service_pb2_grpc.ToolBrokerServiceServicer):
    """Tools of whatever binding the caller's token was made for."""

    def __init__(self, grants: Grants) -> None:
        self._grants = grants

    async def DescribeTools(self, request: pb2.DescribeToolsRequest, context: Any) -> pb2.DescribeToolsResponse:
        """The tools that every runtime got in its context."""
        await self._admit("DescribeTools", request.fence, context)
        return pb2.DescribeToolsResponse(tools=descriptors())

    async def InvokeTool(self, request: pb2.InvokeToolRequest, context: Any) -> pb2.InvokeToolResponse:
        """What the case scripted; a call that was answered is answered the same again."""
        tools = await self._admit("InvokeTool", request.fence, context)
        arguments = json_format.MessageToDict(request.arguments)
        call = ToolCall(
            request.tool_call_id, request.tool_id, arguments, request.fence.run_id, request.fence.traceparent
        )
        tools.calls.append(call)
        tools.came.set()
        first = tools.first.setdefault(call.tool_call_id, call)
        decision = tools.decisions.get(call.tool_call_id)
        edited = json_format.MessageToDict(decision.edit) if decision and decision.HasField("edit") else None
        if (first.tool_id, _text(first.arguments)) != (call.tool_id, _text(arguments)) and arguments != edited:
            await refuse(context, grpc.StatusCode.ALREADY_EXISTS, "idempotency_mismatch", "Another call has this id.")
        if call.tool_call_id not in tools.outcomes:
            answer = tools.answers.get(request.tool_id, Break("tool_unknown", "There is no such tool."))
            if isinstance(answer, AskFirst):
                if decision is None:
                    return pb2.InvokeToolResponse(approval_required=_approval(call, request, answer))
                answer = _decided(answer, decision)
            await self._answer(tools, call, answer, context)
        return pb2.InvokeToolResponse(completed=tools.outcomes[call.tool_call_id])

    async def _answer(self, tools: Tools, call: ToolCall, answer: Answer, context: Any) -> None:
        completed = payload_pb2.ToolCompleted(tool_call_id=call.tool_call_id)
        match answer:
            case Succeed(result):
                completed.outcome = payload_pb2.TOOL_OUTCOME_SUCCESS
                json_format.ParseDict(result, completed.result)
                tools.done.append(call.tool_call_id)
            case Break(code, message, retryable):
                completed.outcome = payload_pb2.TOOL_OUTCOME_ERROR
                completed.error.code, completed.error.message, completed.error.retryable = code, message, retryable
            case Refuse(code, reason):
                await refuse(context, code, reason, "The broker refuses the call.")
            case Stall():
                try:
                    await asyncio.Event().wait()
                finally:
                    tools.given_up.set()
            case Reject(message):
                completed.outcome = payload_pb2.TOOL_OUTCOME_REJECTED
                completed.error.code, completed.error.message = "rejected", message
            case AskFirst():
                raise AssertionError("a call that waits is answered before")
        tools.outcomes[call.tool_call_id] = completed

    async def _admit(self, method: str, fence: Any, context: Any) -> Tools:
        grant, fault = self._grants.admit("tool", method, fence, context)
        if grant is None:
            await refuse(context, grpc.StatusCode.UNAUTHENTICATED, "unauthenticated", "A token of the run is needed.")
        if fault:
            await refuse(
                context, grpc.StatusCode.FAILED_PRECONDITION, "STALE_LEASE", f"The call does not fit: {fault}."
            )
        return grant.behind


def _approval(call: ToolCall, request: pb2.InvokeToolRequest, answer: AskFirst) -> payload_pb2.ToolApproval:
    return payload_pb2.ToolApproval(
        tool_call_id=call.tool_call_id, tool_name=call.tool_id, arguments=request.arguments, allowed=answer.allowed
    )


def _decided(answer: AskFirst, decision: runtime_pb2.ToolDecision) -> Answer:
    match decision.WhichOneof("decision"):
        case "approve":
            return answer.then
        case "edit":
            return answer.edited
        case _:
            return Reject(decision.reject) if decision.reject else Reject()


def _text(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True)
