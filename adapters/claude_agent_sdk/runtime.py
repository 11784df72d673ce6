"""One binding's runtime: its folder, and how a turn of it is played (design 0005)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from claude_agent_sdk import Message

from adapters.claude_agent_sdk import errors, transcript
from adapters.claude_agent_sdk.attachments import content_of_turn
from adapters.claude_agent_sdk.channel import Channel
from adapters.claude_agent_sdk.credentials import model_access
from adapters.claude_agent_sdk.home import Home
from adapters.claude_agent_sdk.options import read_options
from adapters.claude_agent_sdk.pause import Pause, pause_for
from adapters.claude_agent_sdk.profile import read_profile
from adapters.claude_agent_sdk.program import Program, bundled_program
from adapters.claude_agent_sdk.rehearsal import messages_of
from adapters.claude_agent_sdk.restoring import restore
from adapters.claude_agent_sdk.resumption import Resumption, dismissed
from adapters.claude_agent_sdk.setting import sdk_options
from adapters.claude_agent_sdk.skills import skills_of, told
from adapters.claude_agent_sdk.tools import TurnTools
from adapters.claude_agent_sdk.transcript import Transcript, TurnStore
from adapters.claude_agent_sdk.translation import Translation
from adapters.sdk import events
from adapters.sdk.contract import RuntimeConstruction, Turn
from adapters.sdk.errors import POSSIBLE_SIDE_EFFECTS, PersistenceError, classified
from adapters.sdk.events import Draft
from adapters.sdk.models import model_of
from adapters.sdk.rehearsal import Rehearsal, rehearsal_of
from adapters.sdk.simple import BaseRuntime
from harness.common.v1 import blueprint_pb2, error_pb2, placement_pb2
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2

HOOK_GRACE_SECONDS = 30.0
"""How much longer than the run a tool call may take before the program gives it up by itself."""
TOOL_DEFERRED = "tool_deferred"


class ClaudeRuntime(BaseRuntime):
    """A runtime. A program lives as long as a turn; between turns there is a folder, and nothing in it but the agent's files."""

    def __init__(self, construction: RuntimeConstruction) -> None:
        self._profile = read_profile(construction.profile_settings)
        self._agent = read_options(construction.options)
        self._model = model_of(construction.blueprint.model, self._profile)
        self._skills = skills_of(construction.blueprint.skills, construction.skills, self._profile)
        self._durable = construction.blueprint.thread.persistence != blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL
        self._home: Home | None = None
        self._executable = Path()
        # The program of the turn that plays, and those that are about to go.
        self._program: Program | None = None
        self._programs: set[Program] = set()
        self._pause: Pause | None = None
        # What a conversation without thread state waits with.
        self._kept: Transcript | None = None

    async def initialize(self) -> None:
        """Makes the folder. Idempotent."""
        self._executable = bundled_program()
        if self._home is None:
            self._home = await asyncio.to_thread(Home, self._profile.workspace_root)

    def stream(self, turn: Turn) -> AsyncIterator[Draft]:
        """One turn from a person's message."""
        return self._turn(turn, None)

    def resume(self, turn: Turn, decision: runtime_pb2.ResumeDecision) -> AsyncIterator[Draft]:
        """The turn that answers what the last one asked."""
        return self._turn(turn, decision)

    async def pending_interrupt(self) -> runtime_pb2.PendingInterrupt | None:
        """The pause of the last turn, if it had one in this runtime."""
        pause = self._pause
        if pause is None:
            return None
        return runtime_pb2.PendingInterrupt(interrupt_id=pause.interrupt_id, revision=1, run_id=pause.run_id)

    async def cancel(
        self, reason: "payload_pb2.CancelReason.ValueType"
    ) -> "error_pb2.SideEffectStatus.ValueType | None":
        """Interrupts the program, so that it stops its own tools."""
        if self._program is None:
            return None
        await self._program.interrupt()
        return POSSIBLE_SIDE_EFFECTS

    async def restart(self) -> None:
        """Ends the program and removes its folder; `initialize` makes another."""
        await self.cleanup()

    async def cleanup(self) -> None:
        """Ends the program and removes the folder (I20). Idempotent."""
        for program in tuple(self._programs):
            await program.stop(hurry=True)
        if self._home is not None:
            await asyncio.to_thread(self._home.remove)
            # Only now: what is left of it is for the next try.
            self._home = None

    # --- a turn ---

    async def _turn(self, turn: Turn, decision: runtime_pb2.ResumeDecision | None) -> AsyncIterator[Draft]:
        kept, self._kept, self._pause = self._kept, None, None
        known = (
            await transcript.load(turn) if self._durable else (kept if decision is not None and kept else Transcript())
        )
        store = TurnStore(turn, known, str(self._home_now().workspace))
        pause = None if known.pause is None else Pause.from_document(known.pause)
        store.add_pause(None)
        if decision is None:
            if pause is not None:
                store.add_results(dismissed(pause))
                store.settle(pause.put_off)
        else:
            if pause is None:
                # Truthfully: nobody knows any more what was to be done.
                raise PersistenceError(
                    "What the conversation waited for is not known here any more.", code="interrupt_lost"
                )
            resumption = Resumption(pause, decision)
            async for draft in resumption.events(turn):
                yield draft
            store.add_results(resumption.results)
            if resumption.next is not None:
                async for draft in self._waits(resumption.next, store):
                    yield draft
                return
        rehearsal = rehearsal_of(turn)
        playing = (
            self._play(turn, store, known, resumed=decision is not None)
            if rehearsal is None
            else self._rehearse(turn, store, rehearsal)
        )
        async for draft in playing:
            yield draft

    async def _play(self, turn: Turn, store: TurnStore, known: Transcript, *, resumed: bool) -> AsyncIterator[Draft]:
        channel, home = Channel(), self._home_now()
        tools = TurnTools(turn, channel, known.results, ask_person=self._agent.ask_person)
        translation = Translation(tools, turn.native_session_id)
        content, warnings = (None, []) if resumed else await content_of_turn(turn)
        for warned in warnings:
            yield warned
        access = model_access(self._profile, turn)
        folder = await asyncio.to_thread(home.turn, turn.system_prompt + told(self._skills, self._profile.subagents))
        if known.session_id:
            await asyncio.to_thread(_lay_down, folder.config, home.workspace, known.session_id, store)
        program = self._program = Program(
            sdk_options(
                profile=self._profile,
                agent=self._agent,
                model=self._model,
                home=home,
                folder=folder,
                program=self._executable,
                access=access,
                tools=tools,
                store=store,
                resume=known.session_id,
                skills=self._skills,
                hook_seconds=turn.deadline.remaining() + HOOK_GRACE_SECONDS,
                sandboxed=turn.construction.placement == placement_pb2.PLACEMENT_SANDBOX_POD,
            ),
            folder,
        )
        self._programs.add(program)
        ended_well = False
        try:
            await program.start(content)
            reading = asyncio.get_running_loop().create_task(self._read(program.messages(), channel, translation))
            try:
                async for draft in channel.drafts():
                    yield draft
            finally:
                reading.cancel()
            await asyncio.wait({reading})
            ended_well = True
            async for draft in self._conclude(turn, tools, translation, store):
                yield draft
        finally:
            channel.end()
            # I20: whatever happens to the turn, its program goes. One that has said everything goes by itself, and holds nothing up.
            going = program.stop(hurry=not ended_well, then=self._programs.discard)
            if not ended_well:
                await going

    async def _rehearse(self, turn: Turn, store: TurnStore, rehearsal: Rehearsal) -> AsyncIterator[Draft]:
        """A turn without a program. What it says takes the way of what a program says, and the turn ends like any other."""
        channel = Channel()
        tools = TurnTools(turn, channel, {}, ask_person=self._agent.ask_person)
        translation = Translation(tools, turn.native_session_id)
        reading = asyncio.get_running_loop().create_task(self._read(messages_of(rehearsal), channel, translation))
        try:
            async for draft in channel.drafts():
                yield draft
        finally:
            channel.end()
            reading.cancel()
        async for draft in self._conclude(turn, tools, translation, store):
            yield draft

    async def _read(self, messages: AsyncIterator[Message | Draft], channel: Channel, translation: Translation) -> None:
        """Reads the program to the turn's end. What goes wrong ends the channel, behind what was said before."""
        try:
            while True:
                # The program would ask again for an answer that stopped; this ends the turn before it does.
                seconds = self._profile.idle_seconds if translation.answering else None
                async with asyncio.timeout(seconds):
                    message = await anext(messages, None)
                if message is None:
                    break
                for draft in (message,) if isinstance(message, Draft) else translation.take(message):
                    await channel.put(draft)
            channel.end(None if translation.result is not None else errors.no_result())
        except TimeoutError:
            channel.end(errors.silent_answer())
        except Exception as error:  # noqa: BLE001 - it is raised to whoever reads the channel
            channel.end(error)

    async def _conclude(
        self, turn: Turn, tools: TurnTools, translation: Translation, store: TurnStore
    ) -> AsyncIterator[Draft]:
        result = translation.result
        if result is None:
            raise errors.no_result()
        if result.stop_reason == TOOL_DEFERRED and tools.waiting:
            put_off = tools.waiting[0].call_id
            pause = pause_for(turn.run_id, turn.number, tools.waiting, tools.approvals, put_off)
            async for draft in self._waits(pause, store):
                yield draft
            return
        if self._durable:
            await self._kept_for_good(store)
        yield events.completed(result.stop_reason or "end_turn")

    async def _waits(self, pause: Pause, store: TurnStore) -> AsyncIterator[Draft]:
        store.add_pause(pause.to_document())
        if self._durable:
            await self._kept_for_good(store)
        else:
            self._kept = store.kept()
        self._pause = pause
        yield pause.question()
        yield events.interrupted(pause.interrupt_id)

    async def _kept_for_good(self, store: TurnStore) -> None:
        try:
            await store.write()
        except PersistenceError as lost:
            if lost.code == transcript.TOO_LARGE:
                # Nothing of it was written, and who reads it can do something about it.
                raise
            # I30: behind what was shown, and what tools did.
            raise errors.uncertain(lost) from lost

    def _home_now(self) -> Home:
        if self._home is None:
            raise classified(RuntimeError("a turn begins only after the runtime was initialised"))
        return self._home


def _lay_down(config: Path, workspace: Path, session_id: str, store: TurnStore) -> None:
    restore(config, workspace, session_id, store.committed())
