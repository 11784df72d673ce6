"""The edge of the server: who may call, what is well formed, and how a refusal looks on the wire."""

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, cast

import grpc
import grpc.aio
import protovalidate
from google.protobuf.message import DecodeError, Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from adapters.sdk.errors import HarnessError, classified
from adapters.sdk.host import refusal
from adapters.sdk.host.refusal import FieldIssue, Refusal
from adapters.sdk.logs import describe, get_logger

DOMAIN = "harness"
MAX_ISSUES = 100
# Served to whoever can connect: they say nothing of any run.
_OPEN_PREFIXES = ("/grpc.health.", "/grpc.reflection.")
_log = get_logger(__name__)


class Boundary(grpc.aio.ServerInterceptor):
    """Checks the bearer token, if one is set, and every request against its contract, and turns what is raised into statuses."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode() if token else b""
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The handler of a call, wrapped."""
        method = str(handler_call_details.method)
        if method.startswith(_OPEN_PREFIXES):
            return await continuation(handler_call_details)
        if self._expected and not self._authorised(handler_call_details):
            return _REFUSED
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            wrapped = self._wrapped[method] = _wrap(handler)
        return wrapped

    def _authorised(self, details: grpc.HandlerCallDetails) -> bool:
        metadata: Any = details.invocation_metadata
        given = next((value for key, value in metadata or () if key == "authorization"), "")
        return hmac.compare_digest(str(given).encode(), self._expected)


async def _unauthenticated(_: object, context: "grpc.aio.ServicerContext[Any, Any]") -> NoReturn:
    message = "A valid bearer token is needed."
    await _abort(context, Refusal("UNAUTHENTICATED", "unauthenticated", message, category="authentication"))


# A unary handler refuses streaming calls just as well: it answers before it reads anything.
_REFUSED = cast("Any", grpc).unary_unary_rpc_method_handler(_unauthenticated)


def _wrap(handler: Any) -> Any:
    if handler.request_streaming:
        return handler
    if handler.response_streaming:
        wrapped: Any = grpc.unary_stream_rpc_method_handler(
            _streaming(handler.unary_stream), _readable(handler.request_deserializer), handler.response_serializer
        )
        return wrapped
    return grpc.unary_unary_rpc_method_handler(
        _unary(handler.unary_unary), _readable(handler.request_deserializer), handler.response_serializer
    )


def _readable(parse: Callable[[bytes], Message]) -> Callable[[bytes], Message | None]:
    """`parse`, but None for bytes that are no such message: an exception in there would reach the caller as it is."""

    def read(data: bytes) -> Message | None:
        try:
            return parse(data)
        except DecodeError:
            return None

    return read


def _unary(behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Any:
    async def call(request: Message | None, context: "grpc.aio.ServicerContext[Any, Any]") -> Any:
        try:
            return await behaviour(check(request), context)
        except Exception as error:  # noqa: BLE001 - everything becomes a status, and nothing of its text leaves (I22)
            await _abort(context, _refusal(error))

    return call


def _streaming(behaviour: Callable[[Any, Any], AsyncIterator[Any]]) -> Any:
    async def call(request: Message | None, context: "grpc.aio.ServicerContext[Any, Any]") -> AsyncIterator[Any]:
        try:
            async for response in behaviour(check(request), context):
                yield response
        except Exception as error:  # noqa: BLE001 - as above
            await _abort(context, _refusal(error))

    return call


def check(request: Message | None) -> Message:
    """The request. Raises a refusal that names every malformed field of it, and none of the values; None: what came is no message."""
    if request is None:
        issue = FieldIssue("", "malformed_message", "The bytes are no message of the request's type.")
        raise refusal.invalid("The request cannot be read.", [issue])
    violations = protovalidate.collect_violations(request)
    if not violations:
        return request
    issues: list[FieldIssue] = []
    for violation in violations[:MAX_ISSUES]:
        path = violation.proto.field
        where = ".".join(element.field_name for element in path.elements) if path is not None else ""
        issues.append(FieldIssue(where, violation.proto.rule_id, violation.proto.message))
    raise refusal.invalid(f"The request is malformed at {issues[0].path or 'its root'}.", issues)


def _refusal(error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    if not isinstance(error, HarnessError):
        _log.error("call_failed", error=describe(error))
    return refusal.from_error(classified(error))


async def _abort(context: "grpc.aio.ServicerContext[Any, Any]", reason: Refusal) -> NoReturn:
    code = grpc.StatusCode[reason.grpc_code]
    status = status_pb2.Status(code=code_pb2.Code.Value(reason.grpc_code), message=reason.message)
    info = error_details_pb2.ErrorInfo(reason=reason.reason, domain=DOMAIN)
    info.metadata["category"] = reason.category
    info.metadata["retryable"] = "true" if reason.retryable else "false"
    status.details.add().Pack(info)
    if reason.retry_after is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMicroseconds(round(reason.retry_after * 1e6))
        status.details.add().Pack(retry)
    if reason.issues:
        bad = error_details_pb2.BadRequest()
        for issue in reason.issues:
            bad.field_violations.add(field=issue.path, reason=issue.code, description=issue.message)
        status.details.add().Pack(bad)
    await context.abort(code, reason.message, (("grpc-status-details-bin", status.SerializeToString()),))
    raise AssertionError("abort returned")
