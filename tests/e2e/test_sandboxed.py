"""The same turn in a sandbox: what its worker can reach, by its own report, and how long it lives."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.turns import assert_whole, conversation, save_agent, start, start_when_possible, text_of, watch
from tests.support.mesh import RunningMesh
from tests.support.processes import ProcessHandle

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("bwrap") is None,
    reason="needs root and bubblewrap to make a strict sandbox; tests/sandbox shows the refusal without them",
)


def _probe(client: httpx.Client, agent: str, talk: str, **asked: Any) -> dict[str, Any]:
    events = watch(client, start(client, agent, {"script": [{"probe": asked}]}, talk))
    assert_whole(events)
    assert events[-1].event_type == "run.completed", events[-1].data
    report: dict[str, Any] = json.loads(text_of(events))
    return report


def _workers(mesh: RunningMesh) -> set[int]:
    """The workers' pids: processes whose command line names the worker's socket."""
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                line = file.read()
        except OSError:
            continue
        if b"--worker" in line and str(mesh.data_dir).encode() in _environment_or_line(name, line):
            found.add(int(name))
    return found


def _environment_or_line(name: str, line: bytes) -> bytes:
    try:
        with open(f"/proc/{name}/mountinfo", "rb") as file:
            return line + file.read()
    except OSError:
        return line


def _kill(pids: set[int]) -> None:
    """kill -9 of each, to its end; one that ends with another before its turn is killed as well."""
    assert pids
    for pid in pids:
        try:
            handle = ProcessHandle(pid)
            handle.kill()
        except ProcessLookupError:
            continue
        assert handle.wait_gone()
        handle.close()


def test_a_sandboxed_worker_reaches_nothing(mesh: RunningMesh, client: httpx.Client) -> None:
    agent = save_agent(client, profile="sandboxed")
    gateway = mesh.url.removeprefix("http://")
    seen = _probe(
        client,
        agent,
        conversation(),
        connect=[gateway, "127.0.0.1:22"],
        paths=[str(mesh.data_dir), "/home", "/etc/shadow", "/var", str(Path.home() / ".ssh"), "/sys/fs/cgroup"],
        writable=["/", "/usr", "/etc"],
    )
    assert "connected" not in seen["connect"].values()
    assert "error" in seen["interfaces"]
    # The mesh's environment is not there: not one of its variables.
    assert set(seen["environment"]["names"]) <= {
        "HOME",
        "LANG",
        "PATH",
        "PWD",
        "PYTHONPATH",
        "PYTHONUNBUFFERED",
        "TMPDIR",
    }
    assert (seen["ids"]["uid"] > 0, seen["ids"]["groups"]) == (True, [])
    assert seen["status"]["CapEff"] == seen["status"]["CapBnd"] == "0000000000000000"
    # Its own processes only: itself.
    assert seen["processes"]["pids"] == [seen["pid"]]
    assert not any(seen["writable"].values())
    assert all("error" in answer for answer in seen["paths"].values()), seen["paths"]
    assert not any(seen["namespaces"].values()), seen["namespaces"]


def test_a_second_turn_reuses_the_worker_and_clear_ends_it(mesh: RunningMesh, client: httpx.Client) -> None:
    agent, talk = save_agent(client, profile="sandboxed"), conversation()
    others = _workers(mesh)
    assert "hello one" in text_of(watch(client, start(client, agent, "hello one", talk)))
    mine = _workers(mesh) - others
    assert mine
    second = watch(client, start(client, agent, "hello two", talk))
    assert "hello one" in text_of(second)
    assert _workers(mesh) - others == mine
    handles = [ProcessHandle(pid) for pid in mine]
    cleared = client.post("/api/v1/sessions/clear", json={"agent_id": agent, "conversation_id": talk})
    assert cleared.json()["data"]["cleared"] is True, cleared.text
    assert all(handle.wait_gone() for handle in handles)


def test_a_killed_worker_is_survived_by_a_new_generation(mesh: RunningMesh, client: httpx.Client) -> None:
    agent, talk = save_agent(client, profile="sandboxed"), conversation()
    others = _workers(mesh)
    watch(client, start(client, agent, "hello one", talk))
    _kill(_workers(mesh) - others)
    second = watch(client, start(client, agent, "hello two", talk))
    assert second[-1].event_type == "run.completed", second[-1].data
    assert "hello one" in text_of(second)


def test_i9_a_worker_killed_in_the_middle_of_a_run_ends_it_truthfully(mesh: RunningMesh, client: httpx.Client) -> None:
    agent, talk = save_agent(client, profile="sandboxed"), conversation()
    others = _workers(mesh)
    run_id = start(client, agent, {"n": 1000, "rate": 10}, talk)
    page = client.get(f"/api/v1/runs/{run_id}/events", params={"after": 1, "wait": 30}).json()["data"]
    assert page["events"], "the run streams"
    _kill(_workers(mesh) - others)
    events = watch(client, run_id)
    assert_whole(events)
    assert (events[-1].event_type, events[-1].data["side_effect_status"]) == ("run.failed", "possible")
    assert "harness sandboxes list --ended" in events[-1].data["message"]
    assert watch(client, start(client, agent, "go on", talk))[-1].event_type == "run.completed"


def test_a_living_worker_finds_the_state_facade_again_after_a_restart(mesh: RunningMesh, client: httpx.Client) -> None:
    agent, talk = save_agent(client, profile="sandboxed"), conversation()
    others = _workers(mesh)
    watch(client, start(client, agent, "hello one", talk))
    mine = _workers(mesh) - others
    mesh.kill("sessions")
    second = watch(client, start_when_possible(client, agent, "hello two", talk))
    assert second[-1].event_type == "run.completed", second[-1].data
    assert "hello one" in text_of(second)
    assert _workers(mesh) - others == mine
