"""Why a call is refused before any run: a reason, a category, and a sentence (worker protocol, Errors)."""

from collections.abc import Sequence
from dataclasses import dataclass

from adapters.sdk.errors import HarnessError
from harness.common.v1 import error_pb2

_CATEGORY_CODES: dict[int, str] = {
    error_pb2.ERROR_CATEGORY_CONFIGURATION: "FAILED_PRECONDITION",
    error_pb2.ERROR_CATEGORY_AUTHENTICATION: "UNAUTHENTICATED",
    error_pb2.ERROR_CATEGORY_AUTHORIZATION: "PERMISSION_DENIED",
    error_pb2.ERROR_CATEGORY_CAPACITY: "RESOURCE_EXHAUSTED",
    error_pb2.ERROR_CATEGORY_THROTTLED: "RESOURCE_EXHAUSTED",
    error_pb2.ERROR_CATEGORY_UNAVAILABLE: "UNAVAILABLE",
    error_pb2.ERROR_CATEGORY_TIMEOUT: "DEADLINE_EXCEEDED",
    error_pb2.ERROR_CATEGORY_PROTOCOL: "INTERNAL",
    error_pb2.ERROR_CATEGORY_PERSISTENCE: "UNAVAILABLE",
    error_pb2.ERROR_CATEGORY_CANCELLED: "CANCELLED",
    error_pb2.ERROR_CATEGORY_INTERNAL: "INTERNAL",
}


@dataclass(frozen=True, slots=True)
class FieldIssue:
    """One malformed field of a request: where, which rule, what it says. Never the value."""

    path: str
    code: str
    message: str


class Refusal(Exception):
    """A call that is answered with a google.rpc.Status. `grpc_code` is the name of the status code."""

    def __init__(
        self,
        grpc_code: str,
        reason: str,
        message: str,
        *,
        category: str,
        retryable: bool = False,
        retry_after: float | None = None,
        issues: Sequence[FieldIssue] = (),
    ) -> None:
        super().__init__(message)
        self.grpc_code = grpc_code
        self.reason = reason
        self.message = message
        self.category = category
        self.retryable = retryable
        self.retry_after = retry_after
        self.issues = issues


def stale_lease(message: str) -> Refusal:
    """The caller's fence is older than what this process has seen."""
    return Refusal("FAILED_PRECONDITION", "STALE_LEASE", message, category="authorization")


def runtime_unknown() -> Refusal:
    """The fence names a runtime that never was here."""
    message = "No runtime of this binding, epoch and generation is here; create it first."
    return Refusal("NOT_FOUND", "runtime_unknown", message, category="unavailable")


def runtime_gone() -> Refusal:
    """The fence names a runtime that was here: what was started in it may have had effects, so no run of it is started again (I11)."""
    message = "The runtime of this binding, epoch and generation was here and is no more."
    return Refusal("NOT_FOUND", "runtime_gone", message, category="unavailable")


def run_unknown() -> Refusal:
    """This incarnation never heard of the run, or has forgotten it."""
    return Refusal("NOT_FOUND", "run_unknown", "This runtime knows nothing of the run.", category="unavailable")


def run_cancelled() -> Refusal:
    """The run was cancelled before it came: it must not start any more."""
    message = "The run was cancelled before it started."
    return Refusal("FAILED_PRECONDITION", "run_cancelled", message, category="cancelled")


def incarnation_mismatch() -> Refusal:
    """The call was meant for another process."""
    message = "The run was issued to another incarnation of this process."
    return Refusal("FAILED_PRECONDITION", "incarnation_mismatch", message, category="unavailable")


def capacity(message: str) -> Refusal:
    """A bound of this host is reached (I35)."""
    return Refusal("RESOURCE_EXHAUSTED", "capacity", message, category="capacity", retryable=True, retry_after=1.0)


def busy(message: str) -> Refusal:
    """Another of the operations that exclude each other is at work."""
    return Refusal("ABORTED", "operation_in_progress", message, category="capacity", retryable=True)


def stopping() -> Refusal:
    """The process takes no new work."""
    return Refusal("UNAVAILABLE", "unavailable", "This host is stopping.", category="unavailable", retryable=True)


def offset_forgotten(oldest: int) -> Refusal:
    """The asked-for drafts were acknowledged and are gone."""
    message = f"Drafts before offset {oldest} were acknowledged and are forgotten."
    return Refusal("OUT_OF_RANGE", "offset_forgotten", message, category="protocol")


def offset_ahead(last: int) -> Refusal:
    """The caller speaks of drafts that do not exist."""
    return Refusal("OUT_OF_RANGE", "offset_ahead", f"The run has no draft after offset {last}.", category="protocol")


def stream_superseded() -> Refusal:
    """A younger stream of the run took over; this is not the end of the run."""
    message = "A younger stream of this run took over."
    return Refusal("ABORTED", "stream_superseded", message, category="unavailable")


def invalid(message: str, issues: Sequence[FieldIssue] = ()) -> Refusal:
    """The request breaks the contract's constraints."""
    return Refusal("INVALID_ARGUMENT", "invalid_request", message, category="configuration", issues=issues)


def mismatch(message: str) -> Refusal:
    """Harness or protocol do not fit the lease."""
    return Refusal("FAILED_PRECONDITION", "WORKER_MISMATCH", message, category="configuration")


def from_error(error: HarnessError) -> Refusal:
    """A classified failure outside a run; its safe projection alone (I22)."""
    category = error_pb2.ErrorCategory.Name(error.category).removeprefix("ERROR_CATEGORY_").lower()
    return Refusal(
        _CATEGORY_CODES[error.category],
        error.code,
        error.message,
        category=category,
        retryable=error.retryable,
        retry_after=error.retry_after,
    )
