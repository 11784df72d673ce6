"""What goes wrong, in the contract's two shapes: a call that is refused, and a run that fails."""

from betterproto_contracts.google.protobuf import Any
from betterproto_contracts.google.rpc import BadRequest, BadRequestFieldViolation, ErrorInfo, Status
from betterproto_contracts.harness.common.v1 import ErrorCategory, SideEffectStatus
from betterproto_contracts.harness.event.v1 import EventDraft, EventPayload, RunFailed
from grpclib import GRPCError
from grpclib.const import Status as Code
from grpclib.encoding.base import StatusDetailsCodecBase

DOMAIN = "harness"
MAX_MESSAGE_CHARACTERS = 1000
RETRYABLE = frozenset({ErrorCategory.CAPACITY, ErrorCategory.THROTTLED, ErrorCategory.UNAVAILABLE})
# A provider that refuses in one of these ways has done nothing.
REFUSALS = RETRYABLE - {ErrorCategory.UNAVAILABLE} | {
    ErrorCategory.CONFIGURATION,
    ErrorCategory.AUTHENTICATION,
    ErrorCategory.AUTHORIZATION,
}


class Refusal(Exception):
    """A call that is answered with a status and its reason. `field`: the malformed field, if that is why."""

    def __init__(
        self,
        code: Code,
        reason: str,
        message: str,
        category: ErrorCategory = ErrorCategory.UNAVAILABLE,
        *,
        retryable: bool = False,
        field: str = "",
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.category, self.retryable, self.field = category, retryable, field

    def on_the_wire(self) -> GRPCError:
        """The same as grpclib sends it."""
        category = str(self.category.name).lower()
        facts = {"category": category, "retryable": "true" if self.retryable else "false"}
        details = [Any.pack(ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=facts))]
        if self.field:
            violation = BadRequestFieldViolation(field=self.field, description=self.message, reason="invalid")
            details.append(Any.pack(BadRequest(field_violations=[violation])))
        return GRPCError(self.code, self.message, details)


class Details(StatusDetailsCodecBase):
    """`google.rpc.Status` in the trailer, with this stack's own messages."""

    def encode(self, status: Code, message: str | None, details: "list[Any] | None") -> bytes:
        """The trailer's bytes."""
        return bytes(Status(code=status.value, message=message or "", details=details or []))

    def decode(self, status: Code, message: str | None, data: bytes) -> list[Any]:
        """The details in the trailer's bytes."""
        return Status.parse(data).details


def stale(message: str) -> Refusal:
    """The caller's fence is older than what this process has seen."""
    return Refusal(Code.FAILED_PRECONDITION, "STALE_LEASE", message, ErrorCategory.AUTHORIZATION)


def invalid(field: str, what: str) -> Refusal:
    """The request is malformed at `field`; its value is never repeated."""
    message = f"The request is malformed at {field}: {what}."
    return Refusal(Code.INVALID_ARGUMENT, "invalid_request", message, ErrorCategory.CONFIGURATION, field=field)


def missing(reason: str, message: str) -> Refusal:
    """The runtime or run of the fence is not here: `runtime_unknown`, `runtime_gone`, `run_unknown`."""
    return Refusal(Code.NOT_FOUND, reason, message)


def busy(message: str) -> Refusal:
    """Another of the operations that exclude each other is at work."""
    return Refusal(Code.ABORTED, "operation_in_progress", message, ErrorCategory.CAPACITY, retryable=True)


def full(message: str) -> Refusal:
    """A bound of this process is reached."""
    return Refusal(Code.RESOURCE_EXHAUSTED, "capacity", message, ErrorCategory.CAPACITY, retryable=True)


def out_of_range(reason: str, message: str) -> Refusal:
    """An offset that is forgotten, or that does not exist yet."""
    return Refusal(Code.OUT_OF_RANGE, reason, message, ErrorCategory.PROTOCOL)


class Failure(Exception):
    """A run's classified failure. Its message is safe to show; `code` is lower snake case."""

    def __init__(
        self,
        category: ErrorCategory,
        code: str,
        message: str,
        *,
        retryable: bool | None = None,
        retry_after: int | None = None,
        provider_code: str = "",
    ) -> None:
        super().__init__(message)
        self.category, self.code, self.message = category, code, message
        self.retryable = category in RETRYABLE if retryable is None else retryable
        self.retry_after, self.provider_code = retry_after, provider_code

    def draft(self, *, showed_output: bool) -> EventDraft:
        """The terminal event that ends the run."""
        nothing = self.category in REFUSALS and not showed_output
        failed = RunFailed(
            code=self.code,
            category=self.category,
            message=self.message[:MAX_MESSAGE_CHARACTERS],
            retryable=self.retryable,
            side_effect_status=SideEffectStatus.NONE if nothing else SideEffectStatus.POSSIBLE,
            retry_after_seconds=self.retry_after,
            provider_code=self.provider_code[:128],
        )
        return EventDraft(payload=EventPayload(run_failed=failed))


def wrong(code: str, message: str) -> Failure:
    """What was asked for cannot be done as it stands."""
    return Failure(ErrorCategory.CONFIGURATION, code, message)
