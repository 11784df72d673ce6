"""`harness.state.v1.ThreadStateService`, played by the kit with the real rules: tokens, fences, heads, idempotent parts."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from conformance.plane.grants import Grants
from conformance.plane.refusals import refuse
from conformance.plane.thread import MAX_PART_BYTES, MAX_PARTS_OF_RUN, Thread
from harness.state.v1 import thread_state_service_pb2 as pb2
from harness.state.v1 import thread_state_service_pb2_grpc

CHUNK_BYTES = 1024 * 1024


class ThreadStateServicer(thread_state_service_pb2_grpc.ThreadStateServiceServicer):
    """State of whatever thread the caller's token was made for."""

    def __init__(self, grants: Grants) -> None:
        self._grants = grants

    async def LoadHead(self, request: pb2.LoadHeadRequest, context: Any) -> AsyncIterator[pb2.LoadHeadResponse]:
        """The committed head, part by part."""
        thread = await self._admit("LoadHead", request.fence, context)
        thread.journal.append(("load", request.fence.run_id, str(thread.revision)))
        if thread.fail_loads:
            await refuse(context, grpc.StatusCode.DATA_LOSS, "persistence_failed", "The state cannot be read.")
        if not thread.head:
            yield pb2.LoadHeadResponse(revision=thread.revision)
            return
        for index, ref in enumerate(thread.head):
            part = thread.parts[ref]
            for start in range(0, max(len(part.content), 1), CHUNK_BYTES):
                chunk = part.content[start : start + CHUNK_BYTES]
                yield pb2.LoadHeadResponse(revision=thread.revision, codec=part.codec, part_index=index, chunk=chunk)

    async def WriteParts(self, request_iterator: Any, context: Any) -> pb2.WritePartsResponse:
        """Keeps one part."""
        first: pb2.WritePartsRequest | None = None
        content = bytearray()
        async for request in request_iterator:
            if first is None:
                first = request
            content += request.chunk
            if len(content) > MAX_PART_BYTES:
                await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "capacity", "A part has 8 MiB at most.")
        if first is None or not first.codec or not first.idempotency_key:
            await refuse(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                "invalid_request",
                "The first message needs fence, codec and idempotency_key.",
            )
        thread = await self._admit("WriteParts", first.fence, context)
        run_id = first.fence.run_id
        if thread.fail_writes:
            await refuse(context, grpc.StatusCode.DATA_LOSS, "persistence_failed", "The state cannot be written.")
        if len(thread.written_by(run_id)) >= MAX_PARTS_OF_RUN:
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "capacity", "A run has 64 parts at most.")
        return pb2.WritePartsResponse(part_ref=thread.write(run_id, first.idempotency_key, first.codec, bytes(content)))

    async def MarkUncertain(self, request: pb2.MarkUncertainRequest, context: Any) -> pb2.MarkUncertainResponse:
        """Noted; the kit commits nothing that a run did not name."""
        await self._admit("MarkUncertain", request.fence, context)
        return pb2.MarkUncertainResponse()

    async def _admit(self, method: str, fence: Any, context: Any) -> Thread:
        grant, fault = self._grants.admit("state", method, fence, context)
        if grant is None:
            await refuse(context, grpc.StatusCode.UNAUTHENTICATED, "unauthenticated", "A token of the run is needed.")
        if fault:
            await refuse(
                context, grpc.StatusCode.FAILED_PRECONDITION, "STALE_LEASE", f"The call does not fit: {fault}."
            )
        return grant.behind
