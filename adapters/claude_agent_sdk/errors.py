"""What went wrong in the program or behind it, in the contract's categories, with sentences of our own (I22)."""

from dataclasses import dataclass

from claude_agent_sdk import CLIConnectionError, CLINotFoundError, ProcessError, ResultMessage

from adapters.sdk.errors import (
    POSSIBLE_SIDE_EFFECTS,
    AuthenticationError,
    AuthorizationError,
    CapacityError,
    ConfigurationError,
    HarnessError,
    InternalError,
    PersistenceError,
    ProtocolError,
    ThrottledError,
    UnavailableError,
)

OVERLOADED = 529
UNCERTAIN = "thread_durability_uncertain"
_BY_STATUS: dict[int, tuple[type[HarnessError], str, str]] = {
    400: (ConfigurationError, "provider_invalid_request", "The model's provider refused the request as invalid."),
    401: (
        AuthenticationError,
        "provider_authentication",
        "The credential for the model is missing or is not accepted.",
    ),
    403: (AuthorizationError, "provider_permission", "The model's provider does not allow this with the credential."),
    404: (ConfigurationError, "model_unknown", "The model's provider does not know the model or the address."),
    413: (ConfigurationError, "request_too_large", "The conversation is larger than the model's provider takes."),
    429: (ThrottledError, "rate_limited", "The model's provider limits the rate of requests."),
    OVERLOADED: (UnavailableError, "provider_overloaded", "The model's provider is overloaded."),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer of the provider that is none: its status, None where no answer came, and how long it asks to wait, in seconds."""

    status: int | None
    retry_after: float | None = None


def refused(refusal: Refusal) -> HarnessError:
    """The error of a request that failed at the provider."""
    status = refusal.status
    if status is None:
        return UnavailableError("The model's provider could not be reached.", code="provider_unreachable")
    kind, code, message = _BY_STATUS.get(
        status,
        (UnavailableError, "provider_failed", "The model's provider failed.")
        if status >= 500
        else (ConfigurationError, "provider_refused", "The model's provider refused the request."),
    )
    return kind(message, code=code, retry_after=refusal.retry_after, provider_code=f"http_{status}")


def ended_badly(result: ResultMessage, last_refusal: Refusal | None) -> HarnessError:
    """The error of a turn whose result is one."""
    if result.subtype == "error_max_turns" or result.terminal_reason == "max_turns":
        return CapacityError(
            "The model was asked as often as one run may ask it, and was not done.",
            code="max_turns_reached",
            retryable=False,
            side_effects=POSSIBLE_SIDE_EFFECTS,
        )
    if result.subtype == "error_max_budget_usd":
        return CapacityError(
            "The run cost as much as one run may cost, and was not done.",
            code="max_budget_reached",
            retryable=False,
            side_effects=POSSIBLE_SIDE_EFFECTS,
        )
    if result.api_error_status is not None or result.terminal_reason in ("api_error", "image_error"):
        status = result.api_error_status
        hint = last_refusal.retry_after if last_refusal is not None and last_refusal.status == status else None
        return refused(Refusal(status, hint))
    if result.terminal_reason == "tool_deferred_unavailable" or result.stop_reason == "tool_deferred_unavailable":
        return ConfigurationError(
            "The call that waited cannot be made any more: the agent has no such tool now.",
            code="tool_unavailable_at_resume",
            side_effects=POSSIBLE_SIDE_EFFECTS,
        )
    return InternalError(
        "The program ended the turn with an error.",
        code="program_error",
        diagnostic=f"subtype {result.subtype}, terminal_reason {result.terminal_reason}, stop_reason {result.stop_reason}",
    )


def broken_answer() -> HarnessError:
    """The error of an answer that stopped after it had begun: it is never asked for again (I11)."""
    return UnavailableError(
        "The model's answer broke off.", code="stream_broken", side_effects=POSSIBLE_SIDE_EFFECTS, retryable=True
    )


def silent_answer() -> HarnessError:
    """The error of an answer that had begun and of which nothing came any more."""
    return UnavailableError(
        "The model's answer stopped and nothing came any more.",
        code="stream_idle",
        side_effects=POSSIBLE_SIDE_EFFECTS,
        retryable=True,
    )


def no_result() -> HarnessError:
    """The error of a program that ended its output without a result."""
    return UnavailableError(
        "The program ended before the turn did.", code="program_died", side_effects=POSSIBLE_SIDE_EFFECTS
    )


def uncertain(lost: PersistenceError) -> HarnessError:
    """The error of a turn that was shown and could not be saved: the state before it stays."""
    return PersistenceError(
        lost.message, code=UNCERTAIN, side_effects=POSSIBLE_SIDE_EFFECTS, retryable=False, diagnostic=lost.code
    )


def not_kept() -> HarnessError:
    """The error of a turn of which a part was not kept."""
    return PersistenceError(
        "A part of the turn could not be kept.",
        code=UNCERTAIN,
        side_effects=POSSIBLE_SIDE_EFFECTS,
        retryable=False,
        diagnostic="transcript not kept",
    )


def program_failed(error: BaseException, *, started: bool) -> HarnessError:
    """The error of a program that did not start, or died. Its own words are for the log alone, and only their kind."""
    if isinstance(error, TimeoutError):
        return UnavailableError("The program was not ready in time.", code="program_slow", diagnostic="start timed out")
    if isinstance(error, CLINotFoundError):
        return UnavailableError("The program cannot be found.", code="program_missing", retryable=False)
    if isinstance(error, ProcessError) and not started:
        return UnavailableError(
            "The program ended before it was ready: a setting of the profile may not fit this machine or its user.",
            code="program_not_started",
            diagnostic=f"exit code {error.exit_code}",
        )
    if isinstance(error, ProcessError):
        return UnavailableError(
            "The program ended before the turn did.",
            code="program_died",
            side_effects=POSSIBLE_SIDE_EFFECTS,
            diagnostic=f"exit code {error.exit_code}",
        )
    if isinstance(error, CLIConnectionError | OSError):
        # The SDK's own words, for the log alone.
        return UnavailableError(
            "The program could not be started or reached.",
            code="program_unreachable",
            diagnostic=f"{type(error.__cause__ or error).__name__}: {error}",
        )
    if isinstance(error, RuntimeError):
        return PersistenceError("The conversation could not be restored.", code="restore_failed")
    return ProtocolError("The program said something malformed.", code="program_malformed")
