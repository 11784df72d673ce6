"""What a managed harness streams, as canonical events: messages of blocks, whose calls are the agent's own or the provider's."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from adapters.agentcore.streams import incomplete, malformed
from adapters.agentcore.usage import Usage
from adapters.sdk import events
from adapters.sdk.errors import CancelledByProviderError, DeadlineError, HarnessError
from adapters.sdk.events import Draft
from adapters.sdk.lifecycle.limits import DEFAULT_LIMITS

MAX_ARGUMENT_CHARACTERS = 1024 * 1024
MAX_RESULT_CHARACTERS = DEFAULT_LIMITS.result_bytes - 4 * 1024
MAX_CALLS = 64
"""Calls of one message (I35)."""
_CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_UNFINISHED = frozenset({"tool_use", "tool_result", "partial_turn"})
_MALFORMED = frozenset({"malformed_model_output", "malformed_tool_use"})


@dataclass(slots=True)
class Call:
    """A call the model made. `own`: the agent's, to be made through the broker; else the provider's own, which is shown as it goes."""

    call_id: str
    name: str
    own: bool
    input: list[str] = field(default_factory=list[str], repr=False)
    size: int = 0
    # The result that the provider told, while it is told.
    failed: bool = False
    result: list[Any] | None = field(default=None, repr=False)

    def arguments(self) -> dict[str, Any] | None:
        """The arguments; None if the model wrote no JSON object."""
        try:
            parsed: object = orjson.loads("".join(self.input) or "{}")
        except orjson.JSONDecodeError:
            return None
        return cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else None


class Translation:
    """One run's events, over all its invocations. `own`: names of the functions that the agent brought."""

    def __init__(self, own: frozenset[str]) -> None:
        self._own = own
        self._messages = 0
        self._role = ""
        self._blocks: dict[int, Call | None] = {}
        self._open: dict[str, Call] = {}
        self._stop = ""
        self.usage = Usage()

    def take(self, event: Mapping[str, Any]) -> Iterator[Draft]:
        """The drafts of one event. What the contract has no word for is left out. Raises ProtocolError for what is malformed."""
        try:
            for kind, body in event.items():
                yield from self._one(kind, body)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise malformed(f"{type(error).__name__} in an event") from None

    def end(self) -> tuple[str, list[Call]]:
        """The stream ended: why it stopped, and the calls that are to be answered before the turn goes on. Raises HarnessError if it ended badly."""
        stop, calls = self._stop, list(self._open.values())
        self._stop, self._role = "", ""
        self._blocks.clear()
        self._open.clear()
        if stop == "tool_use" and calls:
            return stop, calls
        # A clean end and half a frame look alike: only the word of the last message says that the turn is over.
        if not stop or stop in _UNFINISHED:
            raise incomplete()
        if (failure := _failure(stop)) is not None:
            raise failure
        return stop, []

    def _one(self, kind: str, body: Any) -> Iterator[Draft]:
        match kind:
            case "messageStart":
                self._messages += 1
                self._role, self._stop = body["role"], ""
                self._blocks.clear()
            case "contentBlockStart":
                yield from self._start(int(body["contentBlockIndex"]), body["start"])
            case "contentBlockDelta":
                yield from self._delta(int(body["contentBlockIndex"]), body["delta"])
            case "contentBlockStop":
                yield from self._block_stop(int(body["contentBlockIndex"]))
            case "messageStop":
                if not self._role:
                    raise malformed("messageStop without messageStart")
                self._role, self._stop = "", str(body["stopReason"])
            case "metadata":
                yield from self.usage.add(body["usage"])
            case _:
                # Hooks, and what the service learns to say later.
                return

    def _start(self, index: int, start: Mapping[str, Any]) -> Iterator[Draft]:
        if not self._role:
            raise malformed("block without messageStart")
        if "toolUse" in start:
            given = start["toolUse"]
            if not _CALL_ID.fullmatch(given["toolUseId"]):
                raise malformed("toolUseId")
            own = given["name"] in self._own and given.get("type", "tool_use") == "tool_use"
            call = Call(given["toolUseId"], given["name"], own)
            if call.call_id in self._open or len(self._open) >= MAX_CALLS:
                raise malformed("toolUse twice, or too many")
            self._blocks[index] = self._open[call.call_id] = call
            if not own:
                yield events.tool_started(call.call_id, call.name)
        elif "toolResult" in start:
            given = start["toolResult"]
            call = self._open[given["toolUseId"]]
            call.failed, call.result = given.get("status") == "error", []
            self._blocks[index] = call
        else:
            self._blocks[index] = None

    def _delta(self, index: int, delta: Mapping[str, Any]) -> Iterator[Draft]:
        if not self._role:
            raise malformed("delta without messageStart")
        message_id = f"m{self._messages}.{index}"
        if "text" in delta:
            if self._role == "assistant" and delta["text"]:
                yield events.text(delta["text"], message_id=message_id)
        elif "reasoningContent" in delta:
            if text := delta["reasoningContent"].get("text"):
                yield events.reasoning(text, message_id=f"r{self._messages}.{index}")
        elif "toolUse" in delta:
            call = self._call(index)
            fragment = delta["toolUse"]["input"]
            call.size += len(fragment)
            if call.size > MAX_ARGUMENT_CHARACTERS:
                raise malformed("arguments too large")
            if call.own:
                call.input.append(fragment)
            elif fragment:
                yield events.tool_arguments(call.call_id, fragment)
        elif "toolResult" in delta:
            call = self._call(index)
            if call.result is None:
                raise malformed("result without its start")
            call.size += sum(len(repr(part)) for part in delta["toolResult"])
            # What no event could hold is not kept either (I35).
            if call.size <= MAX_ARGUMENT_CHARACTERS:
                call.result.extend(delta["toolResult"])

    def _block_stop(self, index: int) -> Iterator[Draft]:
        call = self._blocks.pop(index, None)
        if call is None or call.result is None:
            return
        del self._open[call.call_id]
        if call.own:
            # The provider has a tool of that name itself and answered it.
            yield events.tool_started(call.call_id, call.name, call.arguments() or {})
        yield _completed(call)

    def _call(self, index: int) -> Call:
        call = self._blocks.get(index)
        if call is None:
            raise malformed("delta of a call without its start")
        return call


def _completed(call: Call) -> Draft:
    if call.failed:
        return events.tool_failed(call.call_id, "tool_failed", "The provider's tool failed.")
    parts = [part["text"] if "text" in part else part.get("json") for part in call.result or []]
    texts = [part for part in parts if isinstance(part, str)]
    said: Any = "".join(texts) if len(texts) == len(parts) else parts[0] if len(parts) == 1 else parts
    size = call.size if call.size > MAX_ARGUMENT_CHARACTERS else len(orjson.dumps(said))
    if size > MAX_RESULT_CHARACTERS:
        said = f"The result is not shown: it has {size} characters."
    return events.tool_succeeded(call.call_id, said)


def _failure(stop: str) -> HarnessError | None:
    if stop in _MALFORMED:
        return malformed(stop)
    if stop == "timeout_exceeded":
        return DeadlineError("The provider's own time for the turn is over.", code="provider_timeout")
    if stop == "interrupted":
        return CancelledByProviderError("The provider interrupted the turn.")
    return None
