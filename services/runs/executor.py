"""One run's life in the hands of one executor: issue, follow, end (run protocol, Issue and follow; End)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from adapters.sdk.lifecycle import ProtocolViolation
from harness.common.v1 import error_pb2, runtime_ref_pb2
from harness.event.v1 import event_pb2
from services.common.errors import HarnessError, Reason
from services.common.logs import get_logger, log_incident
from services.common.store import StoreError
from services.runs import ending, intent, placing
from services.runs.appending import Fenced
from services.runs.clients.runtime import code_of
from services.runs.clients.sessions import Binding
from services.runs.committing import Committed, commit_head, committed_by, refused_by_fence
from services.runs.engine import fence_of
from services.runs.following import Following
from services.runs.held import End, EngineEnd, Halt, HeldRun, RuntimeEnd
from services.runs.intent import CancelReason, Failure, Intent
from services.runs.keeping import keep_sandbox
from services.runs.patience import RESTARTING, patiently
from services.runs.plan import Plan
from services.runs.prompt import PromptTooLarge
from services.runs.run import Issued, Run, Status, ended

RECORD_AFTER_SECONDS: Final = 1.0
"""A run that takes longer has its runtime recorded beside its stream; a shorter one in the write that commits its head."""
SETTLE_RECORD_SECONDS: Final = 2.0
"""How long a run that has ended waits for its runtime to be recorded before it gives the slot back."""
_log = get_logger(__name__)


class HandedOver(Exception):
    """The run goes on elsewhere: nothing of it is this process's any more (I33)."""


class Executor:
    """Executes one held run. `live` is called once and brings it to its end, unless it is lost to another executor."""

    def __init__(self, held: HeldRun) -> None:
        self._held = held
        self._engine = held.engine
        self._placed: asyncio.Task[placing.Placed] | None = None
        self._unrecorded: runtime_ref_pb2.RuntimeRef | None = None
        self._record_later: asyncio.TimerHandle | None = None
        self._recorded: asyncio.Task[None] | None = None
        self._kept: asyncio.Task[None] | None = None
        self._following: Following | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.released: Binding | None = None
        """The binding after this run gave its slot back: its active turn, if any, is next."""

    @property
    def held(self) -> HeldRun:
        """The run and all that is known of it."""
        return self._held

    def place_early(self, binding: Binding, plan: Plan) -> None:
        """Make the runtime while the run is being stored."""
        self._held.planned(plan)
        self._placed = asyncio.create_task(placing.place(self._engine, self._held.run, binding, plan))

    async def abandon(self) -> None:
        """The run was not stored, so it is not executed."""
        await _cancelled(self._placed)

    async def live(self) -> None:
        """Execute the run to its end. Raises `Fenced` or `HandedOver` when it is another executor's now, store errors and `HarnessError` when
        it has to be found again.
        """
        found = self._held.found
        try:
            if found.terminal_status:  # Take 4: the terminal alone ends a run, what follows it may be repeated
                await self._settle(Status(found.terminal_status), found.error_code)
            else:
                await self._conclude(await self._end_of_work())
        finally:
            await self._let_go()

    async def renew(self) -> None:
        """Renew the lease; what is durable by now is acknowledged on that occasion."""
        await self._held.renew()
        if self._following is not None:
            self._following.acknowledge_if_due(at_least=1)

    # The way to the end.

    async def _end_of_work(self) -> End:
        """How the run ends: what was decided before, or what comes first of the runtime's end and a reason to stop."""
        held = self._held
        if held.run.intent is not None:  # Take 4: an intent on the record is carried out, nothing is issued
            return EngineEnd(held.run.intent)
        if held.binding is None:
            return held.failed(ending.NO_SLOT)
        if (committed := committed_by(held.binding, held.run_id)) is not None:  # Take 4: the head names this run
            return committed
        work = asyncio.create_task(self._work(held.binding))
        try:
            await asyncio.wait({work, held.halted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancelled(work)
        if work.cancelled() or (held.halted.done() and held.halted.result() is Halt.LOST):
            return await self._halted(held.halted.result())
        return await self._outcome(work)

    async def _outcome(self, work: asyncio.Task[End]) -> End:
        held, error = self._held, work.exception()
        if error is None:
            return work.result()
        if isinstance(error, ProtocolViolation):  # rule 7: told by its safe summary only
            _log.warning("protocol_violation", run_id=held.run_id, rule=error.rule, code=error.code)
            return held.failed(ending.protocol_failure(error.summary))
        if isinstance(error, PromptTooLarge):
            return held.failed(Failure("prompt_too_large", "configuration", f"The run could not start: {error}."))
        if isinstance(error, HarnessError):
            if error.reason is Reason.STALE_LEASE:
                return EngineEnd(await refused_by_fence(self._engine, held.run))
            _log.warning("run_cannot_go_on", run_id=held.run_id, reason=code_of(error))
            return held.failed(ending.failure_of(error))
        if isinstance(error, Fenced | StoreError):
            raise error
        return held.failed(ending.internal(log_incident(_log, "execution_failed", error, run_id=held.run_id)))

    async def _halted(self, reason: Halt) -> End:
        held = self._held
        match reason:
            case Halt.LOST:
                raise Fenced(f"{held.run_id}: the lease was lost")
            case Halt.HANDOVER:
                await held.hand_over()
                raise HandedOver(held.run_id)
            case Halt.APPEND_FAILED:
                await held.appender.drain()  # raises what happened
                raise Fenced(f"{held.run_id}: the log refused an append")
            case Halt.DEADLINE:
                return EngineEnd(intent.cancelled(CancelReason.DEADLINE, self._engine.now()))
            case Halt.INTENT:
                # The record says what was decided: the compare-and-set that carries this out finds it there.
                return EngineEnd(intent.cancelled(CancelReason.CLIENT_REQUEST, self._engine.now()))

    # Issue.

    async def _work(self, binding: Binding) -> End:
        held = self._held
        if held.run.issued is not None and held.run.run_generation > 1:
            issued = held.run.issued
            self._watch_deadline()
            self._keep_sandbox(issued)
            self._following = Following(held, issued, await held.host(issued))
            return await self._following.from_last_durable()
        placed = await self._resolve(binding)
        issued, plan, held.binding = placed.issued, placed.plan, placed.binding
        await self._issue(issued, plan)
        self._watch_runtime(placed.binding, issued)
        if plan.in_sandbox:
            self._keep_sandbox(issued)
        self._following = Following(held, issued, plan.host(issued.address))
        return await self._following.from_start(plan)

    async def _resolve(self, binding: Binding) -> placing.Placed:
        if self._placed is not None:
            return await self._placed
        engine = self._engine
        plan = await patiently(engine.clock, engine.settings.reattach_seconds, self._held.plan, RESTARTING)
        return await placing.place(engine, self._held.run, binding, plan)

    async def _issue(self, issued: Issued, plan: Plan) -> None:
        """The runtime is on the record before the first StartRun leaves, and StartRun goes there only (I11)."""
        held = self._held
        held.planned(plan)
        if held.run.issued != issued:
            now = self._engine.now()
            deadline_at = held.run.deadline_at or now + plan.run_seconds * 1000  # set once, at the first issue

            def decide(run: Run) -> Run | None:
                if run.intent is not None:  # Take 4: an intent on the record, nothing is issued
                    return None
                return replace(run, issued=issued, deadline_at=deadline_at, updated_at=now)

            await held.change(decide)
            if held.run.issued != issued:
                held.halt(Halt.INTENT)
                await asyncio.Event().wait()  # until the halt cancels this work
        self._watch_deadline()

    def _watch_deadline(self) -> None:
        deadline_at = self._held.run.deadline_at
        if deadline_at is not None:
            seconds = max(0.0, deadline_at / 1000 - self._engine.clock.wall())
            self._deadline = asyncio.get_running_loop().call_later(seconds, self._held.halt, Halt.DEADLINE)

    def _keep_sandbox(self, issued: Issued) -> None:
        self._kept = asyncio.create_task(keep_sandbox(self._held, issued))

    def _watch_runtime(self, binding: Binding, issued: Issued) -> None:
        """See to it that the binding names its runtime by the end of the run, without a call of its own where the run is short."""
        if binding.HasField("runtime_ref") and binding.runtime_ref.incarnation == issued.incarnation:
            return
        self._unrecorded = runtime_ref_pb2.RuntimeRef(address=issued.address, incarnation=issued.incarnation)
        self._record_later = asyncio.get_running_loop().call_later(RECORD_AFTER_SECONDS, self._begin_recording)

    def _begin_recording(self) -> None:
        if self._recorded is None:
            self._recorded = asyncio.create_task(self._record_runtime())

    async def _record_runtime(self) -> None:
        run, ref = self._held.run, self._unrecorded
        if run.issued is None or ref is None:
            return
        try:
            await self._engine.sessions.record_runtime(fence_of(run, run.issued.runtime_generation), ref)
            self._unrecorded = None
        except HarnessError as error:
            # Not recorded, the next run simply gets the next generation and the host drops this runtime.
            _log.info("runtime_not_recorded", run_id=self._held.run_id, reason=error.reason.value)

    # End.

    async def _conclude(self, end: End) -> None:
        match end:
            case Committed():
                await self._complete(end)
            case RuntimeEnd(draft):
                await self._conclude_runtime_end(draft)
            case EngineEnd(decided):
                await self._carry_out(decided)

    async def _conclude_runtime_end(self, draft: event_pb2.EventDraft) -> None:
        """The provider finished: earlier events, closed to tools, head, terminal (run protocol, End)."""
        held = self._held
        plan, issued = await held.plan(), held.run.issued
        await held.appender.drain()  # earlier events are durable before the head names the run
        if plan.has_tools:
            await held.change(lambda run: replace(run, closed=True) if run.intent is None else None)
            if held.run.intent is not None:
                await self._carry_out(held.run.intent)
                return
        kind = draft.payload.WhichOneof("kind")
        asked = held.packer.asked if kind == "run_interrupted" else None
        if asked is not None and not plan.may_ask(asked.payload.interrupt_requested):
            await self._carry_out(held.failed(ending.INTERRUPTS_UNSUPPORTED).intent)
            return
        if kind != "run_completed" and asked is None:
            _tell_operators(held.run_id, draft)
            await self._write_terminal(ending.with_known_effects(draft, known=held.packer.effects_known))
            return
        if issued is None:
            raise Fenced(f"{held.run_id} has an end and was never issued")
        outcome = await commit_head(self._engine, held.run, issued, plan, draft, self._unrecorded, asked)
        if isinstance(outcome, Committed):
            if outcome.revision:
                self._unrecorded = None
            await self._complete(outcome)
        else:
            await self._carry_out(outcome)

    async def _complete(self, committed: Committed) -> None:
        interrupt = committed.interrupt
        if interrupt is not None:
            if self._held.packer.asked is None:  # its own executor died after the head; the event is told from there
                self._held.packer.hold(ending.interrupt_requested(interrupt))
            await self._write_terminal(ending.interrupted(interrupt))
            return
        durability = committed.outcome.thread_state.durability
        await self._write_terminal(ending.completed(committed.outcome, durability, committed.revision))

    async def _carry_out(self, wanted: Intent) -> None:
        """End the run by the engine's decision: intent first, then the runtime, then the terminal."""
        held = self._held
        await held.change(lambda run: replace(run, intent=wanted) if run.intent is None else None)
        decided = held.run.intent or wanted
        reported = await self._stop_runtime(decided)
        effects = ending.side_effects(issued=held.may_have_started, known=held.packer.effects_known, reported=reported)
        await self._write_terminal(ending.terminal_of_intent(decided, effects))

    async def _stop_runtime(self, decided: Intent) -> ending.SideEffects:
        """Tell the runtime, bounded in time; what it still does after that reaches nothing (I12)."""
        held, issued = self._held, self._held.run.issued
        if issued is None or not held.may_have_started:
            return error_pb2.SIDE_EFFECT_STATUS_UNSPECIFIED
        reason = ending.cancel_reason(decided.cancel or CancelReason.SHUTDOWN)
        fence = fence_of(held.run, issued.runtime_generation)
        try:
            seconds = self._engine.settings.cancel_grace_seconds
            return await self._engine.runtimes.cancel(await held.host(issued), fence, reason, seconds)
        except HarnessError as error:
            _log.info("runtime_not_cancelled", run_id=held.run_id, reason=error.reason.value)
            return error_pb2.SIDE_EFFECT_STATUS_UNSPECIFIED

    async def _write_terminal(self, terminal: event_pb2.EventDraft) -> None:
        held, status = self._held, ending.status_of(terminal)
        held.begin_log("")
        held.packer.end(terminal, status.value, self._engine.stamp())
        await held.appender.drain()
        await self._settle(status, terminal.payload.run_failed.code)

    async def _settle(self, status: Status, error_code: str) -> None:
        """After the terminal: the slot, then the status. Anybody may repeat it (run protocol, End)."""
        if self._unrecorded is not None:
            self._begin_recording()
        if self._recorded is not None:
            await asyncio.wait({self._recorded}, timeout=SETTLE_RECORD_SECONDS)
        held, sessions, run = self._held, self._engine.sessions, self._held.run
        clock, seconds = self._engine.clock, self._engine.settings.commit_seconds
        if held.binding is None:
            await patiently(clock, seconds, lambda: sessions.withdraw(run.binding_id, run.run_id))
        # Release gives back only what is still ours: it may have moved up meanwhile, or been released before.
        issued, interrupted = held.may_have_started, status is Status.INTERRUPTED
        response = await patiently(
            clock,
            seconds,
            lambda: sessions.release(run.binding_id, run.run_id, stored=True, issued=issued, interrupted=interrupted),
        )
        self.released = response.binding
        now, retention_ms = self._engine.now(), self._engine.settings.retention_seconds * 1000
        last_sequence = held.packer.last_sequence

        def decide(current: Run) -> Run | None:
            if not current.is_open:
                return None
            return ended(
                current,
                status,
                last_sequence=last_sequence,
                error_code=error_code,
                now=now,
                retention_ms=retention_ms,
            )

        held.run, _ = await self._engine.store.change(run, decide)

    async def _let_go(self) -> None:
        for timer in (self._deadline, self._record_later):
            if timer is not None:
                timer.cancel()
        await self._held.appender.stop()
        if self._following is not None:
            await self._following.close()
        await _cancelled(self._placed)
        await _cancelled(self._recorded)
        await _cancelled(self._kept)


async def _cancelled(task: asyncio.Task[object] | None) -> None:
    """The task has ended, by itself or by this."""
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait({task})


def _tell_operators(run_id: str, draft: event_pb2.EventDraft) -> None:
    failed = draft.payload.run_failed
    if failed.code:
        _log.warning(
            "harness_failed",
            run_id=run_id,
            code=failed.code,
            provider_code=failed.provider_code,
            diagnostic=failed.diagnostic,
        )
