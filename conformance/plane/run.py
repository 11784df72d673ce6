"""One run as its executor holds it: started or resumed, followed, acknowledged, its head committed at its end."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf import duration_pb2

from conformance.failure import Broken
from conformance.plane.grants import Grant
from conformance.plane.refusals import Refusal
from conformance.plane.target import Garbled, Target
from conformance.plane.thread import CommitFault
from harness.common.v1 import fence_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.runtime.v1 import runtime_pb2, runtime_service_pb2

if TYPE_CHECKING:
    from conformance.plane.binding import Binding

Draft = event_pb2.EventDraft
TERMINALS = frozenset({"run_completed", "run_interrupted", "run_cancelled", "run_failed"})
CLIENT = payload_pb2.CANCEL_REASON_CLIENT_REQUEST
_EOF: Any = getattr(grpc.aio, "EOF")  # noqa: B009 - it is there and has no type
# Seconds that a call without a stream may take; far beyond what any needs.
CALL_SECONDS = 60.0
# What one stream may bring before the kit stops reading (I35); no case asks for a tenth of it.
MAX_DRAFTS = 100_000
MAX_STREAM_BYTES = 64 * 1024 * 1024


def kind(draft: Draft) -> str:
    """Kind of an event, as the contract names its field."""
    return draft.payload.WhichOneof("kind") or "nothing"


def kinds(drafts: Sequence[Draft]) -> list[str]:
    """Kinds of events, in order."""
    return [kind(draft) for draft in drafts]


@dataclass
class Stream:
    """One stream of a run, as it came: batches with their first offsets, and how it ended."""

    method: str
    call: Any
    target: Target
    # First offset it must have; None: whatever is not yet acknowledged.
    after: int | None
    batches: list[tuple[int, list[Draft]]] = field(default_factory=list[tuple[int, list[Draft]]])
    responses: int = 0
    count: int = 0
    size: int = 0
    ended: bool = False
    refusal: Refusal | None = None

    @property
    def drafts(self) -> list[Draft]:
        """All drafts of the stream."""
        return [draft for _, drafts in self.batches for draft in drafts]

    @property
    def last_offset(self) -> int:
        """Offset of the last draft as the target counts, or where the stream began."""
        if not self.batches:
            return self.after or 0
        first, drafts = self.batches[-1]
        return first + len(drafts) - 1

    async def read(self) -> list[Draft] | None:
        """The next response's drafts; None at the end, whichever way it came."""
        try:
            response = await self.call.read()
        except grpc.aio.AioRpcError as error:
            self.refusal = self.target.note(error, self.method)
            return None
        if response is _EOF:
            self.ended = True
            return None
        if isinstance(response, Garbled):
            self.leave()
            raise Broken(f"A response of {self.method} is no message of its type.")
        self.responses += 1
        drafts = list(response.batch.drafts)
        self._bounded(len(drafts), response.ByteSize())
        if drafts:
            self.batches.append((response.batch.first_offset, drafts))
        return drafts

    def _bounded(self, drafts: int, size: int) -> None:
        self.count += drafts
        self.size += size
        if max(self.count, self.responses) > MAX_DRAFTS or self.size > MAX_STREAM_BYTES:
            self.leave()
            told = f"{self.count} drafts, {self.responses} responses and {self.size} bytes"
            raise Broken(f"{self.method}: the stream does not end: {told} came, far more than was asked for.")

    async def read_until(self, count: int) -> list[Draft]:
        """Reads until at least `count` drafts came. Raises Broken if the stream ends before."""
        while self.count < count:
            if await self.read() is None:
                raise Broken(f"{self.method}: the stream ended after {self.count} drafts: {self.how_ended()}.")
        return self.drafts

    def how_ended(self) -> str:
        """For people."""
        if self.refusal is not None:
            return str(self.refusal)
        return "status OK" if self.ended else "not ended"

    def leave(self) -> None:
        """Drops the stream, as a dying executor does."""
        self.call.cancel()


@dataclass
class Run:
    """A run with everything that was seen of it."""

    target: Target
    binding: "Binding"
    fence: fence_pb2.Fence
    input: runtime_pb2.TurnInput
    incarnation: str
    decision: runtime_pb2.ResumeDecision | None = None
    grants: dict[str, Grant] = field(default_factory=dict[str, Grant])
    drafts: list[Draft] = field(default_factory=list[Draft])
    batches: list[tuple[int, list[Draft]]] = field(default_factory=list[tuple[int, list[Draft]]])

    # --- streams ---

    def start(self, fence: fence_pb2.Fence | None = None, incarnation: str = "") -> Stream:
        """The stream of StartRun, or of ResumeRun where there is a decision."""
        fence, incarnation, metadata = fence or self.fence, incarnation or self.incarnation, self.target.metadata
        if self.decision is None:
            started = runtime_service_pb2.StartRunRequest(fence=fence, incarnation=incarnation, turn=self.input)
            return Stream("StartRun", self.target.runtime.StartRun(started, metadata=metadata), self.target, None)
        resumed = runtime_service_pb2.ResumeRunRequest(
            fence=fence, incarnation=incarnation, turn=self.input, decision=self.decision
        )
        return Stream("ResumeRun", self.target.runtime.ResumeRun(resumed, metadata=metadata), self.target, None)

    def attach(self, after: int = 0, fence: fence_pb2.Fence | None = None, incarnation: str = "") -> Stream:
        """The stream of AttachRun."""
        request = runtime_service_pb2.AttachRunRequest(
            fence=fence or self.fence, incarnation=incarnation or self.incarnation, after_offset=after
        )
        call = self.target.runtime.AttachRun(request, metadata=self.target.metadata)
        return Stream("AttachRun", call, self.target, after)

    async def play(self, *, ack: bool = True, commit: bool = True) -> list[Draft]:
        """Starts it and follows it to its end."""
        return await self.follow(self.start(), ack=ack, commit=commit)

    async def follow(self, stream: Stream, *, ack: bool = True, commit: bool = True) -> list[Draft]:
        """All drafts of a stream to its end, acknowledged, its head committed. Raises Broken if it does not end in order."""
        while (drafts := await stream.read()) is not None:
            if ack and drafts:
                await self.ack(stream.last_offset)
        self.drafts, self.batches = stream.drafts, stream.batches
        self.binding.setting.observations.look(self, stream)
        if stream.refusal is not None:
            raise Broken(f"{stream.method}: the stream ended with {stream.refusal}: {stream.refusal.message[:200]}")
        for draft in self.drafts:
            if kind(draft) == "session_updated" and draft.native_session_id:
                self.binding.native_session_id = draft.native_session_id
        if commit:
            self.commit()
        return self.drafts

    def commit(self) -> None:
        """Commits the head that the last draft names, as an executor does. A head that cannot be is noted under R5.2."""
        if not self.drafts or kind(self.drafts[-1]) not in ("run_completed", "run_interrupted"):
            return
        last = self.drafts[-1]
        pending = last.pending_head if last.HasField("pending_head") else None
        try:
            self.binding.thread.commit(self.fence.run_id, pending)
        except CommitFault as fault:
            self.binding.setting.observations.note("R5.2", str(fault))

    # --- other calls ---

    def ack_call(self, through: int, fence: fence_pb2.Fence | None = None) -> Any:
        """The call of AckRun."""
        request = runtime_service_pb2.AckRunRequest(fence=fence or self.fence, through_offset=through)
        return self.target.runtime.AckRun(request, metadata=self.target.metadata, timeout=CALL_SECONDS)

    async def ack(self, through: int) -> None:
        """Says that drafts up to `through` are durable."""
        await self.target.ask("AckRun", self.ack_call(through))

    def cancel_call(
        self,
        reason: "payload_pb2.CancelReason.ValueType" = CLIENT,
        fence: fence_pb2.Fence | None = None,
        grace: float = 2.0,
    ) -> Any:
        """The call of CancelRun."""
        request = runtime_service_pb2.CancelRunRequest(fence=fence or self.fence, reason=reason)
        request.grace.CopyFrom(duration_pb2.Duration(seconds=int(grace)))
        return self.target.runtime.CancelRun(request, metadata=self.target.metadata, timeout=CALL_SECONDS)

    async def cancel(
        self, reason: "payload_pb2.CancelReason.ValueType" = CLIENT
    ) -> runtime_service_pb2.CancelRunResponse:
        """Stops it."""
        return await self.target.ask("CancelRun", self.cancel_call(reason))

    # --- what was seen ---

    @property
    def last(self) -> Draft:
        """Its last draft. Raises Broken if there is none."""
        if not self.drafts:
            raise Broken("The run had no events.")
        return self.drafts[-1]

    def expect_end(self, wanted: str) -> Draft:
        """Its last draft, which must be of this kind."""
        if kind(self.last) != wanted:
            raise Broken(f"The run ended with {_told(self.last)}, it should have with {wanted}.")
        return self.last


def _told(draft: Draft) -> str:
    if kind(draft) == "run_failed":
        failed = draft.payload.run_failed
        return f"run_failed {failed.code!r}: {failed.message[:160]}"
    return kind(draft)


def text_of(drafts: Sequence[Draft]) -> str:
    """The text of all answers, joined."""
    return "".join(draft.payload.content_delta.text for draft in drafts if kind(draft) == "content_delta")
