"""Committing the conversation's head before the run's terminal becomes visible (run protocol, End; events, rule 5)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.common.v1 import runtime_ref_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.session.v1 import binding_pb2
from services.common.errors import HarnessError, Reason
from services.common.logs import get_logger
from services.runs import ending
from services.runs.appending import Fenced
from services.runs.engine import Engine, fence_of
from services.runs.intent import CancelReason, Failure, Intent, cancelled, failed
from services.runs.patience import AWAY, patiently
from services.runs.plan import Plan
from services.runs.run import Issued, Run

_log = get_logger(__name__)
REFUSED = Failure("thread_state_refused", "persistence", "The conversation's state was not accepted.")


@dataclass(frozen=True, slots=True)
class Committed:
    """The run completed, or ended with an interrupt, and its head is what it should be: committed with this revision, or 0 where the harness keeps
    no state.
    """

    outcome: payload_pb2.RunCompleted
    revision: int
    interrupt: binding_pb2.Interrupt | None = None


def committed_by(binding: binding_pb2.Binding, run_id: str) -> Committed | None:
    """How the run ended if the binding's head names it (run protocol, Take 4)."""
    if not binding.HasField("head") or binding.head.run_id != run_id:
        return None
    asked = binding.interrupt if binding.HasField("interrupt") and binding.interrupt.run_id == run_id else None
    return Committed(binding.head.outcome, binding.head.revision, asked)


async def commit_head(
    engine: Engine,
    run: Run,
    issued: Issued,
    plan: Plan,
    draft: event_pb2.EventDraft,
    unrecorded: runtime_ref_pb2.RuntimeRef | None,
    asked: event_pb2.EventDraft | None = None,
) -> Committed | Intent:
    """Commit the head with the run's outcome, the interrupt it `asked` for included; or how the run ends instead. `unrecorded` is the run's runtime
    where the binding does not name it yet. Errors: `Fenced`, and store errors.
    """
    interrupt = None if asked is None else interrupt_of(asked, draft)
    outcome = payload_pb2.RunCompleted(stop_reason=draft.payload.run_completed.stop_reason)
    outcome.thread_state.durability = plan.durability
    if interrupt is None and plan.durability == payload_pb2.THREAD_DURABILITY_EPHEMERAL:
        return Committed(outcome, 0)
    pending = draft.pending_head if draft.HasField("pending_head") else None
    fence = fence_of(run, issued.runtime_generation)
    try:
        revision = await patiently(
            engine.clock,
            engine.settings.commit_seconds,
            lambda: engine.sessions.commit_head(fence, pending, outcome, unrecorded, interrupt),
        )
    except HarnessError as error:
        _log.warning("head_not_committed", run_id=run.run_id, reason=error.reason.value)
        if error.reason is Reason.STALE_LEASE:
            return await refused_by_fence(engine, run)
        if error.reason in AWAY:
            return await _uncertain(engine, run, issued)
        if error.reason is Reason.THREAD_DURABILITY_UNCERTAIN:
            return failed(ending.UNCERTAIN, engine.now())
        return failed(REFUSED, engine.now())
    return Committed(outcome, revision, interrupt)


def interrupt_of(asked: event_pb2.EventDraft, terminal: event_pb2.EventDraft) -> binding_pb2.Interrupt:
    """What a run asked and why it ended, as it is stored with its head (I24)."""
    return binding_pb2.Interrupt(
        requested=asked.payload.interrupt_requested,
        namespace=asked.namespace,
        reason=terminal.payload.run_interrupted.reason,
    )


async def refused_by_fence(engine: Engine, run: Run) -> Intent:
    """The fence was not current: another executor (`Fenced`), an intent that came first, or the conversation is being cleared."""
    current = await engine.store.get(run.run_id)
    if current is None or current.run_generation != run.run_generation or not current.is_open:
        raise Fenced(f"{run.run_id}: another executor holds the run")  # I10
    if current.intent is not None:
        return current.intent
    binding, archived = await engine.sessions.get(run.binding_id)
    if archived or binding.status == binding_pb2.BINDING_STATUS_CLOSING:
        return cancelled(CancelReason.SESSION_CLEARED, engine.now())  # I5
    return failed(REFUSED, engine.now())


async def _uncertain(engine: Engine, run: Run, issued: Issued) -> Committed | Intent:
    """Nobody knows whether the commit got through: block it from now on, and ask (run protocol, End, Unknown outcome)."""
    fence = fence_of(run, issued.runtime_generation)
    token = engine.state_token(run, issued.runtime_generation).value
    try:
        if await engine.sessions.mark_uncertain(fence, token):
            binding, _ = await engine.sessions.get(run.binding_id)
            if (committed := committed_by(binding, run.run_id)) is not None:
                return committed
    except HarnessError as error:
        _log.warning("uncertainty_not_marked", run_id=run.run_id, reason=error.reason.value)
    return failed(ending.UNCERTAIN, engine.now())
