"""The binding's document and the rules that every change of it shares (run protocol, "Three documents").

Domain functions take a document and return another; the given one is never changed. Returning the very same object says
that there is nothing to write.
"""

from typing import Final, Literal, NotRequired, TypedDict, cast

ACTIVE: Final = "active"
CLOSING: Final = "closing"
Status = Literal["active", "closing"]

REJECT: Final = "reject"
ENQUEUE: Final = "enqueue"
INTERRUPT: Final = "interrupt"
Policy = Literal["reject", "enqueue", "interrupt"]

FIRST_EPOCH: Final = 1
FIRST_RUN_GENERATION: Final = 1


class PinDocument(TypedDict):
    """What a binding keeps until it is cleared (I4)."""

    agent_version: int
    harness_id: str
    profile_id: str


class ActiveDocument(TypedDict):
    """The run that holds the slot. `since` is Unix milliseconds."""

    run_id: str
    request_key: str
    run_generation: int
    since: int
    uncertain: bool


class WaitingDocument(TypedDict):
    """A run that waits for the slot. `since` is Unix milliseconds."""

    run_id: str
    request_key: str
    policy: Policy
    since: int


class RuntimeRefDocument(TypedDict):
    """One incarnation of one process that can be dialled."""

    address: str
    incarnation: str


class AdvanceDocument(TypedDict):
    """By whom the runtime generation was raised last, so that the same call again gets the same answer."""

    run_id: str
    run_generation: int


class HeadDocument(TypedDict):
    """The committed native state. `outcome` is opaque here: the run's end as the executor committed it."""

    revision: int
    run_id: str
    part_refs: list[str]
    codec: str
    outcome: str


class InterruptDocument(TypedDict):
    """The last pause for a person. `content` is opaque here: what was asked, where and why. `consumed_by` is the run that answers; empty while
    the interrupt is pending.
    """

    interrupt_id: str
    revision: int
    run_id: str
    content: str
    consumed_by: str
    decision_digest: str


class BindingDocument(TypedDict):
    """One conversation of one owner: the epoch that is open, or, archived, one that is closed. No raw subject in it (I1).

    The store adds the revision a compare-and-set is made on.
    """

    binding_id: str
    owner_id: str
    agent_id: str
    conversation_id: str
    epoch: int
    status: Status
    pin: PinDocument | None
    turn: int
    active: ActiveDocument | None
    waiting: list[WaitingDocument]
    runtime_generation: int
    runtime_ref: RuntimeRefDocument | None
    advanced_by: NotRequired[AdvanceDocument]
    head: HeadDocument | None
    interrupt: NotRequired[InterruptDocument | None]
    native_session_id: str
    session_revision: int
    used: bool
    unsettled_changed_at: int | None


class Conversation(TypedDict):
    """Whose conversation with which agent: digest of the owner, and names for display."""

    owner_id: str
    agent_id: str
    conversation_id: str


def new_epoch(conversation: Conversation, binding_id: str, epoch: int, turn: int) -> BindingDocument:
    """A binding nothing happened in yet. The turn counts over all epochs; all else starts anew (run protocol, Clear)."""
    return {
        "binding_id": binding_id,
        "owner_id": conversation["owner_id"],
        "agent_id": conversation["agent_id"],
        "conversation_id": conversation["conversation_id"],
        "epoch": epoch,
        "status": ACTIVE,
        "pin": None,
        "turn": turn,
        "active": None,
        "waiting": [],
        "runtime_generation": 0,
        "runtime_ref": None,
        "head": None,
        "interrupt": None,
        "native_session_id": "",
        "session_revision": 0,
        "used": False,
        "unsettled_changed_at": None,
    }


def revision_of(document: BindingDocument) -> int:
    """Revision of the stored document a change is compared with, from 1; zero: it is not stored yet."""
    return cast("dict[str, int]", document).get("rev", 0)


def draft(document: BindingDocument) -> BindingDocument:
    """A copy whose top-level fields may be replaced. What they hold is shared with the original and must not be changed."""
    return document.copy()


def stamped(document: BindingDocument, now: int) -> BindingDocument:
    """The draft as changed now (Unix milliseconds). The time is kept while the binding may need help (run protocol, Sweep)."""
    unsettled = document["active"] is not None or bool(document["waiting"]) or document["status"] == CLOSING
    document["unsettled_changed_at"] = now if unsettled else None
    return document
