"""The audit record of a tool call: who, what, how it ended; never what was asked or answered. The stored record says the same for as long as it is kept."""

from __future__ import annotations

from services.common.logs import get_logger
from services.runs.tools import metrics
from services.runs.tools.record import CallRecord, State

_log = get_logger(__name__)


def ended(record: CallRecord) -> None:
    """The call has its outcome. Called once, by whoever wrote it."""
    outcome = record.outcome if record.state is State.DONE else State.LOST.value
    seconds = max(0, record.ended_at - (record.started_at or record.ended_at)) / 1000
    metrics.CALLS.labels(record.tool_id, outcome).inc()
    if record.started_at:
        metrics.SECONDS.labels(record.tool_id).observe(seconds)
    _log.info(
        "tool_call_ended",
        **_who(record),
        outcome=outcome,
        code="" if record.failure is None else record.failure.code,
        attempts=record.attempts,
        seconds=seconds,
        edited=bool(record.edited),
    )


def waits(record: CallRecord) -> None:
    """The call waits for a person."""
    metrics.WAITING.labels(record.tool_id).inc()
    _log.info("tool_call_waits", **_who(record))


def approved(record: CallRecord) -> None:
    """A person let the call pass."""
    _log.info("tool_call_approved", **_who(record), edited=bool(record.edited))


def _who(record: CallRecord) -> dict[str, object]:
    return {
        "binding_id": record.binding_id,
        "epoch": record.epoch,
        "run_id": record.run_id,
        "tool_call_id": record.tool_call_id,
        "tool_id": record.tool_id,
        "digest": record.digest,
    }
