"""Who executes what in this process: bounded execution, the local line, takeovers, renewals (run protocol, Start 3 and Take)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from harness.run.v1 import run_service_pb2
from services.common.errors import HarnessError, Reason
from services.common.logs import get_logger
from services.common.store import StoreError
from services.runs.appending import Fenced
from services.runs.claim import Refused, Taker, Why, claim
from services.runs.clients.sessions import Binding
from services.runs.engine import Engine
from services.runs.executor import Executor, HandedOver
from services.runs.held import Halt, HeldRun
from services.runs.intent import Intent
from services.runs.log import BrokenLog
from services.runs.patience import patiently
from services.runs.places import UNBOUNDED, Places, ProfileKey, Share
from services.runs.run import Run, Status
from services.runs.sealing import seal
from services.runs.segmenting import Tail

HANDOVER_SHARE: Final = 0.5
"""Share of the shutdown grace in which runs may still finish here before they are handed over."""
_log = get_logger(__name__)


class Dispatcher:
    """The executors of this process. At most `max_active_runs` at once, and of a profile at most as many as the operator allows in one process,
    but for runs that must be taken over or ended: those never wait.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._active: dict[str, Executor] = {}
        self._places = Places(engine.settings.max_active_runs, engine.settings.max_queued_runs)
        self._stopping = False
        self._handing_over = False
        self._idle = asyncio.Event()
        self._room = asyncio.Event()
        self._note_load()

    @property
    def stopping(self) -> bool:
        """Whether no new work is taken."""
        return self._stopping

    @property
    def active(self) -> int:
        """Runs executed here now."""
        return len(self._active)

    def holds(self, run_id: str) -> bool:
        """Whether the run is executed here."""
        return run_id in self._active

    def run_of(self, run_id: str) -> Run | None:
        """The run as its executor here knows it; None when it is not executed here."""
        executor = self._active.get(run_id)
        return None if executor is None else executor.held.run

    def has_in_line(self, run_id: str) -> bool:
        """Whether the run waits here for an executor."""
        return self._places.waits(run_id)

    def line_is_full(self) -> bool:
        """Whether one more queued run would pass the bound (I35)."""
        return self._places.is_full()

    def line_is_full_for(self, share: Share) -> bool:
        """Whether one more queued run of this profile would pass the bound (I35)."""
        return self._places.is_full_for(share)

    def take_place(self, share: Share) -> bool:
        """Reserve an execution. Pair with `begin` or `give_place`."""
        if self._stopping or not self._places.has_room or not self._places.may_have(share):
            return False
        self._take_of(share.key)
        return True

    def give_place(self, key: ProfileKey) -> None:
        """Give an execution of the profile back."""
        self._places.give()
        self._places.give_of(key)
        self._pump()
        self._note_load()

    def begin(self, executor: Executor) -> None:
        """Execute in the place that was taken."""
        self._launch(executor)

    def offer(self, run_id: str) -> None:
        """A queued run whose slot is its own: execute it as soon as there is room. A full line drops it; the sweep finds it again."""
        if run_id in self._active or not self._places.enter(run_id):
            return
        if not self._places.has_room:
            self._engine.bus.announce(run_id)  # another replica may have room
        self._pump()

    async def has_room(self) -> None:
        """Wait until one more run may be executed here."""
        await self._room.wait()

    def signal(self, run_id: str) -> bool:
        """An intent was written on the run; whether it is executed here."""
        executor = self._active.get(run_id)
        if executor is not None:
            executor.held.halt(Halt.INTENT)
        return executor is not None

    async def take_over(self, run: Run, seen: tuple[int, int]) -> Refused | None:
        """Take a run whose lease is dead, as it was `seen`, and go on with it in the background (I9)."""
        return await self._take(run, Why.DEAD, seen=seen)

    async def end_by_force(self, run: Run, intent: Intent) -> Refused | None:
        """Take the run from whoever has it and end it in the background; `Refused` when it ended, or somebody else is ending it."""
        return await self._take(run, Why.FORCE, intent=intent)

    async def renew_leases(self) -> None:
        """Renew what is due, all at once; stop what could not be renewed in time (run protocol, Take 1)."""
        now = self._engine.clock.monotonic()
        due = [executor for executor in self._active.values() if executor.held.lease.is_due(now)]
        await asyncio.gather(*(self._renew(executor) for executor in due))

    async def drain(self) -> None:
        """Take no new work, let runs finish for half of the grace, then hand over the rest (I33)."""
        self._stopping = True
        self._places.forget_lines()
        try:
            async with asyncio.timeout(self._engine.settings.shutdown_grace_seconds * HANDOVER_SHARE):
                await self._idle.wait()
        except TimeoutError:
            self._handing_over = True
            for executor in list(self._active.values()):
                executor.held.halt(Halt.HANDOVER)
            await self._idle.wait()

    def _note_load(self) -> None:
        """Keep the two events true; called after every change of what is executed or about to be."""
        for event, holds in ((self._idle, not self._places.taken), (self._room, self._places.has_room)):
            if holds:
                event.set()
            else:
                event.clear()

    def _take_of(self, key: ProfileKey) -> None:
        self._places.take()
        self._places.take_of(key)
        self._note_load()

    def _pump(self) -> None:
        while self._places.has_room and not self._stopping and (run_id := self._places.next()) is not None:
            self._places.take()
            self._note_load()
            self._engine.tasks.spawn("execute_queued", self._execute_queued(run_id))

    async def _execute_queued(self, run_id: str) -> None:
        key = self._places.handed(run_id)
        try:
            run = await self._engine.store.get(run_id)
            if run is None or run.status is not Status.QUEUED:
                return
            if key is None:
                key = await self._admitted(run)
                if key is None:
                    return
            binding = await self._slot_of(run)
            if binding is not None:  # Take 1: free, and the slot is the run's own
                await self._take(replace(run, turn=binding.turn), Why.FIRST, binding=binding)
        finally:
            self._places.give()
            if key is not None:
                self._places.give_of(key)
            self._pump()
            self._note_load()

    async def _admitted(self, run: Run) -> ProfileKey | None:
        """An execution of the run's profile is counted; or None, and the run waits aside for one, in the way of no other profile's (I23)."""
        share = await self._share_of(run)
        if self._places.may_have(share):
            self._places.take_of(share.key)
            return share.key
        if self._places.put_aside(run.run_id, share):
            self._engine.bus.announce(run.run_id)  # another replica may execute one more
        return None

    async def _share_of(self, run: Run) -> Share:
        try:
            profile = await self._engine.catalog.profile(run.harness_id, run.profile_id)
        except HarnessError:
            # Whoever executes the run asks the same and ends it truthfully if there is no answer.
            return Share(run.profile, UNBOUNDED)
        return Share(run.profile, profile.max_concurrent_runs)

    async def _take(
        self,
        run: Run,
        why: Why,
        *,
        seen: tuple[int, int] | None = None,
        intent: Intent | None = None,
        binding: Binding | None = None,
    ) -> Refused | None:
        taker, sent_at = Taker(self._engine.holder, self._engine.now()), self._engine.clock.monotonic()
        claimed = claim(run, why, taker, seen=seen, intent=intent)
        if isinstance(claimed, Refused):
            return claimed
        written = await self._engine.store.put(run, claimed)
        if written is None:
            return Refused.HELD
        older = self._active.get(run.run_id)
        if older is not None:
            older.held.halt(Halt.LOST)
        try:
            executor = await self._prepare(written, binding)
        except Fenced as fenced:
            _log.info("take_abandoned", run_id=run.run_id, why=str(fenced))
            return Refused.HELD
        executor.held.lease.sent_at = sent_at
        self._take_of(executor.held.run.profile)
        self._launch(executor)
        return None

    async def _prepare(self, run: Run, binding: Binding | None) -> Executor:
        """The executor of a run that was just claimed: its input, its slot, the end of its log (run protocol, Take 2 and 3)."""
        engine, tail = self._engine, Tail()
        stored = await engine.store.get_input(run.run_id)
        turn_input = run_service_pb2.StartRunRequest.FromString(stored or b"")
        if run.run_generation > 1:
            binding = await self._claimed_slot(run)
            tail = await seal(engine.log, run.run_id, run.run_generation)
        return Executor(HeldRun(engine, run, turn_input, binding, tail))

    async def _claimed_slot(self, run: Run) -> Binding | None:
        """The binding, its slot claimed for this generation: from here the old holder commits nothing (I10). None if the slot is not the run's."""
        sessions, engine = self._engine.sessions, self._engine
        try:
            return await patiently(
                engine.clock,
                engine.settings.commit_seconds,
                lambda: sessions.claim(run.binding_id, run.run_id, run.run_generation),
            )
        except HarnessError as error:
            if error.reason is not Reason.STALE_LEASE:
                raise
        binding = await self._slot_of(run)
        if binding is not None and binding.active.run_generation > run.run_generation:
            raise Fenced(f"{run.run_id}: generation {binding.active.run_generation} claimed the slot")
        return binding

    async def _slot_of(self, run: Run) -> Binding | None:
        """The binding if the slot is the run's."""
        engine = self._engine
        binding, archived = await patiently(
            engine.clock, engine.settings.commit_seconds, lambda: engine.sessions.get(run.binding_id)
        )
        mine = not archived and binding.HasField("active") and binding.active.run_id == run.run_id
        return binding if mine else None

    def _launch(self, executor: Executor) -> None:
        self._active[executor.held.run_id] = executor
        if self._handing_over:
            executor.held.halt(Halt.HANDOVER)  # I33: it was taken while the others were already given away
        self._engine.tasks.spawn("execute", self._live(executor))

    async def _live(self, executor: Executor) -> None:
        run_id = executor.held.run_id
        try:
            await executor.live()
        except Fenced as fenced:
            _log.info("run_fenced", run_id=run_id, why=str(fenced))
        except HandedOver:
            _log.info("run_handed_over", run_id=run_id)
        except (StoreError, HarnessError, BrokenLog) as error:
            # Its lease runs out, and whoever sweeps brings it to its end.
            _log.warning("run_left_to_the_sweep", run_id=run_id, error=type(error).__name__)
        finally:
            if self._active.get(run_id) is executor:
                del self._active[run_id]
            self.give_place(executor.held.run.profile)
            released = executor.released
            if released is not None and released.HasField("active"):
                self.offer(released.active.run_id)

    async def _renew(self, executor: Executor) -> None:
        try:
            await executor.renew()
        except StoreError as error:
            _log.warning("lease_not_renewed", run_id=executor.held.run_id, error=type(error).__name__)
            if executor.held.lease.must_stop(self._engine.clock.monotonic()):
                executor.held.halt(Halt.LOST)
