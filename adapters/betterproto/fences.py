"""What is refused before anything is done: a malformed request, or a fence that names nothing (worker protocol, Fence)."""

import re

import betterproto2
from betterproto_contracts.harness.common.v1 import ErrorCategory, Fence, Placement
from betterproto_contracts.harness.event.v1 import CancelReason
from betterproto_contracts.harness.runtime.v1 import ResumeDecision, RuntimeContext, TurnInput
from grpclib.const import Status as Code

from adapters.betterproto.errors import Refusal, invalid

PROTOCOL_VERSION = 1
CONTRACT_VERSION = 1
MAX_MESSAGE_BYTES = 1024 * 1024
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_OPTIONAL_ID = re.compile(r"[A-Za-z0-9._:-]{0,128}")
_TRACE = re.compile(r"(|00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})")


def fence_of(fence: Fence | None) -> Fence:
    """The fence of a call about a binding."""
    if fence is None:
        raise invalid("fence", "it is missing")
    _match(_ID, fence.binding_id, "fence.binding_id")
    for name in ("run_id", "request_id", "idempotency_key"):
        _match(_OPTIONAL_ID, getattr(fence, name), f"fence.{name}")
    _match(_TRACE, fence.traceparent, "fence.traceparent")
    for name in ("protocol_version", "epoch", "runtime_generation"):
        if not getattr(fence, name):
            raise invalid(f"fence.{name}", "it counts from 1")
    if fence.protocol_version != PROTOCOL_VERSION:
        message = f"This process speaks version {PROTOCOL_VERSION} of the worker protocol only."
        raise Refusal(Code.FAILED_PRECONDITION, "WORKER_MISMATCH", message, ErrorCategory.CONFIGURATION)
    return fence


def run_of(fence: Fence | None) -> Fence:
    """The fence of a call about a run."""
    checked = fence_of(fence)
    for name in ("run_id", "turn", "run_generation"):
        if not getattr(checked, name):
            raise invalid(f"fence.{name}", "it is required here")
    return checked


def incarnation_of(given: str, own: str) -> None:
    """Refuses what was issued to another process."""
    _match(_ID, given, "incarnation")
    if given != own:
        message = "The run was issued to another incarnation of this process."
        raise Refusal(Code.FAILED_PRECONDITION, "incarnation_mismatch", message)


def context_of(context: RuntimeContext | None) -> RuntimeContext:
    """What a runtime is created with."""
    if context is None or context.blueprint is None:
        raise invalid("context" if context is None else "context.blueprint", "it is missing")
    if context.contract_version != CONTRACT_VERSION:
        raise invalid("context.contract_version", f"this adapter knows version {CONTRACT_VERSION}")
    if not context.agent_version:
        raise invalid("context.agent_version", "it counts from 1")
    if context.placement is not Placement.PROVIDER_MANAGED:
        raise invalid("context.placement", "this adapter is an adapter host")
    return context


def turn_of(turn: TurnInput | None) -> TurnInput:
    """A turn's input."""
    if turn is None or turn.deadline is None:
        raise invalid("turn" if turn is None else "turn.deadline", "it is missing")
    if len(turn.message.encode()) > MAX_MESSAGE_BYTES:
        raise invalid("turn.message", f"it is over {MAX_MESSAGE_BYTES} bytes")
    if turn.files:
        raise invalid("turn.files", "this harness takes no files")
    return turn


def reason_of(reason: CancelReason) -> CancelReason:
    """Why a run is cancelled."""
    if reason not in list(CancelReason) or reason is CancelReason.UNSPECIFIED:
        raise invalid("reason", "it must be one of the reasons")
    return reason


def decision_of(decision: ResumeDecision | None) -> ResumeDecision:
    """The answer to an interrupt."""
    if decision is None:
        raise invalid("decision", "it is missing")
    _match(_ID, decision.interrupt_id, "decision.interrupt_id")
    _match(_ID, decision.interrupted_run_id, "decision.interrupted_run_id")
    if not decision.revision:
        raise invalid("decision.revision", "it counts from 1")
    kind, answer = betterproto2.which_one_of(decision, "answer")
    if not kind or answer is False:
        raise invalid("decision.answer", "it must be given")
    for call in decision.tool_decisions.decisions if decision.tool_decisions else ():
        _match(_ID, call.tool_call_id, "decision.tool_decisions.decisions.tool_call_id")
        if call.approve is False or not betterproto2.which_one_of(call, "decision")[0]:
            raise invalid("decision.tool_decisions.decisions", "every call needs a decision")
    return decision


def _match(pattern: re.Pattern[str], value: str, field: str) -> None:
    if not pattern.fullmatch(value):
        raise invalid(field, "it does not have the form of the contract")
