"""Files from REST into a harness, wherever it runs and whichever replica executes the run by then (I2, I9, I28)."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Generator
from typing import Any

import httpx
import pytest

from tests.e2e.turns import assert_whole, conversation, frames, save_agent, start, start_body, text_of, watch
from tests.support.mesh import RunningMesh, poll_until, running_mesh

SANDBOXED = pytest.param(
    "sandboxed",
    marks=pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("bwrap") is None,
        reason="needs root and bubblewrap to make a strict sandbox; the same turn is played outside of one",
    ),
)
READS = {"script": [{"files": True}]}
ASKS_AND_READS = {
    "scripts": [[{"interrupt": {"form": [{"name": "city", "label": "City"}], "prompt": "Where?"}}], [{"file": 1}]]
}


ASKED = {"interrupt_id": "interrupt-1", "revision": 1}
DECISION = {**ASKED, "form_values": {"city": "Rome"}}


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("files"), ["--replicas", "runs=2,sessions=2,gateway=2"]) as mesh:
        yield mesh


@pytest.fixture
def client(twice: RunningMesh) -> Generator[httpx.Client]:
    with twice.client() as client:
        yield client


def uploaded(client: httpx.Client, content: bytes, media_type: str = "text/plain") -> str:
    answer = client.post("/api/v1/files", content=content, headers={"content-type": media_type})
    assert answer.status_code == 201, answer.text
    file_id: str = answer.json()["data"]["file_id"]
    return file_id


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("profile", ["default", SANDBOXED])
def test_a_harness_reads_what_was_sent(twice: RunningMesh, client: httpx.Client, profile: str) -> None:
    contents = ["grüße\n".encode() * 300_000, b"%PDF-1.7\n" + os.urandom(1_500_000)]
    agent, talk = save_agent(client, profile=profile), conversation()
    with twice.client(url=twice.urls[1]) as other:
        # Sent to one gateway, and so to one of two processes that keep files; named at the other.
        files = [uploaded(client, contents[0]), uploaded(other, contents[1], "application/pdf")]
        events = watch(other, start(other, agent, READS, talk, files=files))
        assert_whole(events)
        assert text_of(events).split() == [sha256(each) for each in contents], events[-1].data
        # The next turn of the conversation has none, and the one after it the same again.
        assert watch(client, start(client, agent, READS, talk))[-1].event_type == "run.completed"
        assert text_of(watch(client, start(client, agent, READS, talk, files=files[1:]))) == sha256(contents[1])


def test_i2_a_start_that_names_anothers_file_is_told_that_there_is_none(
    twice: RunningMesh, client: httpx.Client
) -> None:
    with twice.client("somebody-else") as other:
        theirs = uploaded(other, b"theirs")
    agent = save_agent(client)

    def refused(file_id: str) -> Any:
        answer = client.post("/api/v1/runs", json=start_body(agent, READS, conversation(), files=[file_id]))
        return answer.status_code, answer.json()

    status, said = refused(theirs)
    assert (status, said) == refused("fil_nobodys")
    assert (status, [(each["path"], each["code"]) for each in said["details"]]) == (422, [("files[0]", "file_unknown")])


def test_i9_a_run_that_is_taken_over_reads_its_file(twice: RunningMesh, client: httpx.Client) -> None:
    content = b"x" * 2_000_000
    message = {"script": [{"text": "before "}, {"sleep": 8}, {"file": 1}]}
    run_id = start(client, save_agent(client), message, conversation(), files=[uploaded(client, content)])
    with client.stream("GET", f"/api/v1/runs/{run_id}/events/stream") as stream:
        events = frames(stream)
        assert (next(events).event_type, next(events).data["text"]) == ("run.started", "before ")
    # One of them executes it, and the other takes it; either may be the one that serves files.
    for process in ("runs", "sessions", "runs-2", "sessions-2"):
        twice.kill(process)

    def is_over() -> bool:
        answer = client.get(f"/api/v1/runs/{run_id}")
        return answer.status_code == 200 and answer.json()["data"]["status"] != "running"

    poll_until(is_over, "the run to end")
    told = watch(client, run_id)
    assert_whole(told)
    assert text_of(told) == f"before {sha256(content)}", told[-1].data


def test_a_resumed_run_reads_its_file(twice: RunningMesh, client: httpx.Client) -> None:
    content = b"kept for the answer"
    asked = start(client, save_agent(client), ASKS_AND_READS, conversation(), files=[uploaded(client, content)])
    assert watch(client, asked)[-1].event_type == "run.interrupted"
    with twice.client(url=twice.urls[1]) as other:
        answer = other.post(f"/api/v1/runs/{asked}/resume", json=DECISION)
        assert answer.status_code == 202, answer.text
        events = watch(other, answer.json()["data"]["run_id"])
    assert_whole(events)
    assert text_of(events) == sha256(content), events[-1].data


def test_a_question_whose_file_was_deleted_can_still_be_answered(client: httpx.Client) -> None:
    agent, talk, file_id = save_agent(client), conversation(), uploaded(client, b"deleted soon")
    asked = start(client, agent, ASKS_AND_READS, talk, files=[file_id])
    assert watch(client, asked)[-1].event_type == "run.interrupted"
    assert client.delete(f"/api/v1/files/{file_id}").status_code == 200
    answer = client.post(f"/api/v1/runs/{asked}/resume", json=DECISION)
    assert answer.status_code == 202, answer.text
    events = watch(client, answer.json()["data"]["run_id"])
    assert_whole(events)
    # Its harness finds the file gone, and nothing is asked any more.
    assert events[-1].event_type == "run.failed"
    assert (events[-1].data["category"], events[-1].data["code"]) == ("configuration", "file_not_found")
    state = client.get(f"/api/v1/conversations/{talk}/interrupt-state", params={"agent_id": agent})
    assert state.json()["data"] is None
