"""What an adapter host says is left of a runtime is logged and counted, and the conversation is cleared all the same (I20)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import structlog
from prometheus_client import REGISTRY

from adapters.sdk.host.limits import HostLimits
from adapters.sdk.serve import serve_adapter
from adapters.sdk.testing import connected
from harness.catalog.v1 import agent_pb2, resolution_service_pb2
from harness.session.v1 import binding_pb2
from services.runs import placing
from services.runs.clients.runtime import RuntimeClient
from services.runs.engine import Engine
from services.runs.plan import Plan
from tests.adapters.scripted import SteeredAdapter, three


def counted(outcome: str) -> float:
    return REGISTRY.get_sample_value("harness_runtimes_cleaned_total", {"outcome": outcome}) or 0.0


async def test_i20_a_runtime_of_which_something_is_left_is_not_taken_for_clean(tmp_path: Path) -> None:
    adapter = SteeredAdapter(three)
    adapter.cleanup_hangs = True
    address = f"unix:{tmp_path / 'a'}"
    server = await serve_adapter(lambda: adapter, listen=address, limits=HostLimits(cleanup_seconds=0.3))
    runtimes = RuntimeClient(None)
    engine = cast("Engine", SimpleNamespace(runtimes=runtimes, settings=SimpleNamespace(runtime_start_seconds=60.0)))
    plan = Plan(agent_pb2.AgentVersion(), resolution_service_pb2.ResolveProfileResponse(adapter_address=address))
    try:
        async with connected(address, harness_id="steered") as client:
            await client.create()
            binding = binding_pb2.Binding(binding_id=client.binding_id, epoch=1, runtime_generation=1)
            full, part = counted("full"), counted("incomplete")
            with structlog.testing.capture_logs() as said:
                await placing.release_runtime(engine, binding, plan)
            (entry,) = (entry for entry in said if entry["event"] == "runtime_not_clean")
            assert entry["left"] == "The adapter did not release the runtime in time."
            assert (entry["binding_id"], entry["runtime_generation"]) == (client.binding_id, 1)
            assert (counted("full"), counted("incomplete")) == (full, part + 1)
            adapter.cleanup_hangs = False
            async with asyncio.timeout(90):
                while counted("full") == full:  # a try may be cut off where the machine is slow
                    await placing.release_runtime(engine, binding, plan)
    finally:
        await runtimes.close()
        await server.stop(0)
