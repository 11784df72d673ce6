"""Mutants of section 2: streaming and order."""

from typing import Any

import grpc

from harness.common.v1 import error_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.runtime.v1 import runtime_service_pb2
from tests.conformance.mutants.mutant import Draft, Memory, Section, copied
from tests.conformance.mutants.wire import Call, Mutation, Responses

SECTION = Section(2)
MANY = 30
TERMINALS = ("run_completed", "run_interrupted", "run_cancelled", "run_failed")


def kind(draft: Draft) -> str:
    """Kind of an event."""
    return draft.payload.WhichOneof("kind") or ""


@SECTION.response("R2.1", "Skips an offset after the first batch.")
def _(response: Any, memory: Memory) -> None:
    if response.batch.first_offset > 1:
        response.batch.first_offset += 1


@SECTION.draft("R2.2", "Writes run.started itself, in the place of its first event.")
def _(draft: Draft, offset: int, memory: Memory) -> None:
    if offset == 1 and kind(draft) not in TERMINALS:
        draft.ClearField("native_session_id")
        started = draft.payload.run_started
        started.harness_id, started.agent_version, started.binding_id = "reference", 1, "binding"


@SECTION.response("R2.3", "Says twice how a run ended.")
def _(response: Any, memory: Memory) -> None:
    drafts = response.batch.drafts
    if drafts and kind(drafts[-1]) in TERMINALS:
        drafts.append(drafts[-1])


@SECTION.stream("R2.4", "Ends the stream of an answer in many pieces in order, and keeps its terminal to itself.")
async def _(call: Call, memory: Memory) -> Any:
    pieces = 0
    async for response in call.proceed():
        drafts = response.batch.drafts
        pieces += sum(kind(draft) == "content_delta" for draft in drafts)
        if pieces < MANY:
            yield response
            continue
        kept = [draft for draft in drafts if kind(draft) not in TERMINALS]
        del response.batch.drafts[:]
        response.batch.drafts.extend(kept)
        if kept:
            yield response


@SECTION.draft("R2.5", "Opens a message with each delta.")
def _(draft: Draft, offset: int, memory: Memory) -> None:
    if kind(draft) == "content_delta":
        draft.payload.content_delta.message_id = f"m{offset}"


@SECTION.draft("R2.6", "Shows reasoning as content.")
def _(draft: Draft, offset: int, memory: Memory) -> None:
    if kind(draft) == "reasoning_delta":
        delta = copied(draft.payload.reasoning_delta)
        draft.payload.content_delta.message_id, draft.payload.content_delta.text = delta.message_id, delta.text


@SECTION.draft("R2.7", "Tells usage that it does not know as zero.")
def _(draft: Draft, offset: int, memory: Memory) -> None:
    if kind(draft) == "usage_updated":
        used = draft.payload.usage_updated
        for name in ("input_tokens", "output_tokens", "cached_input_tokens"):
            if not used.HasField(name):
                setattr(used, name, 0)


@SECTION.draft("R2.8", "Cuts a long text where it should split it.")
def _(draft: Draft, offset: int, memory: Memory) -> None:
    if kind(draft) == "content_delta" and len(draft.payload.content_delta.text) > 10_000:
        draft.payload.content_delta.text = draft.payload.content_delta.text[:10_000]


@SECTION.mutation(
    "R2.9", "Plays a turn that it is asked for again once more from its first draft, whatever was acknowledged."
)
class PlaysAgain(Mutation):
    def __init__(self) -> None:
        self._played: dict[str, list[event_pb2.EventBatch]] = {}

    async def stream(self, call: Call) -> Responses:
        if call.method == "StartRun" and call.run_id in self._played:
            for batch in self._played[call.run_id]:
                yield runtime_service_pb2.StartRunResponse(batch=batch)
            return
        played = self._played.setdefault(call.run_id, [])
        async for response in call.proceed():
            played.append(copied(response.batch))
            yield response


@SECTION.request("R2.10", "Attaches from the beginning, whatever was asked for.", "AttachRun")
def _(request: Any, memory: Memory) -> None:
    request.after_offset = 0


@SECTION.refusal("R2.11", "Attaches in silence past the last draft.", "AttachRun")
def _(error: Any, call: Call, memory: Memory) -> Any:
    return runtime_service_pb2.AttachRunResponse() if error.code() is grpc.StatusCode.OUT_OF_RANGE else None


@SECTION.refusal("R2.12", "Says that it knows a run that never came.", "AckRun")
def _(error: Any, call: Call, memory: Memory) -> Any:
    return runtime_service_pb2.AckRunResponse() if error.code() is grpc.StatusCode.NOT_FOUND else None


@SECTION.request("R2.13", "Sends on although nothing is acknowledged.", "CreateRuntime")
def _(request: Any, memory: Memory) -> None:
    request.context.limits.max_unacked_events = 0


@SECTION.response("R2.14", "Takes a run whose stream was lost for one to be cancelled.", "AttachRun")
def _(response: Any, memory: Memory) -> None:
    for draft in response.batch.drafts:
        if kind(draft) == "run_completed":
            cancelled = draft.payload.run_cancelled
            cancelled.reason = payload_pb2.CANCEL_REASON_SHUTDOWN
            cancelled.side_effect_status = error_pb2.SIDE_EFFECT_STATUS_POSSIBLE
            draft.ClearField("pending_head")
