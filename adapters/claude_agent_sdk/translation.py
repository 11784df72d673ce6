"""From the program's messages to canonical events: each thing from one source alone, so that nothing is shown twice (events).

Text and reasoning of the agent come from stream events, those of its subagents from whole blocks, for which there is no stream. Calls come from blocks.
Usage and cost come from the result. What the program made up itself is no answer.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from claude_agent_sdk import (
    AssistantMessage,
    MirrorErrorMessage,
    ResultMessage,
    ServerToolResultBlock,
    ServerToolUseBlock,
    StreamEvent,
    SystemMessage,
    TaskNotificationMessage,
    TaskStartedMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
)
from claude_agent_sdk.types import ContentBlock, Message

from adapters.claude_agent_sdk import errors
from adapters.claude_agent_sdk.calls import builtin_completed, call_id, local_name
from adapters.claude_agent_sdk.errors import Refusal
from adapters.claude_agent_sdk.tools import TurnTools
from adapters.sdk import events
from adapters.sdk.events import Draft
from harness.event.v1 import payload_pb2

SYNTHETIC = "<synthetic>"
AGENT_TOOLS = ("Agent", "Task")
UNAUTHORIZED = 401
MAX_WAIT_SECONDS = 20.0
"""How long the program may wait before it asks the provider again; what asks for more ends the run with the hint."""
_UNKNOWN_PRICE = "unknown"


class Translation:
    """The state of one turn's messages. `take` gives the events of each, or raises what ends the turn."""

    def __init__(self, tools: TurnTools, session_id: str) -> None:
        self._tools = tools
        self._session_id: str = session_id
        # Whether the program's name of the session is still to be told: at the end of a turn that leaves something behind.
        self._renamed = False
        self._messages = 0
        self._current: dict[int, tuple[str, str]] = {}
        # Whether a part of the model's answer came, and its end has not.
        self.answering = False
        self._refusal: Refusal | None = None
        # Calls that the program makes itself and that are open, with their namespaces.
        self._open: dict[str, tuple[str, ...]] = {}
        # Subagents that are open, by the call that started them: their namespaces.
        self._agents: dict[str, tuple[str, ...]] = {}
        self._failed_agents: set[str] = set()
        self._names: dict[str, str] = {}
        self.result: ResultMessage | None = None

    def take(self, message: Message) -> Iterator[Draft]:
        """The events of a message; nothing for kinds that mean nothing here, now or in a later version. Raises HarnessError."""
        match message:
            case StreamEvent():
                if message.parent_tool_use_id is None:
                    yield from self._streamed(message.event)
            case AssistantMessage():
                yield from self._said(message)
            case UserMessage():
                yield from self._answered(message)
            case ResultMessage():
                yield from self._ended(message)
            case SystemMessage():
                yield from self._told(message)
            case _:
                return

    # --- the answer as it comes ---

    def _streamed(self, event: Mapping[str, Any]) -> Iterator[Draft]:
        match event.get("type"):
            case "message_start":
                self._check_whole()
                self._current = {}
            case "content_block_start":
                self.answering = True
                kind = str(event["content_block"].get("type"))
                if kind in ("text", "thinking"):
                    self._current[int(event["index"])] = (kind, self._new_id("m" if kind == "text" else "r"))
            case "content_block_delta":
                yield from self._delta(event)
            case "message_delta":
                # The model's own word that it is done. What stops without it, the program has closed by itself.
                self.answering = self.answering and not event["delta"].get("stop_reason")
            case "message_stop":
                self._check_whole()
            case "error":
                raise errors.broken_answer()
            case _:
                return

    def _delta(self, event: Mapping[str, Any]) -> Iterator[Draft]:
        delta, block = cast("dict[str, Any]", event["delta"]), self._current.get(int(event["index"]))
        if block is None:
            return
        if delta.get("type") == "text_delta":
            yield events.text(str(delta["text"]), message_id=block[1])
        elif delta.get("type") == "thinking_delta":
            yield events.reasoning(str(delta["thinking"]), message_id=block[1])

    def _check_whole(self) -> None:
        if self.answering:
            # I11: the program would go on with a second request; what was shown of the first cannot be taken back.
            raise errors.broken_answer()

    # --- whole messages ---

    def _said(self, message: AssistantMessage) -> Iterator[Draft]:
        if message.model == SYNTHETIC or message.error is not None:
            # What the program says in the model's place; the result says what it means.
            self._check_whole()
            return
        namespace = self._namespace(message.parent_tool_use_id)
        for block in message.content:
            yield from self._block(block, namespace)

    def _block(self, block: ContentBlock, namespace: tuple[str, ...]) -> Iterator[Draft]:
        match block:
            case TextBlock() if namespace:
                yield events.text(block.text, message_id=self._new_id("m"), namespace=namespace)
            case ThinkingBlock() if namespace:
                yield events.reasoning(block.thinking, message_id=self._new_id("r"), namespace=namespace)
            case ToolUseBlock():
                if local_name(block.name) is not None:
                    # Its events are the broker's to tell.
                    self._tools.seen(block.id, block.name, block.input, namespace)
                    return
                yield from self._began(block.id, block.name, block.input, namespace)
            case ServerToolUseBlock():
                yield from self._began(block.id, block.name, block.input, namespace)
            case ServerToolResultBlock():
                yield from self._completed(block.tool_use_id, "[result of the provider]", is_error=False)
            case _:
                return

    def _began(
        self, given: str, name: str, arguments: Mapping[str, Any], namespace: tuple[str, ...]
    ) -> Iterator[Draft]:
        identity = call_id(given)
        if identity in self._open:
            return
        self._open[identity] = namespace
        if name in AGENT_TOOLS:
            self._names[identity] = str(arguments.get("subagent_type") or "")
        yield events.tool_started(identity, name, arguments, namespace=namespace)

    def _answered(self, message: UserMessage) -> Iterator[Draft]:
        if isinstance(message.content, str) or not any(isinstance(one, ToolResultBlock) for one in message.content):
            if message.parent_tool_use_id is None:
                # The program speaks for the person, as when it wants an answer that broke off to be gone on with.
                self._check_whole()
            return
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                yield from self._tools.unmade(block.tool_use_id)
                yield from self._completed(block.tool_use_id, block.content, is_error=block.is_error is True)

    def _completed(self, given: str, content: object, *, is_error: bool) -> Iterator[Draft]:
        identity = call_id(given)
        namespace = self._open.pop(identity, None)
        if namespace is None:
            return
        if identity in self._agents:
            yield from self._agent_ended(identity, is_error=is_error)
            if not is_error:
                # What it said was shown in its own namespace.
                yield events.tool_succeeded(identity, namespace=namespace)
                return
        yield builtin_completed(identity, content, is_error=is_error, namespace=namespace)

    # --- subagents ---

    def _namespace(self, parent: str | None) -> tuple[str, ...]:
        return () if parent is None else self._agents.get(call_id(parent), ())

    def _agent_began(self, given: str) -> Iterator[Draft]:
        identity = call_id(given)
        if identity in self._agents or identity not in self._open:
            return
        outer = self._open[identity]
        self._agents[identity] = (*outer, identity)
        yield events.subagent_started(identity, identity, self._names.get(identity, ""), namespace=outer)

    def _agent_ended(self, identity: str, *, is_error: bool) -> Iterator[Draft]:
        outer = self._agents.pop(identity)[:-1]
        failed = is_error or identity in self._failed_agents
        outcome = payload_pb2.TOOL_OUTCOME_ERROR if failed else payload_pb2.TOOL_OUTCOME_SUCCESS
        yield events.subagent_completed(identity, identity, outcome, namespace=outer)

    # --- what the program says of itself ---

    def _told(self, message: SystemMessage) -> Iterator[Draft]:
        match message:
            case MirrorErrorMessage():
                raise errors.not_kept()
            case TaskStartedMessage() if message.tool_use_id:
                yield from self._agent_began(message.tool_use_id)
            case TaskNotificationMessage() if message.tool_use_id and message.status != "completed":
                self._failed_agents.add(call_id(message.tool_use_id))
            case SystemMessage(subtype="init"):
                session_id = _text(message.data.get("session_id"))
                if session_id and session_id != self._session_id:
                    self._session_id, self._renamed = session_id, True
            case SystemMessage(subtype="api_retry"):
                self._retried(message.data)
            case _:
                return

    def _retried(self, data: Mapping[str, Any]) -> None:
        self._check_whole()
        status, delay = data.get("error_status"), data.get("retry_delay_ms")
        seconds = float(delay) / 1000 if isinstance(delay, int | float) else None
        self._refusal = Refusal(status if isinstance(status, int) else None, seconds if _is_hint(seconds) else None)
        if status == UNAUTHORIZED or (seconds is not None and seconds > MAX_WAIT_SECONDS):
            # Asking again would not help, or not in time.
            raise errors.refused(self._refusal)

    def _ended(self, result: ResultMessage) -> Iterator[Draft]:
        self._check_whole()
        yield from _usage(result)
        if result.is_error:
            raise errors.ended_badly(result, self._refusal)
        if self._renamed:
            yield events.session_updated(self._session_id)
        self.result = result

    def _new_id(self, prefix: str) -> str:
        self._messages += 1
        return f"{prefix}{self._messages}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _is_hint(seconds: float | None) -> bool:
    # Below a second it is the program's own pause, not the provider's word.
    return seconds is not None and seconds >= 1.0


def _usage(result: ResultMessage) -> Iterator[Draft]:
    """What the turn used, of all its models and subagents. What the provider read from a cache, or wrote to one, it read as well."""
    models = list((result.model_usage or {}).values())
    if not models:
        return
    # A model the program has no price for: its guess is none of ours.
    priced = all(cast("dict[str, Any]", one).get("costBasis") != _UNKNOWN_PRICE for one in models)
    cost = result.total_cost_usd if priced else None
    yield events.usage(
        input_tokens=sum(
            one["inputTokens"] + one["cacheReadInputTokens"] + one["cacheCreationInputTokens"] for one in models
        ),
        output_tokens=sum(one["outputTokens"] for one in models),
        # The program says zero also where the provider said nothing, and zero would claim to know.
        cached_input_tokens=sum(one["cacheReadInputTokens"] for one in models) or None,
        cost=cost,
        currency="" if cost is None else "USD",
        final=True,
    )
