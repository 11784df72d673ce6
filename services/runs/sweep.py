"""Finding what nobody cares for: every replica looks, jittered, and repeats what may be repeated (run protocol, Sweep; I9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Final

from harness.session.v1 import binding_pb2
from services.common.errors import HarnessError
from services.common.logs import get_logger, log_incident
from services.common.store import StoreError
from services.runs import ending
from services.runs.cancelling import Canceller
from services.runs.clearing import Clearer
from services.runs.clients.sessions import Binding, SessionsClient
from services.runs.dispatch import Dispatcher
from services.runs.engine import Engine
from services.runs.intent import Intent, failed
from services.runs.lease import LeaseWatch
from services.runs.run import Run, Status
from services.runs.start import Occupant, newest_interrupting
from services.runs.starting import Starter

PAGE: Final = 500
MAX_PAGES: Final = 40
"""Pages of one look; what lies beyond is seen by later ones, as what is seen first gets done (I35)."""
QUEUED_MS: Final = 500
"""How long a queued run is left to whoever stored it."""
AT_ONCE: Final = 32
"""Runs that are taken over, or ended in the line, at the same time: as when a replica with hundreds of them died (I9)."""
_log = get_logger(__name__)


class Slots:
    """Who holds the slots that waiting runs wait for, asked once for each binding; kept for one look, so it is never older than that."""

    def __init__(self, sessions: SessionsClient) -> None:
        self._sessions = sessions
        self._holders: dict[str, str] = {}

    async def holder(self, binding_id: str) -> str:
        """The run that held the binding's slot when it was asked for first; empty: none, or the epoch is over. Errors: `HarnessError`."""
        known = self._holders.get(binding_id)
        if known is None:
            binding, archived = await self._sessions.get(binding_id)
            known = self._holders[binding_id] = "" if archived else binding.active.run_id
        return known


class Sweep:
    """One replica's sweep: looks that are repeated each at its own pace. A failure with one run or binding leaves the others unharmed."""

    def __init__(
        self, engine: Engine, dispatcher: Dispatcher, canceller: Canceller, clearer: Clearer, starter: Starter
    ) -> None:
        self._engine = engine
        self._dispatcher = dispatcher
        self._canceller = canceller
        self._clearer = clearer
        self._starter = starter
        self._watch = LeaseWatch(engine.settings.lease_ttl_seconds)

    async def take_over(self) -> None:
        """Runs with a dead lease. Apart from all else, so that nothing keeps this look waiting (I9)."""
        if self._dispatcher.stopping:
            return
        await self._take_over()

    async def pick_up(self) -> None:
        """Queued runs without a taker, and those that have to end where they wait."""
        if self._dispatcher.stopping:
            return
        await self._pick_up()

    async def settle_bindings(self) -> None:
        """Slots held or awaited by runs that ended or never were, clears not finished, supersedes not carried out."""
        if self._dispatcher.stopping:
            return
        before = self._engine.clock.wall() - self._engine.settings.reservation_grace_seconds
        token = ""
        for _ in range(MAX_PAGES):
            bindings, token = await self._engine.sessions.unsettled(before, token)
            for binding in bindings:
                await self._guarded("settle_binding", binding.binding_id, self._settle(binding))
            if not token:
                return

    async def trim(self) -> None:
        """Delete the events of runs whose retention is over: first the run is marked, then its segments and its input go. What is left of it
        is kept as long again, so that whoever comes with a cursor is told that it expired (run protocol, Retention).
        """
        for _ in range(MAX_PAGES):
            runs = await self._engine.store.expired(self._engine.now(), PAGE)
            for run in runs:
                await self._guarded("trim", run.run_id, self._trim(run))
            if len(runs) < PAGE:
                return

    async def _take_over(self) -> None:
        seen: list[str] = []
        after: str | None = None
        for _ in range(MAX_PAGES):
            runs, after = await self._engine.store.page_of_status(Status.RUNNING, limit=PAGE, after=after)
            now = self._engine.clock.monotonic()
            others = [run for run in runs if not self._dispatcher.holds(run.run_id)]
            seen += [run.run_id for run in others]
            dead = [run for run in others if self._watch.is_dead(run, now)]
            for first in range(0, len(dead), AT_ONCE):
                await asyncio.gather(
                    *(
                        self._guarded("take_over", run.run_id, self._take_over_one(run))
                        for run in dead[first : first + AT_ONCE]
                    )
                )
            if after is None:
                break
        self._watch.keep_only(seen)

    async def _take_over_one(self, run: Run) -> None:
        refused = await self._dispatcher.take_over(run, (run.run_generation, run.renewals))
        if refused is None:  # else another replica was faster, or the holder lives
            _log.info("run_taken_over", run_id=run.run_id, run_generation=run.run_generation + 1)

    async def _pick_up(self) -> None:
        now = self._engine.now()
        slots = Slots(self._engine.sessions)
        # In line for longer than a look leaves out: whatever of them is not seen is queued no more.
        gone = self._dispatcher.waiting_since(self._engine.clock.monotonic() - 2 * QUEUED_MS / 1000)
        after: str | None = None
        for _ in range(MAX_PAGES):
            runs, after = await self._engine.store.page_of_status(
                Status.QUEUED, updated_before=now - QUEUED_MS, limit=PAGE, after=after
            )
            gone.difference_update([run.run_id for run in runs])
            ends: list[tuple[Run, Intent]] = []
            for run in runs:
                if self._dispatcher.holds(run.run_id):
                    continue
                if (wanted := self._end_of(run, now)) is not None:
                    ends.append((run, wanted))
                else:
                    await self._guarded("pick_up", run.run_id, self._pick_up_one(run, slots))
            for first in range(0, len(ends), AT_ONCE):
                await asyncio.gather(
                    *(
                        self._guarded("end_queued", run.run_id, self._canceller.end(run, wanted))
                        for run, wanted in ends[first : first + AT_ONCE]
                    )
                )
            if after is None:
                self._dispatcher.forget(gone)  # I35: a line is as long as the runs that wait
                return

    def _end_of(self, run: Run, now: int) -> Intent | None:
        """How a queued run has to end, None while it may wait."""
        if run.intent is None and now - run.created_at >= self._engine.settings.queue_seconds * 1000:
            return failed(ending.WAITED_TOO_LONG, now)  # I9, I35
        return run.intent

    async def _pick_up_one(self, run: Run, slots: Slots) -> None:
        if run.turn or self._dispatcher.has_in_line(run.run_id) or await slots.holder(run.binding_id) == run.run_id:
            self._dispatcher.found(run)

    async def _settle(self, binding: Binding) -> None:
        if binding.status == binding_pb2.BINDING_STATUS_CLOSING:
            await self._clearer.help(binding)
            return
        states = {waiting.run_id: await self._starter.help_out(binding, waiting.run_id) for waiting in binding.waiting}
        if not binding.HasField("active"):
            return
        states[binding.active.run_id] = await self._starter.help_out(binding, binding.active.run_id)
        if not binding.waiting:
            return
        # Only a run that is there supersedes others: a reservation that nobody stored sends nobody away.
        there = [await self._engine.store.get(run_id) for run_id, state in states.items() if state is Occupant.WORKING]
        newest = newest_interrupting([run for run in there if run is not None])
        if newest is not None and len(there) > 1:
            await self._starter.supersede(binding, newest.run_id)

    async def _trim(self, run: Run) -> None:
        store, was_trimmed = self._engine.store, run.trimmed
        if run.tool_calls and not await self._engine.calls.forget(run.run_id):
            return  # I35: what is left of them is the next sweep's, before anything says that this run is trimmed
        if run.is_stored_run and not was_trimmed:
            run, _ = await store.change(run, lambda current: None if current.trimmed else current.trim())
        while await self._engine.log.delete(run.run_id):
            continue
        if run.is_stored_run and not was_trimmed:
            kept = self._engine.settings.retention_seconds * 1000
            await store.without_input(replace(run, expires_at=self._engine.now() + kept))
        else:
            await store.delete(run.run_id)

    async def _guarded(self, step: str, subject_id: str, work: Awaitable[object]) -> None:
        try:
            await work
        except HarnessError as error:
            _log.warning("sweep_step_postponed", step=step, id=subject_id, reason=error.reason.value)
        except StoreError as error:
            _log.warning("sweep_step_postponed", step=step, id=subject_id, error=type(error).__name__)
        except Exception as error:  # noqa: BLE001 - logged; the other runs and bindings still get their turn
            log_incident(_log, "sweep_step_failed", error, step=step, id=subject_id)
