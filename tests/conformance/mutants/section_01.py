"""Mutants of section 1: initialise and clean up."""

from typing import Any

import grpc

from harness.adapter.v1 import adapter_service_pb2
from harness.common.v1 import capability_pb2
from harness.runtime.v1 import runtime_service_pb2
from harness.worker.v1 import worker_service_pb2
from tests.conformance.mutants.mutant import STREAMS, Memory, Section
from tests.conformance.mutants.wire import Call, Mutation, Refused, Responses

SECTION = Section(1)
STALE = "STALE_LEASE"


@SECTION.response("R1.1", "Names another incarnation each time it is asked.", "GetDescriptor")
def _(response: Any, memory: Memory) -> None:
    response.incarnation = f"incarnation-{memory.count('asked')}"


@SECTION.response("R1.2", "Claims a capability that the contract does not know.", "GetDescriptor")
def _(response: Any, memory: Memory) -> None:
    claim = capability_pb2.Capability(level=capability_pb2.CAPABILITY_LEVEL_NATIVE)
    response.descriptor.capabilities["stream.thoughts"].CopyFrom(claim)


@SECTION.response("R1.3", "Says of a runtime that was there that it was created.", "CreateRuntime")
def _(response: Any, memory: Memory) -> None:
    response.created = True


@SECTION.refusal("R1.4", "Takes a lower runtime generation for one that is there.", "CreateRuntime")
def _(error: Any, call: Call, memory: Memory) -> Any:
    return adapter_service_pb2.CreateRuntimeResponse(incarnation="still-here")


@SECTION.response("R1.5", "Says at each Initialize that it did the work.", "Initialize")
def _(response: Any, memory: Memory) -> None:
    response.initialized = True


@SECTION.refusal("R1.6", "Says of a runtime that was cleaned up that it never was here.")
def _(error: Any, call: Call, memory: Memory) -> None:
    if "no more" in (error.details() or ""):
        raise Refused(grpc.StatusCode.NOT_FOUND, "runtime_unknown", "No such runtime was ever here.")


@SECTION.unary("R1.7", "Refuses to clean up what is clean.", "Cleanup")
async def _(call: Call, memory: Memory) -> Any:
    fence = call.request.fence
    if not memory.first((fence.binding_id, fence.epoch, fence.runtime_generation)):
        raise Refused(grpc.StatusCode.NOT_FOUND, "runtime_gone", "The runtime was cleaned up.")
    return await call.proceed()


@SECTION.mutation(
    "R1.8", "Ends the stream of a run as if it were over when its runtime is cleaned up, and says nothing of its end."
)
class EndedInSilence(Mutation):
    def __init__(self) -> None:
        self._cleaned: set[str] = set()

    async def unary(self, call: Call) -> Any:
        if call.method == "Cleanup":
            self._cleaned.add(call.request.fence.binding_id)
        return await call.proceed()

    async def stream(self, call: Call) -> Responses:
        async for response in call.proceed():
            if call.request.fence.binding_id in self._cleaned:
                return
            yield response


@SECTION.unary("R1.9", "Answers a Restart at once while a run works.", "Restart")
async def _(call: Call, memory: Memory) -> Any:
    return runtime_service_pb2.RestartResponse()


@SECTION.mutation("R1.10", "Starts and attaches what was issued to another process.")
class AnyIncarnation(Mutation):
    incarnation = ""

    async def unary(self, call: Call) -> Any:
        response = await call.proceed()
        if call.method in ("CreateRuntime", "Bind"):
            self.incarnation = response.incarnation
        return response

    async def stream(self, call: Call) -> Responses:
        if call.method in STREAMS:
            call.request.incarnation = self.incarnation
        async for response in call.proceed():
            yield response


@SECTION.refusal("R1.11", "Takes malformed requests for failures of its own.")
def _(error: Any, call: Call, memory: Memory) -> None:
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        raise Refused(grpc.StatusCode.INTERNAL, "adapter_defect", "The adapter failed unexpectedly.")


@SECTION.refusal("R1.12", "Refuses with a code alone.")
def _(error: Any, call: Call, memory: Memory) -> None:
    raise Refused(error.code(), "", error.details() or "")


@SECTION.response("R1.13", "Counts no run that works.", "CheckHealth")
def _(response: Any, memory: Memory) -> None:
    response.report.capacity.active = 0


@SECTION.response("R1.14", "Answers with an option more each time it is asked.", "Evaluate")
def _(response: Any, memory: Memory) -> None:
    asked = memory.count("asked")
    response.issues.add(path="harness.options", code="asked_before", message=f"This was asked {asked} times before.")


@SECTION.refusal("R1.15", "Takes another bind once it is bound.", "Bind", worker=True)
def _(error: Any, call: Call, memory: Memory) -> Any:
    return (
        worker_service_pb2.BindResponse(incarnation="still-here") if STALE in str(error.trailing_metadata()) else None
    )


@SECTION.refusal("R1.16", "Takes the shutdown of another binding.", "Shutdown", worker=True)
def _(error: Any, call: Call, memory: Memory) -> Any:
    return worker_service_pb2.ShutdownResponse()
