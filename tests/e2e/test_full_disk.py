"""The disk of the stores is full: clear, retryable answers, and everything goes on once there is room (I9, I34)."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.chaos.judge import violations_of
from tests.chaos.recorded import Recorded
from tests.chaos.stored import StoredMesh
from tests.e2e.turns import assert_whole, conversation, save_agent, start, start_body, start_when_possible, watch
from tests.support.mesh import poll_until, running_mesh


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a disk of its own cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_i9_i34_a_full_disk_refuses_clearly_and_loses_nothing(small_disk: Path) -> None:
    with running_mesh(small_disk / "mesh") as mesh, mesh.client() as client:
        stored, talk, other = StoredMesh(mesh.data_dir), conversation(), conversation()
        agent = save_agent(client)
        run_id = start(client, agent, {"n": 60, "rate": 20}, talk)
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space left"):
            write_for_ever(filler)
        refused = client.post("/api/v1/runs", json=start_body(agent, "hello", other))
        assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
        assert "no room" in refused.json()["error"]
        assert int(refused.headers["Retry-After"]) > 0
        assert client.get(f"/api/v1/runs/{run_id}").status_code == 200  # reads go on
        filler.unlink()
        poll_until(lambda: not stored.unsettled(), "the run to end once there is room")
        events = watch(client, run_id)
        assert_whole(events)
        assert events[-1].event_type == "run.completed"
        assert [event.event_type for event in events].count("content.delta") == 60
        assert watch(client, start_when_possible(client, agent, "hello", other))[-1].event_type == "run.completed"
        poll_until(lambda: not stored.unsettled(), "slot and status to follow the terminal")
        assert violations_of(stored, Recorded()) == []


def write_for_ever(path: Path) -> None:
    """Until the disk refuses."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
