"""Claude in a strict sandbox: the real program reaches its model through the egress, with no credential and no network inside (I28)."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import threading
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.adapters.claude.model import HANGS, Model, portable, text
from tests.adapters.claude.pictures import png
from tests.e2e.turns import assert_whole, conversation, start, text_of, watch
from tests.support.mesh import RunningMesh, poll_until, running_mesh

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("bwrap") is None,
    reason="needs root and bubblewrap to make a strict sandbox; tests/adapters/claude plays the same turns without one",
)
KEY = "provider-key-canary-5b1f"


@contextmanager
def served(model: Model) -> Generator[str]:
    """The model's provider on a loop of its own; where it is."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(asyncio.start_server(model.serve, "127.0.0.1", 0), loop).result(30)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        asyncio.run_coroutine_threadsafe(model.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.fixture(scope="module")
def mesh(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningMesh]:
    folder = tmp_path_factory.mktemp("claude")
    (folder / "key").write_text(KEY)
    sandbox = {"worker_module": "adapters.claude_agent_sdk", "memory_mib": 2048, "max_pids": 256, "workspace_mib": 256}
    profile = {"id": "default", "placement": "sandbox_pod", "model_endpoint": "claude", "sandbox": sandbox}
    with served(model) as url:
        config = {
            "version": 1,
            "adapters": [
                {
                    "harness_id": "claude_agent_sdk",
                    "address": "unix:run/adapter-claude.sock",
                    "embedded_module": "adapters.claude_agent_sdk",
                    "profiles": [profile],
                }
            ],
            "tools": [{"id": "calculator", "provider": "builtin"}],
            "model_endpoints": [
                {"id": "claude", "kind": "anthropic", "base_url": url, "credential_file": str(folder / "key")}
            ],
        }
        (folder / "harness.json").write_text(json.dumps(config))
        # `-`: the host itself has no credential, and needs none for what runs in sandboxes.
        environment = {"ANTHROPIC_API_KEY_FILE": "-"}
        with running_mesh(folder / "data", ["--config", str(folder / "harness.json")], environment) as mesh:
            yield mesh


@pytest.fixture
def client(mesh: RunningMesh) -> Generator[httpx.Client]:
    with mesh.client() as client:
        yield client


@pytest.fixture
def agent(client: httpx.Client) -> str:
    agent_id = f"agent-{uuid.uuid4().hex[:12]}"
    blueprint = {
        "id": agent_id,
        "name": "Test",
        "harness": {"id": "claude_agent_sdk"},
        "prompt": {"system": "Be brief."},
        "tools": {"bindings": [{"tool_id": "calculator"}]},
    }
    answer = client.put(f"/api/v1/agents/{agent_id}", json={"blueprint": blueprint})
    assert answer.status_code == 200, answer.text
    return agent_id


def programs(of: int) -> list[Path]:
    """The processes of the SDK's program below that one: other tests run programs of their own at the same time."""
    found: list[Path] = []
    children = {process.pid for process in psutil.Process(of).children(recursive=True)}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if int(process.name) in children and line.partition(b"\0")[0].endswith(b"/claude"):
            found.append(process)
    return found


def test_a_sandboxed_conversation_goes_on_with_tools_and_leaves_nothing(
    model: Model, client: httpx.Client, agent: str, mesh: RunningMesh
) -> None:
    talk = conversation()
    model.script(
        [text("first ", "answer")],
        [portable("calculator", "toolu_1", expression="6*7")],
        [text("it is 42")],
    )
    events = watch(client, start(client, agent, "hello", talk))
    assert_whole(events)
    assert (events[-1].event_type, text_of(events)) == ("run.completed", "first answer")
    events = watch(client, start(client, agent, "and six times seven?", talk))
    assert_whole(events)
    assert (events[-1].event_type, text_of(events)) == ("run.completed", "it is 42"), events
    completed = next(frame.data for frame in events if frame.event_type == "tool.completed")
    assert (completed["tool_call_id"], completed["outcome"]) == ("toolu_1", "success")
    assert ("assistant", "first answer") in model.said
    # The endpoint saw the operator's key, and neither the run's token nor anything of the sandbox.
    assert {headers["x-api-key"] for headers in model.headers} == {KEY}
    assert not any("authorization" in headers for headers in model.headers)


def test_files_are_read_inside_the_sandbox_and_stay_in_the_conversation(
    model: Model, client: httpx.Client, agent: str
) -> None:
    """Uploaded over REST, kept by sessions, named by the start, and read by the program's host inside through the facade for files, in many pieces."""
    picture = png()
    notes = "größer als ein Stück\n" * 60_000

    def uploaded(name: str, kind: str, content: bytes) -> str:
        answer = client.post("/api/v1/files", content=content, params={"name": name}, headers={"content-type": kind})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["data"]["file_id"])

    files = [uploaded("a.png", "image/png", picture), uploaded("notes.txt", "text/plain", notes.encode())]
    talk = conversation()
    model.script([text("seen")])
    events = watch(client, start(client, agent, "look", talk, files=files))
    assert_whole(events)
    assert (events[-1].event_type, text_of(events)) == ("run.completed", "seen"), events
    assert not [frame for frame in events if frame.event_type == "warning"]
    assert shown(model) == (picture, notes)
    # The next turn names none, and has another program: the transcript brings them back.
    assert text_of(watch(client, start(client, agent, "and again", talk))) == "seen"
    assert shown(model) == (picture, notes)


def shown(model: Model) -> tuple[bytes, str]:
    """The picture and the document that the model was shown in the last request."""
    blocks = [
        block
        for message in model.requests[-1]["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
    ]
    (picture,) = (block["source"]["data"] for block in blocks if block["type"] == "image")
    (document,) = (block["source"]["data"] for block in blocks if block["type"] == "document")
    return base64.b64decode(picture), document


def test_i28_no_credential_is_inside_and_a_cancel_ends_the_program(
    model: Model, client: httpx.Client, agent: str, mesh: RunningMesh
) -> None:
    before, asked = {process.name for process in programs(mesh.process.pid)}, len(model.requests)
    model.script(HANGS)
    run_id = start(client, agent, "hang", conversation())
    poll_until(lambda: len(model.requests) > asked, "the model to be asked")
    inside = [process for process in programs(mesh.process.pid) if process.name not in before]
    assert inside
    for process in inside:
        assert KEY.encode() not in (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        # Its own network namespace, in which there is nothing.
        assert os.readlink(process / "ns/net") != os.readlink("/proc/self/ns/net")
    answer = client.delete(f"/api/v1/runs/{run_id}")
    assert answer.json()["data"]["status"] == "cancelled", answer.text
    names = {process.name for process in inside}
    poll_until(lambda: not names & {process.name for process in programs(mesh.process.pid)}, "the program to end")
    assert KEY not in mesh.logs(10_000)
