"""One conversation at the provider."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from adapters.agentcore.clients import Clients, Connections
from adapters.agentcore.custom import stream_custom
from adapters.agentcore.locating import HarnessLocator
from adapters.agentcore.managed import ManagedTurn, Memory, Setting
from adapters.agentcore.options import AgentOptions, read_options
from adapters.agentcore.profile import PER_AGENT, Profile
from adapters.agentcore.sessions import AgentCoreSessions
from adapters.agentcore.stopping import Stopper
from adapters.sdk import events
from adapters.sdk.contract import RuntimeConstruction, Turn
from adapters.sdk.errors import NO_SIDE_EFFECTS, POSSIBLE_SIDE_EFFECTS, ConfigurationError, UnavailableError
from adapters.sdk.events import Draft
from adapters.sdk.models import model_of
from adapters.sdk.simple import BaseRuntime
from harness.common.v1 import blueprint_pb2, error_pb2
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2

STOP_SECONDS = 15.0
"""How long a turn waits for the stop of the one before it."""


class AgentCoreRuntime(BaseRuntime):
    """Holds a share of the process's clients, and nothing that a restart could lose but the pause of a conversation without thread state."""

    def __init__(
        self,
        construction: RuntimeConstruction,
        profile: Profile,
        locator: HarnessLocator,
        clients: Clients,
        sessions: AgentCoreSessions,
        stopper: Stopper,
    ) -> None:
        self._construction = construction
        self._profile = profile
        self._locator = locator
        self._clients = clients
        self._stopper = stopper
        self._options: AgentOptions = read_options(construction.options)
        self._model = model_of(construction.blueprint.model, profile)
        self._session_id = sessions.name_of(construction.binding)
        self._durable = construction.blueprint.thread.persistence != blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL
        self._memory = Memory()
        self._connections: Connections | None = None
        self._arn = ""
        self._asked = False
        self._stopping: set[asyncio.Task[bool]] = set()

    async def initialize(self) -> None:
        """Takes a share of the clients. Raises ConfigurationError for a region or endpoint that is none."""
        if self._connections is None:
            self._connections = await self._clients.acquire(self._profile)

    async def stream(self, turn: Turn) -> AsyncIterator[Draft]:
        """The turn of a message."""
        if turn.files:
            yield events.warning("files_unsupported", "The provider takes no files; the turn goes on without them.")
        async with contextlib.aclosing(self._drafts(turn)) as drafts:
            async for draft in drafts:
                yield draft
        self._asked = False

    async def _drafts(self, turn: Turn) -> AsyncGenerator[Draft, None]:
        """What the turn says. A harness that was removed since it was last seen is looked for again, once: one that is not there ran nothing (I11)."""
        again = self._profile.mode == PER_AGENT
        while True:
            setting = await self._setting()
            begun = False
            drafts = (
                ManagedTurn(turn, setting, self._memory).stream()
                if self._profile.managed
                else stream_custom(turn, setting)
            )
            try:
                async with contextlib.aclosing(drafts):
                    async for draft in drafts:
                        begun = True
                        yield draft
                return
            except ConfigurationError as failure:
                if begun or not again or failure.code != "harness_unknown":
                    raise
            again = False
            self._locator.forget(self._construction.blueprint.id)

    async def resume(self, turn: Turn, decision: runtime_pb2.ResumeDecision) -> AsyncIterator[Draft]:
        """The turn that answers an interrupt."""
        if not self._profile.managed:
            raise ConfigurationError("A custom runtime has no interrupts to resume.", code="interrupts_unsupported")
        setting = await self._setting()
        async with contextlib.aclosing(ManagedTurn(turn, setting, self._memory).resume(decision)) as drafts:
            async for draft in drafts:
                yield draft
        self._asked = False

    async def pending_interrupt(self) -> runtime_pb2.PendingInterrupt | None:
        """The pause of the last turn, if it had one in this runtime."""
        pause = self._memory.pause
        if pause is None:
            return None
        return runtime_pb2.PendingInterrupt(interrupt_id=pause.interrupt_id, revision=1, run_id=pause.run_id)

    async def cancel(
        self, reason: "payload_pb2.CancelReason.ValueType"
    ) -> "error_pb2.SideEffectStatus.ValueType | None":
        """Has the session stopped beside what goes on here: the end of the run waits for nobody (I12)."""
        if not self._asked:
            return None
        self._begin_stop()
        return POSSIBLE_SIDE_EFFECTS

    async def restart(self) -> None:
        """Gives back the share of the clients; the conversation is the provider's."""
        await self._release()

    async def cleanup(self) -> None:
        """Waits for stops that are under way, then gives everything back."""
        await self._release()

    async def _setting(self) -> Setting:
        await self.initialize()
        # A stop that is late would end the next turn.
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=STOP_SECONDS)
        if self._stopping:
            raise UnavailableError(
                "The provider is still ending what ran before in this conversation: try again.",
                code="session_stopping",
                side_effects=NO_SIDE_EFFECTS,
            )
        self._arn = (
            await self._locator.arn_for(self._construction.blueprint.id)
            if self._profile.managed
            else self._profile.runtime_arn
        )
        self._asked = True
        if self._connections is None:
            raise UnavailableError("The runtime was released.", code="runtime_released")
        return Setting(
            self._connections, self._profile, self._options, self._model, self._arn, self._session_id, self._durable
        )

    def _begin_stop(self) -> None:
        if not self._profile.stop_session or self._connections is None or not self._arn or self._stopping:
            return
        task = asyncio.ensure_future(self._stopper.stop(self._connections, self._profile, self._arn, self._session_id))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def _release(self) -> None:
        if self._stopping:
            await asyncio.wait(self._stopping, timeout=STOP_SECONDS)
        connections, self._connections = self._connections, None
        if connections is not None:
            await self._clients.release(connections)
