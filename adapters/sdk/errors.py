"""Failures in the contract's eleven categories, and what of them crosses the adapter's boundary (contract, Error contract; I22).

Raise one of these out of any method an adapter implements. Anything else that is raised becomes `internal`, and nothing of
its text leaves the process.
"""

import math
from typing import ClassVar

from adapters.sdk.lifecycle.text import cleaned
from harness.common.v1 import error_pb2
from harness.event.v1 import event_pb2, payload_pb2

MAX_MESSAGE_CHARACTERS = 1000
MAX_RETRY_AFTER_SECONDS = 86_400
MAX_PROVIDER_CODE_CHARACTERS = 128

NO_SIDE_EFFECTS = error_pb2.SIDE_EFFECT_STATUS_NONE
POSSIBLE_SIDE_EFFECTS = error_pb2.SIDE_EFFECT_STATUS_POSSIBLE
KNOWN_SIDE_EFFECTS = error_pb2.SIDE_EFFECT_STATUS_KNOWN


class HarnessError(Exception):
    """A classified failure. Use a subclass; each is one category.

    `message` is public: a safe sentence of the adapter's own, never a provider's text. `code` is a stable machine code in
    lower snake case. `retryable` defaults to the category's rule, `retry_after` is in seconds. `side_effects` is one of
    NO_/POSSIBLE_/KNOWN_SIDE_EFFECTS; None lets the host decide from what the run already showed. `provider_code` is for operators
    and must not be sensitive. `diagnostic` is internal: it is written to this process's log and crosses no boundary.
    """

    category: ClassVar["error_pb2.ErrorCategory.ValueType"] = error_pb2.ERROR_CATEGORY_INTERNAL
    default_code: ClassVar[str] = "internal"
    default_retryable: ClassVar[bool] = False
    # Whether the provider refused before it did anything.
    refuses: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        code: str = "",
        retryable: bool | None = None,
        retry_after: float | None = None,
        side_effects: "error_pb2.SideEffectStatus.ValueType | None" = None,
        provider_code: str = "",
        diagnostic: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.retryable = self.default_retryable if retryable is None else retryable
        self.retry_after = retry_after
        self.side_effects = side_effects
        self.provider_code = provider_code
        self.diagnostic = diagnostic


class ConfigurationError(HarnessError):
    """Invalid options or an incompatible model."""

    category = error_pb2.ERROR_CATEGORY_CONFIGURATION
    default_code = "configuration_invalid"
    refuses = True


class AuthenticationError(HarnessError):
    """Provider credentials are missing or expired."""

    category = error_pb2.ERROR_CATEGORY_AUTHENTICATION
    default_code = "provider_authentication"
    refuses = True


class AuthorizationError(HarnessError):
    """The provider or its access policy denied the call."""

    category = error_pb2.ERROR_CATEGORY_AUTHORIZATION
    default_code = "permission_denied"
    refuses = True


class CapacityError(HarnessError):
    """A concurrency quota or local capacity is used up."""

    category = error_pb2.ERROR_CATEGORY_CAPACITY
    default_code = "capacity"
    default_retryable = True
    refuses = True


class ThrottledError(HarnessError):
    """The provider limits the rate."""

    category = error_pb2.ERROR_CATEGORY_THROTTLED
    default_code = "rate_limited"
    default_retryable = True
    refuses = True


class UnavailableError(HarnessError):
    """Provider, sandbox worker or SDK process cannot be reached."""

    category = error_pb2.ERROR_CATEGORY_UNAVAILABLE
    default_code = "unavailable"
    default_retryable = True


class DeadlineError(HarnessError):
    """A deadline of initialisation, turn or tool passed (category timeout)."""

    category = error_pb2.ERROR_CATEGORY_TIMEOUT
    default_code = "deadline_exceeded"


class ProtocolError(HarnessError):
    """The provider sent something malformed, or in an impossible order."""

    category = error_pb2.ERROR_CATEGORY_PROTOCOL
    default_code = "protocol_violation"


class PersistenceError(HarnessError):
    """Native state could not be saved or loaded."""

    category = error_pb2.ERROR_CATEGORY_PERSISTENCE
    default_code = "persistence_failed"


class CancelledByProviderError(HarnessError):
    """The provider itself cancelled the turn. A cancel that the control plane asked for needs no error."""

    category = error_pb2.ERROR_CATEGORY_CANCELLED
    default_code = "cancelled"


class InternalError(HarnessError):
    """An unexpected defect of the adapter."""


ERRORS_BY_CATEGORY: dict[str, type[HarnessError]] = {
    "configuration": ConfigurationError,
    "authentication": AuthenticationError,
    "authorization": AuthorizationError,
    "capacity": CapacityError,
    "throttled": ThrottledError,
    "unavailable": UnavailableError,
    "timeout": DeadlineError,
    "protocol": ProtocolError,
    "persistence": PersistenceError,
    "cancelled": CancelledByProviderError,
    "internal": InternalError,
}


def classified(error: BaseException) -> HarnessError:
    """`error` itself if it is classified, otherwise an InternalError that says nothing of it (I22)."""
    if isinstance(error, HarnessError):
        return error
    return InternalError("The harness failed unexpectedly.", code="adapter_defect", side_effects=POSSIBLE_SIDE_EFFECTS)


def failed_draft(error: HarnessError, *, showed_output: bool) -> event_pb2.EventDraft:
    """The terminal `run.failed` of a failure: the safe projection and the provider's code, never the diagnostic (I22)."""
    side_effects = error.side_effects
    if side_effects is None:
        # A provider that refused did nothing; only what went out before can have had an effect.
        side_effects = NO_SIDE_EFFECTS if error.refuses and not showed_output else POSSIBLE_SIDE_EFFECTS
    failed = payload_pb2.RunFailed(
        code=error.code if _is_code(error.code) else error.default_code,
        category=error.category,
        message=cleaned(error.message)[:MAX_MESSAGE_CHARACTERS] or "The harness failed.",
        retryable=error.retryable,
        side_effect_status=side_effects,
        provider_code=cleaned(error.provider_code)[:MAX_PROVIDER_CODE_CHARACTERS],
    )
    if error.retry_after is not None and 0 <= error.retry_after < math.inf:
        failed.retry_after_seconds = min(math.ceil(error.retry_after), MAX_RETRY_AFTER_SECONDS)
    return event_pb2.EventDraft(payload=payload_pb2.EventPayload(run_failed=failed))


def _is_code(code: str) -> bool:
    return (
        code.isascii()
        and code[:1].islower()
        and len(code) <= 64
        and code.replace("_", "a").isalnum()
        and code == code.lower()
    )
