"""Mutants of section 5: sessions, state, takeover."""

from typing import Any

import grpc

from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_service_pb2
from harness.state.v1 import thread_state_service_pb2
from tests.conformance.mutants.mutant import STREAMS, Draft, Memory, Section, copied
from tests.conformance.mutants.wire import Call, Mutation, Responses

SECTION = Section(5)
Parts = list[thread_state_service_pb2.LoadHeadResponse]


def no_head() -> thread_state_service_pb2.LoadHeadResponse:
    """A head that no run wrote anything for: the conversation begins anew."""
    return thread_state_service_pb2.LoadHeadResponse(revision=1)


@SECTION.stream("R5.1", "Remembers nothing of the turns before.", "LoadHead")
async def _(call: Call, memory: Memory) -> Any:
    yield no_head()


@SECTION.draft("R5.2", "Completes without naming the state it wrote.")
def _(draft: Draft, offset: int, memory: Memory) -> None:
    draft.ClearField("pending_head")


@SECTION.unary("R5.3", "Tries to write state under the fence of another turn before its own.", "WriteParts")
async def _(call: Call, memory: Memory) -> Any:
    tried = copied(call.request)
    tried[0].fence.turn += 1
    try:
        return await call.proceed(tried)
    except grpc.aio.AioRpcError:
        return await call.proceed()


class _Heads(Mutation):
    """Sees what is written and loaded, and decides what a turn gets."""

    def __init__(self) -> None:
        self.memory: dict[Any, Any] = {}

    def load(self, call: Call, head: Parts) -> Parts:
        """What a load gives."""
        return head

    def wrote(self, call: Call) -> None:
        """A part was written."""

    async def unary(self, call: Call) -> Any:
        if call.method == "WriteParts":
            self.wrote(call)
        return await call.proceed()

    async def stream(self, call: Call) -> Responses:
        if call.method != "LoadHead":
            async for response in call.proceed():
                yield response
            return
        for response in self.load(call, [response async for response in call.proceed()]):
            yield response


@SECTION.mutation("R5.4", "Goes on from what a run wrote, committed or not.")
class UncommittedHead(_Heads):
    def wrote(self, call: Call) -> None:
        first = call.request[0]
        content = b"".join(request.chunk for request in call.request)
        self.memory[first.fence.binding_id] = (first.codec, content)

    def load(self, call: Call, head: Parts) -> Parts:
        codec, content = self.memory.get(call.request.fence.binding_id, ("", b""))
        part = thread_state_service_pb2.LoadHeadResponse(revision=head[0].revision, codec=codec, chunk=content)
        return [part] if codec else head


@SECTION.mutation("R5.5", "Forgets the conversation when it is restarted.")
class ForgetsOnRestart(_Heads):
    async def unary(self, call: Call) -> Any:
        if call.method == "Restart":
            self.memory[call.request.fence.binding_id] = True
        return await call.proceed()

    def load(self, call: Call, head: Parts) -> Parts:
        return [no_head()] if call.request.fence.binding_id in self.memory else head


class _Forgets(_Heads):
    """A new runtime knows nothing."""

    def load(self, call: Call, head: Parts) -> Parts:
        return [no_head()] if call.request.fence.runtime_generation > 1 else head


SECTION.mutation("R5.6", "Knows nothing of a conversation that another replica had.")(_Forgets)
SECTION.mutation("R5.7", "Loses the conversation with its runtime.")(_Forgets)


@SECTION.mutation("R5.8", "Takes what the last epoch knew into the new one.")
class OldEpoch(_Heads):
    async def unary(self, call: Call) -> Any:
        if call.method == "WriteParts":
            first = call.request[0]
            content = b"".join(request.chunk for request in call.request)
            self.memory.setdefault(first.fence.binding_id, (first.fence.epoch, first.codec, content))
        return await call.proceed()

    async def stream(self, call: Call) -> Responses:
        fence = call.request.fence
        epoch, codec, content = self.memory.get(fence.binding_id, (fence.epoch, "", b""))
        old = thread_state_service_pb2.LoadHeadResponse(revision=1, codec=codec, chunk=content)
        if fence.epoch > epoch and call.method in STREAMS:
            # It has state of its own to look at.
            call.request.turn.thread_revision = 1
        if fence.epoch > epoch and call.method == "LoadHead":
            yield old
            return
        async for response in call.proceed():
            yield response


@SECTION.mutation("R5.9", "Gives every binding what the first one knows.")
class FirstBinding(_Heads):
    def load(self, call: Call, head: Parts) -> Parts:
        return self.memory.setdefault("head", head)

    async def stream(self, call: Call) -> Responses:
        if call.method in STREAMS:
            message = self.memory.setdefault("message", call.request.turn.message)
            call.request.turn.message = message
        async for response in _Heads.stream(self, call):
            yield response


@SECTION.mutation("R5.10", "Begins a conversation anew whose state cannot be loaded.")
class BeginsAnew(_Heads):
    async def stream(self, call: Call) -> Responses:
        try:
            async for response in call.proceed():
                yield response
        except grpc.aio.AioRpcError:
            if call.method != "LoadHead":
                raise
            yield no_head()


@SECTION.refusal("R5.11", "Lets an executor acknowledge that has lost the run.", "AckRun")
def _(error: Any, call: Call, memory: Memory) -> Any:
    return runtime_service_pb2.AckRunResponse() if error.code() is grpc.StatusCode.FAILED_PRECONDITION else None


@SECTION.refusal("R5.12", "Takes a lower turn for one that is over.", "StartRun")
def _(error: Any, call: Call, memory: Memory) -> Any:
    if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
        return None
    response = runtime_service_pb2.StartRunResponse()
    response.batch.first_offset = 1
    response.batch.drafts.add().payload.run_completed.stop_reason = "end_turn"
    return response


@SECTION.draft("R5.13", "Says of a run that a younger turn ended that the client asked for it.")
def _(draft: Draft, offset: int, memory: Memory) -> None:
    if draft.payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_SUPERSEDED:
        draft.payload.run_cancelled.reason = payload_pb2.CANCEL_REASON_CLIENT_REQUEST


@SECTION.draft("R5.14", "Hangs its native id on text.")
def _(draft: Draft, offset: int, memory: Memory) -> None:
    if draft.payload.HasField("content_delta"):
        draft.native_session_id = "native"
