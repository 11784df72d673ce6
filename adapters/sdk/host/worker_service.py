"""`harness.worker.v1.WorkerService`: what a sandbox adds, namely readiness, one bind for life, and an end (worker protocol)."""

import asyncio
import hashlib
import os
from typing import Any

from adapters.sdk.contract import HarnessAdapter
from adapters.sdk.host import refusal
from adapters.sdk.host.bounds import LEAST_SECONDS, call_seconds
from adapters.sdk.host.health import HealthLooks
from adapters.sdk.host.registry import PROTOCOL_VERSION, RuntimeRegistry
from harness.common.v1 import fence_pb2, health_pb2
from harness.worker.v1 import worker_service_pb2 as pb2
from harness.worker.v1 import worker_service_pb2_grpc

IMAGE_DIGEST_VARIABLE = "HARNESS_IMAGE_DIGEST"
DEFAULT_SHUTDOWN_GRACE_SECONDS = 5.0
Context = Any


class WorkerServicer(worker_service_pb2_grpc.WorkerServiceServicer):
    """One worker, bound to at most one binding, epoch and runtime generation for life."""

    def __init__(self, adapter: HarnessAdapter, registry: RuntimeRegistry, stop: asyncio.Event) -> None:
        self._adapter = adapter
        self._registry = registry
        self._health = HealthLooks(adapter, registry)
        self._stop = stop
        self._bound: tuple[str, int, int] | None = None
        # Digest of the context it was bound with.
        self._request: bytes = b""
        self._binding = asyncio.Lock()

    async def GetReadiness(self, request: pb2.GetReadinessRequest, context: Context) -> pb2.GetReadinessResponse:
        """What the worker is."""
        report = await self._health.report(self._registry.limits.health_seconds)
        ready = report.status != health_pb2.HEALTH_STATUS_UNHEALTHY and not self._registry.stopping
        reason = "The worker is stopping." if self._registry.stopping else ""
        for check in report.checks:
            if check.status == health_pb2.HEALTH_STATUS_UNHEALTHY:
                reason = reason or check.reason or f"{check.name} is unhealthy"
        descriptor = self._adapter.descriptor
        return pb2.GetReadinessResponse(
            ready=ready,
            reason="" if ready else reason,
            protocol_versions=[PROTOCOL_VERSION],
            harness_id=descriptor.harness_id,
            adapter_version=descriptor.adapter_version,
            image_digest=os.environ.get(IMAGE_DIGEST_VARIABLE, "")[:128],
            bound=self._bound is not None,
            incarnation=self._registry.incarnation,
        )

    async def Bind(self, request: pb2.BindRequest, context: Context) -> pb2.BindResponse:
        """Binds the worker, once for life."""
        if request.harness_id != self._adapter.descriptor.harness_id:
            raise refusal.mismatch("This worker hosts another harness.")
        wanted = _identity(request.fence)
        content = hashlib.sha256(request.context.SerializeToString(deterministic=True)).digest()
        async with self._binding:
            if self._bound is not None and (self._bound, self._request) != (wanted, content):  # I26
                raise refusal.stale_lease("This worker is bound for life to something else.")
            if self._bound is None:
                seconds = call_seconds(context, self._registry.limits.restart_seconds)
                await self._registry.create(request.fence, request.context, seconds)
                self._bound, self._request = wanted, content
        return pb2.BindResponse(incarnation=self._registry.incarnation)

    async def Shutdown(self, request: pb2.ShutdownRequest, context: Context) -> pb2.ShutdownResponse:
        """Ends everything, then the process."""
        if self._bound is not None and (not request.HasField("fence") or _identity(request.fence) != self._bound):
            raise refusal.stale_lease("The fence is not the one this worker is bound to.")
        grace = request.grace.ToMilliseconds() / 1000 if request.HasField("grace") else DEFAULT_SHUTDOWN_GRACE_SECONDS
        self._registry.stopping = True
        left = ""
        if self._bound is not None:
            left = await self._registry.cleanup(request.fence, call_seconds(context, max(LEAST_SECONDS, grace)))
        self._stop.set()
        return pb2.ShutdownResponse(incomplete=bool(left), left=left)


def _identity(fence: fence_pb2.Fence) -> tuple[str, int, int]:
    return fence.binding_id, fence.epoch, fence.runtime_generation
