"""What of the egress all runs share, and what none may take from the others or learn of them."""

import asyncio
import contextlib
import gzip
import json

import httpx
import pytest

from tests.egress.conftest import KEY, Egress
from tests.egress.test_egress import ask, kind_of
from tests.sessions.processes import fence_of


async def test_i28_a_cookie_of_one_run_goes_with_no_request_of_another(egress: Egress) -> None:
    egress.upstream.go_on.set()
    egress.upstream.headers = {"content-type": "text/event-stream", "set-cookie": "session=of-run-a; Path=/"}
    one, other = await egress.token("a"), await egress.token("b")
    for token in (one, other, one):
        assert (await ask(egress, token)).status_code == 200
    assert [{name.lower() for name in sent} & {"cookie"} for _, sent, _ in egress.upstream.asked] == [set()] * 3


async def test_i35_a_head_without_an_end_is_refused_before_it_takes_memory(egress: Egress) -> None:
    _, writer = await asyncio.open_unix_connection(str(egress.socket))
    writer.write(b"POST /v1/messages HTTP/1.1\r\nhost: m\r\n")
    taken = 0
    with contextlib.suppress(ConnectionError):  # refused while it is still talking
        for number in range(10_000):
            line = b"x-%d: %b\r\n" % (number, b"y" * 1_000)
            writer.write(line)
            await writer.drain()
            taken += len(line)
    writer.transport.abort()
    # What the kernel had taken on the way counts as well.
    assert taken < 5_000_000


async def test_i35_a_head_that_is_too_large_is_told(egress: Egress) -> None:
    answer = await ask(egress, await egress.token("a"), **{f"x-{number}": "y" * 1_000 for number in range(65)})
    assert (answer.status_code, kind_of(answer)) == (431, "request_too_large")


async def test_i35_a_connection_that_says_nothing_is_ended(egress: Egress) -> None:
    reader, writer = await asyncio.open_unix_connection(str(egress.socket))
    writer.write(b"POST /v1/mess")
    assert await asyncio.wait_for(reader.read(), 90) == b""
    writer.close()


async def test_i35_connections_have_a_bound(few_connections: Egress) -> None:
    held = [await asyncio.open_unix_connection(str(few_connections.socket)) for _ in range(4)]
    reader, writer = await asyncio.open_unix_connection(str(few_connections.socket))
    answer = await asyncio.wait_for(reader.read(), 90)
    assert answer.startswith(b"HTTP/1.1 529 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "overloaded_error"
    for _, each in [*held, (reader, writer)]:
        each.close()


async def test_i20_a_worker_that_leaves_before_the_answer_s_head_takes_its_request_with_it(egress: Egress) -> None:
    egress.upstream.head_waits = True
    token = await egress.token("a")
    async with egress.client() as client:
        asking = asyncio.create_task(client.post("/v1/messages", content=b"{}", headers={"x-api-key": token}))
        async with asyncio.timeout(90):
            await egress.upstream.arrivals.get()
            asking.cancel()
            await egress.upstream.dropped.wait()
        # Its place is free again: two more of the run are let in.
        egress.upstream.head_waits = False
        egress.upstream.go_on.set()
        answers = await asyncio.gather(*(ask(egress, token) for _ in range(2)))
        assert [answer.status_code for answer in answers] == [200, 200]


async def test_i10_an_answer_under_way_ends_with_the_hold_of_its_run(egress: Egress) -> None:
    binding = await egress.sessions.granted("run-a", "a")
    token = egress.token_of(fence_of(binding))
    async with egress.client() as client, client.stream("POST", "/v1/messages", headers={"x-api-key": token}) as answer:
        pieces = answer.aiter_raw()
        assert await anext(pieces) == b"event: a\n\n"
        await egress.sessions.release(binding.binding_id, "run-a")
        with pytest.raises(httpx.RemoteProtocolError):
            await asyncio.wait_for(anext(pieces), 90)
    async with asyncio.timeout(90):
        await egress.upstream.dropped.wait()


async def test_i10_an_answer_under_way_ends_with_its_token(egress: Egress) -> None:
    binding = await egress.sessions.granted("run-a", "a")
    token = egress.token_of(fence_of(binding), seconds=10)
    async with egress.client() as client, client.stream("POST", "/v1/messages", headers={"x-api-key": token}) as answer:
        assert answer.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            await asyncio.wait_for(answer.aread(), 90)


@pytest.mark.parametrize("status", [401, 403])
async def test_i28_what_an_endpoint_says_of_the_mesh_s_credential_stays_outside(egress: Egress, status: int) -> None:
    egress.upstream.status = status
    egress.upstream.pieces = (b'{"error": {"message": "Incorrect API key provided: %b"}}' % KEY.encode(),)
    answer = await ask(egress, await egress.token("a"))
    assert (answer.status_code, answer.headers["x-should-retry"]) == (status, "false")
    assert kind_of(answer) in ("authentication_error", "permission_error")
    assert KEY not in answer.text
    log = egress.log.read_text()
    assert "model_credential_refused" in log
    assert KEY not in log


async def test_what_is_encoded_says_so(egress: Egress) -> None:
    egress.upstream.headers = {"content-type": "application/json", "content-encoding": "gzip"}
    egress.upstream.pieces = (gzip.compress(b'{"type": "message"}'),)
    assert (await ask(egress, await egress.token("a"))).json() == {"type": "message"}


async def test_headers_of_one_name_go_along_as_one_list_and_what_cannot_is_refused(egress: Egress) -> None:
    egress.upstream.go_on.set()
    token = await egress.token("a")
    async with egress.client() as client:
        headers = [("x-api-key", token), ("anthropic-beta", "one"), ("anthropic-beta", "two")]
        assert (await client.post("/v1/messages", headers=headers)).status_code == 200
        sent = {name.lower(): value for name, value in egress.upstream.asked[-1][1].items()}
        assert sent["anthropic-beta"] == "one, two"
        for value in (b"a\xff", b"x" * 4_097):
            raw = [(b"x-api-key", token.encode()), (b"anthropic-beta", value)]
            answer = await client.post("/v1/messages", headers=raw)
            assert (answer.status_code, "anthropic-beta" in answer.text) == (400, True)
    assert len(egress.upstream.asked) == 1


async def test_a_header_of_an_answer_that_is_no_ascii_is_left_out(egress: Egress) -> None:
    egress.upstream.go_on.set()
    egress.upstream.headers = {"content-type": "text/event-stream", "request-id": "漢"}
    answer = await ask(egress, await egress.token("a"))
    assert (answer.status_code, "request-id" in answer.headers) == (200, False)
    assert "Traceback" not in egress.log.read_text()


async def test_i28_the_log_tells_neither_where_an_endpoint_is_nor_what_it_answers_beside(egress: Egress) -> None:
    """At the level debug, which the egress of these tests has."""
    egress.upstream.go_on.set()
    egress.upstream.headers = {"content-type": "text/event-stream", "set-cookie": "a=cookie-canary-8841"}
    assert (await ask(egress, await egress.token("a"))).status_code == 200
    log = egress.log.read_text()
    assert "cookie-canary-8841" not in log
    assert egress.upstream.url.rpartition(":")[2] not in {part for line in log.splitlines() for part in line.split()}
    assert "httpcore" not in log
