"""The contract's two services: translate, call, translate back."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from betterproto_contracts.harness.adapter.v1 import (
    AdapterServiceBase,
    CheckHealthRequest,
    CheckHealthResponse,
    CloseSessionRequest,
    CloseSessionResponse,
    CreateRuntimeRequest,
    CreateRuntimeResponse,
    EvaluateRequest,
    EvaluateResponse,
    GetDescriptorRequest,
    GetDescriptorResponse,
    OpenSessionRequest,
    OpenSessionResponse,
)
from betterproto_contracts.harness.common.v1 import Capacity, HealthCheck, HealthReport, HealthStatus
from betterproto_contracts.harness.runtime.v1 import (
    AckRunRequest,
    AckRunResponse,
    AttachRunRequest,
    AttachRunResponse,
    CancelRunRequest,
    CancelRunResponse,
    CleanupRequest,
    CleanupResponse,
    GetPendingInterruptRequest,
    GetPendingInterruptResponse,
    InitializeRequest,
    InitializeResponse,
    RestartRequest,
    RestartResponse,
    ResumeRunRequest,
    ResumeRunResponse,
    RuntimeServiceBase,
    StartRunRequest,
    StartRunResponse,
)
from grpclib.metadata import Deadline
from grpclib.server import Stream

from adapters.betterproto import fences
from adapters.betterproto.descriptor import describe, evaluate
from adapters.betterproto.errors import invalid
from adapters.betterproto.runtimes import CLEANUP_SECONDS, MAX_RUNS, Runtimes

CANCEL_SECONDS = 5.0
# The deadline of the call that is being answered.
DEADLINE: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


class Adapter(AdapterServiceBase):
    """`harness.adapter.v1.AdapterService`."""

    def __init__(self, runtimes: Runtimes, incarnation: str) -> None:
        self._runtimes, self._incarnation = runtimes, incarnation
        self._descriptor = describe()

    async def get_descriptor(self, message: GetDescriptorRequest) -> GetDescriptorResponse:
        """What the adapter is."""
        return GetDescriptorResponse(descriptor=self._descriptor, incarnation=self._incarnation)

    async def check_health(self, message: CheckHealthRequest) -> CheckHealthResponse:
        """How it is. There is nothing behind it that could be away, so only capacity is looked at."""
        active, now = self._runtimes.active, datetime.now(UTC)
        status = HealthStatus.HEALTHY if active < MAX_RUNS else HealthStatus.DEGRADED
        reason = "" if active < MAX_RUNS else "All runs it can work on are at work."
        check = HealthCheck(name="capacity", status=status, reason=reason)
        if not reason:
            check.last_success_at = now
        capacity = Capacity(active=active, limit=MAX_RUNS)
        report = HealthReport(status=status, checks=[check], capacity=capacity, checked_at=now)
        return CheckHealthResponse(report=report)

    async def evaluate(self, message: EvaluateRequest) -> EvaluateResponse:
        """Whether a blueprint can run here."""
        if message.blueprint is None:
            raise invalid("blueprint", "it is missing")
        return evaluate(message)

    async def create_runtime(self, message: CreateRuntimeRequest) -> CreateRuntimeResponse:
        """Creates the runtime of a binding, or finds it."""
        fence, context = fences.fence_of(message.fence), fences.context_of(message.context)
        return CreateRuntimeResponse(incarnation=self._incarnation, created=self._runtimes.create(fence, context))

    async def open_session(self, message: OpenSessionRequest) -> OpenSessionResponse:
        """This harness has no native sessions."""
        fences.fence_of(message.fence)
        return OpenSessionResponse()

    async def close_session(self, message: CloseSessionRequest) -> CloseSessionResponse:
        """What is not there is closed."""
        fences.fence_of(message.fence)
        return CloseSessionResponse()


class Runtime(RuntimeServiceBase):
    """`harness.runtime.v1.RuntimeService`."""

    def __init__(self, runtimes: Runtimes, incarnation: str) -> None:
        self._runtimes, self._incarnation = runtimes, incarnation

    async def _call_rpc_handler_server_stream(
        self, handler: Callable[[Any], Any], stream: Stream[Any, Any], request: Any
    ) -> None:
        # A caller that goes away ends the iteration here and now, so that the run knows at once that nobody follows.
        async with aclosing(handler(request)) as responses:
            async for response in responses:
                await stream.send_message(response)

    async def initialize(self, message: InitializeRequest) -> InitializeResponse:
        """Prepares the runtime."""
        runtime = self._runtimes.find(fences.fence_of(message.fence))
        return InitializeResponse(initialized=runtime.initialize())

    async def start_run(self, message: StartRunRequest) -> AsyncIterator[StartRunResponse]:
        """Runs a turn, or joins it."""
        fence, turn = fences.run_of(message.fence), fences.turn_of(message.turn)
        fences.incarnation_of(message.incarnation, self._incarnation)
        run = self._runtimes.start(fence, turn)
        async with aclosing(run.follow(run.acked)) as batches:
            async for batch in batches:
                yield StartRunResponse(batch=batch)

    async def resume_run(self, message: ResumeRunRequest) -> AsyncIterator[ResumeRunResponse]:
        """Runs the turn that answers an interrupt, or joins it."""
        fence, turn = fences.run_of(message.fence), fences.turn_of(message.turn)
        fences.incarnation_of(message.incarnation, self._incarnation)
        run = self._runtimes.start(fence, turn, fences.decision_of(message.decision))
        async with aclosing(run.follow(run.acked)) as batches:
            async for batch in batches:
                yield ResumeRunResponse(batch=batch)

    async def attach_run(self, message: AttachRunRequest) -> AsyncIterator[AttachRunResponse]:
        """Streams a run again."""
        fence = fences.run_of(message.fence)
        fences.incarnation_of(message.incarnation, self._incarnation)
        run = self._runtimes.known(fence)
        if message.after_offset == run.last:
            # Says that the stream stands, although there is nothing new.
            yield AttachRunResponse()
        async with aclosing(run.follow(message.after_offset)) as batches:
            async for batch in batches:
                yield AttachRunResponse(batch=batch)

    async def ack_run(self, message: AckRunRequest) -> AckRunResponse:
        """Forgets what is durable."""
        self._runtimes.known(fences.run_of(message.fence)).acknowledge(message.through_offset)
        return AckRunResponse()

    async def cancel_run(self, message: CancelRunRequest) -> CancelRunResponse:
        """Stops a run, or keeps it from starting."""
        fence, reason = fences.run_of(message.fence), message.reason
        grace = CANCEL_SECONDS if message.grace is None else max(0.0, message.grace.total_seconds())
        ended, side_effects = await self._runtimes.cancel(fence, reason, grace)
        return CancelRunResponse(already_ended=ended, side_effect_status=side_effects)

    async def get_pending_interrupt(self, message: GetPendingInterruptRequest) -> GetPendingInterruptResponse:
        """The pending pause."""
        runtime = self._runtimes.find(fences.fence_of(message.fence))
        return GetPendingInterruptResponse(interrupt=runtime.pending_interrupt())

    async def restart(self, message: RestartRequest) -> RestartResponse:
        """Releases what a provider would hold."""
        await self._runtimes.find(fences.fence_of(message.fence)).restart()
        return RestartResponse()

    async def cleanup(self, message: CleanupRequest) -> CleanupResponse:
        """Releases everything."""
        deadline = DEADLINE.get()
        seconds = CLEANUP_SECONDS if deadline is None else min(deadline.time_remaining() * 0.9, CLEANUP_SECONDS)
        await self._runtimes.cleanup(fences.fence_of(message.fence), seconds)
        return CleanupResponse()
