"""A turn over HTTP: start, read, follow, page."""

import asyncio
import json

import httpx
import pytest

from harness.run.v1 import run_service_pb2
from tests.gateway.conftest import Running
from tests.gateway.toy_mesh import delta

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def read_stream(client: httpx.AsyncClient, run_id: str, **more: object) -> bytes:
    """The whole body of a stream, to its end."""
    async with client.stream("GET", f"/api/v1/runs/{run_id}/events/stream", **more) as response:  # type: ignore[arg-type]
        assert response.status_code == 200, await response.aread()
        return await response.aread()


def frames(body: bytes) -> list[dict[str, object]]:
    result = []
    for block in body.decode().split("\n\n"):
        if block and not block.startswith(":"):
            lines = dict(line.split(": ", 1) for line in block.split("\n"))
            result.append({"id": int(lines["id"]), "event": lines["event"], "data": json.loads(lines["data"])})
    return result


async def test_start_read_follow_and_page_a_run(gateway: Running) -> None:
    async with gateway.client() as client:
        body = {
            "agent_id": "agent",
            "conversation_id": "c1",
            "message": json.dumps({"n": 2}),
            "client_context": {"a": 1},
        }
        started = await client.post("/api/v1/runs", json=body)
        assert started.status_code == 202, started.text
        assert started.json()["success"] is True
        run = started.json()["data"]
        assert run["status"] == "running"
        stream = frames(await read_stream(client, run["run_id"]))
        assert [frame["event"] for frame in stream] == [
            "run.started",
            "content.delta",
            "content.delta",
            "run.completed",
        ]
        assert [frame["id"] for frame in stream] == [1, 2, 3, 4]
        assert stream[0]["data"] == {"harness_id": "toy", "agent_version": 1, "binding_id": "bnd_1"}
        again = (await client.get(f"/api/v1/runs/{run['run_id']}")).json()["data"]
        assert again["status"] == "completed"
        assert again["last_sequence"] == 4
        page = (await client.get(f"/api/v1/runs/{run['run_id']}/events", params={"after": 1, "limit": 2})).json()[
            "data"
        ]
        assert page["next_cursor"] == 3
        assert [event["sequence"] for event in page["events"]] == [2, 3]
        assert page["events"][0]["data"] == stream[1]["data"]
        assert set(page["events"][0]) == {"run_id", "sequence", "event_type", "data", "created_at"}


async def test_stream_follows_live_and_ends_after_the_terminal(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    async with gateway.client() as client:
        reading = asyncio.create_task(read_stream(client, run.record.run_id))
        await gateway.mesh.wait_watching(run.record.run_id, 1)
        await gateway.mesh.emit(run, delta("one"))
        await gateway.mesh.emit(run, delta("two"), delta("drei €\n"))
        await gateway.mesh.finish(run)
        stream = frames(await reading)
    assert [frame["id"] for frame in stream] == [1, 2, 3, 4, 5]
    assert stream[3]["data"] == {"message_id": "m1", "text": "drei €\n"}
    await gateway.mesh.wait_watching(run.record.run_id, 0)


async def test_an_interrupt_is_shown_and_answered(gateway: Running) -> None:
    run = await gateway.mesh.make_run(conversation_id="c")
    run_id = run.record.run_id
    where = ("/api/v1/conversations/c/interrupt-state", {"agent_id": "agent"})
    async with gateway.client() as client, gateway.client("mallory") as stranger:
        assert (await client.get(where[0], params=where[1])).json() == {"success": True, "data": None}
        run.pending = run_service_pb2.InterruptState(interrupt_id="int_1", revision=2, run_id=run_id, prompt="Go on?")
        shown = (await client.get(where[0], params=where[1])).json()["data"]
        assert (shown["interrupt_id"], shown["revision"], shown["run_id"], shown["prompt"]) == (
            "int_1",
            2,
            run_id,
            "Go on?",
        )
        assert (await stranger.get(where[0], params=where[1])).json()["data"] is None  # I2
        answer = {"interrupt_id": "int_1", "revision": 2, "dismiss": True}
        path = f"/api/v1/runs/{run_id}/resume"
        assert (await stranger.post(path, json=answer)).status_code == 404
        for missing in ("interrupt_id", "revision", "dismiss"):
            wrong = await client.post(path, json={key: value for key, value in answer.items() if key != missing})
            assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_request"), missing
        resumed = await client.post(path, json=answer)
        assert resumed.status_code == 202
        assert resumed.json()["data"]["conversation_id"] == "c"
        assert (await client.post(path, json=answer)).status_code == 404
        assert (await client.get(where[0], params=where[1])).json()["data"] is None
