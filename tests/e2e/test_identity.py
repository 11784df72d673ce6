"""One request, one run; one conversation, one run at a time; and nobody sees what is another's."""

from __future__ import annotations

import concurrent.futures
from typing import Any

import httpx

from tests.e2e.turns import conversation, save_agent, start, start_body, watch
from tests.support.mesh import RunningMesh


def _post_all(mesh: RunningMesh, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
    with mesh.client() as own, concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: own.post("/api/v1/runs", json=body), bodies))


def test_i6_fifty_starts_with_one_request_id_are_one_run(mesh: RunningMesh, client: httpx.Client) -> None:
    body = start_body(save_agent(client), {"n": 5}, conversation(), client_request_id="request-1")
    answers = _post_all(mesh, [body] * 50)
    assert {answer.status_code for answer in answers} == {202}, [answer.text for answer in answers]
    assert len({answer.json()["data"]["run_id"] for answer in answers}) == 1
    listed = client.get("/api/v1/runs", params={"agent_id": body["agent_id"]}).json()["data"]["runs"]
    assert len(listed) == 1
    other = client.post("/api/v1/runs", json={**body, "message": "something else"})
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")


def test_i3_i6_different_starts_on_one_conversation_are_one_run_and_conflicts(
    mesh: RunningMesh, client: httpx.Client
) -> None:
    agent, talk = save_agent(client), conversation()
    message = {"n": 1, "delay": 3}
    answers = _post_all(mesh, [start_body(agent, message, talk, client_request_id=f"r{n}") for n in range(10)])
    assert sorted(answer.status_code for answer in answers) == [202] + [409] * 9
    run_id = next(answer.json()["data"]["run_id"] for answer in answers if answer.status_code == 202)
    for answer in answers:
        if answer.status_code == 409:
            assert answer.json()["code"] == "harness_session_conflict"
            assert run_id in answer.text
    assert watch(client, run_id)[-1].event_type == "run.completed"


def test_i4_i5_an_edit_leaves_the_conversation_alone_until_it_is_cleared(client: httpx.Client) -> None:
    agent, talk = save_agent(client, system="one"), conversation()
    where = {"agent_id": agent, "conversation_id": talk}
    first = watch(client, start(client, agent, "hello", talk))[0].data
    save_agent(client, agent=agent, system="two")
    second = watch(client, start(client, agent, "hello", talk))[0].data
    assert (first["agent_version"], second["agent_version"]) == (1, 1)
    assert first["binding_id"] == second["binding_id"]
    cleared = client.post("/api/v1/sessions/clear", json=where).json()["data"]
    assert cleared == {"cleared": True, "closed_binding_id": first["binding_id"], "next_epoch": 2}
    again = client.post("/api/v1/sessions/clear", json=where).json()["data"]
    assert (again["cleared"], again["next_epoch"]) == (False, 2)
    third = watch(client, start(client, agent, "hello", talk))[0].data
    assert third["agent_version"] == 2
    assert third["binding_id"] != first["binding_id"]


def test_i4_a_disabled_agent_starts_nothing_and_its_history_stays(client: httpx.Client) -> None:
    agent = save_agent(client)
    run_id = start(client, agent, "hello", conversation())
    watch(client, run_id)
    assert client.delete(f"/api/v1/agents/{agent}").status_code == 200
    refused = client.post("/api/v1/runs", json=start_body(agent, "hello", conversation()))
    assert refused.status_code in (404, 422, 503), refused.text
    assert client.get(f"/api/v1/agents/{agent}/versions/1").status_code == 200
    assert client.get(f"/api/v1/runs/{run_id}").status_code == 200


def test_i2_another_subject_finds_nothing(mesh: RunningMesh, client: httpx.Client) -> None:
    agent, talk = save_agent(client), conversation()
    run_id = start(client, agent, "hello", talk)
    watch(client, run_id)
    unknown = "run_00000000000000000000000000"
    with mesh.client("somebody-else") as other:
        for method, path in (
            ("GET", "/api/v1/runs/{}"),
            ("GET", "/api/v1/runs/{}/events"),
            ("GET", "/api/v1/runs/{}/events/stream"),
            ("DELETE", "/api/v1/runs/{}"),
        ):
            foreign = other.request(method, path.format(run_id))
            missing = other.request(method, path.format(unknown))
            assert foreign.status_code == missing.status_code == 404
            assert foreign.content == missing.content
        assert other.get("/api/v1/runs", params={"agent_id": agent}).json()["data"]["runs"] == []
        where = {"agent_id": agent, "conversation_id": talk}
        assert other.post("/api/v1/sessions/clear", json=where).json()["data"]["cleared"] is False
        assert other.post("/api/v1/runs/cancel-active", json=where).json()["data"]["cancelled"] is False
        own = watch(other, start(other, agent, "hello", talk))
        assert "before that" not in str(own)


def test_i12_a_cancelled_run_has_its_terminal_when_the_answer_comes(client: httpx.Client) -> None:
    run_id = start(client, save_agent(client), {"n": 1000, "rate": 10}, conversation())
    answer = client.delete(f"/api/v1/runs/{run_id}").json()["data"]
    assert answer["status"] == "cancelled"
    events = watch(client, run_id)
    assert (events[-1].event_type, events[-1].data["reason"]) == ("run.cancelled", "client_request")
    assert events[-1].sequence == answer["last_sequence"]
    assert client.delete(f"/api/v1/runs/{run_id}").json()["data"]["last_sequence"] == answer["last_sequence"]


def test_cancel_active_names_the_run(client: httpx.Client) -> None:
    agent, talk = save_agent(client), conversation()
    where = {"agent_id": agent, "conversation_id": talk}
    assert client.post("/api/v1/runs/cancel-active", json=where).json()["data"]["cancelled"] is False
    run_id = start(client, agent, {"n": 1000, "rate": 10}, talk)
    assert client.post("/api/v1/runs/cancel-active", json=where).json()["data"] == {"cancelled": True, "run_id": run_id}


def test_i5_clear_cancels_what_runs(client: httpx.Client) -> None:
    agent, talk = save_agent(client), conversation()
    run_id = start(client, agent, {"n": 1000, "rate": 10}, talk)
    cleared = client.post("/api/v1/sessions/clear", json={"agent_id": agent, "conversation_id": talk})
    assert cleared.json()["data"]["cleared"] is True, cleared.text
    events = watch(client, run_id)
    assert (events[-1].event_type, events[-1].data["reason"]) == ("run.cancelled", "session_cleared")


def test_a_deadline_ends_a_run(client: httpx.Client) -> None:
    agent = f"{save_agent(client)}-short"
    blueprint = {
        "id": agent,
        "name": "Short",
        "harness": {"id": "reference", "profile_id": "default"},
        "limits": {"max_run_seconds": 1},
    }
    assert client.put(f"/api/v1/agents/{agent}", json={"blueprint": blueprint}).status_code == 200
    events = watch(client, start(client, agent, {"n": 1000, "rate": 10}, conversation()))
    assert (events[-1].event_type, events[-1].data["reason"]) == ("run.cancelled", "deadline")
