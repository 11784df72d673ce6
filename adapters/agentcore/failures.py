"""What the provider's failures are in the contract's categories, and which of them leave no doubt that nothing ran (I11, I22)."""

import re
from collections.abc import Mapping
from typing import Any, cast

from botocore.eventstream import ParserError
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigNotFound,
    ConfigParseError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    EventStreamError,
    InvalidConfigError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    SSOError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError
from urllib3.exceptions import ReadTimeoutError as RawReadTimeoutError

from adapters.agentcore.lines import LineCutError
from adapters.agentcore.streams import malformed
from adapters.sdk.errors import (
    NO_SIDE_EFFECTS,
    POSSIBLE_SIDE_EFFECTS,
    AuthenticationError,
    AuthorizationError,
    CapacityError,
    ConfigurationError,
    DeadlineError,
    HarnessError,
    InternalError,
    ThrottledError,
    UnavailableError,
)

CREDENTIAL_ERRORS = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    TokenRetrievalError,
    SSOError,
    ProfileNotFound,
    InvalidConfigError,
    ConfigParseError,
    ConfigNotFound,
)
"""What the standard chain of credentials raises, before anything is sent."""
_CREDENTIALS = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "SignatureDoesNotMatch",
        "UnauthorizedException",
        "UnrecognizedClientException",
    }
)
_SECONDS = re.compile(r"[0-9]{1,5}(\.[0-9]{1,3})?")
_CODE = re.compile(r"[A-Za-z]{1,64}")


def failure_of(error: BaseException) -> HarnessError:
    """The classified form of what boto3, or the connection beneath it, raised. Nothing of the provider's text is in it (I22)."""
    match error:
        case HarnessError():
            return error
        case EventStreamError():
            return _in_stream(error)
        case ClientError():
            return _refused(error)
        case _ if isinstance(error, CREDENTIAL_ERRORS):
            return AuthenticationError(
                "The adapter's process has no credentials for the provider: look at its settings for AWS.",
                side_effects=NO_SIDE_EFFECTS,
                diagnostic=type(error).__name__,
            )
        case ParamValidationError():
            return ConfigurationError(
                "The provider's SDK does not take this request: its settings, tools or texts do not fit.",
                code="request_invalid",
                diagnostic="parameters refused",
            )
        case EndpointConnectionError() | ConnectTimeoutError():
            # I11: there was no connection, so nothing was sent.
            return UnavailableError("The provider cannot be reached.", side_effects=NO_SIDE_EFFECTS, code="unreachable")
        case ReadTimeoutError() | RawReadTimeoutError():
            return DeadlineError(
                "The provider said nothing for too long.", code="provider_silent", side_effects=POSSIBLE_SIDE_EFFECTS
            )
        case ParserError() | ResponseParserError() | UnicodeDecodeError():
            return malformed("frame")
        case BotoCoreError() | HTTPError() | OSError() | LineCutError():
            return UnavailableError(
                "The connection to the provider broke.",
                code="stream_broken",
                side_effects=POSSIBLE_SIDE_EFFECTS,
                diagnostic=type(error).__name__,
            )
        case _:
            return InternalError(
                "The adapter failed unexpectedly.",
                code="adapter_defect",
                side_effects=POSSIBLE_SIDE_EFFECTS,
                diagnostic=type(error).__name__,
            )


def surely_not_run(error: HarnessError) -> bool:
    """Whether the provider cannot have begun, so that the same may be sent again (I11)."""
    return isinstance(error, ThrottledError) or error.code == "unreachable"


def _refused(error: ClientError) -> HarnessError:
    """An answer in the place of a stream."""
    response = cast("Mapping[str, Any]", error.response)
    metadata: Mapping[str, Any] = response.get("ResponseMetadata", {})
    code, status = str(response.get("Error", {}).get("Code", "")), int(metadata.get("HTTPStatusCode", 0))
    hint = _hint(metadata.get("HTTPHeaders", {}))
    known: dict[str, Any] = {"provider_code": _provider_code(code, status), "diagnostic": f"HTTP status {status}"}
    if code in _CREDENTIALS or status == 401:
        return AuthenticationError("The provider does not accept the adapter's credentials.", **known)
    match status:
        case 429:
            return ThrottledError("The provider limits the rate.", retry_after=hint, **known)
        case 402:
            return CapacityError("A quota of the provider is used up.", code="quota_used", retry_after=hint, **known)
        case 403:
            return AuthorizationError("The provider denied the call.", **known)
        case 404:
            return ConfigurationError("The provider knows no such harness or runtime.", code="harness_unknown", **known)
        case 409:
            return CapacityError(
                "The conversation's session is in use at the provider.", code="session_busy", retry_after=hint, **known
            )
        case 424:
            return UnavailableError(
                "The agent failed at the provider.",
                code="agent_failed",
                retryable=False,
                side_effects=POSSIBLE_SIDE_EFFECTS,
                **known,
            )
        case _ if 400 <= status < 500:
            return ConfigurationError("The provider refused the request.", code="request_refused", **known)
        case _:
            return UnavailableError(
                "The provider failed.",
                code="provider_failed",
                retry_after=hint,
                side_effects=POSSIBLE_SIDE_EFFECTS,
                **known,
            )


def _in_stream(error: EventStreamError) -> HarnessError:
    response = cast("Mapping[str, Any]", error.response)
    match response.get("Error", {}).get("Code"):
        case "internalServerException":
            return UnavailableError("The provider failed.", code="provider_failed", side_effects=POSSIBLE_SIDE_EFFECTS)
        case "validationException":
            return ConfigurationError(
                "The provider refused the request.", code="request_refused", side_effects=POSSIBLE_SIDE_EFFECTS
            )
        case "runtimeClientError":
            return UnavailableError(
                "The agent failed at the provider.",
                code="agent_failed",
                retryable=False,
                side_effects=POSSIBLE_SIDE_EFFECTS,
            )
        case _:
            # One that the service's model does not have: what it means is not known.
            return InternalError(
                "The provider's stream ended in an error it does not name.",
                code="provider_error",
                side_effects=POSSIBLE_SIDE_EFFECTS,
            )


def _provider_code(code: str, status: int) -> str:
    # A code of AWS is an identifier; anything else is text of somebody else's, and stays here.
    named = _CODE.fullmatch(code) and code.endswith(("Exception", "Error"))
    return code if named else str(status)


def _hint(headers: object) -> float | None:
    given = cast("Mapping[str, Any]", headers).get("retry-after") if isinstance(headers, Mapping) else None
    return float(given) if isinstance(given, str) and _SECONDS.fullmatch(given) else None
