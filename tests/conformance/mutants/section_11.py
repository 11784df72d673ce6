"""Mutants of section 10, subagents, of section 11, faults, and of section 12, observability and leaks."""

from typing import Any

import grpc

from harness.common.v1 import error_pb2, health_pb2
from harness.event.v1 import payload_pb2
from tests.conformance.mutants.mutant import STREAMS, Draft, Memory, Section
from tests.conformance.mutants.wire import Call, Mutation, Refused, Responses

SUBAGENTS = Section(10)
SECTION = Section(11)
LEAKS = Section(12)


@SUBAGENTS.draft("R10.1", "Shows a subagent's text at the root.")
def _(draft: Draft, offset: int, memory: Memory) -> None:
    if draft.payload.HasField("content_delta"):
        del draft.namespace[:]


@SUBAGENTS.draft("R10.2", "Completes a run although a subagent of it waits for a person.")
def _(draft: Draft, offset: int, memory: Memory) -> None:
    if draft.payload.HasField("run_interrupted"):
        draft.payload.run_completed.stop_reason = "end_turn"


@SECTION.draft("R11.1", "Calls every failure an internal one.")
def _(draft: Draft, offset: int, memory: Memory) -> None:
    if draft.payload.HasField("run_failed"):
        draft.payload.run_failed.category = error_pb2.ERROR_CATEGORY_INTERNAL


@SECTION.draft("R11.2", "Calls no failure retryable.")
def _(draft: Draft, offset: int, memory: Memory) -> None:
    if draft.payload.HasField("run_failed"):
        draft.payload.run_failed.retryable = False


@SECTION.stream("R11.3", "Tells the text of an exception.", "StartRun")
async def _(call: Call, memory: Memory) -> Any:
    async for response in call.proceed():
        for draft in response.batch.drafts:
            if draft.payload.run_failed.category == error_pb2.ERROR_CATEGORY_INTERNAL:
                draft.payload.run_failed.message = f"Failed: {call.request.turn.message}"[:1000]
        yield response


class _Shows(Mutation):
    """Shows an event in the place of the failure that it is."""

    def shown(self, draft: Draft) -> None:
        """Writes the event."""
        raise NotImplementedError

    async def stream(self, call: Call) -> Responses:
        async for response in call.proceed():
            drafts: Any = response.batch.drafts if call.method in STREAMS else []
            for draft in drafts:
                if draft.payload.run_failed.category == error_pb2.ERROR_CATEGORY_PROTOCOL:
                    self.shown(draft)
                    drafts.add().payload.run_completed.stop_reason = "end_turn"
                    break
            yield response


@SECTION.mutation("R11.4", "Sends the end of a call that never began, and goes on.")
class OrphanedEnd(_Shows):
    def shown(self, draft: Draft) -> None:
        draft.payload.tool_completed.tool_call_id = "never-started"
        draft.payload.tool_completed.outcome = payload_pb2.TOOL_OUTCOME_SUCCESS


@SECTION.mutation("R11.5", "Leaves a malformed event out, and goes on.")
class LeavesOut(_Shows):
    def shown(self, draft: Draft) -> None:
        draft.payload.content_delta.message_id, draft.payload.content_delta.text = "m", "as if nothing had been"


class _Ended(Mutation):
    """Remembers how runs ended."""

    def __init__(self) -> None:
        self.bad: set[str] = set()

    async def stream(self, call: Call) -> Responses:
        if call.method == "StartRun" and self.refuses(call.request.fence.binding_id):
            raise Refused(grpc.StatusCode.UNAVAILABLE, "unavailable", "An earlier run ended badly.")
        async for response in call.proceed():
            for draft in response.batch.drafts if call.method in STREAMS else ():
                if draft.payload.WhichOneof("kind") in ("run_failed", "run_cancelled"):
                    self.bad.add(call.request.fence.binding_id)
            yield response

    def refuses(self, binding_id: str) -> bool:
        """Whether it takes no turn of this binding any more."""
        return binding_id in self.bad


SECTION.mutation("R11.6", "Takes no turn any more once one has failed.")(_Ended)


@SECTION.mutation("R11.7", "Serves no other binding while one hangs, once another has flooded beside it.")
class OneHangs(Mutation):
    def __init__(self) -> None:
        # Bindings of runs that hang, each with those that flooded meanwhile.
        self._hanging: dict[str, set[str]] = {}

    async def stream(self, call: Call) -> Responses:
        if call.method != "StartRun":
            async for response in call.proceed():
                yield response
            return
        binding, message = call.request.fence.binding_id, call.request.turn.message
        if any(flooded - {binding} for other, flooded in self._hanging.items() if other != binding):
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "capacity", "Another binding is at work.")
        if message.startswith('{"n"'):
            for flooded in self._hanging.values():
                flooded.add(binding)
        if '"hang"' in message:
            self._hanging[binding] = set()
        try:
            async for response in call.proceed():
                yield response
        finally:
            self._hanging.pop(binding, None)


@LEAKS.mutation("R12.1", "Tells the system prompt of its last turn in its health report.", after=("R2.2",))
class TellsPrompt(Mutation):
    prompt = ""

    async def unary(self, call: Call) -> Any:
        response = await call.proceed()
        if call.method == "CheckHealth":
            response.report.checks.add(name="provider", status=health_pb2.HEALTH_STATUS_HEALTHY, reason=self.prompt)
        return response

    async def stream(self, call: Call) -> Responses:
        if call.method == "StartRun":
            self.prompt = call.request.turn.system_prompt
        async for response in call.proceed():
            yield response


@LEAKS.request("R12.2", "Calls facades outside the run's trace.", "LoadHead", "WriteParts")
def _(request: Any, memory: Memory) -> None:
    first = request[0] if isinstance(request, list) else request
    first.fence.traceparent = ""


@LEAKS.response("R12.3", "Counts a run that is long over.", "CheckHealth", never=True)
def _(response: Any, memory: Memory) -> None:
    response.report.capacity.active += 1
