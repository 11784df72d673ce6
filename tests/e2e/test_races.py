"""Races and stalls at chosen moments, over a whole mesh and its stores (I5, I6, I7, I9, I10, I12)."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.run.v1 import run_service_pb2
from tests.chaos.judge import violations_of
from tests.chaos.mesh import ChaosMesh
from tests.chaos.recorded import Recorded
from tests.chaos.stored import StoredMesh
from tests.e2e.turns import conversation, frames, save_agent, start, start_body, start_when_possible, watch
from tests.support.mesh import PATIENCE_SECONDS, TOKEN, RunningMesh, poll_until, running_mesh
from tests.support.processes import ProcessHandle

SUBJECT = "races"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("races")) as mesh:
        yield mesh


@pytest.fixture
def stored(mesh: RunningMesh) -> StoredMesh:
    return StoredMesh(mesh.data_dir)


def async_client() -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {TOKEN}", "X-Harness-Engine-Subject": SUBJECT}
    return httpx.AsyncClient(headers=headers, timeout=60, trust_env=False)


def settled(stored: StoredMesh) -> None:
    """Nothing runs any more, and no invariant is broken."""
    poll_until(lambda: not stored.unsettled(), "everything to come to its end")
    assert violations_of(stored, Recorded()) == []


async def asked_until_answered(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> str:
    """The run of a start that is repeated as it is until it is answered, as a client does."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                answer = await client.post(f"{url}/api/v1/runs", json=body)
            except httpx.TransportError as error:
                print(f"again: {error!r}")  # noqa: T201 - shown when the test fails
            else:
                if answer.status_code == 202:
                    return str(answer.json()["data"]["run_id"])
                assert answer.status_code == 503, answer.text
            await asyncio.sleep(0.05)  # nothing signals that the service is back


@pytest.mark.parametrize("victim", ["runs", "sessions"])
async def test_i6_fifty_identical_starts_over_a_death_are_one_run(
    mesh: RunningMesh, stored: StoredMesh, victim: str
) -> None:
    with mesh.client(SUBJECT) as client:
        agent = save_agent(client)
    body = start_body(agent, {"n": 5, "rate": 10}, conversation(), client_request_id="once")
    async with async_client() as client:
        asked = [asyncio.create_task(asked_until_answered(client, mesh.url, body)) for _ in range(50)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=0.03)  # the others are anywhere
        await asyncio.to_thread(mesh.kill, victim)
        run_ids = set(await asyncio.gather(*asked))
    assert len(run_ids) == 1
    await asyncio.to_thread(settled, stored)
    assert [run["run_id"] for run in stored.runs() if run["agent_id"] == agent] == list(run_ids)


async def test_i5_i12_clear_start_and_cancel_in_the_same_moment(mesh: RunningMesh, stored: StoredMesh) -> None:
    with mesh.client(SUBJECT) as client:
        agent = save_agent(client)
    talk = conversation()
    where = {"agent_id": agent, "conversation_id": talk}
    recorded = Recorded()
    async with async_client() as client:
        for turn in range(12):
            answers = await asyncio.gather(
                client.post(f"{mesh.url}/api/v1/runs", json=start_body(agent, {"n": 20, "rate": 40}, talk)),
                client.post(f"{mesh.url}/api/v1/sessions/clear", json=where),
                client.post(f"{mesh.url}/api/v1/runs/cancel-active", json=where),
                client.post(
                    f"{mesh.url}/api/v1/runs",
                    json=start_body(agent, {"n": 3}, talk, on_conflict=("enqueue", "interrupt")[turn % 2]),
                ),
                client.post(f"{mesh.url}/api/v1/sessions/clear", json=where),
            )
            for answer in answers:
                assert answer.status_code in (200, 202, 409), answer.text
            for cleared in (answers[1], answers[4]):
                recorded.cleared(talk, cleared.json()["data"])
            if cancelled := answers[2].json()["data"]["run_id"]:
                recorded.cancelled(cancelled, None, stored)
    await asyncio.to_thread(settled, stored)
    assert violations_of(stored, recorded) == []
    assert recorded.wrong == []


async def test_i7_i10_an_executor_that_slept_past_its_lease_writes_nothing(tmp_path: Path) -> None:
    with running_mesh(tmp_path / "mesh", ["--replicas", "sessions=2,runs=2"]) as mesh, mesh.client(SUBJECT) as client:
        stored = StoredMesh(mesh.data_dir)
        chaos = ChaosMesh(mesh)
        body = start_body(save_agent(client), {"n": 100, "rate": 10}, conversation())
        async with chaos.stub_of(next(member for member in chaos.members("runs") if member.name == "runs")) as stub:
            started = await stub.StartRun(
                run_service_pb2.StartRunRequest(**body), metadata=chaos.metadata(SUBJECT), timeout=PATIENCE_SECONDS
            )
        run_id = started.run.run_id
        with client.stream("GET", f"/api/v1/runs/{run_id}/events/stream") as response:
            assert [frame.sequence for frame, _ in zip(frames(response), range(3), strict=False)] == [1, 2, 3]
        sleeper = mesh.pid("runs")  # it was started there, so it is executed there
        os.kill(sleeper, signal.SIGSTOP)
        try:
            # The second replica seals the log for itself and goes on with it.
            await asyncio.to_thread(
                poll_until,
                lambda: any(s.run_generation > 1 and s.events for s in stored.segments(run_id)),
                "a takeover",
            )
        finally:
            os.kill(sleeper, signal.SIGCONT)
        await asyncio.to_thread(settled, stored)
        assert [event.kind for event in stored.log(run_id)] == [
            "run.started", *(["content.delta"] * 100), "run.completed"
        ]  # fmt: skip
        assert max(segment.run_generation for segment in stored.segments(run_id)) == 2


@pytest.mark.parametrize("victim", ["runs", "sessions", "adapter-reference"])
@pytest.mark.parametrize("moment", ["issued", "last delta", "head committed"])
def test_i9_death_at_the_turning_points_of_a_run(
    mesh: RunningMesh, stored: StoredMesh, victim: str, moment: str
) -> None:
    talk = conversation()
    with mesh.client(SUBJECT) as client:
        agent = save_agent(client)
        watch(client, start(client, agent, "hello", talk))
        handle = ProcessHandle(mesh.pid(victim))
        run_id = start(client, agent, {"n": 4, "rate": 0 if moment == "issued" else 20}, talk)
        if moment == "last delta":
            with client.stream("GET", f"/api/v1/runs/{run_id}/events/stream") as response:
                assert [frame.sequence for frame, _ in zip(frames(response), range(5), strict=False)][-1] == 5
        elif moment == "head committed":
            give_up = time.monotonic() + PATIENCE_SECONDS
            # Without a pause: what is between this and the terminal takes a few milliseconds.
            while not any((binding["head"] or {}).get("run_id") == run_id for binding in stored.bindings()):
                assert time.monotonic() < give_up
        handle.kill()
        assert handle.wait_gone()
        handle.close()
    mesh.wait_said(f"{victim} is back")
    settled(stored)
    ended = stored.log(run_id)[-1].kind
    if moment == "head committed":
        assert ended == "run.completed"  # a head committed by a run stays its head
    with mesh.client(SUBJECT) as client:
        assert watch(client, start_when_possible(client, agent, "and now?", talk))[-1].event_type == "run.completed"
