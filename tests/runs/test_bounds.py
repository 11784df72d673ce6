"""Everything has a bound and says so (I32, I35)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from harness.run.v1 import run_pb2
from services.common.errors import HarnessError, Reason
from tests.runs.mesh import KILL, Client, Mesh, kind

HANG = {"script": [{"hang": True}]}


@pytest.fixture(scope="module")
def narrow_mesh() -> Iterator[Mesh]:
    """A mesh whose runs service executes two runs at once and lets two more wait. Of its own: replicas that share bindings share their runs."""
    mesh = Mesh(settings={"HARNESS_MAX_ACTIVE_RUNS": "2", "HARNESS_MAX_QUEUED_RUNS": "2"}).start()
    yield mesh
    mesh.close()


async def test_i35_more_runs_than_may_be_executed_wait_and_more_than_may_wait_are_refused(
    narrow_mesh: Mesh, clients: Callable[..., Client]
) -> None:
    client = clients(narrow_mesh)
    agent = await client.agent()
    active = [await client.start(agent, HANG, f"a{number}") for number in range(2)]
    waiting = [await client.start(agent, {"n": 1}, f"w{number}") for number in range(2)]
    assert [(await client.get(run.run_id)).status for run in waiting] == [run_pb2.RUN_STATUS_QUEUED] * 2
    with pytest.raises(HarnessError) as refused:
        await client.start(agent, {"n": 1}, "x")
    assert refused.value.reason is Reason.CAPACITY
    assert refused.value.retryable
    assert refused.value.retry_after
    await client.cancel(active[0].run_id)
    for run in waiting:
        assert kind((await client.events(run.run_id))[-1]) == "run_completed"
    await client.cancel(active[1].run_id)


async def test_i23_a_profile_at_its_bound_keeps_its_runs_waiting_and_nobody_elses(
    narrow_mesh: Mesh, clients: Callable[..., Client]
) -> None:
    client = clients(narrow_mesh)
    agent, other = await client.agent("single"), await client.agent("faults")
    active = await client.start(agent, HANG, "a")
    await client.seen(active.run_id, "run_started")
    waiting = [await client.start(agent, {"n": 1}, f"w{number}") for number in range(2)]
    # Its own line is full: one more is refused.
    with pytest.raises(HarnessError) as refused:
        await client.start(agent, {"n": 1}, "x")
    assert (refused.value.reason, refused.value.retryable) == (Reason.CAPACITY, True)
    # The other profile's runs are executed as soon as there is any room, those that came later included.
    long = await client.start(other, HANG, "l")
    await client.seen(long.run_id, "run_started")
    queued = await client.start(other, {"n": 1}, "q")
    assert (await client.get(queued.run_id)).status == run_pb2.RUN_STATUS_QUEUED
    await client.cancel(long.run_id)
    assert kind((await client.events(queued.run_id))[-1]) == "run_completed"
    assert [(await client.get(run.run_id)).status for run in waiting] == [run_pb2.RUN_STATUS_QUEUED] * 2
    await client.cancel(active.run_id)
    for run in waiting:
        assert kind((await client.events(run.run_id))[-1]) == "run_completed"


async def test_i35_many_runs_at_once_all_end(client: Client) -> None:
    agent = await client.agent("default")
    runs = await asyncio.gather(*(client.start(agent, {"n": 10}, f"c{number}") for number in range(150)))
    for events in await asyncio.gather(*(client.events(run.run_id) for run in runs)):
        assert kind(events[-1]) == "run_completed"


async def test_i35_a_wide_burst_keeps_its_order_and_ends(client: Client) -> None:
    agent = await client.agent("default")
    run = await client.start(agent, {"n": 30_000, "size": 100})
    events = await client.events(run.run_id)
    assert sum(kind(event) == "content_delta" for event in events) == 30_000


async def test_i35_runs_and_their_events_go_when_their_retention_is_over(
    mesh: Mesh, clients: Callable[..., Client]
) -> None:
    part = mesh.runs_part(
        "brief", HARNESS_STORE_URL=f"sqlite://{mesh.folder}/brief.sqlite3", HARNESS_RETENTION_SECONDS="4"
    )
    part.start()
    try:
        client = clients(mesh, None, "brief")
        run = await client.start(await client.agent(), {"n": 5})
        await client.events(run.run_id)
        # What is left of a run outlives its events, and says that they are gone, until it goes itself.
        seen = {Reason.CURSOR_EXPIRED}
        async with asyncio.timeout(90):
            while Reason.NOT_FOUND not in seen:
                try:
                    await client.events(run.run_id)
                except HarnessError as gone:
                    seen.add(gone.reason)
                await asyncio.sleep(0.05)
        assert seen == {Reason.CURSOR_EXPIRED, Reason.NOT_FOUND}
    finally:
        part.end(KILL)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("HARNESS_CAPABILITY_SIGNING_KEY", "no key"),
        ("HARNESS_CAPABILITY_VERIFY_KEYS", "no key"),
        ("HARNESS_LEASE_TTL_SECONDS", "soon"),
        ("HARNESS_SESSIONS_ADDRESS", "nowhere"),
        ("HARNESS_STORE_URL", "sqlite://relative"),
    ],
)
def test_i32_a_wrong_setting_stops_the_start_and_is_named(mesh: Mesh, setting: str, value: str) -> None:
    part = mesh.runs_part("wrong", **{setting: value})
    part.begin()
    with pytest.raises(AssertionError):
        part.wait_ready()
    assert part.process is not None
    assert part.process.wait(30) == 2
    assert setting in part.log.read_text()
    part.log.unlink()
