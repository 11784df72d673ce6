"""Who executes what in this process: bounded execution, the lines before it, takeovers, renewals (run protocol, Start 3 and Take)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Final

from services.common.errors import HarnessError
from services.common.logs import get_logger
from services.common.store import StoreError
from services.runs import metrics
from services.runs.appending import Fenced
from services.runs.claim import Refused, Taker, Why, claim
from services.runs.clients.sessions import Binding
from services.runs.engine import Engine
from services.runs.executor import Executor, HandedOver
from services.runs.held import Halt
from services.runs.intent import Intent
from services.runs.log import BrokenLog
from services.runs.places import UNBOUNDED, Places, ProfileKey, Share
from services.runs.renewing import Renewals
from services.runs.run import Run, Status
from services.runs.taking import Taking, slot_of

HANDOVER_SHARE: Final = 0.5
"""Share of the shutdown grace in which runs may still finish here before they are handed over."""
MAX_LOOKED_AT: Final = 1_000
"""Queued runs that are looked at here at the same time; what is offered beyond is found by the sweep (I35)."""
MAX_LATELY: Final = 512
"""Ended runs that are remembered (I35)."""
_log = get_logger(__name__)


class Dispatcher:
    """The executors of this process. At most `max_active_runs` at once, of a profile at most as many as the operator allows in one process, and
    of a harness as many as leave room for others (`services/runs/places.py`), but for runs that must be taken over or ended: those never wait.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._active: dict[str, Executor] = {}
        self._lately: OrderedDict[str, Run] = OrderedDict()
        self._places = Places(engine.settings.max_active_runs, engine.settings.max_queued_runs)
        self._renewals = Renewals(engine.clock, engine.tasks)
        self._looked_at: set[str] = set()
        self._asked: dict[ProfileKey, asyncio.Task[Share | None]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._stopping = False
        self._handing_over = False
        self._idle = asyncio.Event()
        self._room = asyncio.Event()
        self._note_load()
        engine.bus.on_signal(self._renewals.renew_now)

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
        """The run as its executor here knows it, or left it when it ended; None when it is not executed here, and was not lately."""
        executor = self._active.get(run_id)
        return self._lately.get(run_id) if executor is None else executor.held.run

    def has_in_line(self, run_id: str) -> bool:
        """Whether the run waits here for an executor."""
        return self._places.waits(run_id)

    def line_is_full_for(self, share: Share) -> bool:
        """Whether one more queued run of this profile would pass the bound (I35)."""
        return self._places.is_full_for(share)

    def take_place(self, share: Share) -> bool:
        """Reserve an execution. Pair with `begin` or `give_place`."""
        if self._stopping or not self._places.may_have(share):
            return False
        self._take_place(share.key)
        return True

    def give_place(self, key: ProfileKey) -> None:
        """Give an execution of the profile back."""
        self._places.give(key)
        self._pump()
        self._note_load()

    def begin(self, executor: Executor) -> None:
        """Execute in the place that was taken."""
        self._launch(executor)

    # Queued runs: those that came to this process, that the bus handed to it, and that the sweep found.

    def offer(self, run_id: str) -> None:
        """A queued run whose slot has just become its own: execute it here or, if it has to wait here, wherever there is room sooner."""
        if self._may_look_at(run_id):
            self._spawn("execute_offered", run_id, self._look_at(run_id, announce=True))

    def found(self, run: Run) -> None:
        """A queued run that nobody took yet, as the sweep read it. Not announced: every replica sweeps."""
        if not self._places.has_line_for(run.profile):
            metrics.LEFT_LINE_FULL.inc()
        elif self._may_look_at(run.run_id):
            self._spawn("execute_found", run.run_id, self._consider(run, announce=False))

    def listen(self) -> None:
        """Ask the bus for queued runs from now on, whenever there is room here."""
        self._listening = self._engine.tasks.spawn("announced_runs", self._execute_announced())

    def waiting_since(self, then: float) -> set[str]:
        """Runs that wait here from before that time on (monotonic seconds)."""
        return self._places.waiting_since(then)

    def forget(self, run_ids: Iterable[str]) -> None:
        """These runs are not queued any more: another replica executes or has ended them."""
        for run_id in run_ids:
            metrics.WAITING.dec(self._places.leave(run_id))

    # Runs that others hold, or held.

    def signal(self, run: Run) -> None:
        """An intent was written on the run: its executor looks at once, wherever it is (I12)."""
        executor = self._active.get(run.run_id)
        if executor is not None:
            executor.held.halt(Halt.INTENT)
        elif run.holder == self._engine.holder:
            self._renewals.renew_now(run.run_id)  # it is being taken here
        elif run.status is Status.RUNNING and run.holder:
            self._engine.bus.signal(run.holder, run.run_id)

    async def take_over(self, run: Run, seen: tuple[int, int]) -> Refused | None:
        """Take a run whose lease is dead, as it was `seen`, and go on with it in the background (I9)."""
        return await self._take(run, Why.DEAD, seen=seen)

    async def end_by_force(self, run: Run, intent: Intent) -> Refused | None:
        """Take the run from whoever has it and end it in the background; `Refused` when it ended, or somebody else is ending it."""
        return await self._take(run, Why.FORCE, intent=intent)

    async def renew_leases(self) -> None:
        """Begin to renew what is due; stop what could not be renewed in time (run protocol, Take 1)."""
        self._renewals.turn()

    async def drain(self) -> None:
        """Take no new work, let runs finish for half of the grace, then hand over the rest (I33)."""
        self._stopping = True
        self._places.forget_lines()
        metrics.WAITING.set(0)
        if self._listening is not None:
            self._listening.cancel()
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
        for event, holds in ((self._idle, not self._places.taken), (self._room, self._free > 0)):
            if holds:
                event.set()
            else:
                event.clear()
        metrics.EXECUTED.set(self._places.taken)

    @property
    def _free(self) -> int:
        """Places that nobody has or is about to take."""
        return self._places.room - len(self._looked_at)

    def _take_place(self, key: ProfileKey) -> None:
        self._places.take(key)
        self._note_load()

    def _pump(self) -> None:
        while not self._stopping and (next_one := self._places.next()) is not None:
            run_id, key = next_one
            self._looked_at.add(run_id)
            self._note_load()
            metrics.WAITING.dec()
            self._spawn("execute_waiting", run_id, self._execute_waiting(run_id, key))

    async def _execute_announced(self) -> None:
        """Runs that were stored where there was no room, asked for only while there is room here (run protocol, Start 3)."""
        while True:
            await self._room.wait()
            for run_id in await self._engine.bus.announced(max(1, self._free)):
                if self._may_look_at(run_id):
                    self._spawn("execute_announced", run_id, self._look_at(run_id, announce=False))
                elif self._has_in_hand(run_id):
                    self._engine.bus.settle(run_id)
                # Else nothing was decided about it here: it stays pending, and is claimed by another replica (I33, I35).

    def _spawn(self, step: str, run_id: str, work: Awaitable[None]) -> None:
        self._engine.tasks.spawn(step, self._left_to_the_sweep(step, run_id, work))

    async def _left_to_the_sweep(self, step: str, run_id: str, work: Awaitable[None]) -> None:
        try:
            await work
        except (StoreError, HarnessError) as error:
            _log.warning("run_left_to_the_sweep", step=step, run_id=run_id, error=type(error).__name__)

    def _may_look_at(self, run_id: str) -> bool:
        """Whether nobody here has the run in hand; whoever asks has, from now on, and must look at it."""
        if self._stopping or self._has_in_hand(run_id):
            return False
        if len(self._looked_at) >= MAX_LOOKED_AT:
            metrics.LEFT_BUSY.inc()
            return False
        self._looked_at.add(run_id)
        self._note_load()
        return True

    def _has_in_hand(self, run_id: str) -> bool:
        """Whether the run is executed here, looked at, or waits."""
        return run_id in self._active or run_id in self._looked_at or self._places.waits(run_id)

    def _looked(self, run_id: str) -> None:
        self._looked_at.discard(run_id)
        self._note_load()

    async def _look_at(self, run_id: str, *, announce: bool) -> None:
        try:
            run = await self._engine.store.get(run_id)
            if run is not None and run.status is Status.QUEUED:
                await self._consider(run, announce=announce)
            elif run is not None and run.status is Status.RUNNING and not run.holder:
                await self.take_over(run, (run.run_generation, run.renewals))  # I33: handed over
        finally:
            self._looked(run_id)
            if not self._stopping:  # I33: else it may be undecided, and another replica claims it
                self._engine.bus.settle(run_id)  # decided: taken, here or elsewhere, or waiting here

    async def _consider(self, run: Run, *, announce: bool) -> None:
        """Execute a queued run, or let it wait here, in the way of no other harness's (I23)."""
        try:
            share = await self._share_of(run)
            if self._stopping:
                return
            if self._places.may_have(share):
                self._take_place(share.key)
                try:
                    await self._execute(run)
                finally:
                    self.give_place(share.key)
            elif not self._places.enter(run.run_id, share, run.owner or "", self._engine.clock.monotonic()):
                metrics.LEFT_LINE_FULL.inc()
            else:
                metrics.WAITING.inc()
                if announce:
                    self._engine.bus.announce(run.run_id)  # another replica may execute one more
        finally:
            self._looked(run.run_id)

    async def _execute_waiting(self, run_id: str, key: ProfileKey) -> None:
        """It waited: what it has become meanwhile is read again."""
        try:
            run = await self._engine.store.get(run_id)
            if run is not None and run.status is Status.QUEUED:
                await self._execute(run)
        finally:
            self._looked(run_id)
            self.give_place(key)

    async def _execute(self, run: Run) -> None:
        """Take a queued run; a place is taken for it."""
        binding = await slot_of(self._engine, run)
        if binding is not None:  # Take 1: free, and the slot is the run's own
            await self._take(replace(run, turn=binding.turn), Why.FIRST, binding=binding)

    async def _share_of(self, run: Run) -> Share:
        """What the run's profile may have here, asked for once for all who want to know it at the same time."""
        asked = self._asked.get(run.profile)
        if asked is None:
            asked = self._asked[run.profile] = self._engine.tasks.spawn(
                "ask_for_share", self._ask_for_share(run.profile)
            )
        share: Share | None = await asyncio.shield(asked)
        return share or Share(run.profile, UNBOUNDED)

    async def _ask_for_share(self, key: ProfileKey) -> Share:
        try:
            profile = await self._engine.catalog.profile(*key)
        except HarnessError:
            # Whoever executes the run asks the same and ends it truthfully if there is no answer.
            return Share(key, UNBOUNDED)
        finally:
            self._asked.pop(key, None)
        return Share(key, profile.max_concurrent_runs)

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
        taking = Taking(self._engine, written, sent_at)
        renewal = self._renewals.hold(run.run_id, taking.lease, taking.renew, taking.lose)
        try:
            executor = await taking.executor(binding)
        except Fenced as fenced:
            _log.info("take_abandoned", run_id=run.run_id, why=str(fenced))
            return Refused.HELD
        finally:
            self._renewals.let_go(renewal)
        executor.held.lease.sent_at = taking.lease.sent_at
        self._take_place(executor.held.run.profile)
        self._launch(executor)
        return None

    def _remember(self, run: Run) -> None:
        """Whoever started a short run and then watches it comes when it has ended."""
        if not run.is_open:
            self._lately[run.run_id] = run
            if len(self._lately) > MAX_LATELY:
                self._lately.popitem(last=False)

    def _launch(self, executor: Executor) -> None:
        self._active[executor.held.run_id] = executor
        if self._handing_over:
            executor.held.halt(Halt.HANDOVER)  # I33: it was taken while the others were already given away
        self._engine.tasks.spawn("execute", self._live(executor))

    async def _live(self, executor: Executor) -> None:
        held, run_id = executor.held, executor.held.run_id
        renewal = self._renewals.hold(run_id, held.lease, executor.renew, lambda: held.halt(Halt.LOST))
        try:
            await executor.live()
        except Fenced as fenced:
            _log.info("run_fenced", run_id=run_id, why=str(fenced))
        except HandedOver:
            _log.info("run_handed_over", run_id=run_id)
            self._engine.bus.announce(run_id)
        except (StoreError, HarnessError, BrokenLog) as error:
            # Its lease runs out, and whoever sweeps brings it to its end.
            _log.warning("run_left_to_the_sweep", run_id=run_id, error=type(error).__name__)
        finally:
            self._renewals.let_go(renewal)
            if self._active.get(run_id) is executor:
                del self._active[run_id]
                self._remember(held.run)
            self.give_place(held.run.profile)
            released = executor.released
            if released is not None and released.HasField("active"):
                self.offer(released.active.run_id)
