"""The other side: the unary methods of a listener, called over exchanges (`harness.exchange.v1.ExchangeService`)."""

# pyright: standard
# The methods of every service pass through here, so their message types are unknown.

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from harness.exchange.v1 import exchange_service_pb2 as api
from harness.exchange.v1 import exchange_service_pb2_grpc as api_grpc
from services.common.caller import Caller, set_caller
from services.common.errors import HarnessError, Reason
from services.common.exchange.channel import ACCEPTED, PLACE
from services.common.interceptors.auth import checked_subject
from services.common.interceptors.deadline import bounded
from services.common.interceptors.error_mapping import classified
from services.common.interceptors.outcome import MethodOutcomes
from services.common.interceptors.validation import check_message, readable
from services.common.status import to_status
from services.common.tracing import accept_traceparent, set_traceparent

BATCH_BYTES: Final = 1 << 20
MAX_RESPONSE_BYTES: Final = 7 << 20
"""What fits a message with its envelope, and with the answers that gathered before it."""
AddToServer = Callable[[Any, Any], None]


class ExchangeServicer:
    """Serves what `registrations` add to a server, each as (generated function, servicer). Around a call is what the interceptor puts around one that
    comes alone. At most `max_calls` are under way (I35); `called` is told of each. `place` stands for this process in ids that
    it makes; callers are told it.
    """

    def __init__(
        self,
        registrations: Iterable[tuple[AddToServer, Any]],
        *,
        default_deadline_seconds: float,
        max_calls: int,
        called: Callable[[], None],
        place: str = "",
    ) -> None:
        recorder = _Recorder()
        for add_to_server, servicer in registrations:
            add_to_server(servicer, recorder)
        self._methods = recorder.methods
        self._default_deadline = default_deadline_seconds
        self._max_calls = max_calls
        self._called = called
        self._accepted = ((ACCEPTED, "1"), (PLACE, place)) if place else ((ACCEPTED, "1"),)
        self._under_way = 0
        self._exchanges: set[_Exchange] = set()
        self._closing = False

    def add_to(self, server: Any) -> None:
        """Serves exchanges there."""
        servicer: Any = self  # writes its answers instead of yielding them, which the generated types do not know
        api_grpc.add_ExchangeServiceServicer_to_server(servicer, server)

    async def Exchange(self, request_iterator: AsyncIterator[api.ExchangeRequest], context: Any) -> None:
        await context.send_initial_metadata(self._accepted)
        exchange = _Exchange(self.answer, context.write)
        self._exchanges.add(exchange)
        if self._closing:  # it came in just before the stop, which must not wait for it
            exchange.close()
        try:
            await exchange.serve(request_iterator)
        finally:
            self._exchanges.discard(exchange)

    def close(self) -> None:
        """Tells every caller to send nothing more. What was sent is answered, then its exchange ends (I33)."""
        self._closing = True
        for exchange in self._exchanges:
            exchange.close()

    async def answer(self, call: api.Call) -> api.Answer:
        """Serves one call. Runs in a task of its own, so what is set here is seen by the servicer and ends with the call."""
        self._called()
        answer = api.Answer(call_id=call.call_id)
        method = self._methods.get(call.method)
        if method is None:
            return _refused(answer, HarnessError(Reason.UNIMPLEMENTED, "The service knows no such method."))
        set_traceparent(accept_traceparent(call.traceparent))
        outcome = method.outcomes.begin()
        self._under_way += 1
        try:
            if self._under_way > self._max_calls:
                raise HarnessError(Reason.CAPACITY, "Too many calls are under way; try again.", not_begun=True)
            set_caller(Caller(subject=checked_subject(call.subject)))
            request = method.parse(call.request)
            check_message(request)
            seconds = call.timeout_ms / 1000 if call.timeout_ms else self._default_deadline
            # No servicer asks its context for anything: who calls, and until when, is told otherwise.
            response = method.serialize(await bounded(method.behaviour(request, None), seconds))
            if len(response) > MAX_RESPONSE_BYTES:
                raise HarnessError(Reason.CAPACITY, "The answer is too large for one message.", retryable=False)
            answer.response = response
        except Exception as error:  # noqa: BLE001 - classified and answered, whatever it is (I22)
            outcome.failed(classified(error, call.method))
        except asyncio.CancelledError:
            outcome.cancelled()
            raise
        finally:
            self._under_way -= 1
            method.outcomes.record(outcome)
        return answer if outcome.error is None else _refused(answer, outcome.error)


class _Exchange:
    """One stream: its calls that are under way, and the answers that wait to be sent."""

    def __init__(
        self,
        answer: Callable[[api.Call], Awaitable[api.Answer]],
        write: Callable[[api.ExchangeResponse], Awaitable[None]],
    ) -> None:
        self._answer = answer
        self._write_message = write
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._answers: list[api.Answer] = []
        self._filled = asyncio.Event()
        self._closing = False
        self._over = False

    async def serve(self, requests: AsyncIterator[api.ExchangeRequest]) -> None:
        """Until the caller half-closes and has every answer. A caller that goes away cancels what it has called, as with any call."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write())
            async with asyncio.TaskGroup() as calls:
                async for request in requests:
                    for call in request.calls:
                        self._tasks[call.call_id] = calls.create_task(self._serve_one(call))
                    for call_id in request.given_up:
                        # Not left to the call itself: one that is given up before its first step never runs.
                        if (task := self._tasks.pop(call_id, None)) is not None:
                            task.cancel()
            self._over = True
            self._filled.set()

    def close(self) -> None:
        """See `ExchangeServicer.close`."""
        self._closing = True
        self._filled.set()

    async def _serve_one(self, call: api.Call) -> None:
        try:
            answer = await self._answer(call)
        except asyncio.CancelledError:
            # Given up: nobody waits. Or else the servicer's own doing, and its caller must not wait until its deadline.
            error = HarnessError(Reason.UNAVAILABLE, "The service broke off the call; try again.")
            answer = _refused(api.Answer(call_id=call.call_id), error)
        finally:
            self._tasks.pop(call.call_id, None)
        self._answers.append(answer)
        self._filled.set()

    async def _write(self) -> None:
        said = False
        while self._answers or not self._over:
            closing = self._closing and not said
            if self._answers or closing:
                said = said or closing
                await self._write_message(api.ExchangeResponse(answers=self._take(), closing=closing))
            else:
                self._filled.clear()
                await self._filled.wait()

    def _take(self) -> list[api.Answer]:
        size = count = 0
        for answer in self._answers:
            size += answer.ByteSize()
            if count and size > BATCH_BYTES:
                break
            count += 1
        taken, self._answers = self._answers[:count], self._answers[count:]
        return taken


class _Method:
    """A unary method as it is registered."""

    __slots__ = ("behaviour", "outcomes", "parse", "serialize")

    def __init__(self, name: str, handler: Any) -> None:
        self.behaviour: Callable[[Any, Any], Awaitable[Any]] = handler.unary_unary
        self.parse = readable(handler.request_deserializer)
        self.serialize: Callable[[Any], bytes] = handler.response_serializer
        self.outcomes = MethodOutcomes(name)


class _Recorder:
    """Stands for a server: what is added to it is kept."""

    def __init__(self) -> None:
        self.methods: dict[str, _Method] = {}

    def add_generic_rpc_handlers(self, generic_rpc_handlers: object) -> None:
        """The same handlers once more, without their names."""

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        for name, handler in method_handlers.items():
            if not handler.request_streaming and not handler.response_streaming:
                path = f"/{service_name}/{name}"
                self.methods[path] = _Method(path, handler)


def _refused(answer: api.Answer, error: HarnessError) -> api.Answer:
    answer.error.CopyFrom(to_status(error))
    return answer
