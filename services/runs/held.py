"""A run in the hands of one executor: what it knows, may change and has to let go of (run protocol, Take; I10)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from enum import Enum

from harness.event.v1 import event_pb2, payload_pb2
from harness.run.v1 import run_service_pb2
from harness.runtime.v1 import runtime_pb2
from services.common.errors import HarnessError
from services.runs import intent
from services.runs.appending import Fenced, RunAppender
from services.runs.clients.sessions import Binding
from services.runs.committing import Committed
from services.runs.engine import Engine
from services.runs.host import Host
from services.runs.intent import Failure, Intent
from services.runs.lease import HeldLease
from services.runs.plan import Plan
from services.runs.run import Issued, Run, Status
from services.runs.segmenting import Packer, Tail
from services.runs.store import Decide


class Halt(Enum):
    """Why an executor stops following its run before the runtime has ended it."""

    INTENT = "intent"
    DEADLINE = "deadline"
    LOST = "lost"
    HANDOVER = "handover"
    APPEND_FAILED = "append_failed"


@dataclass(frozen=True, slots=True)
class RuntimeEnd:
    """The runtime said how the run ended."""

    draft: event_pb2.EventDraft


@dataclass(frozen=True, slots=True)
class EngineEnd:
    """The engine says how the run ends."""

    intent: Intent


End = RuntimeEnd | EngineEnd | Committed


class HeldRun:
    """One run under one generation.

    `tail` is where the log ended when the run was taken; `binding` the binding as this generation claimed it, None for a run that ends without
    its slot. `decision` is what the run goes on with where it answers an interrupt.
    """

    def __init__(
        self,
        engine: Engine,
        run: Run,
        turn_input: run_service_pb2.StartRunRequest,
        binding: Binding | None,
        tail: Tail,
        decision: runtime_pb2.ResumeDecision | None = None,
    ) -> None:
        self.engine = engine
        self.run = run
        self.input = turn_input
        self.decision = decision
        self.binding = binding
        self.found = tail
        self.lease = HeldLease(engine.settings.lease_ttl_seconds, engine.clock.monotonic())
        self.halted: asyncio.Future[Halt] = asyncio.get_running_loop().create_future()
        self.packer = Packer(run.run_id, tail)
        self.appender = RunAppender(
            engine.log,
            engine.publisher,
            self.packer,
            run_id=run.run_id,
            run_generation=run.run_generation,
            durable=tail,
            on_failure=lambda: self.halt(Halt.APPEND_FAILED),
        )
        self.may_have_started = run.run_generation > 1 and run.issued is not None
        """Whether a StartRun of this run may have left: until then, nothing can have happened outside."""
        self._plan: Plan | None = None

    @property
    def run_id(self) -> str:
        """The run."""
        return self.run.run_id

    def halt(self, reason: Halt) -> None:
        """Stop following the run. The first reason counts, but for a lost lease, which ends every later step too: nothing more is appended."""
        if reason is Halt.LOST:
            self.appender.give_up()  # I10: also where the run is being ended already and nobody looks at `halted` any more
        if not self.halted.done():
            self.halted.set_result(reason)

    def failed(self, failure: Failure) -> EngineEnd:
        """The engine's decision that the run failed, now."""
        return EngineEnd(intent.failed(failure, self.engine.now()))

    async def plan(self) -> Plan:
        """What the run is executed with."""
        if self._plan is None:
            version = await self.engine.catalog.version(self.run.agent_id or "", self.run.agent_version)
            profile = await self.engine.catalog.profile(self.run.harness_id, self.run.profile_id)
            self._plan = Plan(version, profile)
        return self._plan

    async def host(self, issued: Issued) -> Host:
        """How the run's runtime is called; without a credential while nobody can say which."""
        try:
            return (await self.plan()).host(issued.address)
        except HarnessError:
            return Host(issued.address)

    def planned(self, plan: Plan) -> None:
        """The plan is known already, or known better."""
        self._plan = plan

    async def change(self, decide: Decide) -> None:
        """A compare-and-set of the holder: only under its own generation, only while the run is running. Errors: `Fenced`."""

        def ours(run: Run) -> Run | None:
            if run.run_generation != self.run.run_generation or run.status is not Status.RUNNING:
                raise Fenced(f"{run.run_id}: generation {run.run_generation} holds the run")  # I10
            return decide(run)

        changed, _ = await self.engine.store.change(self.run, ours)
        # A renewal and a step of the run may overlap; what is newer stays.
        if changed.rev > self.run.rev:
            self.run = changed

    async def renew(self) -> None:
        """Renew the lease, and learn what others wrote on the run meanwhile (run protocol, Issue and follow 5)."""
        sent_at = self.engine.clock.monotonic()
        try:
            await self.change(self._renewed)
        except Fenced:
            self.halt(Halt.LOST)
            return
        self.lease.sent_at = sent_at
        if self.run.intent is not None:
            self.halt(Halt.INTENT)

    async def hand_over(self) -> None:
        """Let the next executor take the run at once: what is packed is durable, nobody holds the lease (I33)."""
        await self.appender.drain()
        await self.change(lambda run: replace(run, holder="", updated_at=self.engine.now()))

    def begin_log(self, adapter_version: str) -> None:
        """`run.started`, unless the log has begun."""
        if self.packer.last_sequence == 0:
            started = payload_pb2.RunStarted(
                harness_id=self.run.harness_id,
                agent_version=self.run.agent_version,
                binding_id=self.run.binding_id,
                adapter_version=adapter_version,
                resumed_from=self.run.resumed_from,
            )
            self.packer.start(started, self.engine.stamp())

    def _renewed(self, run: Run) -> Run:
        return replace(
            run,
            renewals=run.renewals + 1,
            last_sequence=self.appender.durable_sequence,
            updated_at=self.engine.now(),
        )
