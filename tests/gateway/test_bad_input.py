"""Bad input over HTTP: each gets the documented answer, in the envelope, all problems at once, and the gateway goes on."""

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio

from services.common.errors import HarnessError, Reason
from services.common.http_protocol import MAX_PIPELINED
from services.gateway.requests import MAX_BODIES
from tests.gateway.conftest import API_TOKEN, SECOND_API_TOKEN, Running, headers, run_gateway, toy_mesh
from tests.gateway.toy_mesh import CANARY, delta

pytestmark = pytest.mark.asyncio(loop_scope="module")
HEAD = f"Authorization: Bearer {API_TOKEN}\r\nX-Harness-Engine-Subject: alice\r\nHost: x\r\n"
RUN = {"agent_id": "agent", "conversation_id": "c", "message": "hello"}


@pytest.fixture
def gateway(shared_gateway: Running) -> Running:
    shared_gateway.mesh.forget()
    return shared_gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_small() -> AsyncIterator[Running]:
    bounds = {
        "HARNESS_MAX_BODY_BYTES": "2000",
        "HARNESS_BODY_TIMEOUT_SECONDS": "0.3",
        "HARNESS_HEADER_TIMEOUT_SECONDS": "0.3",
        "HARNESS_MAX_HEADER_BYTES": "2048",
    }
    async with toy_mesh() as mesh, run_gateway(mesh, **bounds) as running:
        yield running


@pytest.fixture
def small(shared_small: Running) -> Running:
    """A gateway whose bounds are soon reached."""
    shared_small.mesh.forget()
    return shared_small


async def exchange(port: int, data: bytes, *, half_close: bool = False) -> bytes:
    """Sends raw bytes and reads until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    if half_close:
        writer.write_eof()
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    return answer


async def eventually(ask: Callable[[], Awaitable[httpx.Response]]) -> None:
    """Until the answer is 200: for what nothing signals."""
    async with asyncio.timeout(30):
        for pause in itertools.chain((0.0,), itertools.repeat(0.05)):
            await asyncio.sleep(pause)
            try:
                if (await ask()).status_code == 200:
                    return
            except httpx.TransportError:
                continue


def parts(answer: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), fields, json.loads(body)


def check_failure(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"success", "error", "code", "details"}
    assert body["success"] is False
    assert body["code"] == code
    return body


def details(response: httpx.Response) -> dict[str, str]:
    return {detail["path"]: detail["code"] for detail in response.json()["details"]}


# --- bodies ---


@pytest.mark.parametrize(
    ("body", "problems"),
    [
        (b"", {"": "malformed_json"}),
        (b"{", {"": "malformed_json"}),
        (b"null", {"": "wrong_type"}),
        (b'{"message": "\xff"}', {"": "invalid_utf8"}),
        (b"[" * 50_000, {"": "too_deep"}),
        (
            b'{"message": "a\\u0000", "nope": 1, "files": [1]}',
            {"message": "invalid_text", "nope": "unknown_field", "files[0]": "wrong_type"},
        ),
        (b'{"client_context": {"n": 1e400}}', {"client_context.n": "out_of_range"}),
        (b'{"message": "a", "message": "b"}', {"message": "duplicate_key"}),
        (b'{"on_conflict": 7}', {"on_conflict": "wrong_type"}),
    ],
)
async def test_bodies_that_are_refused(gateway: Running, body: bytes, problems: dict[str, str]) -> None:
    async with gateway.client() as client:
        response = await client.post("/api/v1/runs", content=body, headers={"content-type": "application/json"})
        check_failure(response, 422, "invalid_request")
        assert details(response) == problems
        assert (await client.get("/healthz")).status_code == 200
    assert gateway.mesh.counts["StartRun"] == 0


async def test_constraints_of_the_contract_come_back_with_rest_paths(gateway: Running) -> None:
    async with gateway.client() as client:
        body = {"agent_id": "../etc/passwd", "conversation_id": "", "message": "", "client_request_id": "a b"}
        response = await client.post("/api/v1/runs", json=body)
        check_failure(response, 422, "invalid_request")
        assert set(details(response)) == {"agent_id", "conversation_id", "message", "client_request_id"}


async def test_content_type(gateway: Running) -> None:
    async with gateway.client() as client:
        for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"):
            response = await client.post("/api/v1/runs", content=b"{}", headers={"content-type": content_type})
            check_failure(response, 415, "invalid_request")
        for accepted in ("application/json", "Application/JSON; charset=UTF-8"):
            response = await client.post(
                "/api/v1/runs", content=json.dumps(RUN).encode(), headers={"content-type": accepted}
            )
            assert response.status_code in (202, 409), response.text


async def test_a_body_where_none_belongs(gateway: Running) -> None:
    async with gateway.client() as client:
        check_failure(await client.request("GET", "/api/v1/runs", content=b"{}"), 422, "invalid_request")


async def test_i35_body_over_the_limit_is_413_with_and_without_length(small: Running) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 1000

    async with small.client() as client:
        check_failure(await client.post("/api/v1/runs", content=b"x" * 3000), 413, "body_too_large")
        check_failure(await client.post("/api/v1/runs", content=chunks()), 413, "body_too_large")
        assert (await client.get("/healthz")).status_code == 200


async def test_i35_413_is_said_before_the_body_comes(small: Running) -> None:
    head = f"POST /api/v1/runs HTTP/1.1\r\n{HEAD}Content-Length: 999999999999\r\n\r\n"
    status, fields, body = parts(await exchange(small.port, head.encode()))
    assert (status, body["code"]) == (413, "body_too_large")
    assert fields["connection"] == "close"


async def test_i35_a_body_that_stops_half_way_is_closed(small: Running) -> None:
    head = f"POST /api/v1/runs HTTP/1.1\r\n{HEAD}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    status, fields, body = parts(await exchange(small.port, head.encode() + b'{"message"'))
    assert (status, body["success"]) == (408, False)
    assert fields["connection"] == "close"
    assert small.mesh.counts["StartRun"] == 0


async def test_i35_a_head_that_stops_half_way_is_closed(small: Running) -> None:
    assert await exchange(small.port, b"GET /healthz HTTP/1.1\r\nHos") == b""
    assert await exchange(small.port, b"") == b""


async def test_i35_head_over_the_limit_is_431(small: Running) -> None:
    complete = f"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: {'a' * 3000}\r\n\r\n"
    unfinished = f"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: {'a' * 3000}"
    many = "GET /healthz HTTP/1.1\r\nHost: x\r\n" + "".join(f"X-{n}: 1\r\n" for n in range(500)) + "\r\n"
    url = f"GET /{'a' * 3000} HTTP/1.1\r\nHost: x\r\n\r\n"
    for head in (complete, unfinished, many, url):
        status, _, body = parts(await exchange(small.port, head.encode()))
        assert (status, body["success"]) == (431, False)


async def test_what_is_no_http_is_400_in_the_envelope(small: Running) -> None:
    for garbage in (
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"G\0T / HTTP/1.1\r\n\r\n",
    ):
        status, _, body = parts(await exchange(small.port, garbage))
        assert (status, body["code"]) == (400, "invalid_request")


async def test_i35_all_bodies_together_are_bounded(start_gateway: Any) -> None:
    gateway: Running = await start_gateway(HARNESS_MAX_BODY_BYTES="2000")
    head = f"POST /api/v1/runs HTTP/1.1\r\n{HEAD}Content-Type: application/json\r\nContent-Length: 2000\r\n\r\n"
    held = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(MAX_BODIES)]
    for _, writer in held:
        writer.write(head.encode() + b"x" * 1999)
    body = json.dumps({**RUN, "context": "x" * 100})
    answers: list[httpx.Response] = []
    async with gateway.client() as client:

        async def ask(wanted: int) -> None:
            async with asyncio.timeout(30):
                while not answers or answers[-1].status_code != wanted:
                    answers.append(
                        await client.post("/api/v1/runs", content=body, headers={"Content-Type": "application/json"})
                    )

        # Until all of them have been read.
        await ask(503)
        check_failure(answers[-1], 503, "capacity")
        assert answers[-1].headers["retry-after"] == "1"
        for _, writer in held:
            writer.close()
        # The conversation is busy by now, or was before.
        await ask(409 if any(answer.status_code == 202 for answer in answers) else 202)


async def test_trailers_are_no_headers(gateway: Running) -> None:
    """A credential after the body is none, and nothing else of a trailer is kept."""
    body = b"2\r\n{}\r\n0\r\n" + HEAD.encode() + b"\r\n"
    start = "POST /api/v1/runs HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
    status, _, answer = parts(await exchange(gateway.port, f"{start}\r\n".encode() + body))
    assert (status, answer["code"]) == (401, "unauthenticated")
    # Sent twice, one of them in the trailer: the head alone counts.
    status, _, answer = parts(await exchange(gateway.port, f"{start}{HEAD}\r\n".encode() + body))
    assert (status, answer["code"]) == (422, "invalid_request")


async def test_i35_a_trailer_without_an_end_is_431(small: Running) -> None:
    head = f"POST /api/v1/runs HTTP/1.1\r\n{HEAD}Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", small.port)
    writer.write(head.encode())
    await reader.readuntil(b"100 Continue\r\n\r\n")
    writer.write(b"0\r\nX-Trailer: " + b"x" * 3000)
    async with asyncio.timeout(30):
        status, _, _ = parts(await reader.read())
    writer.close()
    assert status == 431


async def test_a_body_behind_an_upgrade_is_never_read_as_a_request(gateway: Running) -> None:
    inner = f"GET /healthz HTTP/1.1\r\n{HEAD}\r\n"
    head = f"POST /api/v1/runs HTTP/1.1\r\n{HEAD}Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: {len(inner)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head.encode())
    answer = await reader.read()
    status, fields, body = parts(answer)
    assert (status, body["code"], fields["connection"]) == (400, "invalid_request", "close")
    assert "Upgrade" in body["error"]
    writer.close()
    # Without a body the offer is declined by ignoring it.
    offer = f"GET /healthz HTTP/1.1\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n{HEAD}\r\n"
    assert parts(await exchange(gateway.port, offer.encode()))[0] == 200


# --- paths, parameters, cursors ---


async def test_unknown_paths_and_methods_are_in_the_envelope(gateway: Running) -> None:
    async with gateway.client() as client:
        for path in (
            "/",
            "/api",
            "/api/v1/nope",
            "/api/v1/runs/",
            "/api/v1/runs//events",
            "/api/v1/runs/%ff",
            "//healthz",
        ):
            check_failure(await client.get(path), 404, "not_found")
        response = await client.patch("/api/v1/runs")
        check_failure(response, 405, "invalid_request")
        assert response.headers["allow"] == "GET, POST"
        # The literal path wins over a run of that name.
        assert (await client.get("/api/v1/runs/cancel-active")).status_code == 405
        assert (await client.post("/healthz")).status_code == 405


@pytest.mark.parametrize(
    "run_id", ["%2e%2e%2f%2e%2e", "a%00b", "a%20b", "x" * 200, "a%2Fevents", "%E2%82%AC", "{run_id}"]
)
async def test_hostile_ids_are_refused_by_field(gateway: Running, run_id: str) -> None:
    async with gateway.client() as client:
        for path in (f"/api/v1/runs/{run_id}", f"/api/v1/runs/{run_id}/events", f"/api/v1/runs/{run_id}/events/stream"):
            response = await client.get(path)
            check_failure(response, 422, "invalid_request")
            assert set(details(response)) == {"run_id"}


@pytest.mark.parametrize(
    ("query", "problems"),
    [
        ("after=-1", {"after": "out_of_range"}),
        ("after=4294967296", {"after": "out_of_range"}),
        ("after=" + "9" * 100, {"after": "wrong_type"}),
        ("after=abc", {"after": "wrong_type"}),
        ("after=1.0", {"after": "wrong_type"}),
        ("after=", {"after": "wrong_type"}),
        ("after=%D9%A1", {"after": "wrong_type"}),
        ("after=1&after=2", {"after": "duplicate_parameter"}),
        ("after=%ff", {"after": "invalid_utf8"}),
        ("token=secret-in-the-query", {"": "unknown_parameter"}),
        ("after=x&limit=-1&wait=y", {"after": "wrong_type", "limit": "out_of_range", "wait": "wrong_type"}),
        ("&".join(f"a{n}=1" for n in range(100)), {"": "too_many_parameters"}),
    ],
)
async def test_bad_parameters(gateway: Running, query: str, problems: dict[str, str]) -> None:
    run = await gateway.mesh.make_run()
    async with gateway.client() as client:
        response = await client.get(f"/api/v1/runs/{run.record.run_id}/events?{query}")
        check_failure(response, 422, "invalid_request")
        assert details(response) == problems
        assert "secret-in-the-query" not in response.text


@pytest.mark.parametrize("cursor", ["-1", "x", "4294967296", "1, 2", ""])
async def test_bad_last_event_id(gateway: Running, cursor: str) -> None:
    run = await gateway.mesh.make_run()
    async with gateway.client() as client:
        path = f"/api/v1/runs/{run.record.run_id}/events/stream"
        response = await client.get(path, headers={"Last-Event-ID": cursor})
        check_failure(response, 422, "invalid_request")
        assert set(details(response)) == {"Last-Event-ID"}
        response = await client.get(path, params={"after": "-1", "protocol": "morse"})
        assert details(response) == {"after": "out_of_range", "protocol": "unknown_value"}


async def test_page_limits_of_the_contract(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    async with gateway.client() as client:
        response = await client.get(f"/api/v1/runs/{run.record.run_id}/events", params={"wait": 31, "limit": 1001})
        check_failure(response, 422, "invalid_request")
        assert set(details(response)) == {"wait", "limit"}


# --- credentials ---


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"X-Harness-Engine-Subject": "alice"},
        {"Authorization": f"Bearer {API_TOKEN}"},
        {"Authorization": f"Bearer {API_TOKEN}", "X-Harness-Engine-Subject": ""},
        {"Authorization": f"Bearer {API_TOKEN}", "X-Harness-Engine-Subject": "a" * 257},
        {"Authorization": f"Bearer {API_TOKEN}x", "X-Harness-Engine-Subject": "alice"},
        {"Authorization": f"Bearer {API_TOKEN[:-1]}", "X-Harness-Engine-Subject": "alice"},
        {"Authorization": f"Basic {API_TOKEN}", "X-Harness-Engine-Subject": "alice"},
        {"Authorization": API_TOKEN, "X-Harness-Engine-Subject": "alice"},
        {"Authorization": "Bearer", "X-Harness-Engine-Subject": "alice"},
        {"X-Harness-Engine-Subject": "alice", "Cookie": f"token={API_TOKEN}"},
    ],
)
async def test_missing_or_wrong_credentials_are_401(gateway: Running, sent: dict[str, str]) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        for method, path in (
            ("GET", "/api/v1/runs"),
            ("POST", "/api/v1/runs"),
            ("GET", "/api/v1/runs/r/events/stream"),
        ):
            response = await client.request(method, path, headers=sent)
            check_failure(response, 401, "unauthenticated")
            assert response.headers["www-authenticate"] == "Bearer"
    assert sum(gateway.mesh.counts.values()) == 0


@pytest.mark.parametrize(
    "twice",
    [
        f"Authorization: Bearer {API_TOKEN}\r\nAuthorization: Bearer {API_TOKEN}\r\nX-Harness-Engine-Subject: alice\r\n",
        f"Authorization: Bearer {API_TOKEN}\r\nX-Harness-Engine-Subject: alice\r\nX-Harness-Engine-Subject: bob\r\n",
        f"Authorization: Bearer {API_TOKEN}\r\nX-Harness-Engine-Subject: al\tice\r\n",
        f"Authorization: Bearer {API_TOKEN}\r\nX-Harness-Engine-Subject: alic\xe9\r\n",
    ],
)
async def test_duplicate_or_unclean_credential_headers_are_401(gateway: Running, twice: str) -> None:
    request = f"GET /api/v1/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{twice}\r\n"
    status, _, body = parts(await exchange(gateway.port, request.encode("latin-1")))
    assert (status, body["code"]) == (401, "unauthenticated")


async def test_every_token_is_accepted_and_none_is_logged(gateway: Running) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        for token in (API_TOKEN, SECOND_API_TOKEN):
            assert (await client.get("/api/v1/runs", headers=headers(token=token))).status_code == 200
        await client.get("/api/v1/runs", headers=headers(token="wrong-token-in-header"))
        await client.get("/api/v1/runs?access_token=wrong-token-in-query", headers=headers())
    log = gateway.log.read_text()
    for secret in (API_TOKEN, SECOND_API_TOKEN, "wrong-token-in-header", "wrong-token-in-query", "alice"):
        assert secret not in log


async def test_traceparent_is_passed_on_in_its_exact_shape_only(gateway: Running) -> None:
    good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with gateway.client() as client:
        for sent in (good, good.upper(), good + "-x", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "x"):
            await client.get("/api/v1/runs", headers={"traceparent": sent})
        await client.get("/api/v1/runs")
    seen = gateway.mesh.traceparents
    assert seen[0] == good
    assert len(seen) == 6
    assert good not in seen[1:]
    assert len(set(seen)) == 6


# --- errors from behind ---


async def test_i2_unknown_and_foreign_runs_have_one_body(gateway: Running) -> None:
    run = await gateway.mesh.make_run(owner="alice")
    await gateway.mesh.finish(run)
    answers: set[tuple[int, bytes]] = set()
    async with gateway.client("mallory") as client:
        for run_id in (run.record.run_id, "run_00000000000000000000000000"):
            for method, path in (
                ("GET", ""),
                ("DELETE", ""),
                ("GET", "/events"),
                ("GET", "/events/stream"),
                ("GET", "/events/stream?after=99"),
            ):
                response = await client.request(method, f"/api/v1/runs/{run_id}{path}")
                answers.add((response.status_code, response.content))
    assert len(answers) == 1
    assert answers.pop()[0] == 404
    assert run.record.status != 6


async def test_i2_a_shared_feed_is_no_way_in(gateway: Running) -> None:
    """While the owner follows a run, another subject finds nothing, at any cursor."""
    run = await gateway.mesh.make_run(owner="alice")
    path = f"/api/v1/runs/{run.record.run_id}/events/stream"
    async with (
        gateway.client("alice") as owner,
        gateway.client("mallory") as other,
        owner.stream("GET", path) as response,
    ):
        assert response.status_code == 200
        async for _ in response.aiter_bytes():
            break
        for query in ("", "?after=0", "?after=1", "?after=5"):
            check_failure(await other.get(path + query), 404, "not_found")


async def test_i22_nothing_of_an_unexpected_failure_reaches_the_client(gateway: Running) -> None:
    async with gateway.client() as client:
        gateway.mesh.fail_next = RuntimeError(f"secret {CANARY}")
        response = await client.get("/api/v1/runs")
        body = check_failure(response, 500, "internal")
        assert CANARY not in response.text
        assert body["details"][-1]["incident_id"].startswith("inc_")
        assert CANARY not in gateway.log.read_text()


async def test_facts_of_an_error(gateway: Running) -> None:
    async with gateway.client() as client:
        first = (await client.post("/api/v1/runs", json=RUN)).json()["data"]["run_id"]
        conflict = check_failure(await client.post("/api/v1/runs", json=RUN), 409, "harness_session_conflict")
        assert conflict["details"][-1]["run_id"] == first
        gateway.mesh.fail_next = HarnessError(Reason.CAPACITY, "Full.", retry_after=2.2)
        response = await client.get("/api/v1/runs")
        check_failure(response, 503, "capacity")
        assert response.headers["retry-after"] == "3"


async def test_services_that_are_away_are_503_and_found_again(gateway: Running) -> None:
    async with gateway.client() as client:
        await gateway.mesh.stop()
        response = await client.post("/api/v1/runs", json=RUN)
        check_failure(response, 503, "unavailable")
        assert int(response.headers["retry-after"]) >= 1
        ready = await client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["data"]["services"] == dict.fromkeys(("catalog", "runs", "sessions"), "unavailable")
        assert (await client.get("/healthz")).status_code == 200
        await gateway.mesh.start()
        await eventually(lambda: client.get("/readyz"))
        assert (await client.post("/api/v1/runs", json=RUN)).status_code == 202


# --- many at once ---


async def test_i35_two_thousand_idle_connections(start_gateway: Any) -> None:
    gateway = await start_gateway(HARNESS_HEADER_TIMEOUT_SECONDS="30")
    idle: list[socket.socket] = []
    try:
        for _ in range(2000):
            connection = socket.socket()
            connection.connect(("127.0.0.1", gateway.port))
            idle.append(connection)
        async with gateway.client() as client:
            assert (await client.post("/api/v1/runs", json=RUN)).status_code == 202
            assert "harness_http_connections 2001" in (await client.get("/metrics")).text
        assert gateway.memory_mib() < 250
    finally:
        for connection in idle:
            connection.close()


async def test_i35_one_connection_too_many_is_told_so(start_gateway: Any) -> None:
    gateway = await start_gateway(HARNESS_MAX_CONNECTIONS="8")
    held = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(8)]
    for reader, writer in held:
        # Answered once, each is surely counted.
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"}}")
    status, fields, body = parts(await exchange(gateway.port, b""))
    assert (status, body["code"]) == (503, "capacity")
    assert fields["retry-after"] == "1"
    for _, writer in held:
        writer.close()
    async with gateway.client() as client:
        await eventually(lambda: client.get("/healthz"))


async def test_i35_a_client_that_asks_and_takes_no_answers_is_dropped(start_gateway: Any) -> None:
    gateway: Running = await start_gateway(HARNESS_STREAM_STALL_SECONDS="0.5")
    run = await gateway.mesh.make_run()
    await gateway.mesh.emit(run, *(delta("x" * 9_000) for _ in range(100)))
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_connect(connection, ("127.0.0.1", gateway.port))
        # 40 times 0.9 MB: more than the buffers of both ends hold.
        await loop.sock_sendall(
            connection, f"GET /api/v1/runs/{run.record.run_id}/events HTTP/1.1\r\n{HEAD}\r\n".encode() * 40
        )
        async with gateway.client() as client, asyncio.timeout(30):
            while "harness_http_connections 1.0" not in (await client.get("/metrics")).text:
                await client.get("/healthz")
        assert gateway.mesh.counts["ListEvents"] < 40
    finally:
        connection.close()


async def test_pipelined_requests_are_answered_in_order(gateway: Running) -> None:
    one = f"GET /api/v1/harnesses/toy/health HTTP/1.1\r\n{HEAD}\r\n"
    two = f"GET /healthz HTTP/1.1\r\nConnection: close\r\n{HEAD}\r\n"
    answer = await exchange(gateway.port, (one + two).encode())
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.index(b'"harness_id":"toy"') < answer.index(b'"status":"ok"')


async def test_i35_pipelined_requests_beyond_the_bound_are_not_kept(gateway: Running) -> None:
    one = f"GET /healthz HTTP/1.1\r\n{HEAD}\r\n"
    answer = await exchange(gateway.port, one.encode() * 500)
    assert 1 <= answer.count(b"HTTP/1.1 200 OK") <= 1 + MAX_PIPELINED
    assert answer.count(b"HTTP/1.1") == answer.count(b"HTTP/1.1 200 OK")


async def test_what_is_no_http_is_not_the_answer_to_the_request_before_it(gateway: Running) -> None:
    good = f"GET /healthz HTTP/1.1\r\n{HEAD}\r\n"
    answer = await exchange(gateway.port, (good * 2 + "BAD\r\n\r\n").encode())
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.count(b"HTTP/1.1") == 2


async def test_events_are_not_lost_on_a_client_that_sends_garbage_meanwhile(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(f"GET /api/v1/runs/{run.record.run_id}/events/stream HTTP/1.1\r\n{HEAD}\r\n".encode())
    await reader.readuntil(b"run.started")
    writer.write(b"\0\0 garbage \r\n\r\n")
    await gateway.mesh.emit(run, delta("x"))
    # The connection is dropped, or goes on; the gateway lives.
    await reader.read()
    writer.close()
    await gateway.mesh.wait_watching(run.record.run_id, 0)
    async with gateway.client() as client:
        assert (await client.get("/healthz")).status_code == 200
