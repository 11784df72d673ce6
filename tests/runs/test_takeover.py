"""Runs whose executor died are taken over by attaching: the provider's call goes on, and nothing of it is lost (run protocol, Take; I7, I9)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from adapters.sdk import events as drafts
from tests.runs.mesh import KILL, Client, Mesh, kind

PATIENCE = 60.0
BUFFERED_BYTES = 1 << 20
SIZE = 4_000
Clients = Callable[..., Client]


async def test_i9_a_runtime_that_is_full_of_what_a_dead_executor_never_acknowledged_goes_on(clients: Clients) -> None:
    # The first executor acknowledges nothing before it dies: neither its lease is due, nor are there as many drafts as it waits for.
    mesh = Mesh(settings={"HARNESS_LEASE_TTL_SECONDS": "300"})
    mesh.reference.environment["HARNESS_ADAPTER_MAX_BUFFERED_BYTES"] = str(BUFFERED_BYTES)
    mesh.start()
    try:
        caller = clients(mesh)
        run = await caller.start(await caller.agent(), {"n": 700, "size": SIZE}, "c")
        filling = math.ceil(BUFFERED_BYTES / drafts.text("x" * SIZE).ByteSize())
        # The runtime holds as much as it may, and all of it is durable: the provider is not read any more.
        await reached(caller, run.run_id, 1 + filling)
        mesh.runs.end(KILL)
        mesh.runs.environment["HARNESS_LEASE_TTL_SECONDS"] = "1"
        mesh.runs.start()
        async with asyncio.timeout(PATIENCE):
            events = await caller.events(run.run_id)
        assert [kind(event) for event in events] == ["run_started", *["content_delta"] * 700, "run_completed"]
    finally:
        mesh.close()


async def reached(caller: Client, run_id: str, sequence: int) -> None:
    """Until the run's log goes at least that far."""
    cursor = 0
    async with asyncio.timeout(PATIENCE):
        while cursor < sequence:
            cursor = (await caller.page(run_id, after=cursor, wait=10, limit=1000)).next_cursor
