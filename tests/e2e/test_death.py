"""kill -9 of any one service in the middle of a run: everything acknowledged is there, and the run ends truthfully (I9, I33)."""

from __future__ import annotations

import httpx
import pytest

from tests.e2e.turns import TERMINALS, assert_whole, conversation, frames, save_agent, start, start_when_possible, watch
from tests.support.mesh import RunningMesh, poll_until


@pytest.mark.parametrize("service", ["gateway", "runs", "sessions", "catalog", "sandbox", "bus", "adapter-reference"])
def test_i9_i33_a_killed_service_loses_nothing_and_the_run_ends(mesh: RunningMesh, service: str) -> None:
    with mesh.client() as client:
        agent = save_agent(client)
        finished = start(client, agent, "hello", conversation())
        before = watch(client, finished)
        talk = conversation()
        run_id = start(client, agent, {"n": 40, "rate": 20}, talk)
        with client.stream("GET", f"/api/v1/runs/{run_id}/events/stream") as response:
            seen = [frame.raw for frame, _ in zip(frames(response), range(5), strict=False)]
        mesh.kill(service)
    with mesh.client() as client:
        poll_until(lambda: _ready(client), f"the mesh to be ready after {service} was killed")
        poll_until(lambda: _status(client, run_id) in ("completed", "failed", "cancelled"), "the run to end")
        events = watch(client, run_id)
        assert_whole(events)
        assert [frame.raw for frame in events[: len(seen)]] == seen
        assert events[-1].event_type in TERMINALS
        if events[-1].event_type == "run.failed":
            assert events[-1].data["side_effect_status"] == "possible"
        assert [frame.raw for frame in watch(client, finished)] == [frame.raw for frame in before]
        assert client.get(f"/api/v1/agents/{agent}").json()["data"]["record"]["current_version"] == 1
        # The conversation goes on.
        after = watch(client, start_when_possible(client, agent, "still there?", talk))
        assert after[-1].event_type == "run.completed"
        assert after[0].data["binding_id"] == events[0].data["binding_id"]


def _ready(client: httpx.Client) -> bool:
    try:
        answer = client.get("/readyz")
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and set(answer.json()["data"]["harnesses"].values()) == {"available"}


def _status(client: httpx.Client, run_id: str) -> str:
    answer = client.get(f"/api/v1/runs/{run_id}")
    return str(answer.json()["data"]["status"]) if answer.status_code == 200 else ""
