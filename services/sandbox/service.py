"""The gRPC face of the sandbox service: translate, call, translate back."""

from collections.abc import Awaitable
from typing import Any, TypeVar

import grpc.aio
from google.protobuf import timestamp_pb2

from harness.common.v1 import fence_pb2, runtime_ref_pb2
from harness.sandbox.v1 import lease_pb2, sandbox_service_pb2, sandbox_service_pb2_grpc
from services.common.errors import FieldIssue, HarnessError, Reason, invalid_request
from services.common.store import InvalidQuery, StoreFull, StoreUnavailable
from services.sandbox.lease import Fence, Lease, State
from services.sandbox.leasing import Leasing, Request

SERVICE = "harness.sandbox.v1.SandboxService"
DEFAULT_PAGE = 100
T = TypeVar("T")
_STATES = {
    State.PENDING: lease_pb2.LEASE_STATE_PENDING,
    State.BOUND: lease_pb2.LEASE_STATE_BOUND,
    State.LOST: lease_pb2.LEASE_STATE_LOST,
    State.RELEASED: lease_pb2.LEASE_STATE_RELEASED,
}
_Context = grpc.aio.ServicerContext[Any, Any]


class SandboxServicer(sandbox_service_pb2_grpc.SandboxServiceServicer):
    """See the contract for what each call means."""

    def __init__(self, leasing: Leasing) -> None:
        self._leasing = leasing

    async def AcquireSandbox(
        self, request: sandbox_service_pb2.AcquireSandboxRequest, context: _Context
    ) -> sandbox_service_pb2.AcquireSandboxResponse:
        wanted = Request(request.fence, request.harness_id, request.profile_id, request.context, request.reuse_only)
        lease, created = await _stored(self._leasing.acquire(wanted))
        return sandbox_service_pb2.AcquireSandboxResponse(lease=_message(lease), created=created)

    async def RenewSandbox(
        self, request: sandbox_service_pb2.RenewSandboxRequest, context: _Context
    ) -> sandbox_service_pb2.RenewSandboxResponse:
        lease = await _stored(self._leasing.renew(_fence(request.fence)))
        return sandbox_service_pb2.RenewSandboxResponse(lease=_message(lease))

    async def ReleaseSandbox(
        self, request: sandbox_service_pb2.ReleaseSandboxRequest, context: _Context
    ) -> sandbox_service_pb2.ReleaseSandboxResponse:
        released = await _stored(self._leasing.release(_fence(request.fence)))
        return sandbox_service_pb2.ReleaseSandboxResponse(released=released)

    async def GetSandbox(
        self, request: sandbox_service_pb2.GetSandboxRequest, context: _Context
    ) -> sandbox_service_pb2.GetSandboxResponse:
        lease = await _stored(self._leasing.get(request.binding_id))
        return sandbox_service_pb2.GetSandboxResponse(lease=_message(lease))

    async def ListSandboxes(
        self, request: sandbox_service_pb2.ListSandboxesRequest, context: _Context
    ) -> sandbox_service_pb2.ListSandboxesResponse:
        try:
            listed = self._leasing.ended_page if request.ended else self._leasing.live_page
            page = await _stored(listed(request.page_size or DEFAULT_PAGE, request.page_token or None))
        except InvalidQuery:
            raise invalid_request(
                [FieldIssue("page_token", "page_token", "Not a token of this list: start without one.")]
            ) from None
        leases = [_message(kept.lease) for kept in page.leases]
        return sandbox_service_pb2.ListSandboxesResponse(
            leases=leases, next_page_token=page.next or "", missing=self._leasing.missing
        )


async def _stored(call: Awaitable[T]) -> T:
    """I34: while the store is away, a clear error that may be retried."""
    try:
        return await call
    except (StoreUnavailable, StoreFull):
        raise HarnessError(Reason.STORE_UNAVAILABLE, "The sandbox service cannot reach its store; try again.") from None


def _fence(fence: fence_pb2.Fence) -> Fence:
    return Fence(fence.binding_id, fence.epoch, fence.runtime_generation)


def _message(lease: Lease) -> lease_pb2.Lease:
    message = lease_pb2.Lease(
        lease_id=lease.lease_id,
        binding_id=lease.fence.binding_id,
        epoch=lease.fence.epoch,
        runtime_generation=lease.fence.runtime_generation,
        harness_id=lease.terms.harness_id,
        profile_id=lease.terms.profile_id,
        state=_STATES[lease.state],
        created_at=_timestamp(lease.created_at),
        expires_at=_timestamp(lease.expires_at if lease.live else lease.ended_at),
        reason=lease.reason,
        isolation=lease.terms.isolation,
    )
    if lease.address:
        message.runtime_ref.CopyFrom(runtime_ref_pb2.RuntimeRef(address=lease.address, incarnation=lease.incarnation))
    return message


def _timestamp(milliseconds: int) -> timestamp_pb2.Timestamp:
    timestamp = timestamp_pb2.Timestamp()
    timestamp.FromMilliseconds(milliseconds)
    return timestamp
