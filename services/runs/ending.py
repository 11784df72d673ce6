"""How a run ends: which terminal, which status, what may have happened outside (events, Vocabulary; run protocol, End)."""

from __future__ import annotations

from typing import Final, TypeAlias

from google.protobuf.message import Message

from harness.common.v1 import error_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.session.v1 import binding_pb2
from services.common import sandbox_cause
from services.common.errors import HarnessError
from services.runs.intent import CancelReason, Failure, Intent
from services.runs.run import Status
from services.runs.serving import Unstartable

SideEffects: TypeAlias = "error_pb2.SideEffectStatus.ValueType"

STATUS_OF: Final = {
    "run_completed": Status.COMPLETED,
    "run_interrupted": Status.INTERRUPTED,
    "run_failed": Status.FAILED,
    "run_cancelled": Status.CANCELLED,
}
_REASONS: Final = {
    CancelReason.CLIENT_REQUEST: payload_pb2.CANCEL_REASON_CLIENT_REQUEST,
    CancelReason.SESSION_CLEARED: payload_pb2.CANCEL_REASON_SESSION_CLEARED,
    CancelReason.SHUTDOWN: payload_pb2.CANCEL_REASON_SHUTDOWN,
    CancelReason.DEADLINE: payload_pb2.CANCEL_REASON_DEADLINE,
    CancelReason.SUPERSEDED: payload_pb2.CANCEL_REASON_SUPERSEDED,
}
MAX_RETRY_SECONDS: Final = 86_400
_CATEGORY_PREFIX: Final = "ERROR_CATEGORY_"

RUNTIME_GONE: Final = Failure(
    "unavailable", "unavailable", "The process that executed the run is gone.", retryable=False
)
SANDBOX_GONE: Final = Failure(
    "unavailable",
    "unavailable",
    "The sandbox that executed the run is gone. An operator sees why with `harness sandboxes list --ended`.",
    retryable=False,
)
NO_TERMINAL: Final = Failure("protocol_violation", "protocol", "The harness ended the run without saying how.")
UNCERTAIN: Final = Failure(
    "thread_durability_uncertain",
    "persistence",
    "Whether the conversation's state was saved is not known; the turn is not repeated.",
)
INTERRUPTS_UNSUPPORTED: Final = Failure(
    "harness_capability_unsupported", "configuration", "The harness asked for a person's input, which is not supported."
)
NO_SLOT: Final = Failure("internal", "internal", "The run lost the conversation's slot before its end.")
WAITED_TOO_LONG: Final = Failure(
    "capacity", "capacity", "The run waited too long for its turn.", retryable=True, retry_after_seconds=5
)


def status_of(draft: event_pb2.EventDraft) -> Status:
    """The status a terminal gives its run."""
    return STATUS_OF[draft.payload.WhichOneof("kind") or ""]


def cancel_reason(reason: CancelReason) -> payload_pb2.CancelReason.ValueType:
    """The contract's value of a reason."""
    return _REASONS[reason]


def side_effects(
    *, issued: bool, known: bool, reported: SideEffects = error_pb2.SIDE_EFFECT_STATUS_UNSPECIFIED
) -> SideEffects:
    """What may have happened outside: nothing if no runtime ever got the run, else what the runtime says, and never less than the log shows."""
    if known:
        return error_pb2.SIDE_EFFECT_STATUS_KNOWN
    if not issued:
        return error_pb2.SIDE_EFFECT_STATUS_NONE
    if reported == error_pb2.SIDE_EFFECT_STATUS_UNSPECIFIED:
        return error_pb2.SIDE_EFFECT_STATUS_POSSIBLE
    return reported


def terminal_of_intent(intent: Intent, effects: SideEffects) -> event_pb2.EventDraft:
    """The terminal by which the engine carries out an intent."""
    if intent.cancel is not None:
        return _draft(
            run_cancelled=payload_pb2.RunCancelled(reason=_REASONS[intent.cancel], side_effect_status=effects)
        )
    failure = intent.failure or RUNTIME_GONE
    failed = payload_pb2.RunFailed(
        code=failure.code,
        category=error_pb2.ErrorCategory.Value(_CATEGORY_PREFIX + failure.category.upper()),
        message=failure.message,
        # I11: what may have had effects is not offered for a retry.
        retryable=failure.retryable and effects == error_pb2.SIDE_EFFECT_STATUS_NONE,
        side_effect_status=effects,
    )
    if failure.retry_after_seconds is not None:
        failed.retry_after_seconds = failure.retry_after_seconds
    return _draft(run_failed=failed)


def completed(
    outcome: payload_pb2.RunCompleted, durability: payload_pb2.ThreadDurability.ValueType, revision: int
) -> event_pb2.EventDraft:
    """`run.completed` with what became of the conversation's state, which the engine alone says (rule 5)."""
    terminal = payload_pb2.RunCompleted(stop_reason=outcome.stop_reason)
    terminal.thread_state.durability = durability
    terminal.thread_state.durable_revision = revision
    return _draft(run_completed=terminal)


def interrupt_requested(interrupt: binding_pb2.Interrupt) -> event_pb2.EventDraft:
    """`interrupt.requested`, as it was stored with the run's head."""
    draft = _draft(interrupt_requested=interrupt.requested)
    draft.namespace.extend(interrupt.namespace)
    return draft


def interrupted(interrupt: binding_pb2.Interrupt) -> event_pb2.EventDraft:
    """`run.interrupted`, after the interrupt was stored (rule 4)."""
    return _draft(
        run_interrupted=payload_pb2.RunInterrupted(
            interrupt_id=interrupt.requested.interrupt_id, reason=interrupt.reason
        )
    )


def with_known_effects(draft: event_pb2.EventDraft, *, known: bool) -> event_pb2.EventDraft:
    """A runtime's own bad end, its side effects never less than the log shows."""
    copy = event_pb2.EventDraft()
    copy.CopyFrom(draft)
    kind = draft.payload.WhichOneof("kind")
    if known and kind == "run_failed":
        copy.payload.run_failed.side_effect_status = error_pb2.SIDE_EFFECT_STATUS_KNOWN
    elif known and kind == "run_cancelled":
        copy.payload.run_cancelled.side_effect_status = error_pb2.SIDE_EFFECT_STATUS_KNOWN
    return copy


def _draft(**payload: Message) -> event_pb2.EventDraft:
    return event_pb2.EventDraft(payload=payload_pb2.EventPayload(**payload))  # pyright: ignore[reportArgumentType] - one of the kinds


def protocol_failure(summary: str) -> Failure:
    """A stream that broke the event contract, told by our own words alone (rule 7)."""
    return Failure("protocol_violation", "protocol", f"The harness broke the event contract: {summary}.")


def internal(incident_id: str) -> Failure:
    """A defect of ours."""
    return Failure("internal", "internal", f"Internal error. Give the operator this incident id: {incident_id}")


def failure_of(error: HarnessError) -> Failure:
    """A failed call as the run's failure. Its text is left out: it may be a harness's own (I22); of a sandbox that was not to be had, fixed words say why."""
    if isinstance(error, Unstartable):
        return Failure(error.reason.value, error.category.value, error.told)
    seconds = None if error.retry_after is None else min(MAX_RETRY_SECONDS, max(1, round(error.retry_after)))
    return Failure(
        error.reason.value.lower(),
        error.category.value,
        sandbox_cause.told(error) or f"The run could not be executed ({error.category.value}).",
        retryable=error.retryable,
        retry_after_seconds=seconds,
    )
