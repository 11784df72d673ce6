"""What a resume is and what its reservation came to (run protocol, Resume): pure decisions, carried out by `resuming`."""

from __future__ import annotations

import hashlib
from typing import Final

from harness.run.v1 import resumed_turn_pb2, run_service_pb2
from harness.runtime.v1 import runtime_pb2
from harness.session.v1 import binding_pb2, session_service_pb2
from services.common.errors import HarnessError, Reason, invalid_request
from services.runs.decision import issues_of
from services.runs.run import Run
from services.runs.start import Request, key_of

_DIGEST_BYTES: Final = 20


def decision_of(asked: run_service_pb2.ResumeRunRequest) -> runtime_pb2.ResumeDecision:
    """The decision as the runtime gets it. Calls are in order of their ids: the same decisions are the same decision."""
    decision = runtime_pb2.ResumeDecision(
        interrupt_id=asked.interrupt_id, revision=asked.revision, interrupted_run_id=asked.run_id
    )
    match asked.WhichOneof("answer"):
        case "form_values":
            decision.form_values.CopyFrom(asked.form_values)
        case "tool_decisions":
            calls = sorted(asked.tool_decisions.decisions, key=lambda call: call.tool_call_id)
            decision.tool_decisions.decisions.extend(calls)
        case _:
            decision.dismiss = True
    return decision


def request_of(interrupted: Run, turn: bytes | None, asked: run_service_pb2.ResumeRunRequest) -> Request:
    """A resume as it is compared and stored. `turn` is the stored input of the run that asked: its context and files go on, its message does not."""
    decision = decision_of(asked)
    digest = hashlib.blake2b(decision.SerializeToString(deterministic=True), digest_size=_DIGEST_BYTES).hexdigest()
    body = stored_turn(interrupted, turn)[0]
    body.agent_id, body.conversation_id = interrupted.agent_id or "", interrupted.conversation_id or ""
    body.message, body.client_request_id = "", asked.client_request_id
    body.on_conflict = binding_pb2.CONFLICT_POLICY_REJECT
    # Without a client's id the decision itself is: the same one again is the same run, as long as that is kept.
    named = key_of(asked.client_request_id) if asked.client_request_id else f"res_{digest}"
    return Request(
        owner=interrupted.owner or "",
        body=body,
        named_key=named,
        digest=digest,
        resumed_from=interrupted.run_id,
        decision=decision,
    )


def stored_turn(
    run: Run, stored: bytes | None
) -> tuple[run_service_pb2.StartRunRequest, runtime_pb2.ResumeDecision | None]:
    """What was kept with a run to execute it with: its turn, and the decision it goes on with if it answers an interrupt."""
    if not run.resumed_from:
        return run_service_pb2.StartRunRequest.FromString(stored or b""), None
    resumed = resumed_turn_pb2.ResumedTurn.FromString(stored or b"")
    return resumed.turn, resumed.decision


def answer_of(request: Request) -> session_service_pb2.InterruptAnswer:
    """Which interrupt the reservation consumes, and with what."""
    decision = request.decision
    if decision is None:
        raise ValueError("a plain start answers nothing")
    return session_service_pb2.InterruptAnswer(
        run_id=decision.interrupted_run_id,
        interrupt_id=decision.interrupt_id,
        revision=decision.revision,
        decision_digest=request.digest,
    )


def check(binding: binding_pb2.Binding, asked: run_service_pb2.ResumeRunRequest) -> None:
    """Whether the decision fits what is pending. What is not pending, the reservation says. Errors: `invalid_request` with every problem (I25)."""
    interrupt = binding.interrupt
    if not is_pending(binding) or (interrupt.run_id, interrupt.requested.interrupt_id, interrupt.revision) != (
        asked.run_id,
        asked.interrupt_id,
        asked.revision,
    ):
        return
    if issues := issues_of(interrupt.requested, asked):
        raise invalid_request(issues, "The decision does not fit what was asked.")


def is_pending(binding: binding_pb2.Binding) -> bool:
    """Whether the binding awaits a decision."""
    return (
        binding.status == binding_pb2.BINDING_STATUS_ACTIVE
        and binding.HasField("interrupt")
        and not binding.interrupt.consumed_by
    )


def state_of(binding: binding_pb2.Binding) -> run_service_pb2.InterruptState:
    """The pending interrupt as its owner may see it."""
    interrupt, asked = binding.interrupt, binding.interrupt.requested
    return run_service_pb2.InterruptState(
        interrupt_id=asked.interrupt_id,
        revision=interrupt.revision,
        run_id=interrupt.run_id,
        binding_id=binding.binding_id,
        interrupt_type=asked.interrupt_type,
        prompt=asked.prompt,
        fields=asked.fields,
        tool_approvals=asked.tool_approvals,
        namespace=interrupt.namespace,
    )


def pending(binding: binding_pb2.Binding, run_id: str) -> HarnessError:
    """The answer of a plain start while a decision is awaited."""
    return HarnessError(
        Reason.INTERRUPT_PENDING,
        "The conversation waits for a decision: resume the run that asked, dismiss the interrupt, or start with on_conflict interrupt.",
        metadata={"run_id": run_id, "interrupt_id": binding.interrupt.requested.interrupt_id},
    )


def answered_otherwise(run_id: str) -> HarnessError:
    """The answer to a second, other decision."""
    return HarnessError(
        Reason.HARNESS_SESSION_CONFLICT,
        "The interrupt was answered with another decision: see the run that goes on with it.",
        metadata={"run_id": run_id},
        retryable=False,
    )


def answered_long_ago() -> HarnessError:
    """The answer to the same decision when the run it led to is no longer kept."""
    return HarnessError(
        Reason.HARNESS_SESSION_CONFLICT,
        "The interrupt was answered, and the run that went on with it is no longer kept.",
        retryable=False,
    )


def asked_long_ago() -> HarnessError:
    """The answer to a decision when the retention of the run that asked is over: the context and files to go on with are gone."""
    return HarnessError(
        Reason.HARNESS_SESSION_CONFLICT,
        "The run that asked is no longer kept, so none can go on from it: start with on_conflict interrupt.",
        retryable=False,
    )


def not_pending(binding: binding_pb2.Binding, request: Request) -> HarnessError:
    """The answer to a decision on what is not asked: another revision of it, or nothing of the kind."""
    decision, interrupt = request.decision, binding.interrupt
    if (
        decision is not None
        and is_pending(binding)
        and interrupt.run_id == decision.interrupted_run_id
        and interrupt.requested.interrupt_id == decision.interrupt_id
    ):
        return HarnessError(
            Reason.REVISION_CONFLICT,
            "The interrupt has another revision: look at the conversation's interrupt-state and decide on that.",
            metadata={"revision": str(interrupt.revision)},
        )
    return HarnessError(
        Reason.HARNESS_SESSION_CONFLICT,
        "The run has no such interrupt that waits for a decision: it was dismissed or cleared, or never was.",
        retryable=False,
    )
