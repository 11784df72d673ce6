"""A conversation's pause for a person: stored with the head, shown by others, consumed once (run protocol, Resume; I24, I25)."""

from dataclasses import dataclass
from typing import Final, Literal

from services.sessions.binding import BindingDocument, InterruptDocument

PENDING: Final = "pending"
SAME: Final = "same"
OTHER: Final = "other"
GONE: Final = "gone"
Standing = Literal["pending", "same", "other", "gone"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run asks before it ends: `content` is opaque here, `interrupt_id` and `revision` are those of its event."""

    interrupt_id: str
    revision: int
    content: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Which interrupt a decision is about, and the digest by which decisions are told apart."""

    run_id: str
    interrupt_id: str
    revision: int
    decision_digest: str


def asked_by(run_id: str, asked: Asked) -> InterruptDocument:
    """The interrupt as it is stored, pending, in the write that commits the run's head (I24)."""
    return {
        "interrupt_id": asked.interrupt_id,
        "revision": asked.revision,
        "run_id": run_id,
        "content": asked.content,
        "consumed_by": "",
        "decision_digest": "",
    }


def is_pending(document: BindingDocument) -> bool:
    """Whether a decision is awaited."""
    interrupt = document.get("interrupt")
    return interrupt is not None and not interrupt["consumed_by"]


def was_asked_by(document: BindingDocument, run_id: str) -> bool:
    """Whether the run has had its turn and left the interrupt that is kept."""
    interrupt = document.get("interrupt")
    return interrupt is not None and interrupt["run_id"] == run_id


def blocks(document: BindingDocument) -> bool:
    """Whether a pending interrupt keeps the slot from plain runs: its own run has left the slot."""
    interrupt, occupant = document.get("interrupt"), document["active"]
    if interrupt is None or interrupt["consumed_by"]:
        return False
    return occupant is None or occupant["run_id"] != interrupt["run_id"]


def standing(document: BindingDocument, answer: Answer) -> tuple[Standing, str]:
    """What became of the interrupt that the answer names, and the run that answered it."""
    interrupt = document.get("interrupt")
    if (
        interrupt is None
        or interrupt["run_id"] != answer.run_id
        or interrupt["interrupt_id"] != answer.interrupt_id
        or interrupt["revision"] != answer.revision
    ):
        # I25: an interrupt id is unique in its run alone, and a revision that was given back is another one.
        return GONE, ""
    if not interrupt["consumed_by"]:
        return PENDING, ""
    same = interrupt["decision_digest"] == answer.decision_digest
    return (SAME if same else OTHER), interrupt["consumed_by"]


def consume(changed: BindingDocument, answer: Answer, run_id: str) -> None:
    """Writes into a draft that the run answers the pending interrupt; it stays on the record (I24)."""
    interrupt = changed.get("interrupt")
    if interrupt is not None:
        changed["interrupt"] = {**interrupt, "consumed_by": run_id, "decision_digest": answer.decision_digest}


def dismiss(changed: BindingDocument) -> None:
    """Removes the interrupt from a draft."""
    changed["interrupt"] = None


def after_release(changed: BindingDocument, run_id: str, *, issued: bool, interrupted: bool) -> None:
    """What the end of a run that held the slot does to the interrupt, in a draft: the same write that takes the slot back."""
    interrupt = changed.get("interrupt")
    if interrupt is None:
        return
    if interrupt["consumed_by"] == run_id:
        if issued:
            # Who decided what stays; what was asked is of no more use.
            changed["interrupt"] = {**interrupt, "content": ""}
        else:
            # Resume: nobody was told of the decision, so it is given back; the revision rises, so that a late copy of it finds nothing.
            changed["interrupt"] = {
                **interrupt,
                "consumed_by": "",
                "decision_digest": "",
                "revision": interrupt["revision"] + 1,
            }
    elif interrupt["run_id"] == run_id and not interrupt["consumed_by"] and not interrupted:
        # I24: the run ended otherwise before anybody was told of its interrupt.
        dismiss(changed)
