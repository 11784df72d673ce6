"""The one interceptor of a listener: the pieces of this package in their order, around all four kinds of RPC.

One wrapper instead of five nested ones, made once per method: the order is visible in one place and a unary call pays for it once.
Order: trace, auth (before the request is even read), deadline, validation, servicer, error mapping, metrics.
"""

# pyright: standard
# The handlers of every service pass through here, so their message types are unknown; grpc types them as unknown too.

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio
from grpc.aio import AbortError

from services.common import metrics
from services.common.caller import Caller, set_caller
from services.common.errors import HarnessError
from services.common.interceptors.auth import Authenticator
from services.common.interceptors.deadline import bounded, remaining_seconds
from services.common.interceptors.error_mapping import abort, classified
from services.common.interceptors.outcome import MethodOutcomes, Outcome
from services.common.interceptors.tracing import enter_trace
from services.common.interceptors.validation import check_message, checked_messages, readable, whole
from services.common.status import GRPC_STATUS_CODES

EXEMPT_SERVICES = (
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
    "grpc.reflection.v1.ServerReflection",
)

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class ServiceInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every method of a listener. Methods of `exempt_services` need no credential and no validation."""

    def __init__(
        self,
        authenticator: Authenticator,
        *,
        default_deadline_seconds: float,
        exempt_services: tuple[str, ...] = EXEMPT_SERVICES,
    ) -> None:
        self._authenticator = authenticator
        self._default_deadline = default_deadline_seconds
        self._exempt = frozenset(exempt_services)
        self._wrapped: dict[str, Handler] = {}  # bounded by the methods that are registered
        self._exempt_calls = _ExemptCalls()
        self.calls = 0
        """How many calls have arrived, but for those of exempt services."""

    @property
    def is_watched(self) -> bool:
        """Whether anybody follows the health of this server."""
        return self._exempt_calls.are_open

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable["Handler | None"]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        method = handler_call_details.method
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            found = await continuation(handler_call_details)
            if found is None:  # an unknown method: grpc answers UNIMPLEMENTED
                return None
            exempt_calls = self._exempt_calls if _service(method) in self._exempt else None
            wrapped = _MethodWrapper(method, found, self._default_deadline, exempt_calls).handler()
            self._wrapped[method] = wrapped
        metadata = handler_call_details.invocation_metadata
        # The whole RPC is one task: what is set here is seen by the servicer and ends with the call.
        enter_trace(metadata)
        if _service(method) in self._exempt:
            set_caller(Caller())
            return wrapped
        self.count_call()
        try:
            set_caller(self._authenticator.authenticate(metadata))
        except HarnessError as error:
            metrics.RPC_HANDLED.labels(method, GRPC_STATUS_CODES[error.grpc_code.value].name).inc()
            return _refusal(wrapped, error)
        return wrapped

    def count_call(self) -> None:
        """A call has arrived."""
        self.calls += 1

    def end_exempt_calls(self) -> None:
        """Ends open health watches and reflection streams, which would otherwise hold a graceful stop for its whole grace."""
        self._exempt_calls.end()


class _MethodWrapper:
    """One method's servicer function and all that happens around it."""

    def __init__(
        self, method: str, inner: Handler, default_deadline: float, exempt_calls: "_ExemptCalls | None"
    ) -> None:
        self._method = method
        self._inner = inner
        self._default_deadline = default_deadline
        self._exempt_calls = exempt_calls
        self._outcomes = MethodOutcomes(method)

    def handler(self) -> Handler:
        inner = self._inner
        codecs = {
            "request_deserializer": None
            if inner.request_deserializer is None
            else readable(inner.request_deserializer),
            "response_serializer": inner.response_serializer,
        }
        if inner.response_streaming:
            behaviour: Any = inner.stream_stream if inner.request_streaming else inner.unary_stream
            make = (
                grpc.stream_stream_rpc_method_handler
                if inner.request_streaming
                else grpc.unary_stream_rpc_method_handler
            )
            return make(self._streaming(behaviour), **codecs)
        behaviour: Any = inner.stream_unary if inner.request_streaming else inner.unary_unary
        make = grpc.stream_unary_rpc_method_handler if inner.request_streaming else grpc.unary_unary_rpc_method_handler
        return make(self._unary(behaviour), **codecs)

    def _unary(self, behaviour: Callable[[Any, Context], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
        async def call(request: Any, context: Context) -> Any:
            outcome = self._outcomes.begin()
            try:
                remaining = remaining_seconds(context)
                answer = behaviour(self._checked(request), context)
                return await (answer if remaining is not None else bounded(answer, self._default_deadline))
            except Exception as error:  # noqa: BLE001 - classified and answered, whatever it is (I22)
                await self._fail(outcome, context, error)
            except asyncio.CancelledError:
                outcome.cancelled()
                raise
            finally:
                self._outcomes.record(outcome)

        return call

    def _streaming(self, behaviour: Callable[[Any, Context], Any]) -> Callable[[Any, Context], AsyncIterator[Any]]:
        async def call(request: Any, context: Context) -> AsyncIterator[Any]:
            outcome = self._outcomes.begin()
            if self._exempt_calls is not None:
                self._exempt_calls.enter()
            try:
                remaining_seconds(context)
                answer = behaviour(self._checked(request), context)
                if hasattr(answer, "__aiter__"):
                    # A client that goes away ends the servicer's generator at once, with everything it holds.
                    async with aclosing(answer) as responses:
                        async for response in responses:
                            yield response
                else:
                    await answer
            except Exception as error:  # noqa: BLE001 - classified and answered, whatever it is (I22)
                await self._fail(outcome, context, error)
            except asyncio.CancelledError:
                outcome.cancelled()
                if self._exempt_calls is not None and self._exempt_calls.ending:
                    # Cancelling a task alone tells the client nothing, and the server would wait for the stream.
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "The server is stopping.")
                raise
            except GeneratorExit:
                outcome.cancelled()
                raise
            finally:
                self._outcomes.record(outcome)

        return call

    def _checked(self, request: Any) -> Any:
        if self._exempt_calls is not None:
            return request if self._inner.request_streaming else whole(request)
        if self._inner.request_streaming:
            return checked_messages(request)
        check_message(request)
        return request

    async def _fail(self, outcome: Outcome, context: Context, error: Exception) -> NoReturn:
        """Ends the call with the status of what was raised; counted before the client can know."""
        if isinstance(error, AbortError):  # the servicer ended the call itself, as the standard health service does
            outcome.code = _code_of(context)
            raise error
        classed = classified(error, self._method)
        outcome.failed(classed)
        self._outcomes.record(outcome)
        await abort(context, classed)


class _ExemptCalls:
    """The open streams of exempt services."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.ending = False

    def enter(self) -> None:
        """Notes the current task until it ends."""
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @property
    def are_open(self) -> bool:
        return bool(self._tasks)

    def end(self) -> None:
        self.ending = True
        for task in self._tasks:
            task.cancel()


def _service(method: str) -> str:
    return method[1 : method.rfind("/")]


def _code_of(context: Context) -> grpc.StatusCode:
    code: Any = context.code()
    return code if isinstance(code, grpc.StatusCode) else GRPC_STATUS_CODES.get(code, grpc.StatusCode.UNKNOWN)


def _refusal(handler: Handler, error: HarnessError) -> Handler:
    """A handler of the same kind that refuses, without parsing what was sent."""

    async def refuse(_: Any, context: Context) -> None:
        await abort(context, error)

    async def refuse_stream(_: Any, context: Context) -> AsyncIterator[Any]:
        await abort(context, error)
        yield  # never reached: makes this a generator

    if handler.response_streaming:
        return (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        )(refuse_stream)
    return (grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler)(
        refuse
    )
