"""The record of one tool call and the only ways in which it may change (run protocol, Tools). Pure.

started ──▶ done          the provider answered, or failed for good
   │  └───▶ lost          its broker is gone: nobody knows what it did
   └──────▶ started       its broker is gone and the tool is idempotent: another broker goes on
waiting ──▶ started       approved, or approved with other arguments
   └──────▶ done          rejected
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final

MAX_MESSAGE: Final = 1_000
"""Characters of the message of an error (events, ToolError)."""
MAX_CODE: Final = 64
_KEY_BYTES: Final = 12
_EFFECT_BYTES: Final = 20
_BEGINNING_BYTES: Final = 8


class State(StrEnum):
    """Where a call stands."""

    WAITING = "waiting"
    """It waits for a person. It has not started."""
    STARTED = "started"
    """A broker has it, or had it when it died."""
    DONE = "done"
    LOST = "lost"
    """What it did is not known, and never will be."""


class Outcome(StrEnum):
    """How a call ended; the words of `tool.completed`."""

    SUCCESS = "success"
    ERROR = "error"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, as it may be told to a model (I22)."""

    code: str
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """How a call ended. `result` is JSON text, empty when there is none."""

    outcome: Outcome
    result: str = ""
    failure: Failure | None = None

    @classmethod
    def failed(cls, code: str, message: str, *, retryable: bool = False) -> Ended:
        """An error, its texts cut to their bounds (I35)."""
        return cls(Outcome.ERROR, failure=Failure(code[:MAX_CODE], message[:MAX_MESSAGE], retryable))


UNKNOWN: Final = Ended.failed(
    "tool_outcome_unknown", "Whether the call took effect is not known: side effects are possible. Do not repeat it."
)
"""What a lost call is told as: an error with side effects possible (I11)."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call as it is stored; its arguments are not. Times are Unix milliseconds of the writer's wall clock; `rev` is the store's."""

    binding_id: str
    epoch: int
    tool_call_id: str
    run_id: str
    """The run that called last; the record is kept as long as that run is."""
    tool_id: str
    digest: str
    """Of tool and arguments, as the runtime sent them."""
    state: State
    created_at: int
    broker: str = ""
    """Who invokes it: one life of one process."""
    beginning: str = ""
    """Names the moment in which that broker took it, so that whoever tried knows whether it was the one."""
    renewals: int = 0
    edited: str = ""
    """Digest of the arguments a person put in their place; empty: none did."""
    decision: str = ""
    """What a person decided: `approve`, `edit`, `reject`, or `dismiss` of the whole question; empty: nobody was asked, or nobody has answered."""
    interrupt_id: str = ""
    """The question that they answered."""
    decided_by: str = ""
    """The run that brought the decision: the one which resumed after that question."""
    started_at: int = 0
    ended_at: int = 0
    attempts: int = 0
    outcome: str = ""
    result: str = ""
    failure: Failure | None = None
    rev: int = 0

    @property
    def key(self) -> str:
        """The record's key: a call is unique in its binding's epoch."""
        return key_of(self.binding_id, self.epoch, self.tool_call_id)

    @property
    def ended(self) -> Ended | None:
        """How it ended; None while it has not."""
        if self.state is State.LOST:
            return UNKNOWN
        if self.state is State.DONE:
            return Ended(Outcome(self.outcome), self.result, self.failure)
        return None

    def fits(self, digest: str) -> bool:
        """Whether a call with this digest is this call, not another one under its id."""
        return digest in (self.digest, self.edited)


def key_of(binding_id: str, epoch: int, tool_call_id: str) -> str:
    """See `CallRecord.key`."""
    return f"{binding_id}/{epoch}/{tool_call_id}"


def mark_of(tool_call_id: str) -> str:
    """A call as a run remembers it: as long for every id, since a run may have ten thousand of them (I35)."""
    return hashlib.blake2b(tool_call_id.encode(), digest_size=_KEY_BYTES).hexdigest()


def effect_of(key: str) -> str:
    """Names the effect of a call for its provider: every try and every broker says the same, and the conversation is not told."""
    return "tcl_" + hashlib.blake2b(key.encode(), digest_size=_EFFECT_BYTES).hexdigest()


def decided(record: CallRecord, decision: str, interrupt_id: str, run_id: str) -> CallRecord:
    """The call that waited, with what a person decided; it is written together with what follows from that."""
    return replace(record, decision=decision, interrupt_id=interrupt_id, decided_by=run_id)


def started(record: CallRecord, broker: str, now: int, *, run_id: str = "", edited: str = "") -> CallRecord:
    """The call in the hands of a broker: new, approved, or taken from one that is gone."""
    return replace(
        record,
        state=State.STARTED,
        broker=broker,
        beginning=secrets.token_hex(_BEGINNING_BYTES),
        renewals=0,
        run_id=run_id or record.run_id,
        edited=edited or record.edited,
        started_at=now,
    )


def renewed(record: CallRecord) -> CallRecord:
    """The call whose broker is alive."""
    return replace(record, renewals=record.renewals + 1)


def done(record: CallRecord, ended: Ended, now: int, *, attempts: int = 0, run_id: str = "") -> CallRecord:
    """The call with its outcome, which never changes from here on."""
    return replace(
        record,
        state=State.DONE,
        run_id=run_id or record.run_id,
        outcome=ended.outcome.value,
        result=ended.result,
        failure=ended.failure,
        attempts=attempts,
        ended_at=now,
    )


def lost(record: CallRecord, now: int) -> CallRecord:
    """The call whose broker is gone."""
    return replace(record, state=State.LOST, ended_at=now)


_FIELDS: Final = tuple(field.name for field in fields(CallRecord) if field.name not in ("failure", "rev"))


def to_document(record: CallRecord) -> dict[str, Any]:
    """The record as the store keeps it; what is empty is left out."""
    document = {name: value for name in _FIELDS if (value := getattr(record, name)) not in ("", 0)}
    document["state"] = record.state.value
    if record.failure is not None:
        document["failure"] = [record.failure.code, record.failure.message, record.failure.retryable]
    return document


def from_document(document: dict[str, Any]) -> CallRecord:
    """The inverse of `to_document`, `rev` included."""
    values = {name: document[name] for name in (*_FIELDS, "rev") if name in document}
    values["state"] = State(document["state"])
    if "failure" in document:
        values["failure"] = Failure(*document["failure"])
    return CallRecord(**values)
