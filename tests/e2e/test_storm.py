"""A short storm over a mesh of its own, and one with a second replica of runs, sessions and gateway (I5–I12, I15, I33).

`HARNESS_STORM_SECONDS` and `HARNESS_STORM_SEED` make it longer, or another; so does `python -m tests.e2e.storm`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.storm import Weather, run_storm
from tests.support.mesh import running_mesh

SECONDS = float(os.environ.get("HARNESS_STORM_SECONDS", "10"))
SEED = int(os.environ.get("HARNESS_STORM_SEED", "20"))


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_storm_breaks_no_invariant(tmp_path: Path, replicas: int) -> None:
    with running_mesh(tmp_path / "mesh") as mesh:
        blown = run_storm(mesh, Weather(SEED + replicas, SECONDS, calm=0.8, second_replica=replicas == 2))
        story = [blown.recorded.summary(), *blown.faults]
        assert not blown.recorded.wrong, "\n".join([*blown.recorded.wrong, *story, mesh.logs()])
        # A storm in which nothing happened shows nothing.
        assert blown.faults, story
        assert any(seen.ended for seen in blown.recorded.watchers), story
