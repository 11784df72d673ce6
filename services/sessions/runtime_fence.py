"""Who may still change a binding on behalf of a run, and which runtime serves it (worker protocol, "Fence"; I10, I27)."""

from dataclasses import dataclass, replace
from typing import Final

from services.common.errors import HarnessError, Reason
from services.sessions.binding import CLOSING, AdvanceDocument, BindingDocument, RuntimeRefDocument, draft, stamped

PROTOCOL_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Fence:
    """What a call claims to act for; every part has to equal what is committed."""

    protocol_version: int
    binding_id: str
    epoch: int
    runtime_generation: int
    turn: int
    run_id: str
    run_generation: int


def check_fence(document: BindingDocument | None, fence: Fence) -> None:
    """Returns if the fence is the committed one; `STALE_LEASE` otherwise, with nothing about the binding in it.

    Retryable only if the run's executor alone is newer: its runtime may be in the middle of being attached again.
    """
    if fence.protocol_version != PROTOCOL_VERSION:
        raise HarnessError(
            Reason.WORKER_MISMATCH,
            f"fence.protocol_version {fence.protocol_version} is not spoken here: send {PROTOCOL_VERSION}.",
        )
    occupant = None if document is None else document["active"]
    # I5: an old epoch is another binding id, and its number is compared all the same.
    if (
        document is None
        or document["binding_id"] != fence.binding_id
        or document["epoch"] != fence.epoch
        # I6: only the run that holds the slot.
        or occupant is None
        or occupant["run_id"] != fence.run_id
        or document["turn"] != fence.turn
        # I27: a replaced runtime is cut off from the moment the next generation is committed.
        or document["runtime_generation"] != fence.runtime_generation
    ):
        raise stale_lease()
    # I10: an executor that was overtaken changes nothing.
    if occupant["run_generation"] != fence.run_generation:
        raise stale_lease(retryable=fence.run_generation < occupant["run_generation"])


def refuse_closing(document: BindingDocument) -> None:
    """`STALE_LEASE` while the epoch is being closed (I5)."""
    if document["status"] == CLOSING:
        raise HarnessError(Reason.STALE_LEASE, "The conversation is being cleared: nothing of this epoch is accepted.")


def stale_lease(*, retryable: bool = False) -> HarnessError:
    """The refusal of a fence that is not current."""
    return HarnessError(
        Reason.STALE_LEASE,
        "The fence is not the committed one: another run, executor, runtime or epoch has taken over.",
        retryable=retryable,
    )


def advance_runtime(document: BindingDocument, fence: Fence, now: int) -> tuple[BindingDocument, None]:
    """Commits the next runtime generation before its runtime may start (I27); its place is not known yet. Asked again by the same executor
    of the run for the same generation, as after a lost answer, it is the one that was committed.
    """
    by: AdvanceDocument = {"run_id": fence.run_id, "run_generation": fence.run_generation}
    next_generation = fence.runtime_generation + 1
    if document["runtime_generation"] == next_generation and document.get("advanced_by") == by:
        check_fence(document, replace(fence, runtime_generation=next_generation))
        refuse_closing(document)
        return document, None
    check_fence(document, fence)
    refuse_closing(document)
    changed = draft(document)
    changed["runtime_generation"] = next_generation
    changed["runtime_ref"] = None
    changed["advanced_by"] = by
    changed["used"] = True
    return stamped(changed, now), None


def record_runtime(
    document: BindingDocument, fence: Fence, runtime_ref: RuntimeRefDocument, now: int
) -> tuple[BindingDocument, None]:
    """Records the runtime of the current generation. Also while closing, so that whoever clears can release it."""
    check_fence(document, fence)
    known = document["runtime_ref"]
    if known == runtime_ref:
        return document, None
    if known is not None:
        # I26, I27: one generation is one runtime; another one needs its generation committed first.
        raise HarnessError(
            Reason.STALE_LEASE,
            "Another runtime is recorded for this runtime_generation: advance the generation before a replacement starts.",
        )
    changed = draft(document)
    changed["runtime_ref"] = runtime_ref
    changed["used"] = True
    return stamped(changed, now), None


def record_native_session(
    document: BindingDocument, fence: Fence, native_session_id: str, now: int
) -> tuple[BindingDocument, int]:
    """Stores the provider's session id; returns the session's revision. The same id again changes nothing."""
    check_fence(document, fence)
    refuse_closing(document)
    if document["native_session_id"] == native_session_id:
        return document, document["session_revision"]
    changed = draft(document)
    changed["native_session_id"] = native_session_id
    changed["session_revision"] = document["session_revision"] + 1
    changed["used"] = True
    return stamped(changed, now), changed["session_revision"]
