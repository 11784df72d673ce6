"""Calls to the catalog and to workers."""

from google.protobuf import duration_pb2

from harness.catalog.v1 import resolution_service_pb2, resolution_service_pb2_grpc
from harness.common.v1 import fence_pb2
from harness.runtime.v1 import runtime_pb2
from harness.worker.v1 import worker_service_pb2, worker_service_pb2_grpc
from services.common.channels import Peer, connect
from services.common.errors import Reason
from services.common.sandbox_cause import SandboxCause, caused
from services.sandbox.profile import NONE, STRICT, Profile, checked_profile
from services.sandbox.worker import Readiness

RESOLVE_PROFILE = "harness.catalog.v1.ResolutionService/ResolveProfile"
CATALOG_SECONDS = 5.0
READINESS_SECONDS = 5.0
BIND_SECONDS = 10.0
# Of the time for a shutdown, what the worker gets of it: the rest is for its answer.
GRACE_SHARE = 0.8


class CatalogClient:
    """Implements `Profiles`."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._stub = resolution_service_pb2_grpc.ResolutionServiceStub(peer.channel)

    async def sandbox_profile(self, harness_id: str, profile_id: str) -> Profile:
        """How sandboxes of the profile are made. `HarnessError` of the catalog, or configuration_invalid for a profile without sandboxes."""
        request = resolution_service_pb2.ResolveProfileRequest(harness_id=harness_id, profile_id=profile_id)
        answer: resolution_service_pb2.ResolveProfileResponse = await self._peer.call(
            self._stub.ResolveProfile, request, timeout=CATALOG_SECONDS
        )
        if not answer.HasField("sandbox"):
            raise caused(
                SandboxCause.PROFILE_INVALID,
                f"The profile {profile_id} of harness {harness_id} has no sandbox: give it the placement sandbox_pod.",
                reason=Reason.CONFIGURATION_INVALID,
            )
        sandbox = answer.sandbox
        return checked_profile(
            sandbox.worker_module,
            # What is not stated, or not known here, is strict.
            NONE if sandbox.isolation == resolution_service_pb2.ISOLATION_NONE else STRICT,
            sandbox.cpu_millis,
            idle_seconds=sandbox.idle_seconds,
            lifetime_seconds=sandbox.lifetime_seconds,
            memory_mib=sandbox.memory_mib,
            max_pids=sandbox.max_pids,
            workspace_mib=sandbox.workspace_mib,
        )


class WorkerClient:
    """Implements `Workers`. A connection per call: there are two or three in a sandbox's life."""

    async def readiness(self, address: str) -> Readiness:
        peer = connect(address)
        try:
            stub = worker_service_pb2_grpc.WorkerServiceStub(peer.channel)
            answer: worker_service_pb2.GetReadinessResponse = await peer.call(
                stub.GetReadiness, worker_service_pb2.GetReadinessRequest(), timeout=READINESS_SECONDS
            )
        finally:
            await peer.close()
        return Readiness(
            ready=answer.ready,
            reason=answer.reason,
            protocol_versions=tuple(answer.protocol_versions),
            harness_id=answer.harness_id,
            bound=answer.bound,
            incarnation=answer.incarnation,
        )

    async def bind(
        self, address: str, fence: fence_pb2.Fence, harness_id: str, context: runtime_pb2.RuntimeContext
    ) -> str:
        peer = connect(address)
        try:
            stub = worker_service_pb2_grpc.WorkerServiceStub(peer.channel)
            request = worker_service_pb2.BindRequest(fence=fence, harness_id=harness_id, context=context)
            answer: worker_service_pb2.BindResponse = await peer.call(stub.Bind, request, timeout=BIND_SECONDS)
        finally:
            await peer.close()
        return answer.incarnation

    async def shutdown(self, address: str, fence: fence_pb2.Fence, seconds: float) -> str:
        grace = duration_pb2.Duration()
        grace.FromNanoseconds(round(seconds * GRACE_SHARE * 1e9))
        peer = connect(address)
        try:
            stub = worker_service_pb2_grpc.WorkerServiceStub(peer.channel)
            request = worker_service_pb2.ShutdownRequest(fence=fence, grace=grace)
            answer: worker_service_pb2.ShutdownResponse = await peer.call(stub.Shutdown, request, timeout=seconds)
        finally:
            await peer.close()
        # A worker of an older contract says no more than that something is.
        return (answer.left or "not said") if answer.incomplete else ""
