"""A whole mesh on MongoDB: two replicas on one database, a server that is killed in the middle of runs (I6, I7, I9, I34)."""

from __future__ import annotations

import concurrent.futures
import uuid
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.e2e.turns import (
    TERMINALS,
    assert_whole,
    conversation,
    frames,
    save_agent,
    start,
    start_body,
    start_when_possible,
    watch,
)
from tests.support import mongodb
from tests.support.mesh import RunningMesh, poll_until, running_mesh

DATABASE = "mesh"
pytestmark = pytest.mark.timeout(400)  # several waits for a mesh to recover, each bounded by itself
REPLICAS = ("--replicas", "catalog=2,sessions=2,runs=2")


@pytest.fixture(scope="module")
def server() -> Generator[mongodb.Server]:
    server = mongodb.own_server()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def mesh(server: mongodb.Server, tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningMesh]:
    arguments = (*REPLICAS, "--store-url", f"mongodb://{server.address}/{DATABASE}")
    with running_mesh(tmp_path_factory.mktemp("mongodb"), arguments) as mesh:
        yield mesh


@pytest.fixture
def client(mesh: RunningMesh) -> Generator[httpx.Client]:
    with mesh.client() as client:
        yield client


def test_a_conversation_is_kept_in_the_database_alone(mesh: RunningMesh, client: httpx.Client) -> None:
    agent, talk = save_agent(client), conversation()
    first = watch(client, start(client, agent, "hello", talk))
    assert_whole(first)
    second = watch(client, start(client, agent, "and now?", talk))
    assert second[-1].event_type == "run.completed"
    assert second[-1].data["thread_state"]["durable_revision"] == 2
    assert list(mesh.data_dir.rglob("*.sqlite3*")) == []


def test_i6_a_start_raced_at_two_replicas_is_one_run(client: httpx.Client) -> None:
    agent = save_agent(client)
    for _ in range(5):
        body = start_body(agent, "hello", conversation(), client_request_id=uuid.uuid4().hex)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _, body=body: client.post("/api/v1/runs", json=body), range(8)))
        runs = {answer.json()["data"]["run_id"] for answer in answers if answer.status_code == 202}
        assert {answer.status_code for answer in answers} <= {202, 503}, [answer.text for answer in answers]
        assert len(runs) == 1
        assert_whole(watch(client, runs.pop()))


@pytest.mark.parametrize("service", ["runs", "runs-2", "sessions"])
def test_i9_a_killed_replica_is_replaced_on_the_same_database(
    mesh: RunningMesh, client: httpx.Client, service: str
) -> None:
    agent, talk = save_agent(client), conversation()
    run_id = start(client, agent, {"n": 60, "rate": 20}, talk)
    seen = first_frames(client, run_id, 5)
    mesh.kill(service)
    events = watched_to_the_end(client, run_id)
    assert events[-1].event_type == "run.completed"
    assert [frame.raw for frame in events[: len(seen)]] == seen
    assert watch(client, start_when_possible(client, agent, "still there?", talk))[-1].event_type == "run.completed"


def test_i34_a_killed_server_loses_nothing_and_the_runs_end(
    server: mongodb.Server, mesh: RunningMesh, client: httpx.Client
) -> None:
    agent = save_agent(client)
    finished = start(client, agent, "hello", conversation())
    before = watch(client, finished)
    talks = [conversation() for _ in range(4)]
    runs = [start(client, agent, {"n": 60, "rate": 20}, talk) for talk in talks]
    seen = [first_frames(client, run_id, 5) for run_id in runs]
    server.kill()
    # By the store's own word, or because no replica serves without it: nothing starts, and it can be tried again.
    answer = client.post("/api/v1/runs", json=start_body(agent, "now?", conversation()))
    assert answer.status_code in (503, 504), answer.text
    server.start()
    for run_id, frames_seen in zip(runs, seen, strict=True):
        events = watched_to_the_end(client, run_id)
        assert [frame.raw for frame in events[: len(frames_seen)]] == frames_seen
        if events[-1].event_type != "run.completed":
            # Its executor gave it up while it could not renew, and nobody could tell what the turn had done.
            assert events[-1].data["side_effect_status"] == "possible", events[-1].data
    assert [frame.raw for frame in watch(client, finished)] == [frame.raw for frame in before]
    for talk in talks:
        after = watch(client, start_when_possible(client, agent, "still there?", talk))
        assert after[-1].event_type == "run.completed"
    assert password_free(mesh.data_dir)


def first_frames(client: httpx.Client, run_id: str, count: int) -> list[bytes]:
    with client.stream("GET", f"/api/v1/runs/{run_id}/events/stream") as response:
        return [frame.raw for frame, _ in zip(frames(response), range(count), strict=False)]


def watched_to_the_end(client: httpx.Client, run_id: str):
    """All events, once the run has ended for everybody."""

    def ended() -> bool:
        answer = client.get(f"/api/v1/runs/{run_id}")
        return answer.status_code == 200 and answer.json()["data"]["status"] in ("completed", "failed", "cancelled")

    poll_until(ended, "the run to end")
    events = watch(client, run_id)
    assert_whole(events)
    assert events[-1].event_type in TERMINALS
    return events


def password_free(data_dir: Path) -> bool:
    """The address is nowhere among what a mesh writes about itself."""
    return f"/{DATABASE}?" not in (data_dir / "mesh.json").read_text("utf-8")
