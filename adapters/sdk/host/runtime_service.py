"""`harness.runtime.v1.RuntimeService` for either placement: translate, call, translate back."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from adapters.sdk.host.bounds import call_seconds
from adapters.sdk.host.registry import RuntimeRegistry
from harness.common.v1 import error_pb2
from harness.event.v1 import event_pb2
from harness.runtime.v1 import runtime_service_pb2 as pb2
from harness.runtime.v1 import runtime_service_pb2_grpc

Context = Any


class RuntimeServicer(runtime_service_pb2_grpc.RuntimeServiceServicer):
    """The lifecycle of the runtimes in a registry."""

    def __init__(self, registry: RuntimeRegistry) -> None:
        self._registry = registry

    async def Initialize(self, request: pb2.InitializeRequest, context: Context) -> pb2.InitializeResponse:
        """Prepares the runtime."""
        done = await self._registry.find(request.fence).initialize(self._seconds(context))
        return pb2.InitializeResponse(initialized=done)

    async def StartRun(self, request: pb2.StartRunRequest, context: Context) -> AsyncIterator[pb2.StartRunResponse]:
        """Runs a turn, or joins it."""
        run = self._registry.start(request.fence, request.incarnation, request.turn)
        async with aclosing(run.follow(run.acked)) as batches:
            async for first, drafts in batches:
                response = pb2.StartRunResponse()
                _fill(response.batch, first, drafts)
                yield response

    async def ResumeRun(self, request: pb2.ResumeRunRequest, context: Context) -> AsyncIterator[pb2.ResumeRunResponse]:
        """Runs the turn that answers an interrupt, or joins it."""
        run = self._registry.start(request.fence, request.incarnation, request.turn, request.decision)
        async with aclosing(run.follow(run.acked)) as batches:
            async for first, drafts in batches:
                response = pb2.ResumeRunResponse()
                _fill(response.batch, first, drafts)
                yield response

    async def AttachRun(self, request: pb2.AttachRunRequest, context: Context) -> AsyncIterator[pb2.AttachRunResponse]:
        """Streams a run again."""
        run = self._registry.attach(request.fence, request.incarnation)
        if request.after_offset == run.last_offset:
            # Says that the stream stands, although there is nothing new.
            yield pb2.AttachRunResponse()
        async with aclosing(run.follow(request.after_offset)) as batches:
            async for first, drafts in batches:
                response = pb2.AttachRunResponse()
                _fill(response.batch, first, drafts)
                yield response

    async def AckRun(self, request: pb2.AckRunRequest, context: Context) -> pb2.AckRunResponse:
        """Forgets what is durable."""
        self._registry.known(request.fence).acknowledge(request.through_offset)
        return pb2.AckRunResponse()

    async def CancelRun(self, request: pb2.CancelRunRequest, context: Context) -> pb2.CancelRunResponse:
        """Stops a run, or keeps it from starting."""
        found = self._registry.find_to_cancel(request.fence)
        if found is None:
            return pb2.CancelRunResponse(side_effect_status=error_pb2.SIDE_EFFECT_STATUS_NONE)
        slot, run = found
        grace = self._registry.limits.cancel_grace_seconds
        if request.HasField("grace"):
            grace = max(0.0, request.grace.ToMilliseconds() / 1000)
        ended, side_effects = await slot.cancel(run, request.reason, grace)
        return pb2.CancelRunResponse(already_ended=ended, side_effect_status=side_effects)

    async def GetPendingInterrupt(
        self, request: pb2.GetPendingInterruptRequest, context: Context
    ) -> pb2.GetPendingInterruptResponse:
        """The pending pause."""
        pause = await self._registry.find(request.fence).pending_interrupt(self._seconds(context))
        return pb2.GetPendingInterruptResponse(interrupt=pause)

    async def Restart(self, request: pb2.RestartRequest, context: Context) -> pb2.RestartResponse:
        """Releases provider clients."""
        await self._registry.find(request.fence).restart(self._seconds(context))
        return pb2.RestartResponse()

    async def Cleanup(self, request: pb2.CleanupRequest, context: Context) -> pb2.CleanupResponse:
        """Releases everything."""
        left = await self._registry.cleanup(request.fence, call_seconds(context, self._registry.limits.cleanup_seconds))
        return pb2.CleanupResponse(incomplete=bool(left), left=left)

    def _seconds(self, context: Context) -> float:
        return call_seconds(context, self._registry.limits.restart_seconds)


def _fill(batch: event_pb2.EventBatch, first: int, drafts: list[event_pb2.EventDraft]) -> None:
    batch.first_offset = first
    batch.drafts.extend(drafts)
