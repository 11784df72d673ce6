"""What a mutant is: the rule it breaks, one sentence on how, and the one change it makes on the wire."""

import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from harness.event.v1 import event_pb2
from tests.conformance.mutants.wire import Call, Mutation

STREAMS = ("StartRun", "ResumeRun", "AttachRun")
Draft = event_pb2.EventDraft


@dataclass(frozen=True)
class Mutant:
    """An adapter that breaks one rule and no other, as far as the case of that rule can tell."""

    rule_id: str
    breaks: str
    make: Callable[[], Mutation]
    # Breaks a rule of the sandbox worker's placement.
    worker: bool = False
    # Rules whose cases run before: the case looks back at a certification.
    after: tuple[str, ...] = ()
    # Whether its case waits for what never comes with this mutant, so that it need not be waited for.
    never: bool = False


@dataclass
class Memory:
    """What a mutant remembers between calls, by a key of its own choosing."""

    kept: dict[Any, Any] = field(default_factory=dict[Any, Any])

    def first(self, key: Any) -> bool:
        """Whether this is the first time that it is asked with this key."""
        return not self.count(key)

    def count(self, key: Any) -> int:
        """How often it was asked with this key before."""
        self.kept[key] = self.kept.get(key, -1) + 1
        return self.kept[key]


class Section:
    """The mutants of one section, each a function with one of the decorators below. `methods`: the calls it looks at; none: every stream of a run.
    `more` goes to Mutant.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.mutants: list[Mutant] = []

    def request(self, rule_id: str, breaks: str, *methods: str, **more: Any) -> Any:
        """`change(request, memory)` changes the request before it is passed on."""

        def changed(change: Callable[[Any, Memory], None]) -> "_Changed":
            return _Changed(methods or STREAMS, asked=change)

        return self._add(rule_id, breaks, changed, **more)

    def response(self, rule_id: str, breaks: str, *methods: str, **more: Any) -> Any:
        """`change(response, memory)` changes each response; of a call that sends a list, see `unary`."""

        def changed(change: Callable[[Any, Memory], None]) -> "_Changed":
            return _Changed(methods or STREAMS, answered=change)

        return self._add(rule_id, breaks, changed, **more)

    def draft(self, rule_id: str, breaks: str) -> Any:
        """`change(draft, offset, memory)` changes each draft in its place."""

        def changed(change: Callable[[Draft, int, Memory], None]) -> "_Changed":
            def each(response: Any, memory: Memory) -> None:
                for index, draft in enumerate(response.batch.drafts):
                    change(draft, response.batch.first_offset + index, memory)

            return _Changed(STREAMS, answered=each)

        return self._add(rule_id, breaks, changed)

    def refusal(self, rule_id: str, breaks: str, *methods: str, **more: Any) -> Any:
        """`change(error, call, memory)` gives a response in the place of a refusal, raises another, or gives None to let it pass."""

        def changed(change: Callable[[grpc.aio.AioRpcError, Call, Memory], Any]) -> "_Changed":
            return _Changed(methods, refused=change)

        return self._add(rule_id, breaks, changed, **more)

    def unary(self, rule_id: str, breaks: str, *methods: str, **more: Any) -> Any:
        """`answer(call, memory)` answers the call, passing it on or not."""

        def changed(answer: Callable[[Call, Memory], Any]) -> "_Answered":
            return _Answered(methods, unary=answer)

        return self._add(rule_id, breaks, changed, **more)

    def stream(self, rule_id: str, breaks: str, *methods: str) -> Any:
        """`answer(call, memory)` gives the responses of the stream."""

        def changed(answer: Callable[[Call, Memory], AsyncIterator[Any]]) -> "_Answered":
            return _Answered(methods or STREAMS, stream=answer)

        return self._add(rule_id, breaks, changed)

    def mutation(self, rule_id: str, breaks: str, **more: Any) -> Any:
        """A whole Mutation, for what needs more than one of the above."""
        return self._add(rule_id, breaks, lambda made: made(), **more)

    def _add(self, rule_id: str, breaks: str, changed: Callable[[Any], Mutation], **more: Any) -> Any:
        def add(change: Any) -> Any:
            self.mutants.append(Mutant(rule_id, breaks, lambda: changed(change), **more))
            return change

        return add


class _Changed(Mutation):
    """Passes every call on, with one change before or after."""

    def __init__(
        self,
        methods: tuple[str, ...],
        *,
        asked: Callable[[Any, Memory], None] | None = None,
        answered: Callable[[Any, Memory], None] | None = None,
        refused: Callable[[grpc.aio.AioRpcError, Call, Memory], Any] | None = None,
    ) -> None:
        self._methods = methods
        self._asked, self._answered, self._refused = asked, answered, refused
        self._memory = Memory()

    def _meant(self, call: Call) -> bool:
        return not self._methods or call.method in self._methods

    async def unary(self, call: Call) -> Any:
        if not self._meant(call):
            return await call.proceed()
        self._ask(call)
        try:
            response = await call.proceed()
        except grpc.aio.AioRpcError as error:
            given = self._refused(error, call, self._memory) if self._refused else None
            if given is None:
                raise
            return given
        if self._answered:
            self._answered(response, self._memory)
        return response

    async def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        if self._meant(call):
            self._ask(call)
        try:
            async for response in call.proceed():
                if self._answered and self._meant(call):
                    self._answered(response, self._memory)
                yield response
        except grpc.aio.AioRpcError as error:
            given = self._refused(error, call, self._memory) if self._refused and self._meant(call) else None
            if given is None:
                raise
            yield given

    def _ask(self, call: Call) -> None:
        if self._asked:
            self._asked(call.request, self._memory)


class _Answered(Mutation):
    """Answers the calls it is about as it likes, and passes on the others."""

    def __init__(self, methods: tuple[str, ...], *, unary: Any = None, stream: Any = None) -> None:
        self._methods, self._unary, self._stream = methods, unary, stream
        self._memory = Memory()

    async def unary(self, call: Call) -> Any:
        if self._unary is None or call.method not in self._methods:
            return await call.proceed()
        return await self._unary(call, self._memory)

    async def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        answered = (
            call.proceed()
            if self._stream is None or call.method not in self._methods
            else self._stream(call, self._memory)
        )
        async for response in answered:
            yield response


def copied(message: Any) -> Any:
    """The same message, once more."""
    return copy.deepcopy(message)
