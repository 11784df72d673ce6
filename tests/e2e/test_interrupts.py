"""Interrupts through the whole mesh: over REST and the command line, at either replica, over the death of every process (I24, I25)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.turns import assert_whole, conversation, save_agent, start, text_of, watch
from tests.support.mesh import HARNESS, RunningMesh, poll_until, running_mesh

FORM = {
    "form": [
        {"name": "city", "label": "City", "required": True},
        {"name": "nights", "type": "number"},
        {"name": "breakfast", "type": "boolean"},
        {"name": "size", "type": "choice", "options": ["s", "m"]},
    ],
    "prompt": "Where to?",
}
CALLS = {
    "approve": [
        {"id": "c1", "name": "mail", "arguments": {"to": "a"}, "allowed": ["approve", "reject", "edit"]},
        {"id": "c2", "name": "pay", "arguments": {"sum": 3}},
        {"id": "c3", "name": "book", "arguments": {}},
    ]
}
VALUES = {"city": "Rome", "nights": 2, "breakfast": True, "size": "m"}


def asks(what: dict[str, Any]) -> dict[str, Any]:
    return {"scripts": [[{"text": "before"}, {"interrupt": what}], [{"decision": True}]]}


def ask(client: httpx.Client, agent: str, talk: str, what: dict[str, Any] = FORM) -> str:
    """A run that waits for a decision; its id."""
    run_id = start(client, agent, asks(what), talk)
    assert [event.event_type for event in watch(client, run_id)][-2:] == ["interrupt.requested", "run.interrupted"]
    return run_id


def state(client: httpx.Client, agent: str, talk: str) -> Any:
    answer = client.get(f"/api/v1/conversations/{talk}/interrupt-state", params={"agent_id": agent})
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def decide(client: httpx.Client, run_id: str, revision: int = 1, **answer: Any) -> httpx.Response:
    """Sends a decision; again while the mesh says that this is worth it and nothing is said about the decision (I34)."""
    body = {"interrupt_id": "interrupt-1", "revision": revision, **answer}
    answers: list[httpx.Response] = []

    def answered() -> bool:
        answers.append(client.post(f"/api/v1/runs/{run_id}/resume", json=body))
        return answers[-1].status_code != 503

    poll_until(answered, "the decision to be answered")
    return answers[-1]


def decided(client: httpx.Client, answer: httpx.Response) -> Any:
    """What the run that goes on was told."""
    assert answer.status_code == 202, answer.text
    run = answer.json()["data"]
    events = watch(client, run["run_id"])
    assert_whole(events)
    assert events[0].data["resumed_from"] == run["resumed_from"]
    assert events[-1].event_type == "run.completed"
    return json.loads(text_of(events))


def test_a_form_is_shown_and_answered(client: httpx.Client) -> None:
    agent, talk = save_agent(client), conversation()
    assert state(client, agent, talk) is None
    run_id = ask(client, agent, talk)
    shown = state(client, agent, talk)
    assert (shown["run_id"], shown["interrupt_id"], shown["revision"]) == (run_id, "interrupt-1", 1)
    assert (shown["interrupt_type"], shown["prompt"]) == ("form_input", "Where to?")
    assert [field["type"] for field in shown["fields"]] == ["string", "number", "boolean", "choice"]
    answer = decide(client, run_id, form_values=VALUES)
    assert decided(client, answer) == {"form": VALUES}
    assert answer.json()["data"]["resumed_from"] == run_id
    assert state(client, agent, talk) is None


def test_i25_calls_are_approved_rejected_and_edited(client: httpx.Client) -> None:
    agent, talk = save_agent(client), conversation()
    run_id = ask(client, agent, talk, CALLS)
    assert state(client, agent, talk)["tool_approvals"][0]["allowed"] == ["approve", "reject", "edit"]
    decisions = [
        {"tool_call_id": "c1", "edit": {"to": "b"}},
        {"tool_call_id": "c2", "reject": "too dear"},
        {"tool_call_id": "c3", "approve": True},
    ]
    answer = decide(client, run_id, tool_decisions={"decisions": decisions})
    assert decided(client, answer) == {
        "calls": {"c1": {"edit": {"to": "b"}}, "c2": {"reject": "too dear"}, "c3": "approve"}
    }


def test_a_question_is_dismissed(client: httpx.Client) -> None:
    agent, talk = save_agent(client), conversation()
    assert decided(client, decide(client, ask(client, agent, talk), dismiss=True)) == {"dismiss": True}


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"interrupt_id": "interrupt-1", "revision": 1}, "answer"),
        ({"interrupt_id": "interrupt-1", "revision": 0, "dismiss": True}, "revision"),
        ({"interrupt_id": "../x", "revision": 1, "dismiss": True}, "interrupt_id"),
        ({"interrupt_id": "interrupt-1", "revision": 1, "dismiss": False}, "dismiss"),
        ({"interrupt_id": "interrupt-1", "revision": 1, "dismiss": True, "form_values": {}}, "form_values"),
        ({"interrupt_id": "interrupt-1", "revision": 1, "form_values": []}, "form_values"),
        (
            {"interrupt_id": "interrupt-1", "revision": 1, "form_values": {"city": "x", "nights": "two"}},
            "form_values.nights",
        ),
        (
            {"interrupt_id": "interrupt-1", "revision": 1, "tool_decisions": {"decisions": []}},
            "tool_decisions.decisions",
        ),
        ({"interrupt_id": "interrupt-1", "revision": 1, "approve": True}, "approve"),
    ],
)
def test_i25_a_decision_that_does_not_fit_is_refused_with_its_place(
    client: httpx.Client, body: dict[str, Any], path: str
) -> None:
    agent, talk = save_agent(client), conversation()
    run_id = ask(client, agent, talk)
    answer = client.post(f"/api/v1/runs/{run_id}/resume", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert path in [detail["path"] for detail in answer.json()["details"]]
    assert state(client, agent, talk)["run_id"] == run_id


def test_i2_another_subjects_interrupt_does_not_exist(mesh: RunningMesh, client: httpx.Client) -> None:
    agent, talk = save_agent(client), conversation()
    run_id = ask(client, agent, talk)
    with mesh.client("somebody-else") as other:
        assert state(other, agent, talk) is None
        assert decide(other, run_id, dismiss=True).status_code == 404


def test_a_plain_turn_meets_the_pending_interrupt_and_may_dismiss_it(client: httpx.Client) -> None:
    agent, talk = save_agent(client), conversation()
    run_id = ask(client, agent, talk)
    body = {"agent_id": agent, "conversation_id": talk, "message": "hello"}
    refused = client.post("/api/v1/runs", json=body)
    assert (refused.status_code, refused.json()["code"]) == (409, "interrupt_pending")
    assert {"run_id": run_id} in [{key: detail.get(key) for key in ("run_id",)} for detail in refused.json()["details"]]
    assert watch(client, start(client, agent, "hello", talk, on_conflict="interrupt"))[-1].event_type == "run.completed"
    assert state(client, agent, talk) is None
    assert decide(client, run_id, dismiss=True).status_code == 409


def test_the_command_decides_and_shows_what_comes_of_it(mesh: RunningMesh, client: httpx.Client) -> None:
    agent, talk = save_agent(client), conversation()
    run_id = ask(client, agent, talk)
    environment = {**os.environ, "HARNESS_URL": mesh.url, "HARNESS_SUBJECT": "someone"}
    command = [str(HARNESS), "runs", "resume", run_id, "--decision", json.dumps({"form_values": VALUES})]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"form": VALUES}


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningMesh]:
    """Two of each service; this module's own, since its tests kill all of them."""
    arguments = ["--replicas", "runs=2,sessions=2,catalog=2,gateway=2"]
    with running_mesh(tmp_path_factory.mktemp("replicas"), arguments) as mesh:
        yield mesh


def test_i24_decisions_raced_at_two_replicas_are_one_run(replicas: RunningMesh) -> None:
    clients = [replicas.client(url=url) for url in replicas.urls]
    agent, talk = save_agent(clients[0]), conversation()
    run_id = ask(clients[0], agent, talk)
    answers = [{"dismiss": True}, {"form_values": {"city": "Rome"}}, {"form_values": {"city": "Oslo"}}]
    with ThreadPoolExecutor(12) as pool:
        raced = list(pool.map(lambda n: decide(clients[n % 2], run_id, **answers[n % 3]), range(24)))
    won = {number % 3 for number, answer in enumerate(raced) if answer.status_code == 202}
    runs = {answer.json()["data"]["run_id"] for answer in raced if answer.status_code == 202}
    assert (len(won), len(runs)) == (1, 1)
    for number, answer in enumerate(raced):
        assert answer.status_code == (202 if number % 3 in won else 409), answer.text
    first, second = (watch(client, *runs) for client in clients)
    assert [event.raw for event in first] == [event.raw for event in second]
    for client in clients:
        client.close()


def test_i24_what_was_asked_survives_every_process_and_is_answered_at_another_replica(replicas: RunningMesh) -> None:
    with replicas.client(url=replicas.urls[0]) as client:
        agent, talk = save_agent(client), conversation()
        run_id = ask(client, agent, talk, CALLS)
        before = watch(client, run_id)
    for entry in list(replicas.state["processes"]):
        replicas.kill(entry["name"])
    with replicas.client(url=replicas.urls[1]) as client:
        poll_until(lambda: _serves(client, agent), "the mesh to serve again")
        assert [event.raw for event in watch(client, run_id)] == [event.raw for event in before]
        assert state(client, agent, talk)["run_id"] == run_id
        calls = {"decisions": [{"tool_call_id": call, "approve": True} for call in ("c1", "c2", "c3")]}
        answer = decide(client, run_id, tool_decisions=calls)
        assert decided(client, answer) == {"calls": {"c1": "approve", "c2": "approve", "c3": "approve"}}
        again = decide(client, run_id, tool_decisions=calls)
        assert again.json()["data"]["run_id"] == answer.json()["data"]["run_id"]


def _serves(client: httpx.Client, agent: str) -> bool:
    try:
        ready = client.get("/readyz")
        runs = client.get("/api/v1/runs", params={"agent_id": agent})
    except httpx.TransportError:
        return False
    if ready.status_code != 200 or runs.status_code != 200:
        return False
    return set(ready.json()["data"]["harnesses"].values()) == {"available"}
