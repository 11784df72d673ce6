"""What an operator sees of sandboxes: those there are, why one never came up, and nothing of them after Ctrl-C (I22, I29)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from cli.mesh.layout import layout_of
from tests.e2e.turns import assert_whole, conversation, save_agent, start, watch
from tests.support.mesh import HARNESS, RunningMesh, running_mesh

CONFIG = """\
version: 1
adapters:
  - harness_id: reference
    address: unix:adapter.sock
    embedded_module: adapters.reference
    profiles:
      - {id: boxed, display_name: B, description: d, placement: sandbox_pod,
         sandbox: {worker_module: adapters.reference, isolation: none}}
      - {id: broken, display_name: C, description: d, placement: sandbox_pod,
         sandbox: {worker_module: tests.sandbox.no_such_worker, isolation: none}}
"""


def _sandboxes(mesh: RunningMesh, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(HARNESS), "sandboxes", "list", "--data-dir", str(mesh.data_dir), *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "NO_COLOR": "1"},
    )


def _listed(mesh: RunningMesh, *arguments: str) -> list[dict[str, Any]]:
    done = _sandboxes(mesh, "--json", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    listed: list[dict[str, Any]] = json.loads(done.stdout)["sandboxes"]
    return listed


def test_sandboxes_are_shown_with_what_became_of_them_and_are_gone_after_ctrl_c(tmp_path: Path) -> None:
    config = tmp_path / "harness.yaml"
    config.write_text(CONFIG)
    with running_mesh(tmp_path / "data", ["--config", str(config)]) as mesh, mesh.client() as client:
        talk = conversation()
        events = watch(client, start(client, save_agent(client, profile="boxed"), "hello", talk))
        assert events[-1].event_type == "run.completed", events[-1].data
        (live,) = _listed(mesh)
        assert (live["state"], live["harness_id"], live["profile_id"]) == ("bound", "reference", "boxed")
        assert _listed(mesh, "--ended") == []

        events = watch(client, start(client, save_agent(client, profile="broken"), "hello", conversation()))
        assert_whole(events)
        failed = events[-1].data
        assert failed["code"] == "sandbox_not_ready"
        assert "The worker in the sandbox did not start." in failed["message"]
        assert "harness sandboxes list --ended" in failed["message"]
        assert "no_such_worker" not in json.dumps(failed)  # I18
        (ended,) = _listed(mesh, "--ended")
        assert (ended["state"], ended["profile_id"]) == ("lost", "broken")
        assert "The worker ended before it was ready." in ended["reason"]
        people = _sandboxes(mesh, "--ended")
        assert "The worker ended before it was ready." in people.stdout

        folder = layout_of(mesh.data_dir).sockets / "sb"
        assert [entry.name for entry in folder.glob("lse_*")] == [live["sandbox_id"]]
        assert mesh.stop() == 0
        mesh.wait_said("stopping")
        assert list(folder.glob("lse_*")) == []
        assert "sandboxes_left_to_the_next_start" not in mesh.logs(1000)
    done = _sandboxes(mesh)
    assert (done.returncode, done.stdout) == (3, "")
    assert "No mesh runs" in done.stderr
