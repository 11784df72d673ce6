"""The committed native state of a conversation (thread state; run protocol, End; I30)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from services.common.errors import FieldIssue, HarnessError, Reason, invalid_request
from services.sessions import interrupt
from services.sessions.binding import BindingDocument, HeadDocument, RuntimeRefDocument, draft, stamped
from services.sessions.runtime_fence import Fence, check_fence, refuse_closing

MAX_HEAD_PARTS: Final = 1024
"""Most parts of a head (I35). The list is in every read and write of the binding."""


@dataclass(frozen=True, slots=True)
class Pending:
    """The parts a run wants committed: instead of the head's, or behind them."""

    part_refs: Sequence[str]
    replace: bool


def commit(
    document: BindingDocument,
    fence: Fence,
    pending: Pending | None,
    written: Mapping[str, str],
    outcome: str,
    now: int,
    runtime_ref: RuntimeRefDocument | None = None,
    asked: interrupt.Asked | None = None,
) -> tuple[BindingDocument, int]:
    """Makes what the run wrote the conversation's state, with how the run ended; returns the head's revision.

    `written` are the parts of this binding and run that are stored, by reference, each with its codec. `runtime_ref` is the runtime that
    served the run, if it was not recorded before. `asked` is the interrupt it ends with.
    """
    check_fence(document, fence)
    head = document["head"]
    if head is not None and head["run_id"] == fence.run_id:
        # End: a head committed by a run stays its head; asked again, it is what was committed.
        return document, head["revision"]
    refuse_closing(document)
    _refuse_uncertain(document)
    changed = draft(document)
    part_refs, codec = _parts(head, pending, written)
    changed["head"] = {
        "revision": 1 if head is None else head["revision"] + 1,
        "run_id": fence.run_id,
        "part_refs": part_refs,
        "codec": codec,
        "outcome": outcome,
    }
    if asked is not None:
        # I24: stored in the same write as the state it belongs to, before anybody hears of it.
        changed["interrupt"] = interrupt.asked_by(fence.run_id, asked)
    if document["runtime_ref"] is None:
        # I27: the fence is this runtime's own generation; one that is recorded for it is never replaced.
        changed["runtime_ref"] = runtime_ref
    changed["used"] = True
    return stamped(changed, now), changed["head"]["revision"]


def mark_uncertain(document: BindingDocument, fence: Fence, now: int) -> tuple[BindingDocument, bool]:
    """Blocks later commits of the run; True if the head already names it, then nothing is blocked (run protocol, End)."""
    check_fence(document, fence)
    head = document["head"]
    if head is not None and head["run_id"] == fence.run_id:
        # I30: it was committed, so it is not uncertain.
        return document, True
    refuse_closing(document)
    occupant = document["active"]
    if occupant is None or occupant["uncertain"]:
        return document, False
    changed = draft(document)
    changed["active"] = {**occupant, "uncertain": True}
    changed["used"] = True
    return stamped(changed, now), False


def _refuse_uncertain(document: BindingDocument) -> None:
    occupant = document["active"]
    if occupant is not None and occupant["uncertain"]:
        # I30: state behind visible output was lost; the old head stays authoritative.
        raise HarnessError(
            Reason.THREAD_DURABILITY_UNCERTAIN,
            "The run's state was marked uncertain: the head before it stays, and the run ends thread_durability_uncertain.",
        )


def _parts(head: HeadDocument | None, pending: Pending | None, written: Mapping[str, str]) -> tuple[list[str], str]:
    before = [] if head is None else head["part_refs"]
    codec_before = "" if head is None else head["codec"]
    if pending is None:
        return before, codec_before
    known = set(before)
    issues: list[FieldIssue] = []
    codecs: set[str] = set()
    for position, part_ref in enumerate(pending.part_refs):
        if part_ref in written:
            codecs.add(written[part_ref])
        elif part_ref in known:
            codecs.add(codec_before)
        else:
            # I30: never a part of another binding, epoch or run, and none that is not stored.
            issues.append(_issue(position, "unknown_part", "The run wrote no such part and the head has none."))
    part_refs = list(pending.part_refs) if pending.replace else [*before, *pending.part_refs]
    if not pending.replace and before and pending.part_refs:
        codecs.add(codec_before)
    if issues:
        raise invalid_request(issues, "The pending head names parts that are not there.")
    if len(set(part_refs)) != len(part_refs):
        raise invalid_request([_issue(None, "repeated_part", "A head names every part once.")])
    if len(codecs) > 1:
        raise invalid_request([_issue(None, "mixed_codecs", "All parts of a head have one codec: replace the list.")])
    if len(part_refs) > MAX_HEAD_PARTS:
        raise HarnessError(
            Reason.CAPACITY,
            f"The head would have {len(part_refs)} parts, at most {MAX_HEAD_PARTS} are kept: replace the list.",
            retryable=False,
        )
    codec = codecs.pop() if codecs else codec_before if part_refs else ""
    return part_refs, codec


def _issue(position: int | None, code: str, message: str) -> FieldIssue:
    return FieldIssue("pending.part_refs" if position is None else f"pending.part_refs[{position}]", code, message)
