"""The harness of the simulation: it does what the message of a turn says, and the world hears of every turn it begins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import orjson

from adapters.sdk import events
from adapters.sdk.contract import HarnessRuntime, RuntimeConstruction, Turn
from adapters.sdk.errors import InternalError
from adapters.sdk.session import CallerAssignedSessions, EventAssignedSessions, ProviderSessionManager
from adapters.sdk.simple import BaseAdapter, BaseRuntime
from adapters.sdk.tool_answers import ApprovalNeeded
from harness.adapter.v1 import descriptor_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.runtime.v1 import runtime_pb2
from tests.simulation.loop import Life

BIG: Final = "x" * 100_000
"""Before the number of each piece of a big answer: one draft that becomes several events, and more than a segment holds."""


class ScriptedAdapter(BaseAdapter):
    """One incarnation's adapter."""

    def __init__(self, world: Any, life: Life, incarnation: str) -> None:
        self.world = world
        self.life = life
        self.incarnation = incarnation
        named = life.name == "host-b"
        self._descriptor = descriptor_pb2.Descriptor(
            harness_id="second" if named else "first",
            session_id_style=descriptor_pb2.SESSION_ID_STYLE_CALLER_ASSIGNED
            if named
            else descriptor_pb2.SESSION_ID_STYLE_EVENT_ASSIGNED,
        )
        self._sessions: ProviderSessionManager = CallerAssignedSessions() if named else EventAssignedSessions()

    @property
    def descriptor(self) -> descriptor_pb2.Descriptor:
        return self._descriptor

    @property
    def session_manager(self) -> ProviderSessionManager:
        return self._sessions

    async def create_runtime(self, construction: RuntimeConstruction) -> HarnessRuntime:
        return ScriptedRuntime(self, construction)


class ScriptedRuntime(BaseRuntime):
    """A binding's runtime."""

    def __init__(self, adapter: ScriptedAdapter, construction: RuntimeConstruction) -> None:
        self._adapter = adapter
        self._construction = construction

    def stream(self, turn: Turn) -> AsyncIterator[event_pb2.EventDraft]:
        return self._play(turn, orjson.loads(turn.message))

    def resume(self, turn: Turn, decision: runtime_pb2.ResumeDecision) -> AsyncIterator[event_pb2.EventDraft]:
        return self._play(turn, {"events": 2, "pause": 0.1, "goes_on": decision})

    async def _play(self, turn: Turn, script: dict[str, Any]) -> AsyncIterator[event_pb2.EventDraft]:
        world, adapter = self._adapter.world, self._adapter
        world.turn_began(adapter.life, adapter.incarnation, turn, self._construction)
        pause = script.get("pause", 0.0)
        try:
            if script.get("session") and adapter.life.name == "host-a":
                yield events.session_updated(f"native-{turn.construction.binding.binding_id[-6:]}-{turn.number}")
            if "goes_on" in script:
                await self._made_again(turn, script["goes_on"])
            asked = None
            for number, tool_id in enumerate(script.get("calls", ())):
                asked = await self._called(turn, tool_id, number) or asked
            if script.get("tool"):
                yield events.tool_started("call-1", "search", {"query": "x"})
                await asyncio.sleep(pause)
                yield events.tool_succeeded("call-1", "found")
            for number in range(script.get("events", 1)):
                if pause:
                    await asyncio.sleep(pause)
                yield events.text(f"{BIG if script.get('big') else ''}{number};")
            if script.get("part"):
                await turn.thread.write_part(turn.run_id.encode(), "test/1")
            end = script.get("end", "complete")
            if asked is not None:
                yield events.approval_requested(APPROVE, [asked], "May it?")
                yield events.interrupted(APPROVE)
                return
            if end == "hang":
                await asyncio.Event().wait()
            if end == "fail":
                raise InternalError("The provider failed.", code="provider_failed")
            if end == "ask":
                yield events.form_requested("ask-1", [FIELD], "Which?")
                yield events.interrupted("ask-1")
            else:
                yield events.completed()
        finally:
            world.turn_ended(adapter.life, adapter.incarnation, turn, self._construction)

    async def _called(self, turn: Turn, tool_id: str, number: int) -> payload_pb2.ToolApproval | None:
        """One call, mostly made more than once, as a runtime does that lost an answer; what waits, if it does."""
        if not turn.tools.connected:
            return None
        random, call_id = self._adapter.world.random, call_of(turn.run_id, number)
        answers = await asyncio.gather(
            *(turn.tools.invoke(tool_id, {"n": number}, call_id) for _ in range(random.choice((1, 1, 2))))
        )
        if random.random() < 0.3:
            answers.append(await turn.tools.invoke(tool_id, {"n": number}, call_id))
        if random.random() < 0.2:  # another call under its id
            await turn.tools.invoke(tool_id, {"n": number + 100}, call_id)
        return next((answer.approval for answer in answers if isinstance(answer, ApprovalNeeded)), None)

    async def _made_again(self, turn: Turn, decision: runtime_pb2.ResumeDecision) -> None:
        """The call that waited."""
        if decision.interrupt_id == APPROVE:
            number = ASKING.index("ask")
            call_id = call_of(decision.interrupted_run_id, number)
            await turn.tools.invoke("ask", {"n": number}, call_id)
            if self._adapter.world.random.random() < 0.5:
                await turn.tools.invoke("ask", {"n": number}, call_id)


APPROVE: Final = "approve-1"
CALLING: Final = ("act", "look", "act")
ASKING: Final = ("look", "ask")
"""What scripts call."""


def call_of(run_id: str, number: int) -> str:
    """The id of a call, which the run that goes on knows as well."""
    return f"{run_id[-6:]}-{number}"


FIELD = payload_pb2.FormField(name="answer", type=payload_pb2.FORM_FIELD_TYPE_STRING, required=True)
