"""A turn of a managed harness: invocations of one session, between which the agent's own calls are made (the tool loop)."""

import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adapters.agentcore.answers import Answer, refusal
from adapters.agentcore.calling import Calling, Deciding
from adapters.agentcore.clients import Connections
from adapters.agentcore.invocation import invoke
from adapters.agentcore.options import AgentOptions
from adapters.agentcore.pause import UNDECIDED, Pause, load, save
from adapters.agentcore.profile import Profile
from adapters.agentcore.rehearsal import lots_of, message
from adapters.agentcore.requests import overrides, own_names, said
from adapters.agentcore.translation import Call, Translation
from adapters.sdk import events
from adapters.sdk.contract import Turn
from adapters.sdk.errors import POSSIBLE_SIDE_EFFECTS, CapacityError, ConfigurationError, PersistenceError
from adapters.sdk.events import Draft
from adapters.sdk.rehearsal import rehearsal_of
from harness.runtime.v1 import runtime_pb2

MAX_ROUNDS = 200
"""Invocations of one run (I35)."""
CUT_OFF = (
    "The turn ended before this call was answered: whether it was made is not known. Do not make it again unasked."
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What one turn is invoked with."""

    connections: Connections
    profile: Profile
    options: AgentOptions
    model: str
    arn: str = field(repr=False)
    session_id: str = field(repr=False)
    # Whether the conversation has thread state.
    durable: bool = True


@dataclass(slots=True)
class Memory:
    """What a runtime knows of its conversation beside the committed state."""

    # The pause of the last turn; all there is of it in a conversation without thread state.
    pause: Pause | None = None
    # The last turn after which the committed state was seen to have no pause.
    clear_after: int = -1
    # Calls that the service waits for the answers of, in order, with the answers that are there: of a turn that ended before they were sent, or taken.
    open_calls: dict[str, Answer | None] = field(default_factory=dict[str, Answer | None])


class ManagedTurn:
    """One turn."""

    def __init__(self, turn: Turn, setting: Setting, memory: Memory) -> None:
        self._turn = turn
        self._setting = setting
        self._memory = memory
        self._had_pause = False
        # Whether anything of an invocation's answer came.
        self._answered = False
        self._translation = Translation(own_names(turn, setting.options))

    async def stream(self) -> AsyncGenerator[Draft, None]:
        """The turn of a message. Calls that wait for a decision which never came are answered with it."""
        pause = await self._committed()
        known, unknown = self._memory.open_calls, CUT_OFF
        if pause is not None:
            known, unknown = {name: known.get(name) or pause.answers.get(name) for name in pause.order}, UNDECIDED
        self._memory.pause, self._memory.open_calls = None, known
        open_calls = [answer or refusal(call_id, unknown) for call_id, answer in known.items()]
        text = {"text": self._turn.message} if self._turn.message else None
        if text is None:
            raise ConfigurationError("The message is empty.", code="message_empty")
        if open_calls:
            try:
                async with contextlib.aclosing(self._rounds([*open_calls, text])) as drafts:
                    async for draft in drafts:
                        yield draft
                return
            except ConfigurationError as refused:
                # The session has forgotten the calls, or answered them. Only while nothing came is it sure that nothing ran (I11): then the message alone
                # is what is left to say.
                if self._answered or refused.code != "request_refused" or refused.side_effects is not None:
                    raise
        async with contextlib.aclosing(self._rounds([text])) as drafts:
            async for draft in drafts:
                yield draft

    async def resume(self, decision: runtime_pb2.ResumeDecision) -> AsyncGenerator[Draft, None]:
        """The turn that answers an interrupt. Raises ConfigurationError if nothing waits, or something else."""
        pause = await self._committed()
        if pause is None:
            raise ConfigurationError("The conversation waits for no decision.", code="interrupt_unknown")
        self._memory.pause = None
        deciding = Deciding(self._turn, pause, decision)
        self._memory.open_calls = {call_id: pause.answers.get(call_id) for call_id in pause.order}
        try:
            async for draft in deciding.events():
                yield draft
        finally:
            # What was answered stays so, whatever ends the turn: the next one tells it (I24).
            self._memory.open_calls.update(deciding.answers)
        if deciding.pause is not None:
            async for draft in self._interrupted(deciding.pause):
                yield draft
            return
        async with contextlib.aclosing(self._rounds(pause.in_order(deciding.answers))) as drafts:
            async for draft in drafts:
                yield draft

    async def _committed(self) -> Pause | None:
        if not self._setting.durable:
            pause = self._memory.pause
        elif self._memory.clear_after == self._turn.number - 1:
            return None
        else:
            pause = await load(self._turn)
        self._had_pause = pause is not None
        return pause

    async def _rounds(self, blocks: Sequence[Mapping[str, Any]]) -> AsyncGenerator[Draft, None]:
        for _ in range(MAX_ROUNDS):
            async with contextlib.aclosing(self._round(blocks)) as drafts:
                async for draft in drafts:
                    yield draft
            stop, calls = self._translation.end()
            self._memory.open_calls = {call.call_id: None for call in calls}
            if not calls:
                async for draft in self._completed(stop):
                    yield draft
                return
            calling = Calling(self._turn, ask_person=self._setting.options.ask_person)
            try:
                async for draft in calling.events(calls):
                    yield draft
            finally:
                self._memory.open_calls.update(calling.answers)
            if calling.pause is not None:
                async for draft in self._interrupted(calling.pause):
                    yield draft
                return
            blocks = _in_order(calls, calling.answers)
        raise CapacityError(
            f"The turn needed more than {MAX_ROUNDS} invocations.", code="rounds_used_up", retryable=False
        )

    async def _round(self, blocks: Sequence[Mapping[str, Any]]) -> AsyncGenerator[Draft, None]:
        setting = self._setting
        asked = {
            "harnessArn": setting.arn,
            "runtimeSessionId": setting.session_id,
            "messages": said(*blocks),
            **overrides(self._turn, setting.profile, setting.options, setting.model),
        }

        def read(client: Any) -> Iterator[Mapping[str, Any]]:
            stream = client.invoke_harness(**asked)["stream"]
            with contextlib.closing(stream):
                yield from stream

        rehearsal = rehearsal_of(self._turn)
        lots = (
            invoke(setting.connections, read, retries=setting.profile.max_retries, deadline=self._turn.deadline)
            if rehearsal is None
            else lots_of(rehearsal, message)
        )
        came = False
        async with contextlib.aclosing(lots):
            async for lot in lots:
                if isinstance(lot, Draft):
                    yield lot
                    continue
                if not came:
                    # It took what it was told.
                    self._answered, self._memory.open_calls = True, {}
                came = True
                for event in lot:
                    for draft in self._translation.take(event):
                        yield draft

    async def _completed(self, stop: str) -> AsyncGenerator[Draft, None]:
        for draft in self._translation.usage.final():
            yield draft
        if self._had_pause:
            await self._kept(None)
        self._memory.clear_after = self._turn.number
        yield events.completed(stop)

    async def _interrupted(self, pause: Pause) -> AsyncGenerator[Draft, None]:
        for draft in self._translation.usage.final():
            yield draft
        self._memory.pause, self._memory.open_calls = pause, {}
        # I24: written before anybody hears of it.
        await self._kept(pause)
        yield pause.question()
        yield events.interrupted(pause.interrupt_id)

    async def _kept(self, pause: Pause | None) -> None:
        """What the conversation waits for from here. Raises PersistenceError: what was shown is not in the conversation's state."""
        if not self._setting.durable:
            return
        try:
            await save(self._turn, pause)
        except PersistenceError as lost:
            raise PersistenceError(
                lost.message,
                code="thread_durability_uncertain",
                retryable=False,
                side_effects=POSSIBLE_SIDE_EFFECTS,
                diagnostic=lost.code,
            ) from None


def _in_order(calls: Sequence[Call], answers: Mapping[str, Answer]) -> list[Answer]:
    return [answers[call.call_id] for call in calls]
