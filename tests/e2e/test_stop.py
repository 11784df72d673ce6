"""SIGTERM: no new work, callers go elsewhere, what runs is handed over or finished, streams end so that they can be resumed (I33)."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.e2e.load import REPLICAS, TWO_OF_EACH, Load, judge, raw, turns_end
from tests.e2e.turns import assert_whole, conversation, counted, counting, frames, save_agent, start, watch
from tests.support.mesh import RunningMesh, running_mesh

MOST_RESTARTS = 10


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("twice"), TWO_OF_EACH) as mesh:
        yield mesh


async def test_i33_every_replica_is_restarted_under_load_and_nothing_is_lost(twice: RunningMesh) -> None:
    with twice.client() as client:
        agent = save_agent(client)
    # Short turns end where they began, long ones outlast every grace and are handed over, if they are not just about to end.
    load = Load(twice.urls, agent, {"n": 20, "rate": 60}, {"n": 400, "rate": 60})
    running = asyncio.create_task(load.run(lanes=6))
    try:
        for name in REPLICAS:
            await turns_end(load, running, 4)
            assert await asyncio.to_thread(twice.restart, name) == 0, "a stop that was asked for ends well"
        await turns_end(load, running, 4)
        for name in ("runs", "runs-2"):
            for _ in range(MOST_RESTARTS):
                if "run_handed_over" in _log(twice, name):
                    break
                await turns_end(load, running, 1)  # it had no long turn then
                assert await asyncio.to_thread(twice.restart, name) == 0
    finally:
        load.stop()
        await running
    assert load.refusals == []
    assert load.broken == 0, "a stream of a gateway that stops is ended, not broken off"
    await asyncio.to_thread(judge, twice, load)
    for name in ("runs", "runs-2"):
        assert "run_handed_over" in _log(twice, name)


def test_i33_a_stream_of_a_stopping_gateway_is_resumed_at_the_other(twice: RunningMesh) -> None:
    first, second = (twice.client(url=url) for url in twice.urls)
    with first, second:
        run_id = start(first, save_agent(first), counting(40), conversation())
        seen: list[bytes] = []
        with first.stream("GET", f"/api/v1/runs/{run_id}/events/stream") as response:
            stream = frames(response)
            seen += [next(stream).raw for _ in range(3)]
            twice.restart("gateway")
            seen += [frame.raw for frame in stream]  # to its end, which is no error
        # The run goes on without the gateway, until it is told to end.
        headers = {"Last-Event-ID": str(len(seen))}
        with second.stream("GET", f"/api/v1/runs/{run_id}/events/stream", headers=headers) as response:
            resumed = frames(response)
            seen += [next(resumed).raw for _ in range(5)]
        assert second.delete(f"/api/v1/runs/{run_id}").json()["data"]["status"] == "cancelled"
        rest = watch(second, run_id, last_event_id=len(seen))
        whole = watch(first, run_id)
        assert_whole(whole)
        assert counted(whole)
        assert [*seen, *raw(rest)] == raw(whole) == raw(watch(second, run_id))


def _log(mesh: RunningMesh, name: str) -> str:
    path: Path = mesh.data_dir / "logs" / f"{name}.log"
    return path.read_text("utf-8")
