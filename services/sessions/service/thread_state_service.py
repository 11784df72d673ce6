"""`harness.state.v1.ThreadStateService`: translates, calls, translates back. On the facade listener alone."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc.aio

from harness.state.v1 import thread_state_service_pb2 as api
from harness.state.v1 import thread_state_service_pb2_grpc as api_grpc
from services.common.caller import caller
from services.common.errors import FieldIssue, HarnessError, Reason, invalid_request
from services.sessions.parts import MAX_PART_BYTES, too_large
from services.sessions.service.bounded import bounded
from services.sessions.service.wire import fence_of
from services.sessions.thread_state import STATE_AUDIENCE, ThreadState

THREAD_STATE_SERVICE: Final = api.DESCRIPTOR.services_by_name["ThreadStateService"].full_name

Context = grpc.aio.ServicerContext[Any, Any]
add_thread_state_servicer = api_grpc.add_ThreadStateServiceServicer_to_server


class ThreadStateServicer(api_grpc.ThreadStateServiceServicer):
    """For runtimes, with the capability token of their run. `transfer_seconds` bounds a read and a write."""

    def __init__(self, thread_state: ThreadState, *, transfer_seconds: float) -> None:
        self._thread_state = thread_state
        self._transfer_seconds = transfer_seconds

    async def LoadHead(self, request: api.LoadHeadRequest, context: Context) -> AsyncIterator[api.LoadHeadResponse]:
        pieces = self._thread_state.load(caller().require_capability(STATE_AUDIENCE), fence_of(request.fence))
        async with bounded(pieces, self._transfer_seconds):
            async for piece in pieces:
                yield api.LoadHeadResponse(
                    revision=piece.revision,
                    codec=piece.codec,
                    part_index=piece.part_index,
                    chunk=bytes(piece.chunk),
                )

    async def WriteParts(
        self, request_iterator: AsyncIterator[api.WritePartsRequest], context: Context
    ) -> api.WritePartsResponse:
        capability = caller().require_capability(STATE_AUDIENCE)
        first = _checked_first(await anext(request_iterator, None))
        fence = fence_of(first.fence)
        # Refused before the content is received.
        await self._thread_state.admit(capability, fence)
        bound = asyncio.timeout(self._transfer_seconds)
        try:
            # I14, I35: a writer that stops sending gives its place back, whatever deadline it set itself.
            async with bound:
                with self._thread_state.transfer_of(fence):
                    content = await _received(first, request_iterator)
                    part_ref = await self._thread_state.write(
                        capability, fence, first.codec, first.idempotency_key, content
                    )
        except TimeoutError:
            if not bound.expired():
                raise
            raise HarnessError(
                Reason.DEADLINE_EXCEEDED, f"Writing a part may take {self._transfer_seconds:g} seconds."
            ) from None
        return api.WritePartsResponse(part_ref=part_ref)

    async def MarkUncertain(self, request: api.MarkUncertainRequest, context: Context) -> api.MarkUncertainResponse:
        already_committed = await self._thread_state.mark_uncertain(
            caller().require_capability(STATE_AUDIENCE), fence_of(request.fence)
        )
        return api.MarkUncertainResponse(already_committed=already_committed)


async def _received(first: api.WritePartsRequest, rest: AsyncIterator[api.WritePartsRequest]) -> bytes:
    """The part's whole content; `capacity` beyond its bound."""
    content = bytearray(first.chunk)
    async for message in rest:
        if len(content) + len(message.chunk) > MAX_PART_BYTES:
            raise too_large()
        content += message.chunk
    return bytes(content)


def _checked_first(message: api.WritePartsRequest | None) -> api.WritePartsRequest:
    """The first message, with all that later ones need not repeat."""
    if message is None:
        raise invalid_request([FieldIssue("", "required", "Send the part: at least one message.")])
    issues = [
        FieldIssue(field, "required", "Set this in the first message.")
        for field, given in (
            ("fence", message.HasField("fence")),
            ("codec", message.codec),
            ("idempotency_key", message.idempotency_key),
        )
        if not given
    ]
    if issues:
        raise invalid_request(issues)
    return message
