"""The portable tools of an agent, as one run may call them: through the tool broker, with the run's own capability token (worker protocol, facades).

    tool = turn.tools.find(name_the_model_said)
    call = turn.tools.call(tool, arguments, tool_call_id=id_of_the_call)
    async for event in call.events():
        yield event
    if call.approval is not None: ...  # a person decides: interrupt the run with it, and make the same call again at resume
    else: ...                          # call.result is for the model

Authorisation, approval, credentials, retries and the audit record are on the other side. What a call came to is kept there under its id: the same
call again has the same answer, and no second effect.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import grpc
import orjson
from google.protobuf import json_format, struct_pb2

from adapters.sdk import events
from adapters.sdk.cancellation import CancellationToken
from adapters.sdk.errors import ConfigurationError, HarnessError
from adapters.sdk.facade import FacadeAccess, fenced
from adapters.sdk.lifecycle import ProtocolViolation
from adapters.sdk.lifecycle.limits import DEFAULT_LIMITS
from adapters.sdk.lifecycle.values import check_struct
from adapters.sdk.tool_answers import ApprovalNeeded, BrokerError, ToolResult, failed
from harness.common.v1 import blueprint_pb2, fence_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.runtime.v1 import runtime_pb2
from harness.tool.v1 import tool_broker_service_pb2 as tool_pb2
from harness.tool.v1 import tool_broker_service_pb2_grpc as tool_grpc

ASK_SECONDS = 60.0
"""How long one request waits for a call's outcome before it asks for it again: a broker that vanished is found out, and none is asked in vain."""
AWAY_SECONDS = 30.0
"""How long a call is made again while no broker can be reached."""
FULL_TRIES = 10
FULL_SECONDS = 1.0
"""How often, and how long apart, a call is made again that a broker at its bound has no room for."""
FRAGMENT_CHARACTERS = 64
ToolAccess = FacadeAccess[tool_grpc.ToolBrokerServiceStub]
"""What a run needs to reach the tool broker."""

T = TypeVar("T")


class Tool:
    """One portable tool, as a model may see it, and its handle."""

    __slots__ = ("_tools", "descriptor", "policy")

    def __init__(
        self,
        tools: "Tools",
        descriptor: runtime_pb2.ToolDescriptor,
        policy: "blueprint_pb2.ApprovalPolicy.ValueType",
    ) -> None:
        self._tools = tools
        self.descriptor = descriptor
        # The policy of the binding, unspecified where the blueprint does not name the tool.
        self.policy = policy

    def __repr__(self) -> str:
        return f"Tool({self.descriptor.tool_id!r})"

    @property
    def tool_id(self) -> str:
        """Its stable id: the name in events, records and approvals."""
        return self.descriptor.tool_id

    @property
    def provider_name(self) -> str:
        """Its name for a provider: at most 64 characters of `[A-Za-z0-9_-]`."""
        return self.descriptor.provider_name

    @property
    def description(self) -> str:
        """What it does, for the model."""
        return self.descriptor.description

    @property
    def input_schema(self) -> dict[str, Any]:
        """JSON Schema of the arguments, to be handed to the model as it is."""
        schema = self.descriptor.input_schema
        return json_format.MessageToDict(schema) if schema.fields else {}

    @property
    def may_wait(self) -> bool:
        """Whether a call may have to wait for a person, as far as it can be known here: the broker decides."""
        if self._tools.has_asked(self.tool_id):
            return True
        if self.policy == blueprint_pb2.APPROVAL_POLICY_NEVER:
            return False
        return self.policy != blueprint_pb2.APPROVAL_POLICY_SENSITIVE_ONLY or self.descriptor.sensitive

    async def invoke(self, arguments: Mapping[str, Any], *, tool_call_id: str) -> ToolResult | ApprovalNeeded:
        """How the call ended, or that it waits. `tool_call_id` is unique in the conversation; the same call again has the same answer.

        A call the broker refuses is a result with an error, for the model to read; so is one whose broker cannot be reached, which may have had its
        effect. Raises AuthorizationError once the run is not this runtime's any more, ConfigurationError without access to tools.
        """
        return await self._tools.invoke(self.tool_id, arguments, tool_call_id)


class Tools:
    """The tools a run may call. Ids and names lead to each other: the mapping is the control plane's.

    `asked`: the tools of which a call had to wait, kept for as long as the runtime lives. An operator may have a tool asked about after the runtime
    was told what its tools are.
    """

    __slots__ = ("_access", "_asked_about", "_by_id", "_by_name", "_cancellation")

    def __init__(
        self,
        context: runtime_pb2.RuntimeContext,
        access: ToolAccess | None,
        cancellation: CancellationToken,
        asked: set[str] | None = None,
    ) -> None:
        policies = {binding.tool_id: binding.approval_policy for binding in context.blueprint.tools.bindings}
        self._access = access
        self._cancellation = cancellation
        self._asked_about = set[str]() if asked is None else asked
        self._by_id = {
            descriptor.tool_id: Tool(
                self, descriptor, policies.get(descriptor.tool_id, blueprint_pb2.APPROVAL_POLICY_UNSPECIFIED)
            )
            for descriptor in context.tools
        }
        self._by_name = {tool.provider_name: tool for tool in self._by_id.values()}

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def __repr__(self) -> str:
        return f"Tools({', '.join(self._by_id)})"

    @property
    def connected(self) -> bool:
        """Whether the run was given the broker's address and a token for it."""
        return self._access is not None

    def has_asked(self, tool_id: str) -> bool:
        """Whether a call of the tool had to wait before."""
        return tool_id in self._asked_about

    def find(self, name: str) -> Tool | None:
        """The tool that a provider calls `name`, or else the one with that id; None if there is none."""
        return self._by_name.get(name) or self._by_id.get(name)

    def call(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        *,
        tool_call_id: str,
        decision: runtime_pb2.ResumeDecision | None = None,
        stream_arguments: bool = False,
        parent_message_id: str = "",
        namespace: Sequence[str] = (),
    ) -> "ToolCall":
        """A call with its events. `decision` is what a resumed run was given: it is shown with the arguments a person put in the place of `arguments`,
        which stay those of the first call.
        """
        return ToolCall(tool, arguments, tool_call_id, decision, stream_arguments, parent_message_id, tuple(namespace))

    async def invoke(
        self, tool_id: str, arguments: Mapping[str, Any], tool_call_id: str
    ) -> ToolResult | ApprovalNeeded:
        """As `Tool.invoke`, by id."""
        if self._access is None:
            raise ConfigurationError(
                "This run has no access to portable tools: bind some under tools.bindings of the agent.",
                code="tools_unavailable",
            )
        given = _arguments(arguments)
        if isinstance(given, str):
            return failed(tool_call_id, "arguments_invalid", given)
        ended = await _unless_cancelled(self._cancellation, self._asked(self._access, tool_id, given, tool_call_id))
        if ended is None:
            outcome = payload_pb2.TOOL_OUTCOME_CANCELLED
            return ToolResult(payload_pb2.ToolCompleted(tool_call_id=tool_call_id, outcome=outcome))
        return ended

    async def _asked(
        self, access: ToolAccess, tool_id: str, arguments: struct_pb2.Struct, tool_call_id: str
    ) -> ToolResult | ApprovalNeeded:
        async def ask(access: ToolAccess, fence: fence_pb2.Fence) -> tool_pb2.InvokeToolResponse:
            request = tool_pb2.InvokeToolRequest(
                fence=fence, tool_call_id=tool_call_id, tool_id=tool_id, arguments=arguments
            )
            seconds = access.deadline.remaining(ASK_SECONDS)
            return await access.stub().InvokeTool(request, timeout=seconds, metadata=access.bearer())

        full = 0
        while True:
            try:
                answer = await fenced(access, ask, BrokerError, away_seconds=AWAY_SECONDS)
            except BrokerError as refused:
                code = refused.status.code()
                # The call is the same, so it may be made again: its outcome is kept, and it takes effect once.
                if code is grpc.StatusCode.DEADLINE_EXCEEDED and access.deadline.remaining() > 0:
                    continue
                if refused.has_no_room and full < FULL_TRIES and access.deadline.remaining() > FULL_SECONDS:
                    full += 1
                    await asyncio.sleep(FULL_SECONDS)
                    continue
                return refused.result(tool_call_id)
            if answer.WhichOneof("answer") == "approval_required":
                if tool_id in self._by_id:
                    self._asked_about.add(tool_id)
                return ApprovalNeeded(answer.approval_required)
            answer.completed.tool_call_id = tool_call_id
            return ToolResult(answer.completed)


class ToolCall:
    """One call with its events. After `events` either `result` says how it ended, or `approval` what a person is to be asked."""

    __slots__ = ("_arguments", "_decision", "_id", "_namespace", "_parent", "_streams", "approval", "result", "tool")

    def __init__(
        self,
        tool: Tool,
        arguments: Mapping[str, Any],
        tool_call_id: str,
        decision: runtime_pb2.ResumeDecision | None,
        stream_arguments: bool,
        parent_message_id: str,
        namespace: tuple[str, ...],
    ) -> None:
        self.tool = tool
        self.result: ToolResult | None = None
        self.approval: payload_pb2.ToolApproval | None = None
        self._arguments = arguments
        self._id = tool_call_id
        self._decision = decision
        self._streams = stream_arguments
        self._parent = parent_message_id
        self._namespace = namespace

    async def events(self) -> AsyncIterator[event_pb2.EventDraft]:
        """`tool.started`, its arguments, and `tool.completed`; nothing while the call waits, for it has not started (I25).

        A call that cannot wait is shown before its outcome is there, one that may wait only once it is known that it does not.
        """
        decided, edited = _decided(self._decision, self._id)
        shows_first = decided or not self.tool.may_wait
        if shows_first:
            for draft in self._started(edited):
                yield draft
        answer = await self.tool.invoke(self._arguments, tool_call_id=self._id)
        if isinstance(answer, ApprovalNeeded):
            if not shows_first:
                self.approval = answer.approval
                return
            # The broker's record of this id goes on waiting, and nobody will be asked about it: a model that makes the call again does so under
            # another id, and that one is asked about. The record goes with its run.
            answer = failed(
                self._id, "approval_needed", "The call needs an approval that it did not need before: make it again."
            )
        if not shows_first:
            for draft in self._started(edited):
                yield draft
        self.result = answer
        yield answer.draft(self._namespace)

    def _started(self, edited: Mapping[str, Any] | None) -> Iterator[event_pb2.EventDraft]:
        arguments = self._arguments if edited is None else edited
        # Arguments that no event can hold are refused as well: the call fails, and the run goes on.
        shown = not isinstance(_arguments(arguments), str)
        yield events.tool_started(
            self._id,
            self.tool.tool_id,
            arguments if shown and not self._streams else None,
            parent_message_id=self._parent,
            namespace=self._namespace,
        )
        if shown and self._streams:
            body = orjson.dumps(arguments).decode()
            for start in range(0, len(body), FRAGMENT_CHARACTERS):
                fragment = body[start : start + FRAGMENT_CHARACTERS]
                yield events.tool_arguments(self._id, fragment, namespace=self._namespace)


def _arguments(arguments: Mapping[str, Any]) -> struct_pb2.Struct | str:
    """The arguments as they travel, or why they cannot (events, Bounds)."""
    limits = DEFAULT_LIMITS
    try:
        given = events.struct(arguments)
        check_struct(
            given,
            "the arguments",
            depth=limits.metadata_depth,
            keys=limits.metadata_keys,
            max_bytes=limits.arguments_bytes,
        )
    except (HarnessError, ProtocolViolation, TypeError, ValueError):
        return (
            f"The arguments must be plain JSON of at most {limits.arguments_bytes} bytes, {limits.metadata_depth} deep, "
            f"with {limits.metadata_keys} keys."
        )
    return given


def _decided(decision: runtime_pb2.ResumeDecision | None, tool_call_id: str) -> tuple[bool, Mapping[str, Any] | None]:
    """Whether a person has decided on the call, and the arguments they gave it, if they did."""
    if decision is None:
        return False, None
    if decision.WhichOneof("answer") == "dismiss":
        return True, None
    for one in decision.tool_decisions.decisions:
        if one.tool_call_id == tool_call_id:
            return True, json_format.MessageToDict(one.edit) if one.HasField("edit") else None
    return False, None


async def _unless_cancelled(token: CancellationToken, work: Coroutine[Any, Any, T]) -> T | None:
    """What the work comes to; None, and the work is stopped, as soon as the run must stop."""
    if token.is_cancelled:
        work.close()
        return None
    working, stopped = asyncio.ensure_future(work), asyncio.ensure_future(token.wait())
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, stopped):
            task.cancel()
        await asyncio.wait({working, stopped})
