"""Mutants of section 6: interrupts."""

from typing import Any

import grpc

from harness.runtime.v1 import runtime_service_pb2
from harness.state.v1 import thread_state_service_pb2
from tests.conformance.mutants.mutant import Draft, Memory, Section, copied
from tests.conformance.mutants.wire import Call, Mutation, Refused, Responses

SECTION = Section(6)


@SECTION.draft("R6.1", "Asks for the fields in another way than they were given.")
def _(draft: Draft, offset: int, memory: Memory) -> None:
    for field in draft.payload.interrupt_requested.fields if draft.payload.HasField("interrupt_requested") else ():
        field.required = not field.required


@SECTION.response("R6.2", "Waits for nothing, as it says, while a person is asked.", "GetPendingInterrupt")
def _(response: Any, memory: Memory) -> None:
    response.ClearField("interrupt")


@SECTION.request("R6.3", "Changes a value of the form on its way to the provider.", "ResumeRun")
def _(request: Any, memory: Memory) -> None:
    for name in list(request.decision.form_values.fields) if request.decision.HasField("form_values") else ():
        request.decision.form_values[name] = "something else"


@SECTION.stream("R6.4", "Loses a pause with its runtime.", "LoadHead")
async def _(call: Call, memory: Memory) -> Any:
    if call.request.fence.runtime_generation > 1:
        yield thread_state_service_pb2.LoadHeadResponse(revision=1)
        return
    async for response in call.proceed():
        yield response


class _Lenient(Mutation):
    """Remembers the interrupts that were asked."""

    def __init__(self) -> None:
        self.asked: dict[str, tuple[str, str]] = {}

    async def stream(self, call: Call) -> Responses:
        if call.method == "ResumeRun":
            self.resume(call)
        async for response in call.proceed():
            for draft in response.batch.drafts if hasattr(response, "batch") else ():
                if draft.payload.HasField("interrupt_requested"):
                    interrupt = draft.payload.interrupt_requested.interrupt_id
                    self.asked[call.request.fence.binding_id] = (call.run_id, interrupt)
            yield response

    def resume(self, call: Call) -> None:
        """A decision came."""


@SECTION.mutation("R6.5", "Takes a decision on another interrupt for one on its own.")
class AnyInterrupt(_Lenient):
    def resume(self, call: Call) -> None:
        run_id, interrupt = self.asked[call.request.fence.binding_id]
        call.request.decision.interrupted_run_id, call.request.decision.interrupt_id = run_id, interrupt


@SECTION.mutation("R6.6", "Refuses a resume that it has seen before.")
class SeenBefore(Mutation):
    def __init__(self) -> None:
        self._seen: set[str] = set()

    async def stream(self, call: Call) -> Responses:
        if call.method == "ResumeRun" and call.run_id in self._seen:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "interrupt_lost", "The interrupt was answered.")
        if call.method == "ResumeRun":
            self._seen.add(call.run_id)
        async for response in call.proceed():
            yield response


@SECTION.mutation("R6.7", "Goes on once more with a decision that was used.")
class UsedDecision(Mutation):
    def __init__(self) -> None:
        self._played: dict[Any, list[Any]] = {}

    async def stream(self, call: Call) -> Responses:
        if call.method != "ResumeRun":
            async for response in call.proceed():
                yield response
            return
        decision = call.request.decision
        key = (call.request.fence.binding_id, decision.interrupted_run_id, decision.interrupt_id)
        for batch in self._played.get(key, []):
            yield runtime_service_pb2.ResumeRunResponse(batch=batch)
        if key in self._played:
            return
        played: list[Any] = []
        async for response in call.proceed():
            played.append(copied(response.batch))
            yield response
        self._played[key] = played


@SECTION.request("R6.8", "Hands another reason of a rejection to the provider.", "ResumeRun")
def _(request: Any, memory: Memory) -> None:
    for decision in request.decision.tool_decisions.decisions:
        if decision.HasField("reject"):
            decision.reject = "something else"


@SECTION.request("R6.9", "Takes the decision on the first call for all of them.", "ResumeRun")
def _(request: Any, memory: Memory) -> None:
    decisions = request.decision.tool_decisions.decisions
    for decision in decisions[1:]:
        call_id = decision.tool_call_id
        decision.CopyFrom(decisions[0])
        decision.tool_call_id = call_id
