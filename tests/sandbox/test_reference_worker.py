"""The product's own worker, bound through the service, in both kinds of sandbox."""

import importlib.util

import grpc
import grpc.aio
import pytest

from harness.runtime.v1 import runtime_service_pb2, runtime_service_pb2_grpc
from harness.sandbox.v1 import lease_pb2
from harness.worker.v1 import worker_service_pb2, worker_service_pb2_grpc
from tests.sandbox.mesh import STRICT_MISSING, fence, running_mesh

MODULE = "adapters.reference"
pytestmark = pytest.mark.skipif(importlib.util.find_spec(f"{MODULE}.__main__") is None, reason=f"no {MODULE}")
strict = pytest.param(
    "strict",
    marks=pytest.mark.skipif(bool(STRICT_MISSING), reason=f"strict sandboxes need: {STRICT_MISSING}"),
)


@pytest.mark.parametrize("profile", ["none", strict])
async def test_the_reference_worker_is_bound_and_answers_as_a_runtime(profile: str) -> None:
    async with running_mesh() as mesh:
        mesh.catalog.profiles[profile]["worker_module"] = MODULE
        lease = (await mesh.acquire("bnd_a", profile=profile, harness="reference")).lease
        assert lease.isolation == profile
        options = [("grpc.default_authority", "localhost")]
        async with grpc.aio.insecure_channel(lease.runtime_ref.address, options=options) as channel:
            worker = worker_service_pb2_grpc.WorkerServiceStub(channel)
            ready = await worker.GetReadiness(worker_service_pb2.GetReadinessRequest())
            assert ready.bound
            assert ready.incarnation == lease.runtime_ref.incarnation
            runtime = runtime_service_pb2_grpc.RuntimeServiceStub(channel)
            await runtime.Initialize(runtime_service_pb2.InitializeRequest(fence=fence("bnd_a")))
            with pytest.raises(grpc.aio.AioRpcError) as stale:
                await runtime.Initialize(runtime_service_pb2.InitializeRequest(fence=fence("bnd_b")))
            assert stale.value.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND)
        await mesh.release("bnd_a")
        assert (await mesh.get("bnd_a")).state == lease_pb2.LEASE_STATE_RELEASED
        assert "worker_did_not_shut_down" not in mesh.log
