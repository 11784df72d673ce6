"""What a person decided on a call that waited, read where the resume stored it (design 0003; I24, I25). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from google.protobuf import struct_pb2

from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2
from services.common.errors import FieldIssue
from services.runs.run import Run
from services.runs.tools import arguments
from services.runs.tools.grant import Grant
from services.runs.tools.record import CallRecord, Ended, Failure, Outcome, State

ALLOWED = (
    payload_pb2.APPROVAL_DECISION_KIND_APPROVE,
    payload_pb2.APPROVAL_DECISION_KIND_REJECT,
    payload_pb2.APPROVAL_DECISION_KIND_EDIT,
)
"""The decisions that a portable tool's call may get."""


class Verdict(Enum):
    """What a person decided."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"
    DISMISS = "dismiss"
    """The whole question was, this call with it."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on one call, given in answer to the interrupt. `reason` is that of a reject, `edit` the arguments of an edit."""

    verdict: Verdict
    interrupt_id: str
    reason: str = ""
    edit: struct_pb2.Struct | None = None

    @property
    def refuses(self) -> bool:
        """Whether the call may not run."""
        return self.verdict in (Verdict.REJECT, Verdict.DISMISS)


def decision_for(record: CallRecord, run: Run, stored: runtime_pb2.ResumeDecision | None) -> Decision | None:
    """The decision by which this run goes on with the call; None: it was not asked about in the run that this one resumes, so nobody has decided.

    `stored` is what the run's resume stored, not what its runtime says.
    """
    if stored is None or not run.resumed_from or record.run_id != run.resumed_from:
        return None
    answer, interrupt = stored.WhichOneof("answer"), stored.interrupt_id
    if answer == "dismiss":
        return Decision(Verdict.DISMISS, interrupt, "The question was dismissed.")
    if answer != "tool_decisions":
        return None
    for decision in stored.tool_decisions.decisions:
        if decision.tool_call_id != record.tool_call_id:
            continue
        match decision.WhichOneof("decision"):
            case "approve":
                return Decision(Verdict.APPROVE, interrupt)
            case "edit":
                return Decision(Verdict.EDIT, interrupt, edit=decision.edit)
            case "reject":
                return Decision(Verdict.REJECT, interrupt, decision.reject)
            case _:
                return None
    return None


def edit_of(stored: runtime_pb2.ResumeDecision, tool_call_id: str) -> struct_pb2.Struct | None:
    """The arguments that a decision puts in the place of a call's own."""
    for decision in stored.tool_decisions.decisions:
        if decision.tool_call_id == tool_call_id and decision.HasField("edit"):
            return decision.edit
    return None


def rejected(decision: Decision) -> Ended:
    """The outcome of a call that a person refused."""
    return Ended(
        Outcome.REJECTED,
        failure=Failure("rejected", (decision.reason or "A person refused the call.")[:1_000]),
    )


def issues_of(
    asked: payload_pb2.InterruptRequested,
    decisions: Iterable[runtime_pb2.ToolDecision],
    records: dict[str, CallRecord],
    grants: dict[str, Grant],
) -> list[FieldIssue]:
    """Everything in which decisions do not fit the waiting calls they are about; calls of a harness's own tools have no record, and are its own to judge.

    Approved is what the record says, so what was shown has to be that; an edit is held to the tool's schema like any arguments (I25).
    """
    shown = {approval.tool_call_id: approval for approval in asked.tool_approvals}
    found: list[FieldIssue] = []
    for position, decision in enumerate(decisions):
        record, approval = records.get(decision.tool_call_id), shown.get(decision.tool_call_id)
        if record is None or approval is None or record.state is not State.WAITING:
            continue
        kind = decision.WhichOneof("decision") or ""
        path = f"tool_decisions.decisions[{position}].{kind}"
        if kind != "reject":
            found += _about(path, kind, decision, record, approval, grants.get(record.tool_id))
    return found


def _about(
    path: str,
    kind: str,
    decision: runtime_pb2.ToolDecision,
    record: CallRecord,
    approval: payload_pb2.ToolApproval,
    grant: Grant | None,
) -> list[FieldIssue]:
    if grant is None:
        return [FieldIssue(path, "tool_not_granted", "The agent may not call this tool any more: reject the call.")]
    names = (grant.descriptor.tool_id, grant.descriptor.provider_name)
    # I25: an edit too is of what was shown, and what would be run is what waits.
    if approval.tool_name not in names or _digest(record.tool_id, approval.arguments) != record.digest:
        return [FieldIssue(path, "not_what_waits", "The call that waits is not the one that was shown: reject it.")]
    return arguments.issues_of(schema_of(grant), decision.edit, path) if kind == "edit" else []


def schema_of(grant: Grant) -> dict[str, arguments.Json]:
    """The schema of the tool's arguments."""
    return arguments.plain(grant.descriptor.input_schema)


def _digest(tool_id: str, shown: struct_pb2.Struct) -> str:
    try:
        return arguments.digest_of(tool_id, arguments.plain(shown))
    except ValueError:
        return ""
