"""What is refused before anything is done, beyond the contracts' constraints: what this call needs, another version or process (worker protocol, Fence)."""

from betterproto_contracts.harness.common.v1 import ErrorCategory, Fence, Placement
from betterproto_contracts.harness.runtime.v1 import ResumeDecision, RuntimeContext, TurnInput
from grpclib.const import Status as Code

from adapters.betterproto.errors import Refusal, invalid

PROTOCOL_VERSION = 1
CONTRACT_VERSION = 1


def fence_of(fence: Fence | None) -> Fence:
    """The fence of a call about a binding."""
    if fence is None:
        raise invalid("fence", "it is missing")
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
    if given != own:
        message = "The run was issued to another incarnation of this process."
        raise Refusal(Code.FAILED_PRECONDITION, "incarnation_mismatch", message)


def context_of(context: RuntimeContext | None) -> RuntimeContext:
    """What a runtime is created with."""
    if context is None or context.blueprint is None:
        raise invalid("context" if context is None else "context.blueprint", "it is missing")
    if context.contract_version != CONTRACT_VERSION:
        raise invalid("context.contract_version", f"this adapter knows version {CONTRACT_VERSION}")
    if context.placement is not Placement.PROVIDER_MANAGED:
        raise invalid("context.placement", "this adapter is an adapter host")
    return context


def turn_of(turn: TurnInput | None) -> TurnInput:
    """A turn's input."""
    if turn is None or turn.deadline is None:
        raise invalid("turn" if turn is None else "turn.deadline", "it is missing")
    if turn.files:
        raise invalid("turn.files", "this harness takes no files")
    return turn


def decision_of(decision: ResumeDecision | None) -> ResumeDecision:
    """The answer to an interrupt."""
    if decision is None:
        raise invalid("decision", "it is missing")
    return decision
