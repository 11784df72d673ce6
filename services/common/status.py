"""`HarnessError` on the wire and back: google.rpc.Status with ErrorInfo, RetryInfo, BadRequest (architecture, "Contracts").

What a peer's plain gRPC failure says in its details is never passed on: it may quote an exception (I22).
"""

from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from services.common.errors import (
    DOMAIN,
    MAX_FIELD_ISSUES,
    REASON_OF_CATEGORY,
    Category,
    FieldIssue,
    GrpcCode,
    HarnessError,
    Reason,
)

STATUS_TRAILER = "grpc-status-details-bin"
# Keys of ErrorInfo.metadata that carry our own facts, so that other languages need no copy of the table.
CATEGORY_KEY = "category"
RETRYABLE_KEY = "retryable"
CODE_KEY = "code"
NOT_BEGUN_KEY = "not_begun"

GRPC_STATUS_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

# A peer that failed without our details: dead, overloaded, foreign, or cut off by the transport.
_PLAIN: dict[grpc.StatusCode, tuple[Reason, str]] = {
    grpc.StatusCode.UNAVAILABLE: (Reason.UNAVAILABLE, "A service this needs cannot be reached now; try again."),
    grpc.StatusCode.DEADLINE_EXCEEDED: (Reason.DEADLINE_EXCEEDED, "A service this needs did not answer in time."),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (Reason.CAPACITY, "A service this needs is at its limit; try again."),
    # Not by us, which is no `AioRpcError`: the peer stopped, or its connection was cut, with the call in hand (I34).
    grpc.StatusCode.CANCELLED: (Reason.UNAVAILABLE, "A service this needs broke off the call; try again."),
    grpc.StatusCode.UNIMPLEMENTED: (
        Reason.UNIMPLEMENTED,
        "A service this needs does not know the operation: its version does not fit.",
    ),
    grpc.StatusCode.NOT_FOUND: (Reason.NOT_FOUND, "Not found."),
    grpc.StatusCode.INVALID_ARGUMENT: (Reason.INVALID_REQUEST, "The request is not valid."),
    grpc.StatusCode.UNAUTHENTICATED: (Reason.UNAUTHENTICATED, "A service this needs refused the credential."),
    grpc.StatusCode.PERMISSION_DENIED: (Reason.PERMISSION_DENIED, "Not permitted."),
}
_PLAIN_OTHER = (Reason.INTERNAL, "A service this needs failed unexpectedly.")


def to_status(error: HarnessError) -> status_pb2.Status:
    """The error as google.rpc.Status."""
    status = status_pb2.Status(code=error.grpc_code.value, message=error.message)
    info = error_details_pb2.ErrorInfo(reason=error.reason.value, domain=DOMAIN, metadata=error.metadata)
    info.metadata[CATEGORY_KEY] = error.category.value
    info.metadata[RETRYABLE_KEY] = "true" if error.retryable else "false"
    if error.not_begun:
        info.metadata[NOT_BEGUN_KEY] = "true"
    status.details.add().Pack(info)
    if error.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(error.retry_after * 1e9))
        status.details.add().Pack(retry)
    if error.details:
        violations = error_details_pb2.BadRequest()
        for issue in error.details:
            violations.field_violations.add(field=issue.path, reason=issue.code, description=issue.message)
        status.details.add().Pack(violations)
    return status


def trailing_metadata(status: status_pb2.Status) -> tuple[tuple[str, bytes], ...]:
    """The trailer that carries the status beside gRPC's own code and message."""
    return ((STATUS_TRAILER, status.SerializeToString()),)


def from_status(status: status_pb2.Status) -> HarnessError:
    """The inverse of `to_status`; a status without our ErrorInfo is reduced to its code."""
    info = _detail(status, error_details_pb2.ErrorInfo())
    if info is None or info.domain != DOMAIN:
        return _plain(GRPC_STATUS_CODES.get(status.code, grpc.StatusCode.UNKNOWN))
    metadata = dict(info.metadata)
    category = metadata.pop(CATEGORY_KEY, "")
    retryable = metadata.pop(RETRYABLE_KEY, None)
    # Of that one call alone: whoever passes the error on has begun something.
    metadata.pop(NOT_BEGUN_KEY, None)
    reason = _reason(info.reason, category, status.code)
    if reason.value != info.reason:
        metadata.setdefault(CODE_KEY, info.reason[:128])
    retry = _detail(status, error_details_pb2.RetryInfo())
    violations = _detail(status, error_details_pb2.BadRequest())
    issues = violations.field_violations[:MAX_FIELD_ISSUES] if violations is not None else ()
    return HarnessError(
        reason,
        status.message,
        details=[FieldIssue(issue.field, issue.reason, issue.description) for issue in issues],
        metadata=metadata,
        retry_after=retry.retry_delay.ToNanoseconds() / 1e9 if retry is not None else None,
        retryable=None if retryable is None else retryable == "true",
    )


def from_rpc_error(error: grpc.aio.AioRpcError) -> HarnessError:
    """What a failed call means, whether the peer said so in our form or merely died."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_TRAILER and isinstance(value, bytes):
            try:
                return from_status(status_pb2.Status.FromString(value))
            except DecodeError:
                break
    return _plain(error.code())


def was_not_begun(error: grpc.aio.AioRpcError) -> bool:
    """Whether the peer said that it refused the call before it did anything."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_TRAILER and isinstance(value, bytes):
            try:
                info = _detail(status_pb2.Status.FromString(value), error_details_pb2.ErrorInfo())
            except DecodeError:
                return False
            return info is not None and info.domain == DOMAIN and info.metadata.get(NOT_BEGUN_KEY) == "true"
    return False


def _plain(code: grpc.StatusCode) -> HarnessError:
    reason, message = _PLAIN.get(code, _PLAIN_OTHER)
    return HarnessError(reason, message, metadata={"grpc_code": code.name})


def _reason(text: str, category: str, code: int) -> Reason:
    try:
        return Reason(text)
    except ValueError:
        # A code of the peer's own: what it means to us is its category, or else its gRPC code.
        known = next((each for each in Category if each.value == category), None)
        if known is not None:
            return REASON_OF_CATEGORY[known]
        return _PLAIN.get(GRPC_STATUS_CODES.get(code, grpc.StatusCode.UNKNOWN), _PLAIN_OTHER)[0]


def _detail(status: status_pb2.Status, message: Any) -> Any:
    for detail in status.details:
        if detail.Is(message.DESCRIPTOR):
            try:
                detail.Unpack(message)
            except DecodeError:
                return None
            return message
    return None


def grpc_status_code(code: GrpcCode) -> grpc.StatusCode:
    """grpc's own enum member for a code of the table."""
    return GRPC_STATUS_CODES[code.value]
