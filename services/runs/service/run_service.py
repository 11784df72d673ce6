"""`harness.run.v1.RunService`: translate, call, translate back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.timestamp_pb2 import Timestamp

from harness.common.v1 import blueprint_pb2
from harness.run.v1 import run_pb2, run_service_pb2, run_service_pb2_grpc
from services.common.caller import caller
from services.common.errors import FieldIssue, HarnessError, Reason, invalid_request
from services.common.store import StoreFull, StoreUnavailable
from services.runs.answer import Answer
from services.runs.cancelling import Canceller
from services.runs.clearing import Clearer
from services.runs.intent import CancelReason
from services.runs.live import serialized
from services.runs.queries import Queries, is_over
from services.runs.resuming import Resumer
from services.runs.run import Run, Status
from services.runs.starting import Starter

RUN_SERVICE: Final = run_service_pb2.DESCRIPTOR.services_by_name["RunService"].full_name
DEFAULT_EVENTS: Final = 500
Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")

_STATUSES: Final = {
    Status.QUEUED: run_pb2.RUN_STATUS_QUEUED,
    Status.RUNNING: run_pb2.RUN_STATUS_RUNNING,
    Status.COMPLETED: run_pb2.RUN_STATUS_COMPLETED,
    Status.INTERRUPTED: run_pb2.RUN_STATUS_INTERRUPTED,
    Status.FAILED: run_pb2.RUN_STATUS_FAILED,
    Status.CANCELLED: run_pb2.RUN_STATUS_CANCELLED,
}
_CANONICAL: Final = (
    blueprint_pb2.STREAM_PROTOCOL_UNSPECIFIED,
    blueprint_pb2.STREAM_PROTOCOL_CANONICAL,
)


class Reader(Protocol):
    """The read side, as the servicer uses it. It trusts that the run is the caller's."""

    def watch(self, run_id: str, after: int) -> AsyncIterator[run_service_pb2.WatchRunResponse]:
        """Events after a cursor, until the terminal was given."""
        ...

    def watch_packed(self, run_id: str, after: int) -> AsyncIterator[bytes]:
        """The same, each message as it is sent."""
        ...

    async def page(self, run_id: str, after: int, wait: float, limit: int) -> run_service_pb2.ListEventsResponse:
        """A page of events and the cursor to go on from, without the run."""
        ...


@dataclass(frozen=True)
class Parts:
    """What the servicer calls."""

    starter: Starter
    resumer: Resumer
    canceller: Canceller
    clearer: Clearer
    queries: Queries
    reader: Reader


class RunServicer(run_service_pb2_grpc.RunServiceServicer):
    """For the gateway and for internal services; every rpc acts for the caller's subject (I2)."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def StartRun(
        self, request: run_service_pb2.StartRunRequest, context: Context
    ) -> run_service_pb2.StartRunResponse:
        run = await _answered(self._parts.starter.start(caller().require_subject(), request))
        return run_service_pb2.StartRunResponse(run=run_message(run))

    async def GetRun(self, request: run_service_pb2.GetRunRequest, context: Context) -> run_service_pb2.GetRunResponse:
        run = await _answered(self._parts.queries.get(caller().require_subject(), request.run_id))
        return run_service_pb2.GetRunResponse(run=run_message(run))

    async def ListRuns(
        self, request: run_service_pb2.ListRunsRequest, context: Context
    ) -> run_service_pb2.ListRunsResponse:
        runs, token = await _answered(
            self._parts.queries.page(
                caller().require_subject(),
                request.agent_id,
                request.conversation_id,
                request.page_size,
                request.page_token,
            )
        )
        return run_service_pb2.ListRunsResponse(runs=[run_message(run) for run in runs], next_page_token=token)

    async def ListEvents(
        self, request: run_service_pb2.ListEventsRequest, context: Context
    ) -> run_service_pb2.ListEventsResponse:
        subject = caller().require_subject()
        run = await _answered(self._parts.queries.owned(subject, request.run_id))
        if is_over(run, request.after):
            return run_service_pb2.ListEventsResponse(run=run_message(run), next_cursor=request.after)
        limit = request.limit or DEFAULT_EVENTS
        response = await _answered(self._parts.reader.page(request.run_id, request.after, request.wait, limit))
        response.run.CopyFrom(run_message(await _answered(self._parts.queries.get(subject, request.run_id))))
        return response

    async def WatchRun(  # type: ignore[override]  # bytes, see `add_run_servicer`
        self, request: run_service_pb2.WatchRunRequest, context: Context
    ) -> AsyncIterator[bytes]:
        if request.protocol not in _CANONICAL:
            raise invalid_request(
                [FieldIssue("protocol", "unsupported", "Over gRPC a run is watched in the canonical protocol only.")]
            )
        run = await _answered(self._parts.queries.watchable(caller().require_subject(), request.run_id))
        if is_over(run, request.after):
            return
        async with _closing(self._parts.reader.watch_packed(request.run_id, request.after)) as responses:
            async for response in responses:
                yield response

    async def CancelRun(
        self, request: run_service_pb2.CancelRunRequest, context: Context
    ) -> run_service_pb2.CancelRunResponse:
        run = await _answered(self._parts.queries.owned(caller().require_subject(), request.run_id))
        ended = await _answered(self._parts.canceller.cancel(run, CancelReason.CLIENT_REQUEST))
        return run_service_pb2.CancelRunResponse(run=run_message(ended))

    async def CancelActiveRun(
        self, request: run_service_pb2.CancelActiveRunRequest, context: Context
    ) -> run_service_pb2.CancelActiveRunResponse:
        cancelled, run_id = await _answered(
            self._parts.canceller.cancel_active(caller().require_subject(), request.agent_id, request.conversation_id)
        )
        return run_service_pb2.CancelActiveRunResponse(cancelled=cancelled, run_id=run_id)

    async def ResumeRun(
        self, request: run_service_pb2.ResumeRunRequest, context: Context
    ) -> run_service_pb2.ResumeRunResponse:
        run = await _answered(self._parts.resumer.resume(caller().require_subject(), request))
        return run_service_pb2.ResumeRunResponse(run=run_message(run))

    async def GetInterruptState(
        self, request: run_service_pb2.GetInterruptStateRequest, context: Context
    ) -> run_service_pb2.GetInterruptStateResponse:
        pending = await _answered(
            self._parts.queries.pending_interrupt(caller().require_subject(), request.agent_id, request.conversation_id)
        )
        return run_service_pb2.GetInterruptStateResponse(interrupt=pending)

    async def ClearSession(
        self, request: run_service_pb2.ClearSessionRequest, context: Context
    ) -> run_service_pb2.ClearSessionResponse:
        result = await _answered(
            self._parts.clearer.clear(caller().require_subject(), request.agent_id, request.conversation_id)
        )
        return run_service_pb2.ClearSessionResponse(
            cleared=result.cleared, closed_binding_id=result.closed_binding_id, next_epoch=result.next_epoch
        )

    async def Invoke(self, request: run_service_pb2.InvokeRequest, context: Context) -> run_service_pb2.InvokeResponse:
        # The fields of both are the same by number and type.
        body = run_service_pb2.StartRunRequest.FromString(request.SerializeToString())
        run = await _answered(self._parts.starter.start(caller().require_subject(), body))
        answer = Answer(run.run_id)
        async with _closing(self._parts.reader.watch(run.run_id, 0)) as responses:
            async for response in responses:
                if answer.take(response.events):
                    break
        return answer.response()


def add_run_servicer(servicer: RunServicer, server: grpc.aio.Server) -> None:
    """Registers the service; WatchRun forwards stored segments as they are, so its messages are bytes already (I8)."""
    watch = grpc.unary_stream_rpc_method_handler(
        servicer.WatchRun,
        request_deserializer=run_service_pb2.WatchRunRequest.FromString,
        response_serializer=serialized,
    )
    run_service_pb2_grpc.add_RunServiceServicer_to_server(servicer, server)
    # What is registered for a method last serves it.
    registered: Any = server  # grpc's type stubs do not know the method
    registered.add_registered_method_handlers(RUN_SERVICE, {"WatchRun": watch})


def run_message(run: Run) -> run_pb2.Run:
    """The run as the contract shows it."""
    message = run_pb2.Run(
        run_id=run.run_id,
        agent_id=run.agent_id or "",
        conversation_id=run.conversation_id or "",
        agent_version=run.agent_version,
        binding_id=run.binding_id,
        harness_id=run.harness_id,
        profile_id=run.profile_id,
        status=_STATUSES[run.status],
        last_sequence=run.last_sequence,
        client_request_id=run.client_request_id,
        error_code=run.error_code,
        resumed_from=run.resumed_from,
        created_at=_time(run.created_at),
        updated_at=_time(run.updated_at),
    )
    if run.deadline_at is not None:
        message.deadline_at.CopyFrom(_time(run.deadline_at))
    return message


def _time(milliseconds: int) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMilliseconds(milliseconds)
    return stamp


def _closing(stream: AsyncIterator[T]) -> aclosing[AsyncGenerator[T]]:
    """The reader's streams are generators; closing one frees what it holds at once (I14)."""
    return aclosing(cast("AsyncGenerator[T]", stream))


async def _answered(work: Awaitable[T]) -> T:
    """What the work answers; trouble of the store as a retryable error (I34)."""
    try:
        return await work
    except (StoreUnavailable, StoreFull) as error:
        raise HarnessError(
            Reason.STORE_UNAVAILABLE, "The store cannot answer now: try again.", retry_after=1.0
        ) from error
