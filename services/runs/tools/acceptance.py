"""Whether a run accepts a tool call: the decision of the compare-and-set on the run (run protocol, Tools; I10, I12). Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from services.common.errors import HarnessError, Reason
from services.runs.run import Run, Status

PROTOCOL_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class CallFence:
    """What a call claims to act for; every part has to equal what is committed."""

    protocol_version: int
    binding_id: str
    epoch: int
    runtime_generation: int
    turn: int
    run_id: str
    run_generation: int


class KnownCall(Exception):
    """The run takes no call any more, but it once accepted this one: what it came to has to be told, not a refusal."""


def check(run: Run | None, fence: CallFence, mark: str = "") -> Run:
    """The run, if a call under this fence may pass. Errors: `STALE_LEASE`, retryable while the runtime is being attached again; `KnownCall` for a
    `mark` that the run accepted when it still took calls.
    """
    run = _same_run(run, fence)
    if not _takes_calls(run):
        if mark in run.tool_calls:
            # It may have been invoked: told as a refusal, it would look as if nothing could have happened.
            raise KnownCall
        raise stale()  # I12
    if run.run_generation != fence.run_generation:
        # I10. An older one is that of a runtime which the new executor has not reached yet.
        raise stale(retryable=fence.run_generation < run.run_generation)
    return run


def accept(run: Run | None, fence: CallFence, mark: str, limit: int, now: int) -> Run | None:
    """The run with the call among those it accepted; None: it accepted it before. `limit` is the run's `max_tool_calls`.

    Errors: `STALE_LEASE` as for `check`, `capacity` past the limit, `KnownCall`.
    """
    run = check(run, fence, mark)
    if mark in run.tool_calls:
        return None
    if len(run.tool_calls) >= limit:
        raise HarnessError(
            Reason.CAPACITY,
            f"The run has made its {limit} tool calls (limits.max_tool_calls): no more are accepted.",
            retryable=False,
        )
    return replace(run, tool_calls=(*run.tool_calls, mark), updated_at=now)


def may_begin(run: Run | None, accepted: Run) -> bool:
    """Whether something new may be begun for a call of the run that was accepted earlier (I10, I12)."""
    return run is not None and _takes_calls(run) and run.run_generation == accepted.run_generation


def stale(*, retryable: bool = False) -> HarnessError:
    """The refusal of a fence that is not current."""
    return HarnessError(
        Reason.STALE_LEASE,
        "The run takes no tool call under this fence: it ends, or another executor, runtime or epoch has taken over.",
        retryable=retryable,
    )


def _same_run(run: Run | None, fence: CallFence) -> Run:
    if fence.protocol_version != PROTOCOL_VERSION:
        raise HarnessError(
            Reason.WORKER_MISMATCH,
            f"fence.protocol_version {fence.protocol_version} is not spoken here: send {PROTOCOL_VERSION}.",
        )
    if (
        run is None
        or run.run_id != fence.run_id
        or run.binding_id != fence.binding_id
        or run.epoch != fence.epoch  # I5
        or run.turn != fence.turn
        or run.issued is None
        or run.issued.runtime_generation != fence.runtime_generation  # the runtime it was issued to, and no other
    ):
        raise stale()
    return run


def _takes_calls(run: Run) -> bool:
    """I12: from the intent, or the closing before the head, on, no call is accepted."""
    return run.status is Status.RUNNING and run.intent is None and not run.closed
