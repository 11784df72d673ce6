"""Whose turn it is: the one slot of a conversation and the line before it (run protocol, Start, Resume and Release; I3, I6, I24)."""

from dataclasses import dataclass
from typing import Final, Literal

from services.common.errors import HarnessError, Reason
from services.sessions import interrupt
from services.sessions.binding import (
    ACTIVE,
    CLOSING,
    FIRST_RUN_GENERATION,
    INTERRUPT,
    REJECT,
    BindingDocument,
    PinDocument,
    Policy,
    WaitingDocument,
    draft,
    revision_of,
    stamped,
)

GRANTED: Final = "granted"
WAITING: Final = "waiting"
EXISTING: Final = "existing"
OCCUPIED: Final = "occupied"
CLEARING: Final = "clearing"
INTERRUPT_PENDING: Final = "interrupt_pending"
ANSWERED: Final = "answered"
ANSWERED_OTHERWISE: Final = "answered_otherwise"
NOT_PENDING: Final = "not_pending"
CHANGED: Final = "changed"
Outcome = Literal[
    "granted",
    "waiting",
    "existing",
    "occupied",
    "clearing",
    "interrupt_pending",
    "answered",
    "answered_otherwise",
    "not_pending",
    "changed",
]


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a start asks for. `answers` is the interrupt that it answers; `expected_revision` the binding as the caller has read it."""

    run_id: str
    request_key: str
    policy: Policy
    pin: PinDocument
    answers: interrupt.Answer | None = None
    expected_revision: int | None = None


def reserve(
    document: BindingDocument, asked: Reservation, max_waiting: int, now: int
) -> tuple[BindingDocument, tuple[Outcome, str]]:
    """Gives the slot, a place in the line, or the reason why not, with the run that this is about (run protocol, Start 1).

    `max_waiting` bounds the line (I35).
    """
    existing = _run_of_key(document, asked.request_key)
    if existing is not None:
        # I6: the same request is the same run, whatever else is true of the binding.
        return document, (EXISTING, existing)
    if interrupt.was_asked_by(document, asked.run_id):
        # I24: a copy of its own reservation that comes late takes no slot again, and dismisses nothing.
        return document, (EXISTING, asked.run_id)
    if document["status"] == CLOSING:
        # I5: no run enters an epoch that is being closed.
        return document, (CLEARING, "")
    if asked.expected_revision is not None and asked.expected_revision != revision_of(document):
        # Start 1: what the caller looked up after its read, it has to look up again.
        return document, (CHANGED, "")
    _refuse_known_run(document, asked.run_id)
    if asked.answers is not None:
        return _answer(document, asked, asked.answers, now)
    occupant = document["active"]
    waiting = document["waiting"]
    if interrupt.blocks(document):
        return _past_interrupt(document, asked, now)
    if occupant is None and not waiting:
        # I6: the slot is given only when nobody holds it and nobody came earlier.
        return _given_to(document, _place(asked, now), asked.pin, now), (GRANTED, asked.run_id)
    in_the_way = occupant["run_id"] if occupant is not None else waiting[0]["run_id"]
    # I35: the line is bounded, for every policy alike.
    if asked.policy == REJECT or len(waiting) >= max_waiting:
        return document, (OCCUPIED, in_the_way)
    changed = draft(document)
    place = _place(asked, now)
    # Start 1: `interrupt` goes before all others, `enqueue` behind them.
    changed["waiting"] = [place, *waiting] if asked.policy == INTERRUPT else [*waiting, place]
    return stamped(changed, now), (WAITING, asked.run_id)


def _answer(
    document: BindingDocument, asked: Reservation, answer: interrupt.Answer, now: int
) -> tuple[BindingDocument, tuple[Outcome, str]]:
    """Consumes the interrupt and gives the slot, in one write, before anyone who waits (run protocol, Resume)."""
    standing, answered_by = interrupt.standing(document, answer)
    match standing:
        case interrupt.SAME:
            # I24: the same decision again is the same run.
            return document, (ANSWERED, answered_by)
        case interrupt.OTHER:
            return document, (ANSWERED_OTHERWISE, answered_by)
        case interrupt.GONE:
            return document, (NOT_PENDING, "")
        case _:
            pass
    occupant = document["active"]
    if occupant is not None:
        # Only the run that asked can be there still: its end is not told yet.
        return document, (OCCUPIED, occupant["run_id"])
    changed = draft(document)
    interrupt.consume(changed, answer, asked.run_id)
    return _given_to(changed, _place(asked, now), asked.pin, now), (GRANTED, asked.run_id)


def _past_interrupt(
    document: BindingDocument, asked: Reservation, now: int
) -> tuple[BindingDocument, tuple[Outcome, str]]:
    """A plain start while a decision is awaited: policy `interrupt` alone goes on, and dismisses what was asked."""
    pending = document.get("interrupt")
    if asked.policy != INTERRUPT or document["active"] is not None or pending is None:
        # Start 1: never a silently dropped approval.
        return document, (INTERRUPT_PENDING, "" if pending is None else pending["run_id"])
    changed = draft(document)
    # Start 1: dismissed only in the write that gives the slot.
    interrupt.dismiss(changed)
    return _given_to(changed, _place(asked, now), asked.pin, now), (GRANTED, asked.run_id)


def release(
    document: BindingDocument, run_id: str, *, stored: bool, issued: bool, interrupted: bool, now: int
) -> tuple[BindingDocument, bool]:
    """Takes the slot back and gives it to the next in line; whether this call did (run protocol, Release). `issued` says whether the run may have
    reached a runtime, `interrupted` whether it ended so.
    """
    occupant = document["active"]
    if occupant is None or occupant["run_id"] != run_id:
        # Release: only if the slot is still mine.
        return document, False
    changed = draft(document)
    changed["active"] = None
    if stored:
        # Clear: an epoch is used once a run of it was stored; a tombstone is none.
        changed["used"] = True
    interrupt.after_release(changed, run_id, issued=issued, interrupted=interrupted)
    waiting = document["waiting"]
    if interrupt.is_pending(changed) and waiting and waiting[0]["policy"] == INTERRUPT and document["status"] == ACTIVE:
        # Release: one of policy `interrupt` dismisses what is pending in the write that gives it the slot.
        interrupt.dismiss(changed)
    # Release: nobody else moves up while an interrupt is pending: its answer goes first.
    if waiting and document["status"] == ACTIVE and not interrupt.is_pending(changed):
        # I5: nobody moves up while the epoch is being closed; those who wait are withdrawn by whoever clears.
        changed["waiting"] = waiting[1:]
        return _given_to(changed, waiting[0], None, now), True
    return stamped(changed, now), True


def withdraw(document: BindingDocument, run_id: str, now: int) -> tuple[BindingDocument, bool]:
    """Takes a run out of the line; whether it was there.

    The epoch counts as used then: the run stands in the conversation's history as one that ended while it waited.
    """
    waiting = document["waiting"]
    remaining = [place for place in waiting if place["run_id"] != run_id]
    if len(remaining) == len(waiting):
        return document, False
    changed = draft(document)
    changed["waiting"] = remaining
    changed["used"] = True
    return stamped(changed, now), True


def claim(document: BindingDocument, run_id: str, run_generation: int, now: int) -> tuple[BindingDocument, None]:
    """Makes a higher run generation the slot's; `STALE_LEASE` otherwise (run protocol, Take 2). Also while closing: a forced end takes first."""
    occupant = document["active"]
    if occupant is None or occupant["run_id"] != run_id:
        raise HarnessError(Reason.STALE_LEASE, "The run does not hold the conversation's slot: stop working on it.")
    if occupant["run_generation"] >= run_generation:
        # I10: from a claim on, an older executor, or one of the same age, can commit nothing.
        raise HarnessError(
            Reason.STALE_LEASE,
            f"Run generation {occupant['run_generation']} holds the slot; {run_generation} is not higher: stop working on the run.",
        )
    changed = draft(document)
    changed["active"] = {**occupant, "run_generation": run_generation}
    changed["used"] = True  # only a stored run is taken
    return stamped(changed, now), None


def _given_to(document: BindingDocument, place: WaitingDocument, pin: PinDocument | None, now: int) -> BindingDocument:
    changed = draft(document)
    if changed["pin"] is None:
        # I4: written once, by the first turn of the epoch, and kept until clear.
        changed["pin"] = pin
    # Two generations and a turn: whenever the slot is given, the turn rises, so that a runtime can tell the younger run.
    changed["turn"] = document["turn"] + 1
    changed["active"] = {
        "run_id": place["run_id"],
        "request_key": place["request_key"],
        "run_generation": FIRST_RUN_GENERATION,
        "since": now,
        "uncertain": False,
    }
    if document["runtime_ref"] is None:
        # Design 0001, Reserve: the run that was given the slot may create the runtime of this generation, and no other ever could.
        changed["runtime_generation"] = document["runtime_generation"] + 1
    return stamped(changed, now)


def _place(asked: Reservation, now: int) -> WaitingDocument:
    return {"run_id": asked.run_id, "request_key": asked.request_key, "policy": asked.policy, "since": now}


def _run_of_key(document: BindingDocument, request_key: str) -> str | None:
    occupant = document["active"]
    if occupant is not None and occupant["request_key"] == request_key:
        return occupant["run_id"]
    return next((place["run_id"] for place in document["waiting"] if place["request_key"] == request_key), None)


def _refuse_known_run(document: BindingDocument, run_id: str) -> None:
    occupant = document["active"]
    if (occupant is not None and occupant["run_id"] == run_id) or any(
        place["run_id"] == run_id for place in document["waiting"]
    ):
        raise HarnessError(
            Reason.IDEMPOTENCY_MISMATCH,
            "run_id already holds or awaits the slot under another request_key: a run belongs to one request.",
        )
