"""Bad input against a whole mesh, from outside: each gets the documented answer, in bounded memory, and the mesh goes on."""

from __future__ import annotations

import json
import re
import resource
import socket
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf import message_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.catalog.v1 import agent_service_pb2, harness_service_pb2, resolution_service_pb2
from harness.common.v1 import fence_pb2
from harness.run.v1 import run_service_pb2
from harness.sandbox.v1 import sandbox_service_pb2
from harness.session.v1 import session_service_pb2
from harness.state.v1 import thread_state_service_pb2
from services.common.caller import Capability
from services.common.capability_token import CapabilitySigner, generate_private_key
from tests.e2e.turns import assert_whole, conversation, save_agent, start, start_body, text_of, watch
from tests.support.mesh import HARNESS, TOKEN, RunningMesh

HEAD = f"Host: x\r\nAuthorization: Bearer {TOKEN}\r\nX-Harness-Engine-Subject: someone\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"
JSON = "Content-Type: application/json\r\n"
Json = dict[str, Any]


@pytest.fixture(autouse=True)
def the_mesh_goes_on(mesh: RunningMesh, client: httpx.Client) -> Generator[None]:
    """After every test: the same processes, an ordinary turn, nothing secret said and no traceback in any log."""
    before = {entry["service"]: entry["pid"] for entry in mesh.state["processes"]}
    yield
    assert {entry["service"]: entry["pid"] for entry in mesh.state["processes"]} == before
    agent = save_agent(client)
    events = watch(client, start(client, agent, "hello", conversation()))
    assert_whole(events)
    assert "hello" in text_of(events)
    secrets = [path.read_text().strip() for path in (mesh.data_dir / "secrets").iterdir()]
    for log in (mesh.data_dir / "logs").glob("*.log"):
        said = log.read_text("utf-8", "replace")
        assert "Traceback" not in said, log
        assert not [secret for secret in (*secrets, TOKEN, "secret-canary") if secret in said], log


def refused(answer: httpx.Response, status: int, code: str) -> list[Json]:
    """The details of a failure, which must be in the envelope."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"success", "error", "code", "details"}, body
    assert (body["success"], body["code"]) == (False, code)
    details: list[Json] = body["details"]
    return details


def paths(details: list[Json]) -> set[str]:
    return {detail["path"] for detail in details}


def memory_mib(mesh: RunningMesh) -> dict[str, float]:
    """What each process holds."""
    found: dict[str, float] = {}
    for entry in mesh.state["processes"]:
        status = Path(f"/proc/{entry['pid']}/status").read_text()
        found[entry["service"]] = int(status.split("VmRSS:")[1].split()[0]) / 1024
    return found


def assert_grown_less(mesh: RunningMesh, before: dict[str, float], mebibytes: float) -> None:
    grown = {service: size - before[service] for service, size in memory_mib(mesh).items()}
    assert max(grown.values()) < mebibytes, grown


# --- bodies ---


def _nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


BODIES: list[tuple[str, bytes, set[str]]] = [
    ("nothing", b"", {""}),
    ("half", b'{"message": "', {""}),
    ("not an object", b"[1]", {""}),
    ("two documents", b"{} {}", {""}),
    ("UTF-16", '{"a": 1}'.encode("utf-16"), {""}),
    ("invalid UTF-8", b'{"message": "\xc3\x28"}', {""}),
    ("a hundred thousand levels", _nested(100_000).encode(), {""}),
    (
        "everything wrong",
        b'{"agent_id": 7, "conversation_id": ["x"], "message": "a\\u0000", "context": {}, "client_context": {"n": 1e999, "m": NaN}, '
        b'"files": [1, null, "a"], "on_conflict": "never", "zzz": 1, "zzz": 2}',
        {
            "agent_id", "conversation_id", "message", "context", "client_context.n", "client_context.m", "files[0]", "files[1]",
            "on_conflict", "zzz",
        },
    ),
    (
        "everything hostile",
        json.dumps(
            {"agent_id": "../etc/passwd", "conversation_id": "a b", "message": "", "context": "x" * 500_001, "files": ["../x"], "client_request_id": "\u202e"}
        ).encode(),
        {"agent_id", "conversation_id", "message", "context", "files[0]", "client_request_id"},
    ),
    ("too many files", json.dumps(start_body("a", "m", "c", files=["f"] * 33)).encode(), {"files"}),
    ("a long message", json.dumps(start_body("a", "é" * 524_289, "c")).encode(), {"message"}),
    ("deep context", json.dumps(start_body("a", "m", "c", client_context=json.loads(_nested(9)))).encode(), {"client_context"}),
]  # fmt: skip


def test_i35_bodies_that_are_refused_in_one_answer(client: httpx.Client) -> None:
    agent = save_agent(client)
    for name, body, expected in BODIES:
        body = body.replace(b'"agent_id": "a"', f'"agent_id": "{agent}"'.encode())
        for path in ("/api/v1/runs", "/api/v1/invoke"):
            answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
            found = paths(refused(answer, 422, "invalid_request"))
            assert expected <= found or any(path.startswith("client_context") for path in expected & found | found), (
                name
            )
    assert client.get("/api/v1/runs", params={"agent_id": agent}).json()["data"]["runs"] == []


def test_blueprints_that_are_refused_in_one_answer(client: httpx.Client) -> None:
    def blueprint(**changes: Any) -> Json:
        return {
            "id": "hostile",
            "name": "x",
            "harness": {"id": "reference", "profile_id": "default"},
            "prompt": {"system": "s"},
            **changes,
        }

    for sent, expected in [
        (blueprint(harness={"id": "nope", "profile_id": "default"}), {"harness.id"}),
        (blueprint(harness={"id": "reference", "profile_id": "nope"}), {"harness.profile_id"}),
        (
            blueprint(harness={"id": "reference", "profile_id": "default", "options": {"arn": "x", "region": [1]}}),
            {"harness.options.arn", "harness.options.region"},
        ),
        (blueprint(limits={"max_run_seconds": 0, "max_tool_calls": 10**9}), {"limits.max_run_seconds", "limits.max_tool_calls"}),
        (blueprint(id="..", name="", zzz=1), {"zzz"}),
        (blueprint(id="another"), {"id"}),
    ]:  # fmt: skip
        answer = client.put("/api/v1/agents/hostile", json={"blueprint": sent})
        details = refused(answer, 422, "invalid_request")
        assert {f"blueprint.{path}" for path in expected} <= paths(details), (sent, details)
    refused(client.get("/api/v1/agents/hostile"), 404, "not_found")


def test_i35_oversized_bodies_with_and_without_a_length(client: httpx.Client, mesh: RunningMesh) -> None:
    before = memory_mib(mesh)
    piece = b"x" * 1_000_000

    def chunks() -> Generator[bytes]:
        for _ in range(12):
            yield piece

    refused(client.post("/api/v1/runs", content=b"x" * 10_485_761), 413, "body_too_large")
    refused(client.post("/api/v1/runs", content=chunks()), 413, "body_too_large")
    assert_grown_less(mesh, before, 60)


# --- scripts a harness is asked to play ---


def test_turns_that_ask_for_nonsense_end_truthfully(client: httpx.Client) -> None:
    agent = save_agent(client)
    for message in (
        '{"n": -1}',
        '{"n": 1e99}',
        '{"script": [{"nope": 1}]}',
        '{"script": [{"exit": 1}]}',
        '{"script": ' + "[" * 500 + "]" * 500 + "}",
        '{"script": [{"text": "x", "message_id": "../é"}]}',
        '{"script": [{"tool_result": {"result": "' + "z" * 400_000 + '"}}]}',
        '{"script": [{"usage": {"input_tokens": -5}}]}',
        '{"script": [{"sleep": "x"}]}',
    ):
        events = watch(client, start(client, agent, message, conversation()))
        assert_whole(events)
        assert events[-1].event_type == "run.failed", message
        assert events[-1].data["category"] in ("configuration", "protocol"), events[-1].data
        answer = client.post("/api/v1/invoke", json=start_body(agent, message, conversation()))
        assert answer.status_code in (422, 502), answer.text


# --- paths, parameters, cursors, credentials ---


def test_hostile_ids_paths_and_cursors(client: httpx.Client) -> None:
    run_id = start(client, save_agent(client), '{"n": 3}', conversation())
    length = len(watch(client, run_id))
    for path, status in [
        ("/api/v1/runs/..%2F..%2Fetc%2Fpasswd", 422),
        ("/api/v1/runs/%00", 422),
        ("/api/v1/runs/%C3%A9/events", 422),
        ("/api/v1/runs/%zz", 422),
        ("/api/v1/runs/" + "x" * 129, 422),
        ("/api/v1/runs/%2e%2e/x", 404),
        ("//api/v1/runs", 404),
        ("/api/v1/runs%2Fx", 404),
        ("/api/v1/agents/..%00", 422),
        ("/api/v1/agents?page_token=AAAA", 422),
        ("/api/v1/runs?page_token=%00", 422),
        ("/api/v1/runs?conversation_id=c", 422),
        ("/api/v1/agents/none/versions/99999999999", 422),
        *((f"/api/v1/runs/{run_id}/events{stream}?after={bad}", 422) for stream in ("", "/stream") for bad in ("-1", "x", "4294967296", "1e3", "")),
        (f"/api/v1/runs/{run_id}/events?wait=31", 422),
        (f"/api/v1/runs/{run_id}/events?limit=1001", 422),
        (f"/api/v1/runs/{run_id}/events/stream?protocol=morse", 422),
    ]:  # fmt: skip
        refused(client.get(path), status, "not_found" if status == 404 else "invalid_request")
    assert watch(client, run_id, after=length + 1000) == []
    past = client.get(f"/api/v1/runs/{run_id}/events", params={"after": 4_000_000_000, "wait": 30}).json()["data"]
    assert past["events"] == []
    for headers, code in [
        ([("Last-Event-ID", "-1")], "wrong_type"),
        ([("Last-Event-ID", "1"), ("Last-Event-ID", "2")], "duplicate_parameter"),
    ]:
        details = refused(client.get(f"/api/v1/runs/{run_id}/events/stream", headers=headers), 422, "invalid_request")
        assert paths(details) == {"Last-Event-ID"}, code
    for method, path, status in [
        ("HEAD", "/api/v1/runs", 405),
        ("OPTIONS", "/api/v1/runs", 405),
        ("PATCH", f"/api/v1/runs/{run_id}", 405),
        ("TRACE", "/healthz", 405),
    ]:
        answer = client.request(method, path)
        assert (answer.status_code, "allow" in answer.headers) == (status, True)


def test_i2_foreign_and_unknown_runs_have_one_answer(client: httpx.Client, mesh: RunningMesh) -> None:
    run_id = start(client, save_agent(client), '{"n": 2}', conversation())
    watch(client, run_id)
    with mesh.client("another") as other:
        answers = {
            (answer.status_code, answer.content)
            for name in (run_id, "run_00000000000000000000000000")
            for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events"), ("GET", "/events/stream"))
            for answer in [other.request(method, f"/api/v1/runs/{name}{path}")]
        }
    assert [status for status, _ in answers] == [404]


def test_missing_wrong_and_doubled_credentials(client: httpx.Client, mesh: RunningMesh) -> None:
    token, subject = (b"Authorization", f"Bearer {TOKEN}".encode()), (b"X-Harness-Engine-Subject", b"someone")
    sent: list[tuple[bytes, bytes]]
    with httpx.Client(base_url=mesh.url, trust_env=False, timeout=60) as nobody:
        for sent in [
            [],
            [subject],
            [token],
            [token, token, subject],
            [token, subject, subject],
            [token, (subject[0], b"")],
            [token, (subject[0], b"x" * 257)],
            [token, (subject[0], b"\xe9")],
            [(token[0], b"Bearer secret-canary"), subject],
            [(token[0], f"Basic {TOKEN}".encode()), subject],
        ]:
            for method, path in (
                ("GET", "/api/v1/runs"),
                ("POST", "/api/v1/runs"),
                ("GET", "/api/v1/runs/x/events/stream"),
            ):
                refused(nobody.request(method, path, headers=sent), 401, "unauthenticated")  # fmt: skip


# --- shapes of HTTP ---


def exchange(mesh: RunningMesh, data: bytes) -> bytes:
    """Sends raw bytes, and reads until the gateway closes."""
    host, port = mesh.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=40) as connection:
        connection.sendall(data)
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    return answer


def statuses(answer: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


def test_shapes_of_request_smuggling(mesh: RunningMesh) -> None:
    post = f"POST /api/v1/runs HTTP/1.1\r\n{HEAD}{JSON}"
    inner = f"GET /healthz HTTP/1.1\r\n{HEAD}Connection: close\r\n\r\n"
    for name, sent, expected in [
        ("length and chunks", f"{post}Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}", [400]),
        ("two codings", f"{post}Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n{inner}", [400]),
        ("odd coding", f"{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{inner}", [400]),
        *((f"length {n}", f"{post}Content-Length: {n}\r\n\r\n{{}}", [400]) for n in ("-1", "+2", "0x2", "2, 2", "1_0", "9" * 30)),
        ("two lengths", f"{post}Content-Length: 2\r\nContent-Length: 2\r\n\r\n{{}}", [400]),
        ("endless length", f"{post}Content-Length: {2**64 - 1}\r\n\r\n{{}}", [413]),
        ("no chunk size", f"{post}Transfer-Encoding: chunked\r\n\r\nZZ\r\n{{}}\r\n0\r\n\r\n", [400]),
        ("a lying chunk", f"{post}Transfer-Encoding: chunked\r\n\r\n1\r\n{{}}\r\n0\r\n\r\n", [400]),
        ("a length too small", f"{post}Content-Length: 2\r\n\r\n{{}}GARBAGE\r\n\r\n", [422]),
        ("a body behind an upgrade", f"{post}Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: {len(inner)}\r\n\r\n{inner}", [400]),
        ("an unread body", f"POST /nope HTTP/1.1\r\n{HEAD}Content-Length: {len(inner)}\r\n\r\n{inner}", [404]),
        ("a credential in a trailer", f"POST /api/v1/runs HTTP/1.1\r\n{CHUNKED}Connection: close\r\n\r\n2\r\n{{}}\r\n0\r\n{HEAD}\r\n", [401]),
        ("a space before the colon", f"GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n{inner}", [400]),
        ("a folded header", "GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: b\r\n c\r\n\r\n", [400]),
        ("NUL in a header", "GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: a\0b\r\n\r\n", [400]),
        ("a tunnel", f"CONNECT x:443 HTTP/1.1\r\n{HEAD}\r\n", [400]),
        ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
        ("HTTP/1.0", "GET /healthz HTTP/1.0\r\n\r\n", [200]),
        ("a large head", f"GET /healthz HTTP/1.1\r\nX-A: {'a' * 40_000}\r\n\r\n", [431]),
        ("a large path", f"GET /{'a' * 40_000} HTTP/1.1\r\n\r\n", [431]),
        ("pipelining", f"GET /healthz HTTP/1.1\r\n{HEAD}\r\n" * 3 + inner, [200] * 4),
        ("a wrong trace", f"GET /api/v1/runs HTTP/1.1\r\n{HEAD}traceparent: \xff00-zz\r\nConnection: close\r\n\r\n", [200]),
    ]:  # fmt: skip
        assert statuses(exchange(mesh, sent.encode("latin-1"))) == expected, name


def test_i35_two_thousand_idle_connections_and_heads_that_drip(client: httpx.Client, mesh: RunningMesh) -> None:
    before = memory_mib(mesh)
    with many_connections(mesh, 2000) as connections:
        for connection in connections[::2]:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-")
        run_id = start(client, save_agent(client), "hello", conversation())
        assert_whole(watch(client, run_id))
        assert_grown_less(mesh, before, 60)
        # Each is closed once its head is ten seconds late.
        for connection in connections:
            connection.settimeout(40)
            assert connection.recv(1) == b""


@contextmanager
def many_connections(mesh: RunningMesh, number: int) -> Generator[list[socket.socket]]:
    host, port = mesh.url.removeprefix("http://").split(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + 512
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
    try:
        with ExitStack() as stack:
            yield [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(number)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_i14_subscribers_that_never_read(client: httpx.Client, mesh: RunningMesh) -> None:
    agent = save_agent(client)
    before = memory_mib(mesh)
    run_id = start(client, agent, '{"n": 50000}', conversation())
    with many_connections(mesh, 20) as stuck:
        for number, connection in enumerate(stuck):
            query = "" if number < 10 else f"?after={number * 2000}"
            connection.sendall(f"GET /api/v1/runs/{run_id}/events/stream{query} HTTP/1.1\r\n{HEAD}\r\n".encode())
        events = watch(client, run_id)
        assert_whole(events)
        assert len(events) == 50_002
        # What the kernel holds for each of them is bounded too.
        assert max(unsent_bytes(mesh)) < 1_000_000
        assert_grown_less(mesh, before, 120)


def unsent_bytes(mesh: RunningMesh) -> list[int]:
    """What the gateway's connections have written and their clients not taken."""
    port = f":{int(mesh.url.rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[4].split(":")[0], 16) for row in rows if row[1].endswith(port) and row[3] == "01"]


def test_i35_many_quick_runs_keep_memory_flat(client: httpx.Client, mesh: RunningMesh) -> None:
    agent = save_agent(client)

    def runs(number: int) -> None:
        for _ in range(number):
            answer = client.post("/api/v1/invoke", json=start_body(agent, '{"n": 2}', conversation()))
            assert answer.status_code == 200, answer.text

    runs(40)
    before = memory_mib(mesh)
    runs(160)
    assert_grown_less(mesh, before, 20)


# --- gRPC ---

SERVICES: list[tuple[str, Any]] = [
    ("catalog", agent_service_pb2),
    ("catalog", harness_service_pb2),
    ("catalog", resolution_service_pb2),
    ("sessions", session_service_pb2),
    ("runs", run_service_pb2),
    ("sandbox", sandbox_service_pb2),
]


def ask(
    channel: grpc.Channel, service: Any, method: Any, request: bytes, metadata: list[tuple[str, str]]
) -> grpc.StatusCode:
    """The code of a call with exactly these bytes and metadata."""
    path = f"/{service.full_name}/{method.name}"
    sent: Any = iter([request]) if method.client_streaming else request
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    try:
        answer: Any = getattr(channel, kind)(path)(sent, metadata=metadata, timeout=30)
        if method.server_streaming:
            list(answer)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def test_every_rpc_refuses_strangers_and_nonsense(mesh: RunningMesh) -> None:
    token = (mesh.data_dir / "secrets" / "service-token").read_text().strip()
    good = [("authorization", f"Bearer {token}"), ("harness-subject", "someone")]
    deep = b"\x0a\x00"
    for _ in range(60):
        deep = (
            b"\x0a" + (bytes([len(deep)]) if len(deep) < 128 else bytes([len(deep) & 127 | 128, len(deep) >> 7])) + deep
        )
    for name, module in SERVICES:
        # Its violations may need more room in the trailers than a channel allows unless told.
        with grpc.insecure_channel(mesh.address(name), options=[("grpc.max_metadata_size", 131_072)]) as channel:
            for service in module.DESCRIPTOR.services_by_name.values():
                for method in service.methods:
                    for metadata in (
                        [],
                        [("authorization", "Bearer secret-canary")],
                        [good[0], good[0]],
                        [good[0], good[1], good[1]],
                        [("authorization", f"Basic {token}")],
                    ):
                        assert ask(channel, service, method, b"\xff\xff", metadata) is grpc.StatusCode.UNAUTHENTICATED
                    for nonsense in (b"\xff\xff", b"\x0a\x80\x80\x80\x20x"):
                        code = ask(channel, service, method, nonsense, good)
                        assert code is grpc.StatusCode.INVALID_ARGUMENT, method.full_name
                    for wild in (b"", deep, hostile(method.input_type).SerializeToString()):
                        code = ask(channel, service, method, wild, good)
                        assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), method.full_name


def hostile(descriptor: Any, depth: int = 0) -> Any:
    """A message with every field set to what it should not be."""
    message = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if field.message_type is not None:
            if depth < 3 and not field.message_type.GetOptions().map_entry:
                inner = hostile(field.message_type, depth + 1)
                getattr(message, field.name).extend([inner]) if field.is_repeated else getattr(
                    message, field.name
                ).CopyFrom(inner)
            continue
        values: dict[int, Any] = {
            field.CPPTYPE_STRING: b"\xff\0" if field.type == field.TYPE_BYTES else "../\u202e\n\0" + "x" * 5000,
            field.CPPTYPE_INT32: -(2**31), field.CPPTYPE_INT64: -(2**63), field.CPPTYPE_UINT32: 2**32 - 1, field.CPPTYPE_UINT64: 2**64 - 1,
            field.CPPTYPE_ENUM: 99, field.CPPTYPE_BOOL: True, field.CPPTYPE_DOUBLE: float("nan"), field.CPPTYPE_FLOAT: float("inf"),
        }  # fmt: skip
        value = values[field.cpp_type]
        getattr(message, field.name).extend([value] * 40) if field.is_repeated else setattr(message, field.name, value)
    return message


def test_i28_the_facade_takes_only_tokens_that_were_signed_for_it(mesh: RunningMesh) -> None:
    key = (mesh.data_dir / "secrets" / "capability-key.pem").read_text()
    service_token = (mesh.data_dir / "secrets" / "service-token").read_text().strip()
    now = time.time()

    def capability(audience: str = "state") -> Capability:
        return Capability(
            audience=audience, binding_id="bnd_x", epoch=1, runtime_generation=1, run_id="run_x", tool_ids=()
        )

    genuine = CapabilitySigner(key)
    signed = genuine.sign(capability(), deadline_at=now + 600)
    head, payload, signature = signed.split(".")
    fence = fence_pb2.Fence(
        protocol_version=1, binding_id="bnd_x", epoch=1, runtime_generation=1, turn=1, run_id="run_x", run_generation=1
    )
    foreign = fence_pb2.Fence(
        protocol_version=1, binding_id="bnd_y", epoch=1, runtime_generation=1, turn=1, run_id="run_x", run_generation=1
    )
    request = thread_state_service_pb2.MarkUncertainRequest
    service = thread_state_service_pb2.DESCRIPTOR.services_by_name["ThreadStateService"]
    method = service.methods_by_name["MarkUncertain"]
    with grpc.insecure_channel(f"unix:{mesh.data_dir}/run/facade/state.sock") as channel:
        for name, credential in [
            ("none", ""),
            ("the service token", service_token),
            ("another key", CapabilitySigner(generate_private_key()).sign(capability(), deadline_at=now + 600)),
            ("expired", genuine.sign(capability(), deadline_at=now - 10)),
            ("for another facade", genuine.sign(capability("tools"), deadline_at=now + 600)),
            ("changed", ".".join((head, payload[:-2] + ("AA" if payload[-2:] != "AA" else "BB"), signature))),
            ("not signed", f"{head}.{payload}."),
            ("long", "a" * 20_000),
        ]:
            code = ask(
                channel,
                service,
                method,
                request(fence=fence).SerializeToString(),
                [("authorization", f"Bearer {credential}")],
            )
            assert code is grpc.StatusCode.UNAUTHENTICATED, name
        good = [("authorization", f"Bearer {signed}")]
        assert ask(channel, service, method, b"\xff", good) is grpc.StatusCode.INVALID_ARGUMENT
        # Genuine, but for what is not its own, or is not there.
        for wrong in (foreign, fence):
            code = ask(channel, service, method, request(fence=wrong).SerializeToString(), good)
            assert code not in (grpc.StatusCode.OK, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), code


# --- YAML ---


def test_files_the_command_and_the_catalog_refuse(mesh: RunningMesh, tmp_path: Path) -> None:
    bomb = "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*a, *a]\n" for n in range(50))
    reach = {"HARNESS_URL": mesh.url, "HARNESS_TOKEN": TOKEN, "HARNESS_SUBJECT": "someone"}
    for name, content, of_operator in [
        ("half", b"id: [", True),
        ("binary", b"\xff\xfe\0", False),
        ("bomb", bomb.encode(), True),
        ("deep", b"[" * 5000, False),
        ("tag", b"id: !!python/object/apply:os.system [echo secret-canary]", True),
        ("twice", b"id: a\nid: b\n", False),
        ("large", b"id: " + b"x" * 12_000_000, False),
        ("number", b"id: a\nlimits: {max_run_seconds: " + b"9" * 5000 + b"}\n", True),
    ]:
        file = tmp_path / f"{name}.yaml"
        file.write_bytes(content)
        assert_clear(command(["agents", "validate", str(file)], reach), file.name)
        if of_operator:
            start_up = ["up", "--port", "0", "--data-dir", str(tmp_path / "data"), "--config", str(file)]
            assert_clear(command(start_up, {}), file.name)


def command(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(HARNESS), *arguments], env={"PATH": "/usr/bin:/bin", "NO_COLOR": "1", "COLUMNS": "300", **environment},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def assert_clear(done: subprocess.CompletedProcess[str], file: str) -> None:
    said = done.stdout + done.stderr
    assert done.returncode not in (0, -9), said
    assert file in said, said
    assert "Traceback" not in said
    assert len(said) < 4000


# --- the gateway's own description, at random ---

UNHURRIED = [HealthCheck.too_slow, HealthCheck.data_too_large]
_TEXT = st.text(max_size=40)
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)


def test_random_requests_to_every_operation_of_the_description(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    operations = [
        (method, path, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in ("get", "put", "post", "delete") and path.startswith("/api/")
    ]
    assert len(operations) >= 15

    @settings(max_examples=250, deadline=None, database=None, derandomize=True, suppress_health_check=UNHURRIED)
    @given(st.data())
    def attack(data: st.DataObject) -> None:
        method, path, operation = data.draw(st.sampled_from(operations))
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "path":
                text = data.draw(_TEXT | st.from_regex(r"[A-Za-z0-9._:-]{1,20}", fullmatch=True))
                path = path.replace("{" + parameter["name"] + "}", httpx.QueryParams({"": text}).__str__()[1:] or "x")
        query = {
            parameter["name"]: data.draw(_TEXT | st.integers().map(str))
            for parameter in operation.get("parameters", ())
            if parameter["in"] == "query" and data.draw(st.booleans())
        }
        # A wait that is allowed is no attack, and takes its time.
        query.pop("wait", None)
        body: Json = {}
        taken = operation.get("requestBody", {}).get("content", {})
        if "application/json" in taken:
            body["json"] = data.draw(fitting(document, resolve(document, taken["application/json"]["schema"]), 0))
        elif taken:
            body["content"] = data.draw(st.binary(max_size=200))
            body["headers"] = {
                "content-type": data.draw(st.sampled_from(("text/plain", "image/png", "", "a/b;c", "x")))
            }
        answer = client.request(method.upper(), path, params=query, **body)
        assert answer.status_code < 500, (method, path, query, body, answer.text)
        if not answer.headers["content-type"].startswith("text/event-stream"):
            assert set(answer.json()) in ({"success", "data"}, {"success", "error", "code", "details"})

    attack()


def resolve(document: Json, schema: Json) -> Json:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def fitting(document: Json, schema: Json, depth: int) -> st.SearchStrategy[Any]:
    """Values that often have the schema's shape, and sometimes do not."""
    schema = resolve(document, schema)
    makers: dict[Any, Callable[[], st.SearchStrategy[Any]]] = {
        "object": lambda: st.fixed_dictionaries(
            {},
            optional={name: fitting(document, part, depth + 1) for name, part in schema.get("properties", {}).items()},
        ),
        "array": lambda: st.lists(fitting(document, schema.get("items", {}), depth + 1), max_size=3),
        "string": lambda: st.sampled_from(schema["enum"]) if "enum" in schema else _TEXT | st.just("reference"),
        "integer": lambda: st.integers(-1, 2**33),
        "boolean": st.booleans,
    }
    kind = schema.get("type")
    shaped = makers[kind]() if isinstance(kind, str) and kind in makers and depth < 5 else _ANYTHING
    return st.one_of(shaped, shaped, shaped, _ANYTHING)
