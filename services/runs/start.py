"""What a start is and what its reservation came to (run protocol, Start 1 and 2): pure decisions, carried out by `starting`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from harness.run.v1 import resumed_turn_pb2, run_service_pb2
from harness.runtime.v1 import runtime_pb2
from harness.session.v1 import binding_pb2, session_service_pb2
from services.common.errors import HarnessError, Reason, invalid_request
from services.runs.json_bounds import issues_of
from services.runs.run import Run

POLICIES: Final = {
    binding_pb2.CONFLICT_POLICY_UNSPECIFIED: "reject",
    binding_pb2.CONFLICT_POLICY_REJECT: "reject",
    binding_pb2.CONFLICT_POLICY_ENQUEUE: "enqueue",
    binding_pb2.CONFLICT_POLICY_INTERRUPT: "interrupt",
}


@dataclass(frozen=True, slots=True)
class Request:
    """A start as it is compared and stored. `named_key` is the same for the same request of the same conversation, and for no other
    (I6); it is empty when the client gave no id. `decision` is what it answers an interrupt of the run `resumed_from` with.
    """

    owner: str
    body: run_service_pb2.StartRunRequest
    named_key: str
    digest: str
    resumed_from: str = ""
    decision: runtime_pb2.ResumeDecision | None = None

    @property
    def stored(self) -> bytes:
        """What is kept with the run for whoever executes it; `resume.stored_turn` reads it."""
        if self.decision is None:
            return self.body.SerializeToString()
        return resumed_turn_pb2.ResumedTurn(turn=self.body, decision=self.decision).SerializeToString()

    def key_for(self, run_id: str) -> str:
        """The request key of the run that this start would become: without a client's id every call is a new request."""
        return self.named_key or run_id

    @property
    def policy(self) -> str:
        """What to do when the conversation is busy."""
        return POLICIES[self.body.on_conflict]


def request_of(owner: str, body: run_service_pb2.StartRunRequest) -> Request:
    """The request of a start. Errors: `invalid_request` when its context is over a bound that the contract's constraints cannot say."""
    if issues := issues_of(body.client_context, "client_context"):
        raise invalid_request(issues)
    key = key_of(body.client_request_id) if body.client_request_id else ""
    digest = hashlib.blake2b(body.SerializeToString(deterministic=True), digest_size=20).hexdigest()
    return Request(owner=owner, body=body, named_key=key, digest=digest)


def key_of(client_request_id: str) -> str:
    """The request key of a client's id: hashed, so that no id a client makes up is ever the key of an unnamed request."""
    return "key_" + hashlib.blake2b(client_request_id.encode(), digest_size=20).hexdigest()


def same_request(run: Run, request: Request) -> Run:
    """The run of a repeated request. Errors: `idempotency_mismatch` when the same id came with another body."""
    if run.body_digest != request.digest:  # I6
        raise _mismatch(run.run_id)
    return run


def check_adoptable(request: Request, run_id: str, binding: binding_pb2.Binding) -> None:
    """Whether a run that is reserved and not stored may be stored by this request. Errors: `idempotency_mismatch`."""
    answers = binding.interrupt.consumed_by == run_id
    # I24: a run goes on with the decision that was consumed for it, and with no other.
    if answers != bool(request.decision) or (answers and binding.interrupt.decision_digest != request.digest):
        raise _mismatch(run_id)


def _mismatch(run_id: str) -> HarnessError:
    return HarnessError(
        Reason.IDEMPOTENCY_MISMATCH,
        "This client_request_id was used for another request: send a new id, or the same request again.",
        metadata={"run_id": run_id},
    )


class Next(Enum):
    """What a start does after its reservation."""

    STORE = "store"
    """The slot or a place in the line is its own: store the run."""
    ADOPT = "adopt"
    """The request has a run already: answer it, storing it first if it is missing."""
    HELP_CLEAR = "help_clear"
    """Help to finish the clear, then reserve again."""
    LOOK = "look"
    """A run is in the way: look the request up, look at the occupant, and only then believe in a conflict."""
    READ_AGAIN = "read_again"
    """The binding is not the one that was read: read it, look the request up, and reserve again."""
    INTERRUPT_PENDING = "interrupt_pending"
    """A decision is awaited: a plain start is refused."""
    ANSWERED = "answered"
    """The same decision was taken before: answer its run, storing it first if it is missing."""
    ANSWERED_OTHERWISE = "answered_otherwise"
    NOT_PENDING = "not_pending"


def after_reservation(outcome: session_service_pb2.ReserveOutcome.ValueType) -> Next:
    """The next step for an outcome of ReserveTurn."""
    match outcome:
        case session_service_pb2.RESERVE_OUTCOME_GRANTED | session_service_pb2.RESERVE_OUTCOME_WAITING:
            return Next.STORE
        case session_service_pb2.RESERVE_OUTCOME_EXISTING:
            return Next.ADOPT
        case session_service_pb2.RESERVE_OUTCOME_CLOSING:
            return Next.HELP_CLEAR
        case session_service_pb2.RESERVE_OUTCOME_CHANGED:
            return Next.READ_AGAIN
        case session_service_pb2.RESERVE_OUTCOME_INTERRUPT_PENDING:
            return Next.INTERRUPT_PENDING
        case session_service_pb2.RESERVE_OUTCOME_ANSWERED:
            return Next.ANSWERED
        case session_service_pb2.RESERVE_OUTCOME_ANSWERED_OTHERWISE:
            return Next.ANSWERED_OTHERWISE
        case session_service_pb2.RESERVE_OUTCOME_NOT_PENDING:
            return Next.NOT_PENDING
        case _:
            return Next.LOOK


class Occupant(Enum):
    """What the run in the way turned out to be."""

    WORKING = "working"
    ENDED = "ended"
    """Its terminal is in the log: it is helped out, and no reason for a conflict."""
    UNSTORED = "unstored"
    """Reserved a moment ago and not stored yet."""
    ABANDONED = "abandoned"
    """Reserved longer ago than the grace, and never stored."""


def reserved_at(binding: binding_pb2.Binding, run_id: str) -> float:
    """Since when a run holds or awaits the slot, Unix seconds; 0 when it does neither."""
    for turn in (binding.active, *binding.waiting):
        if turn.run_id == run_id:
            return turn.since.ToNanoseconds() / 1e9
    return 0.0


def occupant_state(run: Run | None, *, has_terminal: bool, since: float, now: float, grace: float) -> Occupant:
    """What the occupant is. `since` and `now` are Unix seconds; a clock ahead of ours only makes us more patient."""
    if run is None:
        return Occupant.ABANDONED if now - since >= grace else Occupant.UNSTORED
    if not run.is_open or has_terminal:
        return Occupant.ENDED
    return Occupant.WORKING


def newest_interrupting(runs: Iterable[Run]) -> Run | None:
    """Of the runs that hold or await one slot, the one that sends the others of its policy, and the occupant, away: the latest that asked
    for that. An older one may still wait behind a younger one that has moved up already.
    """
    asked = [run for run in runs if run.policy == "interrupt"]
    return max(asked, key=lambda run: (run.created_at, run.run_id), default=None)


def conflict(request: Request, run_id: str) -> HarnessError:
    """The answer when the conversation is busy: by the policy, a conflict that names the run, or a full line."""
    if request.policy == "reject":
        return HarnessError(
            Reason.HARNESS_SESSION_CONFLICT,
            "The conversation has an active run: wait for its end, cancel it, or start with on_conflict enqueue or interrupt.",
            metadata={"run_id": run_id},
            retry_after=1.0,
        )
    return HarnessError(
        Reason.CAPACITY,
        "Too many runs wait for this conversation: try again when some of them have ended.",
        retry_after=2.0,
    )


def disabled() -> HarnessError:
    """The answer for an agent that starts nothing any more (I4)."""
    return HarnessError(Reason.HARNESS_DISABLED, "The agent is disabled: enable it by saving a new version.")


def no_room() -> HarnessError:
    """The answer when more runs wait for an executor than are allowed (I35)."""
    return HarnessError(
        Reason.CAPACITY, "Too many runs wait here: try again in a moment.", retry_after=1.0, not_begun=True
    )


def stopping() -> HarnessError:
    """The answer of a service that takes no new work (I33)."""
    return HarnessError(Reason.UNAVAILABLE, "The service is stopping: try again.", retry_after=1.0, not_begun=True)
