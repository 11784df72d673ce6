"""From a claim to an executor: the slot, then the log (run protocol, Take 2 and 3; I10)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from services.common.errors import HarnessError, Reason
from services.runs.appending import Fenced
from services.runs.clients.sessions import Binding
from services.runs.engine import Engine
from services.runs.executor import Executor
from services.runs.held import HeldRun
from services.runs.lease import HeldLease
from services.runs.patience import patiently
from services.runs.resume import stored_turn
from services.runs.run import Run, Status
from services.runs.sealing import seal
from services.runs.segmenting import Tail


class Taking:
    """A run that was claimed and is not executed yet. Its lease is renewed meanwhile, for sessions or the log may take longer than it lasts."""

    def __init__(self, engine: Engine, run: Run, sent_at: float) -> None:
        self._engine = engine
        self.run = run
        self.lease = HeldLease(engine.settings.lease_ttl_seconds, sent_at)
        self._lost = asyncio.Event()

    async def executor(self, binding: Binding | None) -> Executor:
        """The run's executor. `binding` is known where this is its first one. Errors: `Fenced` when the run or the lease was lost meanwhile;
        store errors; `HarnessError`.
        """
        work = asyncio.create_task(self._prepare(binding))
        lost = asyncio.create_task(self._lost.wait())
        try:
            await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise self._fenced()
            executor = work.result()
            if (
                self._lost.is_set()
            ):  # I10: both happened at once; nothing is sent under a generation that is known to be old
                raise self._fenced()
            return executor
        finally:
            for task in (work, lost):
                task.cancel()
            await asyncio.wait({work, lost})

    async def renew(self) -> None:
        """Renew the lease. Errors: store errors."""
        sent_at = self._engine.clock.monotonic()
        self.run, renewed = await self._engine.store.change(self.run, self._renewed)
        if renewed:
            self.lease.sent_at = sent_at
        else:
            self.lose()

    def lose(self) -> None:
        """Others may take the run."""
        self._lost.set()

    def _fenced(self) -> Fenced:
        return Fenced(f"{self.run.run_id}: the lease was lost while the run was being taken")

    def _renewed(self, run: Run) -> Run | None:
        if run.run_generation != self.run.run_generation or run.status is not Status.RUNNING:
            return None  # I10
        return replace(run, renewals=run.renewals + 1, updated_at=self._engine.now())

    async def _prepare(self, binding: Binding | None) -> Executor:
        engine, run_id, generation, tail = self._engine, self.run.run_id, self.run.run_generation, Tail()
        stored = await engine.store.get_input(run_id)
        turn_input, decision = stored_turn(self.run, stored)
        if generation > 1:
            binding = await self._claimed_slot()
            tail = await seal(engine.log, run_id, generation)
        return Executor(HeldRun(engine, self.run, turn_input, binding, tail, decision))

    async def _claimed_slot(self) -> Binding | None:
        """The binding, its slot claimed for this generation: from here the old holder commits nothing (I10). None if the slot is not the run's."""
        engine, run = self._engine, self.run
        try:
            return await patiently(
                engine.clock,
                engine.settings.commit_seconds,
                lambda: engine.sessions.claim(run.binding_id, run.run_id, run.run_generation),
            )
        except HarnessError as error:
            if error.reason is not Reason.STALE_LEASE:
                raise
        binding = await slot_of(engine, run)
        if binding is not None and binding.active.run_generation > run.run_generation:
            raise Fenced(f"{run.run_id}: generation {binding.active.run_generation} claimed the slot")
        return binding


async def slot_of(engine: Engine, run: Run) -> Binding | None:
    """The binding if the slot is the run's."""
    binding, archived = await patiently(
        engine.clock, engine.settings.commit_seconds, lambda: engine.sessions.get(run.binding_id)
    )
    mine = not archived and binding.HasField("active") and binding.active.run_id == run.run_id
    return binding if mine else None
