"""Start and stop of the gateway process, and what it says of itself (I32, I33)."""

import asyncio
import os
import signal
import stat
import sys
import tempfile
from typing import Any

import httpx
import pytest
from openapi_spec_validator import validate

from services.common.metrics import render
from services.gateway.operations import public_operations
from tests.gateway.conftest import ROOT, Running, environment, headers
from tests.gateway.test_streams import RawStream
from tests.gateway.test_turn import frames
from tests.gateway.toy_mesh import TOKEN, delta

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETE = {
    "HARNESS_LISTEN": "127.0.0.1:0",
    "HARNESS_SERVICE_TOKENS": TOKEN,
    "HARNESS_CATALOG_ADDRESS": "unix:/nowhere/catalog.sock",
    "HARNESS_RUNS_ADDRESS": "unix:/nowhere/runs.sock",
    "HARNESS_SESSIONS_ADDRESS": "unix:/nowhere/sessions.sock",
}


@pytest.fixture
def gateway(shared_gateway: Running) -> Running:
    shared_gateway.mesh.forget()
    return shared_gateway


async def start_and_fail(**settings: str) -> tuple[int, str]:
    variables = {key: value for key, value in {**COMPLETE, **settings}.items() if value}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.gateway", cwd=ROOT, env=environment(**variables), stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        _, stderr = await process.communicate()
    return process.returncode or 0, stderr.decode()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"HARNESS_LISTEN": "0.0.0.0:0"}, "HARNESS_API_TOKENS"),
        ({"HARNESS_LISTEN": "[::]:0"}, "HARNESS_API_TOKENS"),
        ({"HARNESS_LISTEN": "example.test:0"}, "HARNESS_API_TOKENS"),
        ({"HARNESS_LISTEN": "0.0.0.0:0", "HARNESS_API_TOKENS": "local-development-only"}, "HARNESS_API_TOKENS"),
        (
            {"HARNESS_LISTEN": "0.0.0.0:0", "HARNESS_API_TOKENS": "local-development-only,another-token-0123456"},
            "HARNESS_API_TOKENS",
        ),
        ({"HARNESS_API_TOKENS": "short"}, "HARNESS_API_TOKENS"),
        ({"HARNESS_SERVICE_TOKENS": ""}, "HARNESS_SERVICE_TOKENS"),
        ({"HARNESS_RUNS_ADDRESS": ""}, "HARNESS_RUNS_ADDRESS"),
        ({"HARNESS_SESSIONS_ADDRESS": ""}, "HARNESS_SESSIONS_ADDRESS"),
        ({"HARNESS_CATALOG_ADDRESS": "nonsense"}, "HARNESS_CATALOG_ADDRESS"),
        ({"HARNESS_LISTEN": "127.0.0.1"}, "HARNESS_LISTEN"),
        ({"HARNESS_LISTEN": "192.0.2.1:1", "HARNESS_API_TOKENS": "a-secret-token-0123456789"}, "HARNESS_LISTEN"),
        ({"HARNESS_MAX_BODY_BYTES": "0"}, "HARNESS_MAX_BODY_BYTES"),
    ],
)
async def test_i32_a_wrong_setting_stops_the_start_and_is_named(settings: dict[str, str], named: str) -> None:
    code, stderr = await start_and_fail(**settings)
    assert code == 2, stderr
    assert "configuration error: " in stderr
    assert named in stderr
    assert "Traceback" not in stderr
    assert "another-token" not in stderr


async def limited(files: int, **settings: str) -> asyncio.subprocess.Process:
    """A gateway that may open so many files, and no more."""
    code = f"import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files})); runpy.run_module('services.gateway', run_name='__main__')"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=ROOT, env=environment(**COMPLETE, **settings), stderr=asyncio.subprocess.PIPE
    )


async def test_i32_i35_connections_are_bounded_by_what_the_machine_allows(gateway: Running) -> None:
    refused = await limited(1000, HARNESS_MAX_CONNECTIONS="1000")
    _, stderr = await refused.communicate()
    assert refused.returncode == 2
    assert b"HARNESS_MAX_CONNECTIONS" in stderr
    # The default fits itself to the machine, and says so.
    fitted = await limited(1000)
    assert fitted.stderr is not None
    async with asyncio.timeout(60):
        lines = [await fitted.stderr.readline()]
        while b'"ready"' not in lines[-1]:
            lines.append(await fitted.stderr.readline())
            assert lines[-1], b"".join(lines)
    assert b'"max_connections": 744' in b"".join(lines)
    fitted.terminate()
    await fitted.communicate()
    assert fitted.returncode == 0


async def test_i32_an_address_in_use_stops_the_start(gateway: Running) -> None:
    code, stderr = await start_and_fail(HARNESS_LISTEN=gateway.address)
    assert code == 2
    assert "HARNESS_LISTEN" in stderr


async def test_i33_sigterm_ends_streams_finishes_requests_and_exits_zero(start_gateway: Any) -> None:
    gateway: Running = await start_gateway(HARNESS_SHUTDOWN_GRACE_SECONDS="20")
    run = await gateway.mesh.make_run()
    stream = await RawStream.open(gateway, run)
    body = await stream.until(b"run.started")
    idle_reader, _ = await asyncio.open_connection("127.0.0.1", gateway.port)
    async with gateway.client() as client:
        await client.get("/healthz")  # a connection that is kept
        poll = asyncio.create_task(
            client.get(f"/api/v1/runs/{run.record.run_id}/events", params={"after": 1, "wait": 20})
        )
        async with asyncio.timeout(30):
            while not gateway.mesh.counts["ListEvents"]:
                await client.get("/healthz")
        gateway.process.send_signal(signal.SIGTERM)
        # The stream ends in order, without a terminal: its client resumes elsewhere.
        rest = await stream.reader.read()
        assert rest.endswith(b"0\r\n\r\n")
        assert (await idle_reader.read()) == b""
        # The request that was running is answered.
        await gateway.mesh.emit(run, delta("x"))
        assert [event["sequence"] for event in (await poll).json()["data"]["events"]] == [2]
        async with asyncio.timeout(90):
            assert await gateway.process.wait() == 0
        with pytest.raises(httpx.ConnectError):
            await client.get("/healthz")
    assert body
    assert run.record.status == 2
    assert "Traceback" not in gateway.log.read_text()


async def test_i33_what_the_grace_is_too_short_for_is_told_to_come_again(start_gateway: Any) -> None:
    gateway: Running = await start_gateway(HARNESS_SHUTDOWN_GRACE_SECONDS="1")
    run = await gateway.mesh.make_run()
    async with gateway.client() as client:
        poll = asyncio.create_task(
            client.get(f"/api/v1/runs/{run.record.run_id}/events", params={"after": 1, "wait": 30})
        )
        async with asyncio.timeout(30):
            while not gateway.mesh.counts["ListEvents"]:
                await client.get("/healthz")
        gateway.process.send_signal(signal.SIGTERM)
        answer = await poll
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert int(answer.headers["Retry-After"]) > 0
        async with asyncio.timeout(30):
            assert await gateway.process.wait() == 0


async def test_i33_a_subscriber_that_never_reads_does_not_hold_the_stop_up(start_gateway: Any) -> None:
    gateway: Running = await start_gateway(HARNESS_SHUTDOWN_GRACE_SECONDS="30")
    run = await gateway.mesh.make_run()
    stuck = await RawStream.open(gateway, run, receive_buffer=4096)
    async with (
        gateway.client() as client,
        client.stream("GET", f"/api/v1/runs/{run.record.run_id}/events/stream") as response,
    ):
        # 20 MB, which the other one takes: what one connection buffers is passed by far.
        await gateway.mesh.emit(run, *(delta("z" * 20_000) for _ in range(1000)))
        size = 0
        async for piece in response.aiter_bytes():
            size += len(piece)
            if size > 20_000_000:
                break
    gateway.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(90):
        assert await gateway.process.wait() == 0
    stuck.close()


async def test_i33_a_second_signal_stops_at_once(start_gateway: Any) -> None:
    gateway: Running = await start_gateway(HARNESS_SHUTDOWN_GRACE_SECONDS="300")
    run = await gateway.mesh.make_run()
    async with gateway.client() as client:
        poll = asyncio.create_task(
            client.get(f"/api/v1/runs/{run.record.run_id}/events", params={"after": 1, "wait": 30})
        )
        async with asyncio.timeout(30):
            while not gateway.mesh.counts["ListEvents"]:
                await client.get("/healthz")
        gateway.process.send_signal(signal.SIGTERM)
        gateway.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(90):
            assert await gateway.process.wait() == 0
        # It was not waited for: cut off, or told that the call was given up.
        [answer] = await asyncio.gather(poll, return_exceptions=True)
        assert isinstance(answer, httpx.TransportError) or (
            isinstance(answer, httpx.Response) and answer.status_code >= 400
        )


async def test_listens_on_a_unix_socket_too(start_gateway: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="gw") as folder:
        await start_gateway(HARNESS_LISTEN=f"unix:{folder}/g")
        assert stat.S_IMODE(os.stat(f"{folder}/g").st_mode) == 0o600
        transport = httpx.AsyncHTTPTransport(uds=f"{folder}/g")
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers()) as client:
            assert (await client.get("/api/v1/harnesses")).status_code == 200


async def test_the_development_token_is_the_default_on_loopback(start_gateway: Any) -> None:
    gateway: Running = await start_gateway(HARNESS_API_TOKENS="")
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers(token="local-development-only")) as client:
        assert (await client.get("/api/v1/harnesses")).status_code == 200


# --- the operational pages ---


async def test_liveness_readiness_and_metrics_need_no_credential(gateway: Running) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        assert (await client.get("/healthz")).json() == {"success": True, "data": {"status": "ok"}}
        ready = await client.get("/readyz")
        assert ready.status_code == 200
        assert ready.json()["data"] == {
            "ready": True,
            "services": {"catalog": "ready", "runs": "ready", "sessions": "ready"},
            # An adapter that is away is shown, and fails nothing.
            "harnesses": {"away": "unavailable", "toy": "available"},
        }
        assert (await client.head("/healthz")).status_code == 200
        await client.get("/api/v1/runs/r_secret_id", headers=headers("subject-in-no-metric"))
        text = (await client.get("/metrics")).text
    assert 'harness_http_requests_total{method="GET",route="/api/v1/runs/{run_id}",status="404"} 1.0' in text
    assert "harness_http_request_seconds_bucket" in text
    assert "subject-in-no-metric" not in text
    assert "r_secret_id" not in text
    assert render()


async def test_readiness_asks_the_services_no_more_than_once_a_moment(gateway: Running) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        answers = await asyncio.gather(*(client.get("/readyz") for _ in range(40)))
    assert {answer.status_code for answer in answers} == {200}
    assert gateway.mesh.counts["ListHarnesses"] <= 3


async def test_openapi_is_valid_and_whole(gateway: Running) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        document = (await client.get("/openapi.json")).json()
        page = (await client.get("/docs")).text
    validate(document)
    served = {(each.http_method.lower(), each.template) for each in public_operations()}
    assert {(method, path) for path, methods in document["paths"].items() for method in methods} == served
    start = document["components"]["schemas"]["StartRunRequest"]
    assert set(start["required"]) == {"agent_id", "conversation_id", "message"}
    assert start["properties"]["on_conflict"]["enum"] == ["reject", "enqueue", "interrupt"]
    assert start["properties"]["agent_id"]["description"] == "The agent."
    assert document["paths"]["/api/v1/runs"]["post"]["responses"]["202"]
    for _, path in served:
        assert path in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<script" not in page


# --- every operation, once ---


async def test_harnesses(gateway: Running) -> None:
    async with gateway.client() as client:
        data = (await client.get("/api/v1/harnesses")).json()["data"]
        assert set(data) == {"contract_version", "catalog_revision", "harnesses"}
        away, toy = data["harnesses"]
        assert (away["harness_id"], away["options_schema"], away["certification"]) == ("away", None, None)
        assert toy["placements"] == ["sandbox_pod"]
        assert toy["options_schema"] == {"maxProperties": 3, "type": "object"}
        health = (await client.get("/api/v1/harnesses/toy/health")).json()["data"]
        assert health["report"]["checks"][0] == {
            "name": "provider",
            "status": "healthy",
            "reason": "",
            "last_success_at": None,
        }
        assert (await client.get("/api/v1/harnesses/nope/health")).status_code == 404


async def test_agents(gateway: Running) -> None:
    blueprint = {
        "id": "a1",
        "name": "A",
        "harness": {"id": "toy", "options": {"temperature": 1}},
        "model": {"policy": "alias", "alias": "big"},
    }
    async with gateway.client() as client:
        draft = await client.post("/api/v1/agent-drafts/validate", json={"blueprint": blueprint})
        assert draft.status_code == 200
        report = draft.json()["data"]
        assert set(report) == {
            "valid",
            "catalog_revision",
            "config_fingerprint",
            "normalized_blueprint",
            "issues",
            "capabilities",
        }
        assert report["valid"] is True
        assert report["normalized_blueprint"]["harness"]["options"] == {"temperature": 1}
        assert report["capabilities"]["stream.text"]["level"] == "native"
        incompatible = await client.post(
            "/api/v1/agent-drafts/validate", json={"blueprint": {"id": "!", "harness": {"id": "x"}}}
        )
        assert (incompatible.status_code, incompatible.json()["data"]["valid"]) == (200, False)
        saved = await client.put("/api/v1/agents/a1", json={"blueprint": blueprint, "expected_revision": 0})
        assert saved.status_code == 200, saved.text
        assert saved.json()["data"]["record"]["current_version"] == 1
        stale = await client.put("/api/v1/agents/a1", json={"blueprint": blueprint, "expected_revision": 0})
        assert (stale.status_code, stale.json()["code"]) == (409, "revision_conflict")
        unknown = await client.put("/api/v1/agents/a1", json={"blueprint": {**blueprint, "harness": {"id": "nope"}}})
        assert (unknown.status_code, unknown.json()["details"][0]["path"]) == (422, "blueprint.harness.id")
        mismatch = await client.put("/api/v1/agents/a1", json={"blueprint": blueprint, "agent_id": "a2"})
        assert mismatch.json()["details"][0]["code"] == "path_mismatch"
        assert (
            await client.put("/api/v1/agents/a1", json={"blueprint": blueprint, "agent_id": "a1"})
        ).status_code == 200
        assert [agent["agent_id"] for agent in (await client.get("/api/v1/agents")).json()["data"]["agents"]] == ["a1"]
        current = (await client.get("/api/v1/agents/a1")).json()["data"]
        assert current["version"]["blueprint"]["model"] == {"policy": "alias", "alias": "big"}
        versions = (await client.get("/api/v1/agents/a1/versions", params={"page_size": 5})).json()["data"]["versions"]
        assert [version["version"] for version in versions] == [2, 1]
        assert (await client.get("/api/v1/agents/a1/versions/1")).json()["data"]["version"]["version"] == 1
        assert (await client.get("/api/v1/agents/a1/versions/9")).status_code == 404
        assert (await client.get("/api/v1/agents/a1/versions/x")).json()["details"][0]["path"] == "version"
        disabled = (await client.delete("/api/v1/agents/a1")).json()["data"]
        assert (disabled["agent_id"], disabled["enabled"]) == ("a1", False)


async def test_runs(gateway: Running) -> None:
    async with gateway.client() as client:
        body = {
            "agent_id": "a",
            "conversation_id": "c",
            "message": "m",
            "client_request_id": "q",
            "on_conflict": "enqueue",
        }
        answers = await asyncio.gather(*(client.post("/api/v1/runs", json=body) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {202}
        assert len({answer.json()["data"]["run_id"] for answer in answers}) == 1
        other = await client.post("/api/v1/runs", json={**body, "message": "other"})
        assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")
        run = answers[0].json()["data"]
        assert set(run) >= {
            "run_id", "agent_id", "conversation_id", "agent_version", "binding_id", "harness_id", "profile_id", "status", "last_sequence",
            "client_request_id", "error_code", "created_at", "updated_at",
        }  # fmt: skip
        assert (run["created_at"], run["updated_at"]) == ("2030-03-17T17:46:40Z", None)
        listed = (await client.get("/api/v1/runs", params={"agent_id": "a", "conversation_id": "c"})).json()["data"]
        assert [each["run_id"] for each in listed["runs"]] == [run["run_id"]]
        cancelled = (await client.delete(f"/api/v1/runs/{run['run_id']}")).json()["data"]
        assert cancelled["status"] == "cancelled"
        again = (await client.delete(f"/api/v1/runs/{run['run_id']}")).json()["data"]
        assert again == cancelled
        active = await client.post("/api/v1/runs/cancel-active", json={"agent_id": "a", "conversation_id": "c"})
        assert active.json() == {"success": True, "data": {"cancelled": False, "run_id": ""}}
        cleared = await client.post("/api/v1/sessions/clear", json={"agent_id": "a", "conversation_id": "c"})
        assert cleared.json()["data"] == {"cleared": True, "closed_binding_id": "bnd_1", "next_epoch": 2}
        invoked = await client.post("/api/v1/invoke", json={"agent_id": "a", "conversation_id": "c", "message": "hi"})
        assert invoked.json()["data"] == {"content": "echo hi", "thinking": None, "run_id": "run_1", "usage": None}


async def test_i13_gateway_death_does_not_touch_a_run(start_gateway: Any) -> None:
    """SIGKILL while a subscriber follows; another gateway goes on at the cursor, with the same bytes."""
    first: Running = await start_gateway()
    run = await first.mesh.make_run()
    stream = await RawStream.open(first, run)
    await stream.until(b"run.started")
    os.kill(first.process.pid, signal.SIGKILL)
    await first.process.wait()
    await first.mesh.emit(run, delta("meanwhile"))
    await first.mesh.finish(run)
    second: Running = await start_gateway()
    async with second.client() as client:
        path = f"/api/v1/runs/{run.record.run_id}/events/stream"
        rest = (await client.get(path, headers={"Last-Event-ID": "1"})).content
        whole = (await client.get(path)).content
    assert [frame["id"] for frame in frames(rest)] == [2, 3]
    assert whole.endswith(rest)
    assert first.mesh.counts["CancelRun"] == 0
