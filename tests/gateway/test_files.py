"""Files over REST, in front of a real sessions process: what is kept, who sees it, and what becomes of everything that is not a whole file."""

import asyncio
import hashlib
import json
import os
import signal
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any

import httpx
import pytest
import pytest_asyncio

from services.common.ids import Identity
from services.common.store.sqlite_records import SqliteRecordStore
from services.sessions.files.store import FILE_COLLECTIONS, FileStore
from tests.gateway.conftest import API_TOKEN, Running
from tests.gateway.kept_files import kept_by
from tests.sessions.processes import IDENTITY_KEY, Sessions

pytestmark = pytest.mark.asyncio(loop_scope="module")
LIMIT = 2_500_000
ROOM = 6
TEXT = {"content-type": "text/plain"}
HOSTILE = '../../etc/pass\\wd\r\nSet-Cookie: a=b\x1b[31m\u202egpj."exe;'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kept() -> AsyncIterator[tuple[Running, Sessions]]:
    bound = {"HARNESS_MAX_FILE_BYTES": str(LIMIT)}
    async with kept_by(bound, **bound, HARNESS_MAX_FILE_TRANSFERS=str(ROOM)) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def impatient() -> AsyncIterator[tuple[Running, Sessions]]:
    """Everything that waits is given up soon, and there is room for one transfer."""
    soon = {
        "HARNESS_BODY_TIMEOUT_SECONDS": "0.5",
        "HARNESS_STREAM_STALL_SECONDS": "0.5",
        "HARNESS_MAX_FILE_TRANSFERS": "1",
    }
    async with kept_by({}, **soon) as running:
        yield running


async def upload(client: httpx.AsyncClient, content: Any, status: int = 201, **query: str) -> Any:
    answer = await client.post("/api/v1/files", content=content, params=query, headers=TEXT)
    assert answer.status_code == status, answer.text
    return answer.json()["data" if status == 201 else "code"]


async def pieces(content: bytes, size: int = 50_000) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


def parts_without_file(sessions: Sessions) -> int:
    """Parts of uploads that are under way, or were left by one."""
    query = """select count(*) from records_file_parts
        where json_extract(cast(document as text), '$.file_id') not in (select key from records_files)"""
    with closing(sqlite3.connect(f"file:{sessions.database}?mode=ro", uri=True)) as connection:
        return int(connection.execute(query).fetchone()[0])


async def until(condition: Callable[[], Any]) -> None:
    """Bounded: nothing signals what another process does."""
    async with asyncio.timeout(90):
        while True:
            found = condition()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.02)


async def metric(gateway: Running, name: str) -> float:
    async with gateway.client() as client:
        text = (await client.get("/metrics")).text
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))


async def half_an_upload(gateway: Running, subject: str = "alice") -> asyncio.StreamWriter:
    """A connection with an upload of which a piece has been sent. Its head does not say how much is to come."""
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head = f"POST /api/v1/files HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_TOKEN}\r\nX-Harness-Engine-Subject: {subject}\r\n"
    size = 1_200_000
    writer.write(
        f"{head}Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n{size:x}\r\n".encode() + b"x" * size
    )
    await writer.drain()
    return writer


async def test_a_file_is_uploaded_listed_read_and_deleted(kept: tuple[Running, Sessions]) -> None:
    content = "grüße\n".encode() * 250_000
    async with kept[0].client("whole") as client:
        # In chunks, so that nobody knows beforehand how long it is.
        file = await upload(client, pieces(content), name="Bericht März.txt")
        assert (file["name"], file["media_type"], file["size"]) == ("Bericht März.txt", "text/plain", len(content))
        assert file["sha256"] == hashlib.sha256(content).hexdigest()
        path = f"/api/v1/files/{file['file_id']}"
        assert (await client.get(path)).json()["data"] == file
        listed = (await client.get("/api/v1/files")).json()["data"]
        assert listed == {"files": [file], "next_page_token": ""}
        answer = await client.get(f"{path}/content")
        assert (answer.status_code, answer.content) == (200, content)
        shown = {name: answer.headers[name] for name in answer.headers if name not in ("date", "connection")}
        assert shown == {
            "content-type": "text/plain; charset=utf-8",
            "content-length": str(len(content)),
            "content-disposition": "attachment; filename=\"Bericht M_rz.txt\"; filename*=UTF-8''Bericht%20M%C3%A4rz.txt",
            "content-security-policy": "default-src 'none'; sandbox",
            "x-content-type-options": "nosniff",
            "cache-control": "no-store",
            "accept-ranges": "none",
        }
        assert (await client.delete(path)).json()["data"] == {"file_id": file["file_id"]}
        for gone in (client.get(path), client.get(f"{path}/content"), client.delete(path)):
            assert (await gone).status_code == 404


async def test_i2_a_file_of_another_subject_is_not_there(kept: tuple[Running, Sessions]) -> None:
    async with kept[0].client("owner") as owner, kept[0].client("other") as other:
        file = await upload(owner, b"mine")
        for method, end in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            theirs = await other.request(method, f"/api/v1/files/{file['file_id']}{end}")
            nobodys = await other.request(method, f"/api/v1/files/fil_none{end}")
            assert (theirs.status_code, theirs.content) == (404, nobodys.content)
        assert (await other.get("/api/v1/files")).json()["data"]["files"] == []
        assert (await owner.get(f"/api/v1/files/{file['file_id']}/content")).content == b"mine"


async def test_the_same_upload_again_is_the_same_file(kept: tuple[Running, Sessions]) -> None:
    async with kept[0].client("again") as client:
        raced = await asyncio.gather(*(upload(client, b"one", client_request_id="u1") for _ in range(4)))
        assert {file["file_id"] for file in raced} == {raced[0]["file_id"]}
        assert await upload(client, b"two", 409, client_request_id="u1") == "idempotency_mismatch"
        assert len((await client.get("/api/v1/files")).json()["data"]["files"]) == 1


async def test_a_name_is_shown_and_never_obeyed(kept: tuple[Running, Sessions]) -> None:
    async with kept[0].client("names") as client:
        file = await upload(client, b"text", name=HOSTILE)
        assert file["name"] == '.._.._etc_pass_wd__Set-Cookie: a=b_[31m_gpj."exe;'
        answer = await client.get(f"/api/v1/files/{file['file_id']}/content")
        assert answer.headers.get_list("content-disposition") == [
            'attachment; filename="_.._etc_pass_wd__Set-Cookie_ a_b__31m_gpj._exe_"; '
            "filename*=UTF-8''.._.._etc_pass_wd__Set-Cookie%3A%20a%3Db_%5B31m_gpj.%22exe%3B"
        ]
        assert "set-cookie" not in answer.headers
        long = await client.post("/api/v1/files", content=b"text", params={"name": "n" * 4096}, headers=TEXT)
        assert (long.status_code, long.json()["details"][0]["path"]) == (422, "name")


@pytest.mark.parametrize(
    ("headers", "content", "status", "said"),
    [
        ({}, b"x", 415, "Content-Type once"),
        ({"content-type": "multipart/form-data; boundary=b"}, b"--b", 415, "not in a form"),
        ({**TEXT, "content-encoding": "gzip"}, b"x", 415, "without Content-Encoding"),
        ({"content-type": "text/html"}, b"<p>", 422, "send one of"),
        ({"content-type": "image/png"}, b"%PDF-1.7 no picture", 422, "is not image/png"),
        ({"content-type": "x" * 300}, b"x", 422, "media_type"),
        (TEXT, b"\x7fELF\x00", 422, "is not text/plain"),
        (TEXT, b"", 422, "empty"),
    ],
)
async def test_what_is_no_file_as_declared_is_refused(
    kept: tuple[Running, Sessions], headers: dict[str, str], content: bytes, status: int, said: str
) -> None:
    async with kept[0].client("refused") as client:
        answer = await client.post("/api/v1/files", content=content, headers=headers)
        assert (answer.status_code, answer.json()["success"]) == (status, False), answer.text
        assert said in answer.text
        assert (await client.get("/api/v1/files")).json()["data"]["files"] == []


async def test_i35_a_file_has_its_limit_and_not_a_byte_more(kept: tuple[Running, Sessions]) -> None:
    async with kept[0].client("limit") as client:
        exact = [await upload(client, body) for body in (b"x" * LIMIT, pieces(b"x" * LIMIT))]
        assert [file["size"] for file in exact] == [LIMIT, LIMIT]
        for body in (b"x" * (LIMIT + 1), pieces(b"x" * (LIMIT + 1))):
            answer = await client.post("/api/v1/files", content=body, headers=TEXT)
            assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
            assert f"at most {LIMIT} bytes: send a smaller one" in answer.json()["error"]
        assert len((await client.get("/api/v1/files")).json()["data"]["files"]) == 2


async def test_what_the_request_says_wrong_is_told_before_the_file_is_sent(kept: tuple[Running, Sessions]) -> None:
    async with kept[0].client("wrong") as client:
        answer = await client.post("/api/v1/files?media_type=text/plain&size=1", content=b"x", headers=TEXT)
        assert [issue["code"] for issue in answer.json()["details"]] == ["unknown_parameter"] * 2
        assert (await client.get("/api/v1/files", params={"page_size": 201})).status_code == 422
        assert (await client.get("/api/v1/files", params={"page_token": "no token"})).status_code == 422
        assert (await client.put("/api/v1/files", content=b"x", headers=TEXT)).status_code == 405
        assert (await client.get("/api/v1/files/a%2Fb")).status_code == 422
    async with httpx.AsyncClient(base_url=kept[0].url) as nobody:
        assert (await nobody.post("/api/v1/files", content=b"x", headers=TEXT)).status_code == 401


async def test_half_an_upload_leaves_nothing(kept: tuple[Running, Sessions]) -> None:
    gateway, sessions = kept
    await until(lambda: parts_without_file(sessions) == 0)
    writer = await half_an_upload(gateway, "half")
    await until(lambda: parts_without_file(sessions) > 0)
    writer.transport.abort()
    await until(lambda: parts_without_file(sessions) == 0)
    await until(lambda: _is(metric(gateway, "harness_file_transfers_active"), 0))
    async with gateway.client("half") as client:
        assert (await client.get("/api/v1/files")).json()["data"]["files"] == []


async def test_i35_one_transfer_too_many_is_told_to_come_again(kept: tuple[Running, Sessions]) -> None:
    gateway, _ = kept
    writers = [await half_an_upload(gateway, "many") for _ in range(ROOM)]
    await until(lambda: _is(metric(gateway, "harness_file_transfers_active"), ROOM))
    async with gateway.client("other") as client:
        answer = await client.post("/api/v1/files", content=b"x", headers=TEXT)
        assert (answer.status_code, answer.json()["code"]) == (503, "capacity")
        assert int(answer.headers["retry-after"]) > 0
        for writer in writers:
            writer.transport.abort()
        await until(lambda: _has_status(client.post("/api/v1/files", content=b"x", headers=TEXT), 201))


async def test_i34_sessions_that_died_take_no_file_and_the_gateway_goes_on(kept: tuple[Running, Sessions]) -> None:
    gateway, sessions = kept
    async with gateway.client("survivor") as client:
        await until(lambda: parts_without_file(sessions) == 0)
        writer = await half_an_upload(gateway, "survivor")
        await until(lambda: parts_without_file(sessions) > 0)
        assert sessions.process is not None
        os.kill(sessions.process.pid, signal.SIGKILL)
        sessions.process.wait(30)
        answer = await client.get("/api/v1/files")
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        await until(lambda: _says(client, "unavailable"))
        await sessions.start()
        await until(lambda: _says(client, "ready"))
        writer.close()
        await until(lambda: _has_status(client.post("/api/v1/files", content=b"x", headers=TEXT), 201))
        assert len((await client.get("/api/v1/files")).json()["data"]["files"]) == 1


async def test_i35_thousands_of_files_are_listed_in_pages(kept: tuple[Running, Sessions]) -> None:
    gateway, sessions = kept
    owner = Identity(IDENTITY_KEY.encode(), "local").owner_digest("collector")
    store = await SqliteRecordStore.open(sessions.database, FILE_COLLECTIONS)
    files = FileStore(store)
    known: dict[str, Any] = {"owner_id": owner, "media_type": "text/plain", "size": 9, "expires_at": 4_000_000_000_000}
    try:
        for start in range(0, 3000, 500):
            numbers = range(start, start + 500)
            documents: list[Any] = [
                {**known, "name": "n" * 255, "sha256": "0" * 64, "upload_id": f"up_{number}", "created_at": number}
                for number in numbers
            ]
            await asyncio.gather(
                *(files.insert(f"fil_{number}", each) for number, each in zip(numbers, documents, strict=True))
            )
    finally:
        await store.close()
    seen: list[str] = []
    async with gateway.client("collector") as client:
        token = ""
        while token or not seen:
            query = {"page_size": "200"} | ({"page_token": token} if token else {})
            answer = await client.get("/api/v1/files", params=query)
            assert len(answer.content) < 200_000
            page = answer.json()["data"]
            seen += [file["file_id"] for file in page["files"]]
            token = page["next_page_token"]
        assert seen == [f"fil_{number}" for number in reversed(range(3000))]
        assert len((await client.get("/api/v1/files")).json()["data"]["files"]) == 50
        # The newest thousand are as many as a subject may have, so there is no room for one more.
        assert await upload(client, b"x", 503) == "capacity"


async def test_i14_i35_slow_peers_lose_their_place(impatient: tuple[Running, Sessions]) -> None:
    gateway, _ = impatient
    writer = await half_an_upload(gateway)
    async with gateway.client() as client:
        # There is room for one, and nothing more of the first one comes: its place is free after a moment.
        await until(lambda: _has_status(client.post("/api/v1/files", content=b"x" * 9_000_000, headers=TEXT), 201))
        [file] = (await client.get("/api/v1/files")).json()["data"]["files"]
    writer.close()
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.to_thread(reader.connect, ("127.0.0.1", gateway.port))
    path = f"/api/v1/files/{file['file_id']}/content"
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_TOKEN}\r\nX-Harness-Engine-Subject: alice\r\n\r\n"
    reader.sendall(head.encode())
    await until(lambda: _is(metric(gateway, "harness_file_downloads_broken_total"), 1))
    await until(lambda: _is(metric(gateway, "harness_file_transfers_active"), 0))
    reader.close()
    assert "Traceback" not in gateway.log.read_text()


async def test_i14_a_large_file_passes_through_little_memory() -> None:
    size = 32 << 20
    bound = {"HARNESS_MAX_FILE_BYTES": str(size)}
    async with kept_by(bound, **bound) as (gateway, _), gateway.client() as client:
        await upload(client, b"warm")
        before = gateway.memory_mib()
        file = await upload(client, pieces(b"x" * size, 1 << 20))
        received = 0
        async with client.stream("GET", f"/api/v1/files/{file['file_id']}/content") as answer:
            async for piece in answer.aiter_raw():
                received += len(piece)
        assert received == size
        assert gateway.memory_mib("VmHWM") - before < 20


async def test_i22_names_and_content_are_in_no_log(kept: tuple[Running, Sessions]) -> None:
    gateway, _ = kept
    async with gateway.client("canary-subject") as client:
        await upload(client, b"canary-content", name="canary-name")
        await client.post("/api/v1/files?name=canary-name", content=b"\x00canary", headers=TEXT)
        await client.post("/api/v1/files?canary-name=1", content=b"canary", headers=TEXT)
    assert "canary" not in gateway.log.read_text()


async def test_the_description_says_what_is_sent_and_comes_back(kept: tuple[Running, Sessions]) -> None:
    async with kept[0].client() as client:
        paths = json.loads((await client.get("/openapi.json")).text)["paths"]
    sent = paths["/api/v1/files"]["post"]
    assert [each["name"] for each in sent["parameters"]] == ["name", "client_request_id"]
    assert list(sent["requestBody"]["content"]) == ["*/*"]
    assert list(sent["responses"]) == ["201", "default"]
    assert list(paths["/api/v1/files/{file_id}/content"]["get"]["responses"]["200"]["content"]) == ["*/*"]


async def _is(value: Any, wanted: float) -> bool:
    return await value == wanted


async def _has_status(request: Any, status: int) -> bool:
    return (await request).status_code == status


async def _says(client: httpx.AsyncClient, state: str) -> bool:
    # Without sessions the gateway is still of use: runs are watched.
    answer = await client.get("/readyz")
    assert answer.status_code == 200
    return answer.json()["data"]["services"]["sessions"] == state
