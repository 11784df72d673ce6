"""The model egress as a sandbox meets it: over its socket, with the run's token."""

import asyncio
import json
import signal
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from services.catalog.egress_client import EgressClient
from services.catalog.endpoint_watch import EgressAway
from tests.egress.conftest import KEY, Egress
from tests.sessions.processes import TOKEN, fence_of

BODY = b'{"model": "m"}'


async def ask(egress: Egress, token: str, path: str = "/v1/messages", **more: Any) -> httpx.Response:
    async with egress.client() as client:
        return await client.post(path, content=more.pop("content", BODY), headers={"x-api-key": token, **more})


def kind_of(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["type"])


async def test_i28_a_run_reaches_its_model_with_a_credential_it_never_has(egress: Egress) -> None:
    egress.upstream.go_on.set()
    token = await egress.token("a")
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "x", "cookie": "canary", "x-inside": "canary"}
    answer = await ask(egress, token, "/v1/messages?beta=true&other=1", **headers)
    assert answer.status_code == 200
    assert answer.content == b"event: a\n\nevent: b\n\n"
    path, sent, body = egress.upstream.asked[0]
    assert (path, body) == ("/v1/messages?beta=true", BODY)
    sent = {name.lower(): value for name, value in sent.items()}
    assert sent["x-api-key"] == KEY
    assert (sent["anthropic-version"], sent["anthropic-beta"]) == ("2023-06-01", "x")
    assert not {"authorization", "cookie", "x-inside"} & set(sent)
    # What comes back, and what is logged, holds neither credential nor token.
    assert KEY not in str(answer.headers)
    log = egress.log.read_text()
    assert KEY not in log
    assert egress.upstream.url not in log
    assert token not in log


async def test_an_endpoint_may_want_its_credential_as_a_bearer_token_and_may_lie_below_a_path(egress: Egress) -> None:
    egress.upstream.go_on.set()
    token = await egress.token("a", model_endpoint="bearer")
    async with egress.client() as client:
        headers = {"authorization": f"Bearer {token}"}
        answer = await client.post("/v1/messages/count_tokens", content=BODY, headers=headers)
    assert answer.status_code == 200
    path, sent, _ = egress.upstream.asked[0]
    assert path == "/gate/v1/messages/count_tokens"
    assert {name.lower(): value for name, value in sent.items()}["authorization"] == "Bearer gate-key-canary-77d0"


async def test_nothing_is_held_back(egress: Egress) -> None:
    token = await egress.token("a")
    async with egress.client() as client, client.stream("POST", "/v1/messages", headers={"x-api-key": token}) as answer:
        pieces = answer.aiter_raw()
        # The endpoint sends no more until this piece has arrived.
        assert await anext(pieces) == b"event: a\n\n"
        egress.upstream.go_on.set()
        assert b"".join([piece async for piece in pieces]) == b"event: b\n\n"


@pytest.mark.parametrize(
    "changes",
    [
        {"audience": "tool"},
        {"run_id": "another"},
        {"epoch": 7},
        {"runtime_generation": 9},
        {"binding_id": "bnd_none"},
        {"model_endpoint": ""},
        {"model_endpoint": "none"},
        {"seconds": -1},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_i28_a_token_opens_what_it_was_made_for_alone(egress: Egress, changes: dict[str, Any]) -> None:
    token = await egress.token("a", **changes)
    answer = await ask(egress, token)
    assert (answer.status_code, kind_of(answer)) in ((401, "authentication_error"), (403, "permission_error"))
    assert answer.headers["x-should-retry"] == "false"
    assert not egress.upstream.asked


async def test_i10_a_token_is_worth_nothing_once_its_run_or_its_runtime_is_over(egress: Egress) -> None:
    egress.upstream.go_on.set()
    binding = await egress.sessions.granted("run-a", "a")
    first = fence_of(binding)
    token = egress.token_of(first)
    assert (await ask(egress, token)).status_code == 200
    advanced = await egress.sessions.advance(first)
    assert (await ask(egress, token)).status_code == 403
    token = egress.token_of(fence_of(advanced))
    assert (await ask(egress, token)).status_code == 200
    await egress.sessions.release(binding.binding_id, "run-a")
    assert (await ask(egress, token)).status_code == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/messages"), ("POST", "/v1/files"), ("POST", "/v1/messages/../models"), ("GET", "/v1/models")],
)
async def test_i28_only_the_messages_api_passes(egress: Egress, method: str, path: str) -> None:
    token = await egress.token("a")
    async with egress.client() as client:
        answer = await client.request(method, path, headers={"x-api-key": token})
    assert (answer.status_code, kind_of(answer)) == (404, "not_found_error")
    assert not egress.upstream.asked


async def test_two_tokens_that_differ_are_none(egress: Egress) -> None:
    token = await egress.token("a")
    answer = await ask(egress, token, authorization="Bearer another")
    assert answer.status_code == 401


async def test_i35_a_body_is_bounded_whether_or_not_it_says_its_size(egress: Egress) -> None:
    token = await egress.token("a")
    assert (await ask(egress, token, content=b"x" * 65_537)).status_code == 413

    async def chunks():
        for _ in range(3):
            yield b"x" * 30_000

    async with egress.client() as client:
        answer = await client.post("/v1/messages", content=chunks(), headers={"x-api-key": token})
    assert (answer.status_code, kind_of(answer)) == (413, "request_too_large")
    assert not egress.upstream.asked


async def test_i35_a_run_has_so_many_requests_at_once(egress: Egress) -> None:
    token = await egress.token("a")
    async with egress.client() as client:
        running = [asyncio.create_task(client.post("/v1/messages", headers={"x-api-key": token})) for _ in range(2)]
        async with asyncio.timeout(90):
            for _ in running:
                await egress.upstream.arrivals.get()
        answer = await ask(egress, token)
        assert (answer.status_code, answer.headers["x-should-retry"]) == (429, "true")
        egress.upstream.go_on.set()
        assert [each.status_code for each in await asyncio.gather(*running)] == [200, 200]
    assert (await ask(egress, token)).status_code == 200


async def test_what_the_endpoint_answers_comes_back_as_it_is_but_for_its_headers(egress: Egress) -> None:
    body = json.dumps({"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}).encode()
    egress.upstream.status, egress.upstream.pieces = 429, (body,)
    egress.upstream.headers = {
        "content-type": "application/json",
        "retry-after": "7",
        "set-cookie": "a=b",
        "x-org": "o",
    }
    answer = await ask(egress, await egress.token("a"))
    assert (answer.status_code, answer.content, answer.headers["retry-after"]) == (429, body, "7")
    assert not {"set-cookie", "x-org"} & set(answer.headers)


async def test_a_redirect_is_not_followed(egress: Egress) -> None:
    egress.upstream.status, egress.upstream.headers = 307, {"location": f"{egress.upstream.url}/elsewhere"}
    egress.upstream.pieces = ()
    answer = await ask(egress, await egress.token("a"))
    assert answer.status_code == 502
    assert len(egress.upstream.asked) == 1


async def test_an_endpoint_that_cannot_be_reached_may_be_asked_again(egress: Egress) -> None:
    answer = await ask(egress, await egress.token("a", model_endpoint="gone"))
    assert (answer.status_code, answer.headers["x-should-retry"]) == (502, "true")


async def test_an_answer_that_breaks_off_is_not_made_to_look_whole(egress: Egress) -> None:
    egress.upstream.cut_after_first = True
    with pytest.raises(httpx.RemoteProtocolError):
        await ask(egress, await egress.token("a"))


async def test_i20_a_worker_that_leaves_takes_its_request_with_it(egress: Egress) -> None:
    token = await egress.token("a")
    async with egress.client() as client, client.stream("POST", "/v1/messages", headers={"x-api-key": token}) as answer:
        assert await anext(answer.aiter_raw()) == b"event: a\n\n"
    async with asyncio.timeout(90):
        await egress.upstream.dropped.wait()


async def test_a_credential_is_read_for_each_request_and_its_absence_is_said_without_naming_its_place(
    egress: Egress,
) -> None:
    egress.upstream.go_on.set()
    token = await egress.token("a")
    egress.key_file.write_text("rotated-key")
    await ask(egress, token)
    assert egress.upstream.asked[-1][1]["x-api-key"] == "rotated-key"
    egress.key_file.unlink()
    answer = await ask(egress, token)
    assert (answer.status_code, kind_of(answer)) == (401, "authentication_error")
    assert str(egress.key_file) not in answer.text
    assert str(egress.key_file) in egress.log.read_text()


async def test_i34_sessions_that_cannot_be_asked_let_nobody_in(egress: Egress) -> None:
    token = await egress.token("a")
    # It is there and does not answer, which is the worst that it can do.
    process = egress.sessions.sessions.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        answer = await ask(egress, token)
    finally:
        process.send_signal(signal.SIGCONT)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (503, "true")
    assert not egress.upstream.asked


async def test_i33_a_stop_lets_a_running_answer_end(egress: Egress) -> None:
    token = await egress.token("a")
    async with egress.client() as client, client.stream("POST", "/v1/messages", headers={"x-api-key": token}) as answer:
        pieces = answer.aiter_raw()
        assert await anext(pieces) == b"event: a\n\n"
        stopping = asyncio.create_task(egress.stop())
        egress.upstream.go_on.set()
        assert b"".join([piece async for piece in pieces]) == b"event: b\n\n"
    assert await stopping == 0


async def test_a_service_is_told_which_endpoints_have_their_credential_and_a_worker_is_not(egress: Egress) -> None:
    """As they are now: a key that goes or comes is seen by the next question. To others the path is as if it were not there."""
    asked = EgressClient(f"unix:{egress.socket}", SecretStr(TOKEN), 60)
    try:
        assert await asked.endpoints() == {"main": True, "bearer": True, "gone": True}
        egress.key_file.unlink()
        assert await asked.endpoints() == {"main": False, "bearer": True, "gone": True}
    finally:
        await asked.close()
    async with egress.client() as client:
        for token in ("x", await egress.token("a"), f"{TOKEN}x"):
            answer = await client.get("/endpoints", headers={"authorization": f"Bearer {token}"})
            assert (answer.status_code, "main" in answer.text) == (404, False)
    stranger = EgressClient(f"unix:{egress.socket}", SecretStr("another"), 60)
    with pytest.raises(EgressAway, match="404"):
        await stranger.endpoints()
    await stranger.close()
