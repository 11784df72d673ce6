"""Closing an epoch and opening the next (run protocol, Clear; I5)."""

from services.common.errors import HarnessError, Reason
from services.sessions.binding import CLOSING, BindingDocument, Conversation, draft, new_epoch, stamped


def begin_clear(document: BindingDocument, now: int) -> tuple[BindingDocument, bool]:
    """Puts the binding into `closing`; False if nothing was used in this epoch.

    Used means: a run of it was stored, as far as is known here, or a run holds or awaits the slot and may be stored any moment.
    """
    if document["status"] == CLOSING:
        return document, True
    if not (document["used"] or document["active"] is not None or document["waiting"]):
        return document, False
    changed = draft(document)
    changed["status"] = CLOSING
    return stamped(changed, now), True


def check_clear_can_finish(document: BindingDocument) -> None:
    """Returns if the epoch may be archived. From then on the document changes no more, so all who archive it archive the same."""
    if document["status"] != CLOSING:
        raise HarnessError(
            Reason.HARNESS_SESSION_CONFLICT, "The binding is not being cleared: begin that first.", retryable=False
        )
    occupant = document["active"]
    if occupant is not None:
        raise HarnessError(
            Reason.HARNESS_SESSION_CONFLICT,
            "A run still holds the slot: end it and release the slot first.",
            metadata={"run_id": occupant["run_id"]},
        )
    if document["waiting"]:
        raise HarnessError(
            Reason.HARNESS_SESSION_CONFLICT,
            f"{len(document['waiting'])} runs still await the slot: withdraw them first.",
            metadata={"run_id": document["waiting"][0]["run_id"]},
        )


def opened(closed: BindingDocument, next_binding_id: str) -> BindingDocument:
    """The epoch after a closed one: exactly one higher, nothing carried over (I5)."""
    conversation: Conversation = {
        "owner_id": closed["owner_id"],
        "agent_id": closed["agent_id"],
        "conversation_id": closed["conversation_id"],
    }
    return new_epoch(conversation, next_binding_id, closed["epoch"] + 1, closed["turn"])
