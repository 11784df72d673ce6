"""Ending runs on somebody's wish: intent first, then a signal, then by force (run protocol, Cancel; I12)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final, Protocol

from services.common.errors import HarnessError, Reason
from services.runs.clients.sessions import Binding
from services.runs.dispatch import Dispatcher
from services.runs.engine import Engine
from services.runs.intent import CancelReason, Intent, cancelled
from services.runs.log import SegmentLog
from services.runs.patience import PAUSES, patiently
from services.runs.run import Run, Status, tombstone
from services.runs.segmenting import Tail
from services.runs.store import Taken

FORCE_SECONDS: Final = 30.0
"""How long a cancel tries to see the terminal before it gives up with a retryable error (I35)."""
RELEASE_SECONDS: Final = 2.0
"""How long a cancel leaves it to the run's executor to give the slot back before it does so itself."""
TOMBSTONE_MS: Final = 86_400_000
"""How long the id of a reservation that was given up stays refused; no starter lives that long."""


class TerminalWaiter(Protocol):
    """Who knows when a run's terminal is in the log."""

    async def wait_terminal(self, run_id: str, timeout: float) -> bool:
        """True once the terminal is durable; False after `timeout` seconds without one."""
        ...


async def tail_of(log: SegmentLog, run_id: str) -> Tail:
    """Where the run's log ends now."""
    header = await log.tail(run_id)
    return Tail() if header is None else Tail.of(header)


async def as_seen(log: SegmentLog, run: Run) -> Run:
    """The run as a client may see it: its status never behind its log, for the terminal alone ends a run (I9)."""
    if not run.is_open:
        return run
    tail = await tail_of(log, run.run_id)
    if not tail.terminal_status:
        return replace(run, last_sequence=tail.last_sequence)
    return replace(
        run, status=Status(tail.terminal_status), error_code=tail.error_code, last_sequence=tail.last_sequence
    )


class Canceller:
    """Ends runs, wherever they are executed."""

    def __init__(self, engine: Engine, dispatcher: Dispatcher, waiter: TerminalWaiter) -> None:
        self._engine = engine
        self._dispatcher = dispatcher
        self._waiter = waiter

    async def cancel(self, run: Run, reason: CancelReason) -> Run:
        """Returns the run once a terminal is in its log and its slot was given back (I12). Idempotent. Errors: `unavailable`, retryable, if it
        takes too long.
        """
        return await self.end(run, cancelled(reason, self._engine.now()))

    async def cancel_active(self, subject: str, agent_id: str, conversation_id: str) -> tuple[bool, str]:
        """Cancel what holds the slot of the caller's conversation; whether there was such a run, and which."""
        try:
            binding = await self._engine.sessions.find(subject, agent_id, conversation_id)
        except HarnessError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            return False, ""
        run = await self._engine.store.get(binding.active.run_id) if binding.HasField("active") else None
        if run is None or not (await as_seen(self._engine.log, run)).is_open:
            return False, ""
        ended = await self.cancel(run, CancelReason.CLIENT_REQUEST)
        return ended.status is Status.CANCELLED, ended.run_id

    async def ask(self, run: Run, intent: Intent) -> Run:
        """Write the intent, unless there is one or the run has ended, and tell its executor. Does not wait."""
        run, _ = await self._engine.store.change(
            run,
            lambda current: (
                replace(current, intent=intent, updated_at=self._engine.now())
                if current.is_open and current.intent is None  # I12: the first decision stands
                else None
            ),
        )
        self._dispatcher.signal(run)
        return run

    async def end(self, run: Run, intent: Intent) -> Run:
        """End the run by this intent, or the one it has already."""
        run = await self.ask(run, intent)
        give_up_at = self._engine.clock.monotonic() + FORCE_SECONDS
        patience = self._engine.settings.cancel_grace_seconds if run.status is Status.RUNNING and run.holder else 0.0
        while run.is_open:
            if await self._ended_within(run, patience):
                break
            if self._engine.clock.monotonic() >= give_up_at:
                raise HarnessError(
                    Reason.UNAVAILABLE, "The run could not be ended yet: it will be; ask again.", retry_after=1.0
                )
            run = await self._again(run)
            # Refused: it ended, or somebody else is ending it; if they died, the sweep takes it once their lease is dead.
            await self._dispatcher.end_by_force(run, intent)
            patience = self._engine.settings.cancel_grace_seconds
            run = await self._again(run)
        if run.is_open:
            await self._slot_given_back(run)
        return await as_seen(self._engine.log, await self._again(run))

    async def _slot_given_back(self, run: Run) -> None:
        """Until the slot is given back, sessions accepts what the run writes: it knows nothing of intents. So no cancel is answered before
        that (I12). Errors: `unavailable`, retryable, while sessions is away.
        """
        clock, attempt = self._engine.clock, 0
        give_up_at = clock.monotonic() + RELEASE_SECONDS
        while clock.monotonic() < give_up_at:
            run = await self._again(run)
            if not run.is_open:  # the status is what an executor writes after it gave the slot back
                return
            await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)] / 4)
            attempt += 1
        # Its executor died or stalls; what follows the terminal may be done by anyone (run protocol, End).
        await patiently(
            clock,
            self._engine.settings.commit_seconds,
            lambda: self.give_back(run.binding_id, run.run_id, run),
        )

    async def end_reservation(self, binding: Binding, run_id: str, reason: CancelReason) -> None:
        """End a run that holds or awaits the binding's slot and give its place back; one that was never stored becomes a tombstone, so that
        a late insert of it fails (run protocol, Clear).
        """
        run = await self._engine.store.get(run_id)
        if run is None:
            run = await self.bury(binding, run_id)
        if run.is_stored_run and run.is_open:
            await self.cancel(run, reason)
        await self.give_back(binding.binding_id, run_id, run)

    async def give_back(self, binding_id: str, run_id: str, run: Run | None, *, waits: bool = True) -> None:
        """Give back the run's slot, if it has it still, and its place in the line unless it is known not to wait; whoever is next is executed.
        `run` is as it ended; a tombstone or None was none. Idempotent.
        """
        if run is not None:
            run = await as_seen(self._engine.log, await self._again(run))
        if waits:
            await self._engine.sessions.withdraw(binding_id, run_id)
        response = await self._engine.sessions.release(
            binding_id,
            run_id,
            stored=run is not None and run.is_stored_run,
            issued=run is not None and run.issued is not None,
            interrupted=run is not None and run.status is Status.INTERRUPTED,
        )
        if response.binding.HasField("active"):
            self._dispatcher.offer(response.binding.active.run_id)

    async def bury(self, binding: Binding, run_id: str) -> Run:
        """Insert a tombstone under a reserved id, so that a late insert fails; or the run, if it was stored after all."""
        now = self._engine.now()
        grave = tombstone(run_id, binding.binding_id, binding.epoch, now, now + TOMBSTONE_MS)
        inserted = await self._engine.store.insert(grave, None)
        if not isinstance(inserted, Taken):
            return inserted
        found = await self._engine.store.get(run_id)
        if found is None:
            raise HarnessError(Reason.UNAVAILABLE, "A run changed while it was looked at: try again.")
        return found

    async def _ended_within(self, run: Run, seconds: float) -> bool:
        if seconds <= 0:
            return bool((await tail_of(self._engine.log, run.run_id)).terminal_status)
        return await self._waiter.wait_terminal(run.run_id, seconds)

    async def _again(self, run: Run) -> Run:
        return await self._engine.store.get(run.run_id) or run
