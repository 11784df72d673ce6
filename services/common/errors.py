"""The one table of errors: reason -> category, gRPC code, HTTP status, retryable (REST API "Codes", worker protocol "Errors").

Pure: domain modules raise `HarnessError` and know nothing of a transport. `services.common.status` carries it over gRPC.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import NamedTuple

DOMAIN = "harness"
MAX_MESSAGE_CHARACTERS = 1024
MAX_FIELD_ISSUES = 100
MAX_ISSUE_CHARACTERS = 256
MAX_METADATA_ENTRIES = 16


class Category(StrEnum):
    """The eleven categories of the adapter contract, "Error contract"."""

    CONFIGURATION = "configuration"
    AUTHENTICATION = "authentication"
    AUTHORIZATION = "authorization"
    CAPACITY = "capacity"
    THROTTLED = "throttled"
    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    PROTOCOL = "protocol"
    PERSISTENCE = "persistence"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


class GrpcCode(IntEnum):
    """google.rpc.Code, the numbers used on the wire."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Reason(StrEnum):
    """Every machine code the mesh answers with; the value is what clients see as `code` and peers as `ErrorInfo.reason`."""

    # REST API, "Codes"
    HARNESS_UNKNOWN = "harness_unknown"
    HARNESS_DISABLED = "harness_disabled"
    HARNESS_UNAVAILABLE = "harness_unavailable"
    HARNESS_CONTRACT_INCOMPATIBLE = "harness_contract_incompatible"
    HARNESS_CAPABILITY_UNSUPPORTED = "harness_capability_unsupported"
    HARNESS_SESSION_CONFLICT = "harness_session_conflict"
    HARNESS_VALIDATION_STALE = "harness_validation_stale"
    REVISION_CONFLICT = "revision_conflict"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    INTERRUPT_PENDING = "interrupt_pending"
    THREAD_DURABILITY_UNCERTAIN = "thread_durability_uncertain"
    MEMORY_REVISION_CONFLICT = "memory_revision_conflict"
    CAPACITY = "capacity"
    CURSOR_EXPIRED = "cursor_expired"
    NOT_FOUND = "not_found"
    INVALID_REQUEST = "invalid_request"
    BODY_TOO_LARGE = "body_too_large"
    UNAUTHENTICATED = "unauthenticated"
    RATE_LIMITED = "rate_limited"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    INTERNAL = "internal"
    # worker protocol, "Errors" and "Fence"
    STALE_LEASE = "STALE_LEASE"
    WORKER_MISMATCH = "WORKER_MISMATCH"
    SANDBOX_NOT_READY = "SANDBOX_NOT_READY"
    SANDBOX_CAPACITY = "SANDBOX_CAPACITY"
    SANDBOX_EVICTED = "SANDBOX_EVICTED"
    SANDBOX_LIMIT = "SANDBOX_LIMIT"
    # a category with nothing more precise to say (also what adapters' own codes become)
    CONFIGURATION_INVALID = "configuration_invalid"
    PROVIDER_AUTHENTICATION = "provider_authentication"
    PERMISSION_DENIED = "permission_denied"
    UNAVAILABLE = "unavailable"
    STORE_UNAVAILABLE = "store_unavailable"
    PERSISTENCE_FAILED = "persistence_failed"
    PROTOCOL_VIOLATION = "protocol_violation"
    UNIMPLEMENTED = "unimplemented"
    CANCELLED = "cancelled"


class ReasonRule(NamedTuple):
    """What a reason means to each kind of caller."""

    category: Category
    grpc_code: GrpcCode
    http_status: int
    retryable: bool


def _rule(category: Category, grpc_code: GrpcCode, http_status: int, *, retryable: bool = False) -> ReasonRule:
    return ReasonRule(category, grpc_code, http_status, retryable)


_C, _G, _R = Category, GrpcCode, Reason

TABLE: Mapping[Reason, ReasonRule] = MappingProxyType(
    {
        _R.HARNESS_UNKNOWN: _rule(_C.CONFIGURATION, _G.INVALID_ARGUMENT, 422),
        _R.HARNESS_DISABLED: _rule(_C.CONFIGURATION, _G.FAILED_PRECONDITION, 503),
        _R.HARNESS_UNAVAILABLE: _rule(_C.UNAVAILABLE, _G.UNAVAILABLE, 503, retryable=True),
        _R.HARNESS_CONTRACT_INCOMPATIBLE: _rule(_C.CONFIGURATION, _G.FAILED_PRECONDITION, 422),
        _R.HARNESS_CAPABILITY_UNSUPPORTED: _rule(_C.CONFIGURATION, _G.FAILED_PRECONDITION, 422),
        _R.HARNESS_SESSION_CONFLICT: _rule(_C.CAPACITY, _G.ABORTED, 409, retryable=True),
        _R.HARNESS_VALIDATION_STALE: _rule(_C.CONFIGURATION, _G.ABORTED, 409),
        _R.REVISION_CONFLICT: _rule(_C.PERSISTENCE, _G.ABORTED, 409),
        _R.IDEMPOTENCY_MISMATCH: _rule(_C.CONFIGURATION, _G.ALREADY_EXISTS, 409),
        _R.INTERRUPT_PENDING: _rule(_C.CONFIGURATION, _G.FAILED_PRECONDITION, 409),
        _R.THREAD_DURABILITY_UNCERTAIN: _rule(_C.PERSISTENCE, _G.DATA_LOSS, 500),
        _R.MEMORY_REVISION_CONFLICT: _rule(_C.PERSISTENCE, _G.ABORTED, 409),
        _R.CAPACITY: _rule(_C.CAPACITY, _G.RESOURCE_EXHAUSTED, 503, retryable=True),
        _R.CURSOR_EXPIRED: _rule(_C.CONFIGURATION, _G.OUT_OF_RANGE, 410),
        _R.NOT_FOUND: _rule(_C.CONFIGURATION, _G.NOT_FOUND, 404),
        _R.INVALID_REQUEST: _rule(_C.CONFIGURATION, _G.INVALID_ARGUMENT, 422),
        _R.BODY_TOO_LARGE: _rule(_C.CONFIGURATION, _G.INVALID_ARGUMENT, 413),
        _R.UNAUTHENTICATED: _rule(_C.AUTHENTICATION, _G.UNAUTHENTICATED, 401),
        _R.RATE_LIMITED: _rule(_C.THROTTLED, _G.RESOURCE_EXHAUSTED, 429, retryable=True),
        _R.DEADLINE_EXCEEDED: _rule(_C.TIMEOUT, _G.DEADLINE_EXCEEDED, 504, retryable=True),
        _R.INTERNAL: _rule(_C.INTERNAL, _G.INTERNAL, 500),
        # A stale holder must stop, not try again: whoever re-attaches a runtime says retryable=True itself.
        _R.STALE_LEASE: _rule(_C.AUTHORIZATION, _G.FAILED_PRECONDITION, 409),
        _R.WORKER_MISMATCH: _rule(_C.CONFIGURATION, _G.FAILED_PRECONDITION, 503),
        _R.SANDBOX_NOT_READY: _rule(_C.UNAVAILABLE, _G.UNAVAILABLE, 503, retryable=True),
        _R.SANDBOX_CAPACITY: _rule(_C.CAPACITY, _G.RESOURCE_EXHAUSTED, 503, retryable=True),
        # Replay safety is unknown after an eviction, so nobody may retry on their own.
        _R.SANDBOX_EVICTED: _rule(_C.UNAVAILABLE, _G.ABORTED, 503),
        _R.SANDBOX_LIMIT: _rule(_C.CAPACITY, _G.RESOURCE_EXHAUSTED, 503),
        _R.CONFIGURATION_INVALID: _rule(_C.CONFIGURATION, _G.FAILED_PRECONDITION, 422),
        _R.PROVIDER_AUTHENTICATION: _rule(_C.AUTHENTICATION, _G.FAILED_PRECONDITION, 502),
        _R.PERMISSION_DENIED: _rule(_C.AUTHORIZATION, _G.PERMISSION_DENIED, 403),
        _R.UNAVAILABLE: _rule(_C.UNAVAILABLE, _G.UNAVAILABLE, 503, retryable=True),
        _R.STORE_UNAVAILABLE: _rule(_C.PERSISTENCE, _G.UNAVAILABLE, 503, retryable=True),
        _R.PERSISTENCE_FAILED: _rule(_C.PERSISTENCE, _G.DATA_LOSS, 500),
        _R.PROTOCOL_VIOLATION: _rule(_C.PROTOCOL, _G.INTERNAL, 502),
        _R.UNIMPLEMENTED: _rule(_C.PROTOCOL, _G.UNIMPLEMENTED, 501),
        _R.CANCELLED: _rule(_C.CANCELLED, _G.CANCELLED, 499),
    }
)

# The reason for an error of which only the category is known, as from an adapter that uses a code of its own.
REASON_OF_CATEGORY: Mapping[Category, Reason] = MappingProxyType(
    {
        _C.CONFIGURATION: _R.CONFIGURATION_INVALID,
        _C.AUTHENTICATION: _R.PROVIDER_AUTHENTICATION,
        _C.AUTHORIZATION: _R.PERMISSION_DENIED,
        _C.CAPACITY: _R.CAPACITY,
        _C.THROTTLED: _R.RATE_LIMITED,
        _C.UNAVAILABLE: _R.UNAVAILABLE,
        _C.TIMEOUT: _R.DEADLINE_EXCEEDED,
        _C.PROTOCOL: _R.PROTOCOL_VIOLATION,
        _C.PERSISTENCE: _R.PERSISTENCE_FAILED,
        _C.CANCELLED: _R.CANCELLED,
        _C.INTERNAL: _R.INTERNAL,
    }
)


class FieldIssue(NamedTuple):
    """One field problem: where (dotted path into the request), which rule (machine code), what to do (safe text)."""

    path: str
    code: str
    message: str


class HarnessError(Exception):
    """A classified error whose every part may be shown to a client (I22).

    `message` says what was wrong, where, and what to do; it is cut at 1,024 characters. `details` are field issues,
    all at once, at most 100, each text of theirs cut at 256. `metadata` is at most 16 short facts a client can act on
    (`run_id` of a conflict); the keys `category`, `retryable`, `code` and `not_begun` are the wire's own. `retry_after` is in
    seconds. `retryable` overrides the table's default. `not_begun` says that the call was refused before it did anything, so that
    another replica may be asked at once; it is said to the direct caller alone, who may have done more than this call.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        details: Sequence[FieldIssue] = (),
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        retryable: bool | None = None,
        not_begun: bool = False,
    ) -> None:
        # I35: an error travels in response headers, whose size clients limit.
        self.message = _safe_text(message, MAX_MESSAGE_CHARACTERS)
        super().__init__(self.message)
        self.reason = reason
        self.details = tuple(
            FieldIssue(*(_safe_text(part, MAX_ISSUE_CHARACTERS) for part in issue))
            for issue in details[:MAX_FIELD_ISSUES]
        )
        facts = list((metadata or {}).items())[:MAX_METADATA_ENTRIES]
        self.metadata = {_safe_text(k, MAX_ISSUE_CHARACTERS): _safe_text(v, MAX_ISSUE_CHARACTERS) for k, v in facts}
        self.retry_after = retry_after
        self.not_begun = not_begun
        self.retryable = TABLE[reason].retryable if retryable is None else retryable

    @property
    def category(self) -> Category:
        return TABLE[self.reason].category

    @property
    def grpc_code(self) -> GrpcCode:
        return TABLE[self.reason].grpc_code

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.message}"


def _safe_text(text: str, limit: int) -> str:
    # Text cut out of somebody's request may hold half characters, which no encoding of ours can carry.
    return text[:limit].encode("utf-8", "replace").decode("utf-8")


class ConfigurationError(Exception):
    """A setting is wrong: the process must not start (I32). The text names the setting, what is wrong, what to do."""


def http_status(error: HarnessError) -> int:
    """The HTTP status of the REST API for this error."""
    return TABLE[error.reason].http_status


def invalid_request(details: Sequence[FieldIssue], message: str = "The request has invalid fields.") -> HarnessError:
    """All field problems of a request, at once (REST API, "Field problems")."""
    return HarnessError(Reason.INVALID_REQUEST, message, details=details)


def not_found(what: str) -> HarnessError:
    """Not there, or another subject's: the same answer for both (I2). `what` is a kind ("run"), never an id."""
    return HarnessError(Reason.NOT_FOUND, f"No such {what}.")


def internal(incident_id: str) -> HarnessError:
    """An unexpected failure: the client learns the incident id and nothing else (I22)."""
    return HarnessError(
        Reason.INTERNAL,
        f"Internal error. Give the operator this incident id: {incident_id}",
        metadata={"incident_id": incident_id},
    )
