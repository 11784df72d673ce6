"""How a person's decision becomes the results of the calls that waited for it, each exactly once (I24, I25)."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from google.protobuf import json_format

from adapters.claude_agent_sdk.calls import call_id, content_of, text_content
from adapters.claude_agent_sdk.pause import FORM, Pause, WaitingCall
from adapters.sdk import events
from adapters.sdk.contract import Turn
from adapters.sdk.errors import ConfigurationError
from adapters.sdk.events import Draft
from adapters.sdk.forms import ASK
from harness.runtime.v1 import runtime_pb2

DISMISSED = "The person dismissed the question, and the call was not made."
UNDECIDED = (
    "No decision on this call is known: the person wrote something else, or the turn that carried the decision was cut off. In that case the call "
    "may have been made. Do not make it again unless the person asks for it."
)


class Resumption:
    """One decision at work. After `events`: `results`, what the asked calls came to, and `next`, the pause that remains."""

    def __init__(self, pause: Pause, decision: runtime_pb2.ResumeDecision) -> None:
        self._pause = pause
        self._decision = decision
        self.results: dict[str, dict[str, Any]] = {}
        self.next: Pause | None = None

    async def events(self, turn: Turn) -> AsyncIterator[Draft]:
        """Makes the calls that were decided on, with their events. Raises HarnessError for a decision on something else, and for calls of tools that are
        gone.
        """
        self._pause.check(self._decision)
        for call in self._pause.asked:
            made = self._form(call) if call.kind == FORM else self._call(call, turn)
            async for draft in made:
                yield draft
        if self._pause.left:
            first, *rest = self._pause.left
            self.next = replace(
                self._pause,
                run_id=turn.run_id,
                interrupt_id=f"interrupt-{turn.number}",
                asked=(first,),
                left=tuple(rest),
            )

    async def _call(self, call: WaitingCall, turn: Turn) -> AsyncIterator[Draft]:
        tool = turn.tools.find(call.name)
        if tool is None:
            raise ConfigurationError(
                "The call that waited cannot be made any more: the agent has no such tool now.",
                code="tool_unavailable_at_resume",
            )
        made = turn.tools.call(tool, call.arguments, tool_call_id=call_id(call.call_id), decision=self._decision)
        async for draft in made.events():
            yield draft
        if made.result is not None:
            self.results[call.call_id] = content_of(made.result, *self._decided(call))

    async def _form(self, call: WaitingCall) -> AsyncIterator[Draft]:
        identity = call_id(call.call_id)
        yield events.tool_started(identity, ASK, call.arguments)
        if self._decision.WhichOneof("answer") == "form_values":
            values = json_format.MessageToDict(self._decision.form_values)
            self.results[call.call_id] = text_content(_json(values), is_error=False)
            yield events.tool_succeeded(identity, values)
        else:
            self.results[call.call_id] = text_content(DISMISSED, is_error=True)
            yield events.tool_rejected(identity)

    def _decided(self, call: WaitingCall) -> tuple[dict[str, Any] | None, str]:
        """The arguments a person gave the call, and why they refused it, if they did either."""
        for one in self._decision.tool_decisions.decisions:
            if one.tool_call_id == call_id(call.call_id):
                return json_format.MessageToDict(one.edit) if one.HasField("edit") else None, one.reject
        return None, ""


def dismissed(pause: Pause) -> dict[str, dict[str, Any]]:
    """The results of calls that nobody decides on any more: a new message took the place of the decision. Whether there was one is not known, for what a
    turn that failed had done of it is not kept (I11).
    """
    return {call.call_id: text_content(UNDECIDED, is_error=True) for call in pause.calls}


def _json(values: dict[str, Any]) -> str:
    return json_format.MessageToJson(events.struct(values), indent=None)
