"""The agent's portable tools as the program sees them: in one server in this process, each call decided and made by the broker (I25).

A hook sees every call before it is made. It makes the call through the broker, which says how it ended, or that it waits for a person; the server's own
handler only hands out what was found. So nothing runs that the broker did not run, and nothing of this process's errors reaches the model.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import mcp.types as mcp_types
import orjson
from claude_agent_sdk.types import McpSdkServerConfig
from mcp.server import Server

from adapters.claude_agent_sdk.calls import PREFIX, SERVER, call_id, content_of, local_name, text_content
from adapters.claude_agent_sdk.channel import Channel
from adapters.claude_agent_sdk.pause import FORM, TOOL, WaitingCall
from adapters.sdk import events
from adapters.sdk.contract import Turn
from adapters.sdk.errors import classified
from adapters.sdk.events import Draft
from adapters.sdk.forms import ASK, DESCRIPTION, SCHEMA, form_of
from adapters.sdk.logs import describe, get_logger
from harness.event.v1 import payload_pb2

MAX_WAITING = 32
"""Calls that one interrupt may ask about."""
LONG_ARGUMENTS = 512
"""Bytes of arguments as JSON, past which they are shown in fragments."""
SEEN_SECONDS = 10.0
"""How long a call's events wait for the message that the call stands in."""
PLACEHOLDER = "This call waits for a person's decision."
_CALL_ID_META = "claudecode/toolUseId"
_log = get_logger(__name__)


class TurnTools:
    """The tools of one turn. `outcomes`: what calls came to that the program is still to make, by the program's own ids."""

    def __init__(
        self, turn: Turn, channel: Channel, outcomes: Mapping[str, dict[str, Any]], *, ask_person: bool
    ) -> None:
        self._turn = turn
        self._channel = channel
        self._outcomes = dict(outcomes)
        self._ask_person = ask_person
        self._namespaces: dict[str, tuple[str, ...]] = {}
        self._arguments: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._seen: dict[str, asyncio.Event] = {}
        self.waiting: list[WaitingCall] = []
        self.approvals: list[payload_pb2.ToolApproval] = []

    @property
    def names(self) -> list[str]:
        """What the program calls the tools."""
        return [PREFIX + tool.name for tool in self._listed()]

    def server(self) -> McpSdkServerConfig:
        """The in-process server."""

        async def listed(_: Any, __: Any) -> mcp_types.ListToolsResult:
            return mcp_types.ListToolsResult(tools=self._listed())

        async def called(_: Any, given: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
            outcome = self._outcomes.get(str((given.meta or {}).get(_CALL_ID_META)))
            if outcome is None:
                # Nobody decided on it, so it is not made.
                outcome = text_content("The call was not made.", is_error=True)
            return mcp_types.CallToolResult.model_validate(
                {"content": outcome["content"], "isError": outcome["is_error"]}
            )

        server: Any = Server(SERVER, version="1", on_list_tools=listed, on_call_tool=called)
        return McpSdkServerConfig(type="sdk", name=SERVER, instance=server)

    def _listed(self) -> list[mcp_types.Tool]:
        tools = [
            mcp_types.Tool.model_validate(
                {
                    "name": tool.provider_name,
                    "description": tool.description,
                    "inputSchema": {"type": "object", **tool.input_schema},
                }
            )
            for tool in self._turn.tools
        ]
        if self._ask_person:
            schema = {"name": ASK, "description": DESCRIPTION, "inputSchema": SCHEMA}
            tools.append(mcp_types.Tool.model_validate(schema))
        return tools

    # --- what the reader of the program's messages says ---

    def seen(self, given: str, name: str, arguments: Mapping[str, Any], namespace: tuple[str, ...]) -> None:
        """The message with this call was read: what was said before the call is on its way."""
        self._namespaces[given] = namespace
        self._arguments[given] = (name, arguments)
        self._seen.setdefault(given, asyncio.Event()).set()

    def unmade(self, given: str) -> Iterator[Draft]:
        """Events of a call of ours that the program answered itself, without asking for it: an unknown tool, malformed arguments."""
        call = self._arguments.pop(given, None)
        if call is None or given in self._outcomes or any(one.call_id == given for one in self.waiting):
            return
        namespace, identity, name = self._namespaces.get(given, ()), call_id(given), local_name(call[0]) or call[0]
        tool = self._turn.tools.find(name)
        yield events.tool_started(identity, name if tool is None else tool.tool_id, call[1], namespace=namespace)
        yield events.tool_failed(
            identity, "tool_refused", "The agent has no such tool, or not with such arguments.", namespace=namespace
        )

    # --- what the program asks before it makes a call ---

    async def decide(self, given: Any, tool_use_id: str | None, _: Any) -> dict[str, Any]:
        """The hook before every call. A call that is not of our server is the permission mode's to decide."""
        name, identity = local_name(str(given.get("tool_name"))), str(tool_use_id)
        if name is None:
            return {}
        try:
            return await self._decided(name, identity, given.get("tool_input") or {}, inside="agent_id" in given)
        except Exception as error:
            # I22: it ends the turn, and nothing of it reaches the model.
            _log.warning("tool_call_failed", error=describe(error))
            self._channel.end(classified(error))
            # Unanswered until the program is gone: whatever it was told here, it would tell the model.
            await asyncio.Event().wait()
            raise

    async def _decided(self, name: str, given: str, arguments: dict[str, Any], *, inside: bool) -> dict[str, Any]:
        if given in self._outcomes:
            return _ALLOWED
        await self._until_seen(given)
        if name == ASK and self._ask_person:
            return await self._asked(given, arguments, inside=inside)
        tool = self._turn.tools.find(name)
        if tool is None:
            return _denied("The agent has no such tool.")
        namespace = self._namespaces.get(given, ())
        call = self._turn.tools.call(
            tool,
            arguments,
            tool_call_id=call_id(given),
            stream_arguments=len(orjson.dumps(arguments)) > LONG_ARGUMENTS,
            namespace=namespace,
        )
        async for event in call.events():
            await self._channel.put(event)
        if call.approval is None:
            if call.result is not None:
                self._outcomes[given] = content_of(call.result)
            return _ALLOWED
        if inside or len(self.approvals) >= MAX_WAITING:
            where = "inside a subagent" if inside else f"beside {MAX_WAITING} others"
            return await self._refused(given, tool.tool_id, arguments, f"A call {where} cannot wait for a person.")
        self.approvals.append(call.approval)
        return self._waits(WaitingCall(given, name, arguments, TOOL))

    async def _asked(self, given: str, arguments: dict[str, Any], *, inside: bool) -> dict[str, Any]:
        try:
            form_of(arguments)
        except ValueError as wrong:
            return await self._refused(given, ASK, arguments, str(wrong))
        if inside:
            return await self._refused(given, ASK, arguments, "A subagent cannot ask a person.")
        return self._waits(WaitingCall(given, ASK, arguments, FORM))

    async def _refused(self, given: str, tool_name: str, arguments: dict[str, Any], message: str) -> dict[str, Any]:
        namespace = self._namespaces.get(given, ())
        await self._channel.put(events.tool_started(call_id(given), tool_name, arguments, namespace=namespace))
        await self._channel.put(events.tool_failed(call_id(given), "tool_refused", message, namespace=namespace))
        self._outcomes[given] = text_content(message, is_error=True)
        return _ALLOWED

    def _waits(self, call: WaitingCall) -> dict[str, Any]:
        # I25: not started. The program keeps one call of a message to be made later; the others are answered for now.
        self.waiting.append(call)
        return _PUT_OFF if len(self.waiting) == 1 else _denied(PLACEHOLDER)

    async def _until_seen(self, given: str) -> None:
        event = self._seen.setdefault(given, asyncio.Event())
        try:
            async with asyncio.timeout(SEEN_SECONDS):
                await event.wait()
        except TimeoutError:
            _log.warning("call_without_message")


def _output(decision: str, reason: str = "") -> dict[str, Any]:
    said = {"hookEventName": "PreToolUse", "permissionDecision": decision}
    return {"hookSpecificOutput": {**said, "permissionDecisionReason": reason} if reason else said}


def _denied(reason: str) -> dict[str, Any]:
    return _output("deny", reason)


_ALLOWED = _output("allow")
_PUT_OFF = _output("defer")
