"""One run's life in the hands of one executor: issue, follow, end (run protocol, Issue and follow; End)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from adapters.sdk.lifecycle import ProtocolViolation
from harness.common.v1 import error_pb2, runtime_ref_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.run.v1 import run_service_pb2
from harness.runtime.v1 import runtime_pb2, runtime_service_pb2
from services.common.errors import HarnessError, Reason
from services.common.logs import get_logger, log_incident
from services.common.store import StoreError
from services.runs import ending, intent, placing
from services.runs.appending import MAX_PENDING_BYTES, Fenced, RunAppender
from services.runs.clients.runtime import Batches, code_of
from services.runs.clients.sessions import Binding, timestamp
from services.runs.committing import Committed, commit_head
from services.runs.engine import Engine, fence_of
from services.runs.intent import CancelReason, Failure, Intent
from services.runs.lease import HeldLease
from services.runs.patience import patiently
from services.runs.plan import Plan
from services.runs.prompt import PromptTooLarge, compile_prompt
from services.runs.run import Issued, Run, Status, ended
from services.runs.segmenting import Packer, Stop, Tail
from services.runs.store import Decide

FIRST_EVENT_SECONDS: Final = 0.004
"""How long `run.started` waits for the runtime's first event, to stand in one segment with it."""
RUNTIME_CALL_SECONDS: Final = 5.0
ACK_EVENTS: Final = 2_048
"""Drafts that may be durable and not yet acknowledged; an eighth of what a runtime holds."""
ACK_BYTES: Final = 2 << 20
REATTACH_PAUSE_SECONDS: Final = 0.1
_log = get_logger(__name__)


class Halt(Enum):
    """Why an executor stops following its run before the runtime has ended it."""

    INTENT = "intent"
    DEADLINE = "deadline"
    LOST = "lost"
    HANDOVER = "handover"
    APPEND_FAILED = "append_failed"


class HandedOver(Exception):
    """The run goes on elsewhere: nothing of it is this process's any more (I33)."""


@dataclass(frozen=True, slots=True)
class RuntimeEnd:
    """The runtime said how the run ended."""

    draft: event_pb2.EventDraft


@dataclass(frozen=True, slots=True)
class EngineEnd:
    """The engine says how the run ends."""

    intent: Intent


End = RuntimeEnd | EngineEnd | Committed


class Executor:
    """Holds one run under one generation. `live` is called once and brings the run to its end, unless the run is lost to another executor.

    `tail` is where the log ends; `binding` the binding as this generation claimed it, None for a run that ends without its slot.
    """

    def __init__(
        self, engine: Engine, run: Run, turn_input: run_service_pb2.StartRunRequest, binding: Binding | None, tail: Tail
    ) -> None:
        self._engine = engine
        self._run = run
        self._input = turn_input
        self._binding = binding
        self._found = tail
        self.lease = HeldLease(engine.settings.lease_ttl_seconds, engine.clock.monotonic())
        self._halt: asyncio.Future[Halt] = asyncio.get_running_loop().create_future()
        self._packer = Packer(run.run_id, tail)
        self._appender = RunAppender(
            engine.log,
            engine.publisher,
            self._packer,
            run_id=run.run_id,
            run_generation=run.run_generation,
            durable=tail,
            on_failure=lambda: self.halt(Halt.APPEND_FAILED),
        )
        self._plan: Plan | None = None
        self._placed: asyncio.Task[tuple[Issued, Plan]] | None = None
        self._recorded: asyncio.Task[None] | None = None
        self._start_left = run.run_generation > 1 and run.issued is not None
        self._acknowledged = tail.through_offset
        self._acknowledged_bytes = 0
        self._acknowledging: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.released: Binding | None = None
        """The binding after this run gave its slot back: its active turn, if any, is next."""

    @property
    def run_id(self) -> str:
        """The run."""
        return self._run.run_id

    @property
    def run(self) -> Run:
        """The run as this executor last wrote it."""
        return self._run

    def halt(self, reason: Halt) -> None:
        """Stop following the run. The first reason counts."""
        if not self._halt.done():
            self._halt.set_result(reason)

    def place_early(self, plan: Plan) -> None:
        """Make the runtime while the run is being stored."""
        assert self._binding is not None, "only a run that has its slot is placed"  # noqa: S101 - tells the type checker
        self._plan = plan
        self._placed = asyncio.create_task(placing.place(self._engine, self._run, self._binding, plan))

    def stored(self, run: Run) -> None:
        """The run is stored as this executor holds it."""
        self._run = run

    async def abandon(self) -> None:
        """The run was not stored, so it is not executed."""
        if self._placed is not None:
            self._placed.cancel()
            await asyncio.wait({self._placed})

    async def live(self) -> None:
        """Execute the run to its end. Raises `Fenced` or `HandedOver` when it is another executor's now, store errors when it has to be found again."""
        try:
            if self._found.terminal_status:
                await self._settle(Status(self._found.terminal_status), self._found.error_code)
            else:
                await self._conclude(await self._end_of_work())
        finally:
            await self._let_go()

    async def renew(self) -> None:
        """Renew the lease, and learn what others wrote on the run meanwhile (run protocol, Issue and follow 5)."""
        sent_at = self._engine.clock.monotonic()
        try:
            await self._change(
                lambda run: replace(
                    run,
                    renewals=run.renewals + 1,
                    last_sequence=self._appender.durable_sequence,
                    updated_at=self._engine.now(),
                )
            )
        except Fenced:
            self.halt(Halt.LOST)
            return
        self.lease.sent_at = sent_at
        if self._run.intent is not None:
            self.halt(Halt.INTENT)
        self._acknowledge_if_due(at_least=1)

    # The way to the end.

    async def _end_of_work(self) -> End:
        """How the run ends: what was decided before, or what comes first of the runtime's end and a reason to stop."""
        if self._run.intent is not None:  # Take 4: an intent on the record is carried out, nothing is issued
            return EngineEnd(self._run.intent)
        binding = self._binding
        if binding is not None and binding.HasField("head") and binding.head.run_id == self.run_id:
            return Committed(binding.head.outcome, binding.head.revision)  # Take 4: the head names this run
        if binding is None:
            return self._failed(ending.NO_SLOT)
        work = asyncio.create_task(self._work())
        try:
            await asyncio.wait({work, self._halt}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
        if not work.cancelled() and not (self._halt.done() and self._halt.result() is Halt.LOST):
            return self._outcome(work)
        return await self._halted(self._halt.result())

    def _outcome(self, work: asyncio.Task[End]) -> End:
        error = work.exception()
        if error is None:
            return work.result()
        if isinstance(error, ProtocolViolation):  # rule 7: told by its safe summary only
            _log.warning("protocol_violation", run_id=self.run_id, rule=error.rule, code=error.code)
            return self._failed(
                Failure("protocol_violation", "protocol", f"The harness broke the event contract: {error.summary}.")
            )
        if isinstance(error, PromptTooLarge):
            return self._failed(Failure("prompt_too_large", "configuration", f"The run could not start: {error}."))
        if isinstance(error, HarnessError):
            if error.reason is Reason.STALE_LEASE:
                raise Fenced(f"{self.run_id}: a younger executor, turn or epoch was met") from error
            return self._failed(_failure_of(error))
        if isinstance(error, Fenced | HandedOver | StoreError):
            raise error
        incident = log_incident(_log, "execution_failed", error, run_id=self.run_id)
        return self._failed(
            Failure("internal", "internal", f"Internal error. Give the operator this incident id: {incident}")
        )

    async def _halted(self, reason: Halt) -> End:
        match reason:
            case Halt.LOST:
                raise Fenced(f"{self.run_id}: the lease was lost")
            case Halt.HANDOVER:
                await self._hand_over()
                raise HandedOver(self.run_id)
            case Halt.APPEND_FAILED:
                await self._appender.drain()  # raises what happened
                raise Fenced(f"{self.run_id}: the log refused an append")
            case Halt.DEADLINE:
                return EngineEnd(intent.cancelled(CancelReason.DEADLINE, self._engine.now()))
            case Halt.INTENT:
                # The record says what was decided: the compare-and-set that carries this out finds it there.
                return EngineEnd(intent.cancelled(CancelReason.CLIENT_REQUEST, self._engine.now()))

    def _failed(self, failure: Failure) -> EngineEnd:
        return EngineEnd(intent.failed(failure, self._engine.now()))

    # Issue.

    async def _work(self) -> End:
        if self._run.issued is not None and self._run.run_generation > 1:
            return await self._follow(self._attach(self._run.issued))
        issued, plan = await self._resolve()
        await self._issue(issued, plan)
        self._recorded = asyncio.create_task(self._record_runtime(issued))
        self._begin_log(plan)
        return await self._follow(self._start(issued, plan))

    async def _resolve(self) -> tuple[Issued, Plan]:
        if self._placed is not None:
            return await self._placed
        if self._binding is None:
            raise Fenced(f"{self.run_id} has no slot")
        plan = await self._planned()
        return await placing.place(self._engine, self._run, self._binding, plan)

    async def _planned(self) -> Plan:
        if self._plan is None:
            version = await self._engine.catalog.version(self._run.agent_id or "", self._run.agent_version)
            profile = await self._engine.catalog.profile(self._run.harness_id, self._run.profile_id)
            self._plan = Plan(version, profile)
        return self._plan

    async def _issue(self, issued: Issued, plan: Plan) -> None:
        """The runtime is on the record before the first StartRun leaves, and StartRun goes there only (I11)."""
        self._plan = plan
        if self._run.issued != issued:
            deadline = self._engine.now() + plan.run_seconds * 1000
            await self._change(
                lambda run: replace(
                    run, issued=issued, deadline_at=run.deadline_at or deadline, updated_at=self._engine.now()
                )
            )
            if self._run.intent is not None:
                self.halt(Halt.INTENT)
                await asyncio.sleep(0)
        self._watch_deadline()

    def _watch_deadline(self) -> None:
        if self._run.deadline_at is not None:
            seconds = max(0.0, self._run.deadline_at / 1000 - self._engine.clock.wall())
            self._deadline = asyncio.get_running_loop().call_later(seconds, self.halt, Halt.DEADLINE)

    def _begin_log(self, plan: Plan) -> None:
        self._begin_with(plan.profile.descriptor.adapter_version)
        # Alone if the runtime stays silent; else it stands in the first segment with what came first.
        asyncio.get_running_loop().call_later(FIRST_EVENT_SECONDS, self._appender.kick)

    def _begin_with(self, adapter_version: str) -> None:
        if self._packer.last_sequence == 0:
            run = self._run
            started = payload_pb2.RunStarted(
                harness_id=run.harness_id,
                agent_version=run.agent_version,
                binding_id=run.binding_id,
                adapter_version=adapter_version,
            )
            self._packer.start(started, self._engine.stamp())

    async def _record_runtime(self, issued: Issued) -> None:
        binding = self._binding
        if binding is None or (
            binding.HasField("runtime_ref") and binding.runtime_ref.incarnation == issued.incarnation
        ):
            return
        ref = runtime_ref_pb2.RuntimeRef(address=issued.address, incarnation=issued.incarnation)
        try:
            await self._engine.sessions.record_runtime(fence_of(self._run, issued.runtime_generation), ref)
        except HarnessError as error:
            # Not recorded, the next run simply gets the next generation and the host drops this runtime.
            _log.info("runtime_not_recorded", run_id=self.run_id, reason=error.reason.value)

    def _start(self, issued: Issued, plan: Plan) -> Batches:
        self._appender.runtime = issued.incarnation
        request = runtime_service_pb2.StartRunRequest(
            fence=fence_of(self._run, issued.runtime_generation),
            incarnation=issued.incarnation,
            turn=self._turn(issued, plan),
        )
        self._start_left = True
        return self._engine.runtimes.start(issued.address, request)

    def _turn(self, issued: Issued, plan: Plan) -> runtime_pb2.TurnInput:
        asked, run, prompt = self._input, self._run, plan.version.blueprint.prompt
        turn = runtime_pb2.TurnInput(
            system_prompt=compile_prompt(prompt.system, prompt.variables, asked.context),
            message=asked.message,
            files=[runtime_pb2.FileRef(file_id=file_id) for file_id in asked.files],
            user_id=run.owner or "",
            conversation_id=self._engine.identity.conversation_key(
                run.owner or "", run.agent_id or "", run.conversation_id or ""
            ),
            deadline=timestamp((run.deadline_at or 0) / 1000),
            tokens=[self._engine.state_token(run, issued.runtime_generation)],
        )
        if asked.HasField("client_context"):
            turn.client_context.CopyFrom(asked.client_context)
        if self._binding is not None:
            turn.thread_revision = self._binding.head.revision
            turn.native_session_id = self._binding.native_session_id
        return turn

    def _attach(self, issued: Issued) -> Batches:
        self._watch_deadline()
        self._appender.runtime = issued.incarnation
        request = runtime_service_pb2.AttachRunRequest(
            fence=fence_of(self._run, issued.runtime_generation),
            incarnation=issued.incarnation,
            after_offset=self._appender.durable_offset,
        )
        return self._engine.runtimes.attach(issued.address, request)

    # Follow.

    async def _follow(self, batches: Batches) -> End:
        give_up_at: float | None = None
        while True:
            offset = self._packer.offset
            try:
                return await self._consume(batches)
            except HarnessError as error:
                now = self._engine.clock.monotonic()
                if give_up_at is None or self._packer.offset > offset:
                    give_up_at = now + self._engine.settings.reattach_seconds
                again = await self._after_break(error, may_retry=now < give_up_at)
                if isinstance(again, EngineEnd):
                    return again
                batches = again

    async def _after_break(self, error: HarnessError, *, may_retry: bool) -> Batches | EngineEnd:
        """The stream broke: losing it does not end the run, losing its process does (I9, I11)."""
        issued, code = self._run.issued, code_of(error)
        if issued is None or code in ("incarnation_mismatch", "runtime_unknown"):
            return self._failed(ending.RUNTIME_GONE)
        if code == "run_unknown":
            if self._packer.offset:
                return self._failed(ending.RUNTIME_GONE)
            # Issued to a process that is there and never heard of the run: it is started there.
            plan = await self._planned()
            self._begin_log(plan)
            return self._start(issued, plan)
        if error.reason not in (Reason.UNAVAILABLE, Reason.CANCELLED, Reason.INTERNAL) or not self._start_left:
            raise error
        if not may_retry:
            return self._failed(ending.RUNTIME_GONE)
        await self._appender.drain()
        await asyncio.sleep(REATTACH_PAUSE_SECONDS)
        return self._attach(issued)

    async def _consume(self, batches: Batches) -> End:
        async with aclosing(batches):
            async for batch in batches:
                end = await self._take_batch(batch)
                if end is not None:
                    return end
        return self._failed(ending.NO_TERMINAL)  # rule 6

    async def _take_batch(self, batch: event_pb2.EventBatch) -> End | None:
        # I22: a field this version does not know is content that nobody checked.
        batch.DiscardUnknownFields()
        packer = self._packer
        while (stop := packer.pack(batch, self._engine.stamp())) is not None:
            draft = packer.draft_after_offset(batch)
            if stop is Stop.TERMINAL:
                packer.check_terminal(draft)
                return RuntimeEnd(draft)
            if stop is Stop.INTERRUPT:
                return self._failed(ending.INTERRUPTS_UNSUPPORTED)
            await self._record_session(draft)
        self._appender.kick()
        self._acknowledge_if_due()
        if packer.pending_bytes > MAX_PENDING_BYTES:
            await self._appender.room()
        return None

    async def _record_session(self, draft: event_pb2.EventDraft) -> None:
        """The native id goes onto the binding under the fence, the event keeps a number only (events, session.updated)."""
        issued = self._run.issued
        generation = issued.runtime_generation if issued is not None else 0
        revision = await self._engine.sessions.record_native_session(
            fence_of(self._run, generation), draft.native_session_id
        )
        self._packer.session_updated(revision, self._engine.stamp())

    def _acknowledge_if_due(self, *, at_least: int = ACK_EVENTS) -> None:
        """Tell the runtime what is durable (run protocol, Issue and follow 4): seldom, and one call at a time."""
        due = self._appender.durable_offset - self._acknowledged
        due_bytes = self._appender.durable_bytes - self._acknowledged_bytes
        if (due >= at_least or due_bytes >= ACK_BYTES) and self._acknowledging is None and self._run.issued is not None:
            self._acknowledging = asyncio.create_task(self._acknowledge(self._run.issued))

    async def _acknowledge(self, issued: Issued) -> None:
        offset, size = self._appender.durable_offset, self._appender.durable_bytes
        fence = fence_of(self._run, issued.runtime_generation)
        try:
            await self._engine.runtimes.acknowledge(issued.address, fence, offset, RUNTIME_CALL_SECONDS)
        except HarnessError as error:
            _log.info("not_acknowledged", run_id=self.run_id, reason=error.reason.value)
        else:
            self._acknowledged, self._acknowledged_bytes = offset, size
        finally:
            self._acknowledging = None

    # End.

    async def _conclude(self, end: End) -> None:
        match end:
            case Committed():
                await self._complete(end)
            case RuntimeEnd(draft):
                await self._conclude_runtime_end(draft)
            case EngineEnd():
                await self._carry_out(end.intent)

    async def _conclude_runtime_end(self, draft: event_pb2.EventDraft) -> None:
        plan = await self._planned()
        await self._appender.drain()  # End: earlier events are durable before the head names the run
        if plan.has_tools:  # no tool call passes any more
            await self._change(lambda run: replace(run, closed=True) if run.intent is None else None)
            if self._run.intent is not None:
                await self._carry_out(self._run.intent)
                return
        if draft.payload.WhichOneof("kind") != "run_completed":
            self._tell_operators(draft)
            await self._write_terminal(ending.with_known_effects(draft, known=self._packer.effects_known))
            return
        issued = self._run.issued
        if issued is None:
            raise Fenced(f"{self.run_id} has an end and was never issued")
        outcome = await commit_head(self._engine, self._run, issued, plan, draft)
        if isinstance(outcome, Committed):
            await self._complete(outcome)
        else:
            await self._carry_out(outcome)

    def _tell_operators(self, draft: event_pb2.EventDraft) -> None:
        failed = draft.payload.run_failed
        if failed.code:
            _log.warning(
                "harness_failed",
                run_id=self.run_id,
                code=failed.code,
                provider_code=failed.provider_code,
                diagnostic=failed.diagnostic,
            )

    async def _complete(self, committed: Committed) -> None:
        durability = committed.outcome.thread_state.durability
        terminal = ending.completed(committed.outcome, durability, committed.revision)
        self._begin_with("")
        await self._write_terminal(terminal)

    async def _carry_out(self, wanted: Intent) -> None:
        """End the run by the engine's decision: intent first, then the runtime, then the terminal."""
        await self._change(lambda run: replace(run, intent=wanted) if run.intent is None else None)
        decided = self._run.intent or wanted
        reported = await self._stop_runtime(decided)
        effects = ending.side_effects(issued=self._start_left, known=self._packer.effects_known, reported=reported)
        self._begin_with("")
        await self._write_terminal(ending.terminal_of_intent(decided, effects))

    async def _stop_runtime(self, decided: Intent) -> ending.SideEffects:
        """Tell the runtime, bounded in time; what it still does after that reaches nothing (I12)."""
        issued = self._run.issued
        if issued is None or not self._start_left:
            return error_pb2.SIDE_EFFECT_STATUS_UNSPECIFIED
        reason = ending.cancel_reason(decided.cancel or CancelReason.SHUTDOWN)
        fence = fence_of(self._run, issued.runtime_generation)
        try:
            seconds = self._engine.settings.cancel_grace_seconds
            return await self._engine.runtimes.cancel(issued.address, fence, reason, seconds)
        except HarnessError as error:
            _log.info("runtime_not_cancelled", run_id=self.run_id, reason=error.reason.value)
            return error_pb2.SIDE_EFFECT_STATUS_UNSPECIFIED

    async def _write_terminal(self, terminal: event_pb2.EventDraft) -> None:
        status = ending.status_of(terminal)
        self._packer.end(terminal, status.value, self._engine.stamp())
        await self._appender.drain()
        await self._settle(status, terminal.payload.run_failed.code)

    async def _settle(self, status: Status, error_code: str) -> None:
        """After the terminal: the slot, then the status. Anybody may repeat it (run protocol, End)."""
        if self._recorded is not None:
            await asyncio.wait({self._recorded})
        sessions, run, seconds = self._engine.sessions, self._run, self._engine.settings.commit_seconds
        if self._binding is None:
            await patiently(self._engine.clock, seconds, lambda: sessions.withdraw(run.binding_id, run.run_id))
        # Release gives back only what is still ours: it may have moved up meanwhile, or been released before.
        response = await patiently(
            self._engine.clock, seconds, lambda: sessions.release(run.binding_id, run.run_id, stored=True)
        )
        self.released = response.binding
        now, retention = self._engine.now(), self._engine.settings.retention_seconds * 1000
        sequence = self._packer.last_sequence
        self._run, _ = await self._engine.store.change(
            run,
            lambda current: (
                ended(current, status, last_sequence=sequence, error_code=error_code, now=now, retention_ms=retention)
                if current.is_open
                else None
            ),
        )

    async def _change(self, decide: Decide) -> None:
        """A compare-and-set of the holder: only under its own generation, only while the run is running."""

        def ours(run: Run) -> Run | None:
            if run.run_generation != self._run.run_generation or run.status is not Status.RUNNING:
                raise Fenced(f"{run.run_id}: generation {run.run_generation} holds the run")  # I10
            return decide(run)

        changed, _ = await self._engine.store.change(self._run, ours)
        # A renewal and a step of the run may overlap; what is newer stays.
        if changed.rev > self._run.rev:
            self._run = changed

    async def _hand_over(self) -> None:
        """Let the next executor take the run at once: what is packed is durable, nobody holds the lease (I33)."""
        await self._appender.drain()
        await self._change(lambda run: replace(run, holder="", updated_at=self._engine.now()))

    async def _let_go(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        await self._appender.stop()
        for task in (self._placed, self._recorded, self._acknowledging):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait({task})


def _failure_of(error: HarnessError) -> Failure:
    """A failed call as the run's failure. Its text stays here: it may be a harness's own (I22)."""
    code = error.reason.value.lower()
    _log.warning("run_cannot_go_on", reason=code_of(error))
    seconds = None if error.retry_after is None else min(86_400, max(1, round(error.retry_after)))
    message = f"The run could not be executed: {error.category.value}."
    return Failure(code, error.category.value, message, retryable=error.retryable, retry_after_seconds=seconds)
