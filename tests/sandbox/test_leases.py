"""Leases through the real service, with plain worker processes: they hold on every machine."""

import asyncio

from harness.sandbox.v1 import lease_pb2
from tests.sandbox.mesh import inside, running_mesh


async def test_acquire_makes_binds_and_release_destroys() -> None:
    async with running_mesh() as mesh:
        answer = await mesh.acquire("bnd_a")
        lease = answer.lease
        assert answer.created
        assert lease.state == lease_pb2.LEASE_STATE_BOUND
        assert lease.isolation == "none"
        assert await inside(lease, "result = worker.bound.fence.binding_id") == "bnd_a"
        assert await inside(lease, "result = worker.incarnation") == lease.runtime_ref.incarnation
        again = await mesh.acquire("bnd_a")
        assert not again.created
        assert again.lease.lease_id == lease.lease_id
        assert await mesh.release("bnd_a")
        assert not await mesh.release("bnd_a")
        assert not list(mesh.root.glob("lse_*"))
        assert (await mesh.get("bnd_a")).state == lease_pb2.LEASE_STATE_RELEASED
        assert "sandbox_without_isolation" in mesh.log
