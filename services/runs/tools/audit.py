"""The audit of tool calls, in the log: who, what, how it ended, who was refused; never what was asked or answered. Of an accepted call the stored record
says the same for as long as it is kept; of a refused one this line is all there is.
"""

from __future__ import annotations

from typing import Final

from services.common.caller import Capability
from services.common.clock import Clock
from services.common.errors import HarnessError
from services.common.logs import get_logger
from services.runs.tools import metrics
from services.runs.tools.record import CallRecord, State

REFUSALS_AT_ONCE: Final = 200
REFUSALS_PER_SECOND: Final = 20.0
"""Lines on refused calls that one process writes: a runtime that is refused asks again as fast as it likes (I35)."""
MAX_ID: Final = 128
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
        **_decision(record),
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
    _log.info("tool_call_approved", **_who(record), **_decision(record), edited=bool(record.edited))


class Refusals:
    """Calls that were refused. Lines are bounded in size and rate: those beyond are counted, and the next line says how many there were."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._room = float(REFUSALS_AT_ONCE)
        self._seen_at = clock.monotonic()
        self._left_out = 0

    def refused(self, capability: Capability, tool_call_id: str, tool_id: str, error: HarnessError) -> None:
        """The call is not carried out under this request. Who asked is what the token says, whatever the fence claims."""
        metrics.REFUSED.labels(error.reason.value).inc()
        now = self._clock.monotonic()
        self._room = min(REFUSALS_AT_ONCE, self._room + (now - self._seen_at) * REFUSALS_PER_SECOND)
        self._seen_at = now
        if self._room < 1:
            self._left_out += 1
            metrics.REFUSALS_NOT_LOGGED.inc()
            return
        self._room -= 1
        left_out, self._left_out = self._left_out, 0
        _log.info(
            "tool_call_refused",
            binding_id=capability.binding_id[:MAX_ID],
            epoch=capability.epoch,
            run_id=capability.run_id[:MAX_ID],
            tool_call_id=tool_call_id[:MAX_ID],
            tool_id=tool_id[:MAX_ID],
            reason=error.reason.value,
            retryable=error.retryable,
            refusals_not_logged=left_out,
        )


def _who(record: CallRecord) -> dict[str, object]:
    return {
        "binding_id": record.binding_id,
        "epoch": record.epoch,
        "run_id": record.run_id,
        "tool_call_id": record.tool_call_id,
        "tool_id": record.tool_id,
        "digest": record.digest,
    }


def _decision(record: CallRecord) -> dict[str, object]:
    if not record.decision:
        return {}
    return {"decision": record.decision, "interrupt_id": record.interrupt_id, "decided_by": record.decided_by}
