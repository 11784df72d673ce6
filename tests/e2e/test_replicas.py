"""Two replicas of everything that may have several: any request to any gateway, and the loss of any one of them (I6, I8, I12, I33)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import uuid
from collections.abc import Generator
from typing import Any

import httpx
import pytest

from tests.e2e.load import REPLICAS, TWO_OF_EACH, Load, judge, raw, turns_end
from tests.e2e.turns import assert_whole, conversation, frames, save_agent, start, start_body, text_of, watch
from tests.support.mesh import RunningMesh, running_mesh

Clients = tuple[httpx.Client, httpx.Client]


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("twice"), TWO_OF_EACH) as mesh:
        yield mesh


@pytest.fixture
def gateways(twice: RunningMesh) -> Generator[Clients]:
    first, second = (twice.client(url=url) for url in twice.urls)
    with first, second:
        yield first, second


def test_i8_any_gateway_starts_watches_and_replays_the_same_bytes(gateways: Clients) -> None:
    one, other = gateways
    agent, talk = save_agent(one), conversation()
    run_id = start(one, agent, {"n": 40, "rate": 40}, talk)
    with other.stream("GET", f"/api/v1/runs/{run_id}/events/stream") as response:
        seen = [frame.raw for frame, _ in zip(frames(response), range(8), strict=False)]
    # Broken off at one, resumed at the other with the last event's id.
    rest = watch(one, run_id, last_event_id=8)
    whole = watch(other, run_id)
    assert_whole(whole)
    assert whole[-1].event_type == "run.completed"
    assert [*seen, *(frame.raw for frame in rest)] == [frame.raw for frame in whole] == raw(watch(one, run_id))
    # The conversation goes on at the other one, which knows what was said.
    second = watch(one, start(other, agent, "and now?", talk))
    assert second[-1].event_type == "run.completed"
    assert second[-1].data["thread_state"]["durable_revision"] == 2


@pytest.mark.parametrize("canceller", [0, 1])
def test_i12_a_run_is_cancelled_from_any_gateway(gateways: Clients, canceller: int) -> None:
    agent = save_agent(gateways[0])
    for starter in gateways:
        run_id = start(starter, agent, {"n": 2000, "rate": 20}, conversation())
        answer = gateways[canceller].delete(f"/api/v1/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        assert answer.json()["data"]["status"] == "cancelled"
        logs = [raw(watch(client, run_id)) for client in gateways]
        assert logs[0] == logs[1], "once it is answered the terminal is in the log, for everyone"


def test_i5_a_conversation_is_cleared_at_one_and_new_at_the_other(gateways: Clients) -> None:
    one, other = gateways
    agent, talk = save_agent(one), conversation()
    watch(one, start(one, agent, "my name is Ada", talk))
    running = start(other, agent, {"n": 2000, "rate": 20}, talk)
    cleared = one.post("/api/v1/sessions/clear", json={"agent_id": agent, "conversation_id": talk})
    assert cleared.status_code == 200, cleared.text
    assert cleared.json()["data"]["next_epoch"] == 2
    assert watch(other, running)[-1].event_type == "run.cancelled"
    again = other.post("/api/v1/sessions/clear", json={"agent_id": agent, "conversation_id": talk})
    assert again.json()["data"]["cleared"] is False
    fresh = watch(one, start(other, agent, "who am I?", talk))
    assert "Ada" not in text_of(fresh)


def test_i16_what_one_catalog_validated_is_saved_by_the_other(gateways: Clients) -> None:
    revisions: set[str] = set()
    for number in range(20):
        agent = f"agent-{uuid.uuid4().hex[:12]}"
        blueprint = {"id": agent, "name": "Test", "harness": {"id": "reference", "profile_id": "default"}}
        body: dict[str, Any] = {"blueprint": blueprint}
        report = gateways[number % 2].post("/api/v1/agent-drafts/validate", json=body).json()["data"]
        body |= {key: report[key] for key in ("catalog_revision", "config_fingerprint")}
        saved = gateways[(number + 1) % 2].put(f"/api/v1/agents/{agent}", json=body)
        assert saved.status_code == 200, saved.text
        revisions.add(report["catalog_revision"])
        record = gateways[number % 2].get(f"/api/v1/agents/{agent}").json()["data"]["record"]
        assert record["current_version"] == 1
    assert len(revisions) == 1


def test_i6_fifty_identical_starts_at_both_gateways_are_one_run(gateways: Clients) -> None:
    agent, talk = save_agent(gateways[0]), conversation()
    body = start_body(agent, {"n": 5}, talk, client_request_id=uuid.uuid4().hex)
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda number: gateways[number % 2].post("/api/v1/runs", json=body), range(50)))
    assert [answer.status_code for answer in answers] == [202] * 50, {answer.text for answer in answers}
    runs = {answer.json()["data"]["run_id"] for answer in answers}
    assert len(runs) == 1
    listed = gateways[1].get("/api/v1/runs", params={"agent_id": agent, "conversation_id": talk}).json()["data"]
    assert {run["run_id"] for run in listed["runs"]} == runs
    assert watch(gateways[0], runs.pop())[-1].event_type == "run.completed"


async def test_i9_i33_the_loss_of_any_replica_fails_no_turn_and_no_request(twice: RunningMesh) -> None:
    """kill -9 of each replica in turn, under a load of turns: none fails, and no request that may be repeated gets an error."""
    with twice.client() as client:
        agent = save_agent(client)
    load = Load(twice.urls, agent, {"n": 30, "rate": 60})
    running = asyncio.create_task(load.run(lanes=6))
    try:
        for name in REPLICAS:
            await turns_end(load, running, 6)
            await asyncio.to_thread(twice.kill, name)
        await turns_end(load, running, 6)
    finally:
        load.stop()
        await running
    assert load.refusals == []
    await asyncio.to_thread(judge, twice, load)
