"""Runs whose executor died are taken over by attaching: the provider's call goes on, is never made again, and nothing of it is lost (run
protocol, Take; I7, I9, I10, I11).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from pydantic import SecretStr

from adapters.sdk import events as drafts
from harness.adapter.v1 import adapter_service_pb2, adapter_service_pb2_grpc
from harness.common.v1 import error_pb2, fence_pb2
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_service_pb2, runtime_service_pb2_grpc
from harness.session.v1 import session_service_pb2, session_service_pb2_grpc
from services.common.channels import Peer, connect
from services.common.errors import HarnessError, Reason
from services.runs.lease import LEAST_DETACH_GRACE_SECONDS, detach_grace_seconds
from tests.runs.mesh import KILL, TOKEN, Client, Mesh, fence_of, kind, text

PATIENCE = 60.0
BUFFERED_BYTES = 1 << 20
SIZE = 4_000
HANG = {"script": [{"text": "begun"}, {"hang": True}]}
CLIENT = payload_pb2.CANCEL_REASON_CLIENT_REQUEST
Clients = Callable[..., Client]


class Counted:
    """A mesh whose adapter host notes every turn that is begun."""

    def __init__(self, **settings: str) -> None:
        self.mesh = Mesh(settings={"HARNESS_LEASE_TTL_SECONDS": "3", **settings})
        self._file = self.mesh.folder / "turns"
        self.mesh.reference.command = ["-m", "tests.runs.counting_host", *self.mesh.reference.command[2:]]
        self.mesh.reference.environment["TURNS_FILE"] = str(self._file)
        self.mesh.start()

    def turns(self, run_id: str) -> list[list[str]]:
        """Process and grace of every turn of the run that a runtime has begun."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [line.split()[1:] for line in lines if line.split()[0] == run_id]


@pytest.fixture(scope="module")
def shared_counted() -> Iterator[Counted]:
    counted = Counted()
    yield counted
    counted.mesh.close()


@pytest.fixture
def counted(shared_counted: Counted) -> Counted:
    shared_counted.mesh.heal()
    return shared_counted


async def test_i11_a_turn_is_begun_once_however_often_its_executor_dies(counted: Counted, clients: Clients) -> None:
    caller = clients(counted.mesh)
    run = await caller.start(await caller.agent(), {"n": 300, "rate": 30}, "c")
    for sequence in (1, 60, 120):
        await reached(caller, run.run_id, sequence)
        counted.mesh.runs.restart(KILL)
    events = await caller.events(run.run_id)
    assert [kind(event) for event in events] == ["run_started", *["content_delta"] * 300, "run_completed"]
    assert len(counted.turns(run.run_id)) == 1


async def test_i11_a_turn_whose_host_died_with_its_executor_is_not_begun_again_and_says_what_may_have_happened(
    counted: Counted, clients: Clients
) -> None:
    mesh, caller = counted.mesh, clients(counted.mesh)
    run = await caller.start(await caller.agent(), {"n": 100_000, "rate": 30}, "c")
    await reached(caller, run.run_id, 20)
    mesh.runs.end(KILL)
    mesh.reference.restart(KILL)
    mesh.runs.start()
    events = await caller.events(run.run_id)
    failed = events[-1].payload.run_failed
    assert (failed.side_effect_status, failed.retryable) == (error_pb2.SIDE_EFFECT_STATUS_POSSIBLE, False)
    assert len(counted.turns(run.run_id)) == 1


async def test_i9_a_runtime_that_is_full_of_what_a_dead_executor_never_acknowledged_goes_on(clients: Clients) -> None:
    # The first executor acknowledges nothing before it dies: neither is its lease due, nor are there as many drafts as it waits for.
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
        mesh.runs.environment["HARNESS_LEASE_TTL_SECONDS"] = "3"
        mesh.runs.start()
        async with asyncio.timeout(PATIENCE):
            events = await caller.events(run.run_id)
        assert [kind(event) for event in events] == ["run_started", *["content_delta"] * 700, "run_completed"]
    finally:
        mesh.close()


@pytest.mark.parametrize(("ttl", "sweep"), [(0.5, 0.05), (5.0, 0.5), (30.0, 1.0), (300.0, 60.0)])
def test_a_runtime_goes_on_alone_for_three_takeovers_at_least(ttl: float, sweep: float) -> None:
    grace = detach_grace_seconds(ttl, sweep)
    assert max(3 * (ttl + sweep), LEAST_DETACH_GRACE_SECONDS) <= grace <= 3_600


async def test_i9_a_runtime_is_told_how_long_to_go_on_alone(clients: Clients) -> None:
    counted = Counted(HARNESS_LEASE_TTL_SECONDS="200")
    try:
        caller = clients(counted.mesh)
        run = await caller.start(await caller.agent(), "hello", "c")
        await caller.ended(run.run_id)
        assert counted.turns(run.run_id)[0][1] == str(detach_grace_seconds(200, 0.2))
    finally:
        counted.mesh.close()


async def test_i10_once_a_run_was_taken_its_old_generation_is_refused_everywhere(
    counted: Counted, clients: Clients
) -> None:
    mesh, caller = counted.mesh, clients(counted.mesh)
    agent = await caller.agent()
    run = await caller.start(agent, HANG, "c")
    await reached(caller, run.run_id, 2)
    old = fence_of(await caller.binding(agent, "c"))
    mesh.runs.restart(KILL)
    async with asyncio.timeout(PATIENCE):
        while (await caller.binding(agent, "c")).active.run_generation == old.run_generation:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0.02)
    async with peer(mesh, "sessions") as sessions, peer(mesh, "reference") as host:
        bindings = session_service_pb2_grpc.SessionServiceStub(sessions.channel)
        runtime = runtime_service_pb2_grpc.RuntimeServiceStub(host.channel)
        incarnation = await incarnation_of(host)
        young = fence_pb2.Fence()
        young.CopyFrom(old)
        young.run_generation += 1
        # The runtime has heard of the next executor; whoever asks first tells it.
        await host.call(runtime.AckRun, runtime_service_pb2.AckRunRequest(fence=young, through_offset=0))
        started = runtime_service_pb2.StartRunRequest(fence=old, incarnation=incarnation)
        started.turn.message = "again"
        started.turn.deadline.GetCurrentTime()
        attached = runtime_service_pb2.AttachRunRequest(fence=old, incarnation=incarnation)
        attempts: dict[str, Callable[[], Awaitable[object]]] = {
            "StartRun": lambda: drained(host, runtime.StartRun, started),
            "AttachRun": lambda: drained(host, runtime.AttachRun, attached),
            "AckRun": lambda: host.call(runtime.AckRun, runtime_service_pb2.AckRunRequest(fence=old, through_offset=1)),
            "CancelRun": lambda: host.call(
                runtime.CancelRun, runtime_service_pb2.CancelRunRequest(fence=old, reason=CLIENT)
            ),
            "head": lambda: caller.commit_head(old),
            "state": lambda: caller.write_part(old),
            "session": lambda: sessions.call(
                bindings.RecordNativeSession,
                session_service_pb2.RecordNativeSessionRequest(fence=old, native_session_id="stolen"),
            ),
        }
        for what, attempt in attempts.items():
            with pytest.raises(HarnessError) as refused:
                await attempt()
            assert refused.value.reason is Reason.STALE_LEASE, what
    assert (await caller.cancel(run.run_id)).last_sequence == 3
    assert [kind(event) for event in await caller.events(run.run_id)] == [
        "run_started",
        "content_delta",
        "run_cancelled",
    ]
    binding = await caller.settled(agent, "c")
    assert (binding.HasField("head"), binding.native_session_id) == (False, "")
    assert len(counted.turns(run.run_id)) == 1


async def test_i12_a_cancel_that_came_before_its_run_keeps_it_from_ever_starting(
    counted: Counted, clients: Clients
) -> None:
    """As when its executor died, and nobody knows whether its StartRun is still under way."""
    mesh, caller = counted.mesh, clients(counted.mesh)
    agent = await caller.agent()
    run = await caller.start(agent, "hello", "c")
    assert "Now you say" in text(await caller.events(run.run_id))
    fence = fence_of(await caller.settled(agent, "c"))
    fence.turn, fence.run_id, fence.run_generation = fence.turn + 1, "run_late", 1
    async with peer(mesh, "reference") as host:
        runtime = runtime_service_pb2_grpc.RuntimeServiceStub(host.channel)
        response = await host.call(runtime.CancelRun, runtime_service_pb2.CancelRunRequest(fence=fence, reason=CLIENT))
        assert response.side_effect_status == error_pb2.SIDE_EFFECT_STATUS_NONE
        started = runtime_service_pb2.StartRunRequest(fence=fence, incarnation=await incarnation_of(host))
        started.turn.message = "too late"
        started.turn.deadline.GetCurrentTime()
        with pytest.raises(HarnessError):
            await drained(host, runtime.StartRun, started)
    assert counted.turns("run_late") == []


async def reached(caller: Client, run_id: str, sequence: int) -> None:
    """Until the run's log goes at least that far."""
    cursor = 0
    async with asyncio.timeout(PATIENCE):
        while cursor < sequence:
            try:
                cursor = (await caller.page(run_id, after=cursor, wait=10, limit=1000)).next_cursor
            except HarnessError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(0.05)  # the service is being started again


@asynccontextmanager
async def peer(mesh: Mesh, name: str) -> AsyncGenerator[Peer]:
    """A connection to a part, as another service of the mesh has one."""
    connected = connect(mesh.address(name), SecretStr(TOKEN))
    yield connected
    await connected.close()


async def incarnation_of(host: Peer) -> str:
    adapter = adapter_service_pb2_grpc.AdapterServiceStub(host.channel)
    response = await host.call(adapter.GetDescriptor, adapter_service_pb2.GetDescriptorRequest())
    return response.incarnation


async def drained(host: Peer, method: Callable[..., object], request: object) -> None:
    async for _ in host.stream(method, request, timeout=PATIENCE):
        continue
