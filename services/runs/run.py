"""The run document: what a run is between its start and its end (run protocol, Three documents)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final

from services.runs.intent import Intent

NO_GENERATION: Final = 0
"""Generation of a run that nobody has taken yet."""


class Status(StrEnum):
    """Where a run stands; only the terminal event in the log ends it, the status follows (I9)."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TOMBSTONE = "tombstone"
    """Never was a run: holds the id of a reservation that was given up, so that a late insert fails."""


OPEN: Final = (Status.QUEUED, Status.RUNNING)


@dataclass(frozen=True, slots=True)
class Issued:
    """The runtime a run was given to. A run is never started anywhere else (I11)."""

    address: str
    incarnation: str
    runtime_generation: int


@dataclass(frozen=True, slots=True)
class Run:
    """One run as it is stored. Times are Unix milliseconds of the writer's wall clock; `rev` is the store's."""

    run_id: str
    owner: str | None
    """Keyed digest of the subject; None in a tombstone, which is in no list."""
    agent_id: str | None
    conversation_id: str | None
    request_key: str | None
    client_request_id: str
    body_digest: str
    binding_id: str
    epoch: int
    turn: int
    """Turn of the binding, 0 while it waits for the slot."""
    agent_version: int
    harness_id: str
    profile_id: str
    policy: str
    """`reject`, `enqueue` or `interrupt`: what the start asked for when the conversation was busy."""
    status: Status
    created_at: int
    updated_at: int
    run_generation: int = NO_GENERATION
    holder: str = ""
    """Who executes it; empty: nobody, and a running run without a holder was handed over."""
    renewals: int = 0
    intent: Intent | None = None
    ending: bool = False
    """It was taken by force; only an expired lease lets another take it."""
    closed: bool = False
    """No tool call passes any more."""
    issued: Issued | None = None
    deadline_at: int | None = None
    resumed_from: str = ""
    """The interrupted run whose interrupt it answers; empty: a plain turn."""
    error_code: str = ""
    last_sequence: int = 0
    ended_at: int | None = None
    expires_at: int | None = None
    """When its log may be deleted; set with its end."""
    trimmed: bool = False
    tool_calls: tuple[str, ...] = ()
    """Marks of the tool calls it accepted, at most `max_tool_calls` (run protocol, Tools)."""
    rev: int = 0

    @property
    def is_open(self) -> bool:
        """Whether its status says that it has not ended."""
        return self.status in OPEN

    @property
    def profile(self) -> tuple[str, str]:
        """Harness and profile it is executed with."""
        return self.harness_id, self.profile_id

    @property
    def is_stored_run(self) -> bool:
        """False for a tombstone."""
        return self.status is not Status.TOMBSTONE

    def running(self, *, holder: str, issued: Issued | None, deadline_at: int | None) -> Run:
        """The run as its starter executes it in place: generation 1 from the first write on (run protocol, Start 3)."""
        return replace(
            self, status=Status.RUNNING, run_generation=1, holder=holder, issued=issued, deadline_at=deadline_at
        )

    def trim(self) -> Run:
        """The run whose events are about to be deleted: a cursor into them is refused from now on."""
        return replace(self, trimmed=True)


_FIELDS: Final = tuple(field.name for field in fields(Run))
_LATER: Final = frozenset({"intent", "issued", "ended_at", "expires_at", "deadline_at"})


def to_document(run: Run) -> dict[str, Any]:
    """The record of a run. Absent values are left out, so that sparse indexes do not hold them."""
    document = {name: value for name in _FIELDS if (value := getattr(run, name)) is not None}
    document["status"] = run.status.value
    if run.tool_calls:
        document["tool_calls"] = list(run.tool_calls)
    else:
        del document["tool_calls"]
    if run.intent is not None:
        document["intent"] = run.intent.to_document()
    if run.issued is not None:
        document["issued"] = [run.issued.address, run.issued.incarnation, run.issued.runtime_generation]
    return document


def from_document(document: dict[str, Any]) -> Run:
    """The run of a record, `rev` included."""
    values = {name: document.get(name) for name in _FIELDS if name in document or name in _LATER}
    values["status"] = Status(document["status"])
    intent, issued = document.get("intent"), document.get("issued")
    values["intent"] = None if intent is None else Intent.from_document(intent)
    values["issued"] = None if issued is None else Issued(*issued)
    if "tool_calls" in values:
        values["tool_calls"] = tuple(document["tool_calls"])
    for name in ("owner", "agent_id", "conversation_id", "request_key"):
        values.setdefault(name, None)
    return Run(**values)  # pyright: ignore[reportArgumentType] - the shape is that of `to_document`


def tombstone(run_id: str, binding_id: str, epoch: int, now: int, expires_at: int) -> Run:
    """What is stored under the id of a reservation that was never used (run protocol, Start: Died after 1)."""
    return Run(
        run_id=run_id,
        owner=None,
        agent_id=None,
        conversation_id=None,
        request_key=None,
        client_request_id="",
        body_digest="",
        binding_id=binding_id,
        epoch=epoch,
        turn=0,
        agent_version=0,
        harness_id="",
        profile_id="",
        policy="reject",
        status=Status.TOMBSTONE,
        created_at=now,
        updated_at=now,
        expires_at=expires_at,
    )


def ended(run: Run, status: Status, *, last_sequence: int, error_code: str, now: int, retention_ms: int) -> Run:
    """The run once its terminal is in the log."""
    return replace(
        run,
        status=status,
        last_sequence=last_sequence,
        error_code=error_code,
        holder="",
        updated_at=now,
        ended_at=now,
        expires_at=now + retention_ms,
    )
