"""The agent's own calls of one message: made through the broker, put off where a person decides, refused where there is no such tool (I25)."""

from collections.abc import AsyncIterator, Sequence

import orjson

from adapters.agentcore.answers import Answer, answer_of, plain, refusal, tool_result
from adapters.agentcore.pause import DISMISSED, FORM, TOOL, Pause, WaitingCall
from adapters.agentcore.translation import Call
from adapters.sdk import events
from adapters.sdk.contract import Turn
from adapters.sdk.errors import ConfigurationError
from adapters.sdk.events import Draft
from adapters.sdk.forms import ASK, form_of
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2

MAX_WAITING = 32
"""Calls that one interrupt may ask about."""
LONG_ARGUMENTS = 512
"""Bytes of arguments as JSON, past which they are shown in fragments."""
NO_SUCH_TOOL = "The agent has no such tool."


class Calling:
    """One message's calls at work. After `events`: `answers`, and `pause` if some of them wait."""

    def __init__(self, turn: Turn, *, ask_person: bool) -> None:
        self._turn = turn
        self._ask_person = ask_person
        self._approvals: list[payload_pb2.ToolApproval] = []
        self._waiting: list[WaitingCall] = []
        self.answers: dict[str, Answer] = {}
        self.pause: Pause | None = None

    async def events(self, calls: Sequence[Call]) -> AsyncIterator[Draft]:
        """Makes the calls, in the order of the message."""
        for call in calls:
            async for draft in self._one(call):
                yield draft
        if self._waiting:
            order = tuple(call.call_id for call in calls)
            self.pause = self._paused(order)

    async def _one(self, call: Call) -> AsyncIterator[Draft]:
        if not call.own:
            # Shown as it came; a function that somebody else gave the harness, and that nobody here can call.
            yield self._unmade(call, NO_SUCH_TOOL)
            return
        arguments = call.arguments()
        if arguments is None:
            yield events.tool_started(call.call_id, self._shown(call.name))
            yield self._unmade(call, "The arguments are no JSON object.")
            return
        if call.name == ASK and self._ask_person:
            try:
                form_of(arguments)
            except ValueError as wrong:
                yield events.tool_started(call.call_id, ASK)
                yield self._unmade(call, str(wrong))
                return
            self._waiting.append(WaitingCall(call.call_id, ASK, arguments, FORM))
            return
        tool = self._turn.tools.find(call.name)
        if tool is None:
            yield events.tool_started(call.call_id, call.name)
            yield self._unmade(call, NO_SUCH_TOOL)
            return
        made = self._turn.tools.call(
            tool,
            arguments,
            tool_call_id=call.call_id,
            stream_arguments=len(orjson.dumps(arguments)) > LONG_ARGUMENTS,
        )
        async for draft in made.events():
            yield draft
        if made.result is not None:
            self.answers[call.call_id] = answer_of(call.call_id, made.result)
        elif made.approval is not None and len(self._approvals) < MAX_WAITING:
            # I25: not started.
            self._approvals.append(made.approval)
            self._waiting.append(WaitingCall(call.call_id, call.name, arguments, TOOL))
        else:
            yield events.tool_started(call.call_id, tool.tool_id, arguments)
            yield self._unmade(call, f"A call beside {MAX_WAITING} others cannot wait for a person.")

    def _shown(self, name: str) -> str:
        tool = self._turn.tools.find(name)
        return name if tool is None else tool.tool_id

    def _unmade(self, call: Call, message: str) -> Draft:
        self.answers[call.call_id] = refusal(call.call_id, message)
        return events.tool_failed(call.call_id, "tool_refused", message)

    def _paused(self, order: tuple[str, ...]) -> Pause:
        """Approvals first, all in one interrupt, then each form in one of its own."""
        tools = tuple(call for call in self._waiting if call.kind == TOOL)
        forms = tuple(call for call in self._waiting if call.kind == FORM)
        asked, left = (tools, forms) if tools else (forms[:1], forms[1:])
        return Pause(
            self._turn.run_id,
            interrupt_id(self._turn),
            order,
            dict(self.answers),
            asked,
            left,
            tuple(self._approvals),
        )


class Deciding:
    """A person's decision at work. After `events`: `answers`, each call's once, and `pause`, what is still to be asked (I24)."""

    def __init__(self, turn: Turn, pause: Pause, decision: runtime_pb2.ResumeDecision) -> None:
        self._turn = turn
        self._paused = pause
        self._decision = decision
        self.answers: dict[str, Answer] = {}
        self.pause: Pause | None = None

    async def events(self) -> AsyncIterator[Draft]:
        """Makes the calls that were decided on. Raises ConfigurationError for a decision on something else."""
        self._paused.check(self._decision)
        for call in self._paused.asked:
            async for draft in self._form(call) if call.kind == FORM else self._call(call):
                yield draft
        if self._paused.left:
            first, *rest = self._paused.left
            known = {**self._paused.answers, **self.answers}
            self.pause = Pause(
                self._turn.run_id, interrupt_id(self._turn), self._paused.order, known, (first,), tuple(rest)
            )

    async def _call(self, call: WaitingCall) -> AsyncIterator[Draft]:
        tool = self._turn.tools.find(call.name)
        if tool is None:
            raise ConfigurationError(
                "The call that waited cannot be made any more: the agent has no such tool now.",
                code="tool_unavailable_at_resume",
            )
        made = self._turn.tools.call(tool, call.arguments, tool_call_id=call.call_id, decision=self._decision)
        async for draft in made.events():
            yield draft
        if made.result is not None:
            edited, reason = None, ""
            for one in self._decision.tool_decisions.decisions:
                if one.tool_call_id == call.call_id:
                    edited, reason = plain(one.edit) if one.HasField("edit") else None, one.reject
            self.answers[call.call_id] = answer_of(call.call_id, made.result, edited, reason)

    async def _form(self, call: WaitingCall) -> AsyncIterator[Draft]:
        yield events.tool_started(call.call_id, ASK, call.arguments)
        if self._decision.WhichOneof("answer") == "form_values":
            values = plain(self._decision.form_values)
            self.answers[call.call_id] = tool_result(call.call_id, {"values": values}, failed=False)
            yield events.tool_succeeded(call.call_id, values)
        else:
            self.answers[call.call_id] = refusal(call.call_id, DISMISSED)
            yield events.tool_rejected(call.call_id)


def interrupt_id(turn: Turn) -> str:
    """The name of the turn's interrupt, unique in its conversation."""
    return f"interrupt-{turn.number}"
