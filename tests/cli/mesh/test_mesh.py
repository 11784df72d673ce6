"""`harness up` and `harness status` as a person has them: real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mesh import HARNESS, poll_until, running_mesh
from tests.support.processes import ProcessHandle

EVERY_SERVICE = ["bus", "adapter-reference", "catalog", "sessions", "sandbox", "runs", "gateway"]


def _status(data_dir: Path) -> tuple[int, list[dict[str, object]]]:
    done = subprocess.run(
        [str(HARNESS), "status", "--json", "--data-dir", str(data_dir)], capture_output=True, text=True, timeout=60
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else []


def test_up_status_restart_and_ctrl_c(tmp_path: Path) -> None:
    with running_mesh(tmp_path / "data") as mesh:
        poll_until(lambda: _status(mesh.data_dir)[0] == 0, "every process to be healthy")
        _, listed = _status(mesh.data_dir)
        assert [entry["service"] for entry in listed] == EVERY_SERVICE
        keys = {"name", "service", "replica", "pid", "address", "url", "healthy", "version"}
        assert all(set(entry) == keys for entry in listed)
        assert all(entry["healthy"] and entry["version"] and entry["pid"] for entry in listed), listed

        url, before = mesh.url, mesh.pid("gateway")
        mesh.kill("gateway")
        assert mesh.pid("gateway") not in (0, before)
        assert mesh.url == url, "a gateway that picked a free port keeps it over a restart"

        # A second mesh on the same data would share its sockets and stores.
        second = subprocess.run(
            [str(HARNESS), "up", "--port", "0", "--data-dir", str(mesh.data_dir)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert second.returncode == 2
        assert "running on" in second.stdout + second.stderr

        handles = mesh.handles()
        assert mesh.stop() == 0
        assert all(handle.wait_gone(0) for handle in handles), "what is left after the command returned is an orphan"
        mesh.wait_said("stopping")
        assert "did not stop in time" not in "\n".join(mesh.said)
        code, listed = _status(mesh.data_dir)
        assert (code, listed) == (3, [])


def test_a_mesh_killed_with_sigkill_leaves_no_orphan(tmp_path: Path) -> None:
    with running_mesh(tmp_path / "data") as mesh:
        handles = mesh.handles()
        assert len(handles) == len(EVERY_SERVICE)
        mesh.process.kill()
        mesh.process.wait()
        assert all(handle.wait_gone() for handle in handles)
    # And the folder can be used again: stale sockets, lock and state are no obstacle.
    with running_mesh(tmp_path / "data") as again, again.client() as client:
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "HARNESS_TOKEN"),  # noqa: S104 - it has to be refused
        (["--config", "/nowhere/harness.yaml"], "/nowhere/harness.yaml"),
        (["--data-dir", "/proc/nowhere"], "/proc/nowhere"),
    ],
)
def test_i32_what_cannot_start_says_why_and_starts_nothing(tmp_path: Path, arguments: list[str], said: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HARNESS_")}
    done = subprocess.run(
        [str(HARNESS), "up", "--port", "0", "--data-dir", str(tmp_path / "data"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    assert done.returncode == 2
    assert said in done.stdout + done.stderr
    assert not (tmp_path / "data" / "mesh.json").exists()


def test_i32_a_service_that_refuses_its_settings_ends_the_start(tmp_path: Path) -> None:
    config = tmp_path / "harness.yaml"
    config.write_text("version: 1\nadapters: []\nsurprise: 1\n", "utf-8")
    done = subprocess.run(
        [str(HARNESS), "up", "--port", "0", "--data-dir", str(tmp_path / "data"), "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 2
    assert "surprise" in done.stdout + done.stderr
    assert not (tmp_path / "data" / "mesh.json").exists()


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [str(HARNESS), "up", "--port", str(port), "--data-dir", str(tmp_path / "data")],
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use. Choose another --port" in done.stdout
    assert "starting" not in done.stdout, "it is said before anything is started"


def test_a_long_data_folder_still_gets_sockets_that_fit(tmp_path: Path) -> None:
    with running_mesh(tmp_path / ("long" * 30)) as mesh, mesh.client() as client:
        assert client.get("/readyz").status_code == 200


def test_a_tethered_program_dies_with_its_parent() -> None:
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, subprocess, sys\n"
            "environment = {**os.environ, 'HARNESS_DIE_WITH_PARENT': str(os.getpid())}\n"
            "child = subprocess.Popen([sys.executable, '-m', 'cli.mesh.tether', 'cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)\n"
            "child.stdin.write(b'x'); child.stdin.flush(); child.stdout.read(1)\n"
            "print(child.pid, flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    handle = ProcessHandle(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert handle.wait_gone()
