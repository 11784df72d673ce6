"""The stand-in of the Messages API: its answers, its faults on the socket, and that the real program understands it."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx
import pytest
from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ResultMessage, StreamEvent, TextBlock, query

from tests.standins.messages import MessagesServer, marked, serving, serving_in_thread
from tests.support.adapters import folder

__all__ = ["folder"]
CALL = {"tool_use": {"id": "toolu_1", "name": "add", "input": {"a": 1}}}


def asking(text: str, *later: dict[str, Any], stream: bool = True) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "stream": stream, "messages": [{"role": "user", "content": text}, *later]}


async def ask(server: MessagesServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{server.url}/v1/messages", json=body)
    assert answer.status_code == 200
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def said(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")


async def test_an_answer_streams_as_the_api_frames_it():
    text = marked([{"thinking": "hm"}, {"text": ["a", "b"]}, CALL, {"usage": {"cache_read_input_tokens": 4}}])
    async with serving() as server:
        events = await ask(server, asking(f"before {text} behind"))
        assert server.seen[0].body["max_tokens"] == 9
        assert (server.connections, len(server.asked)) == (1, 1)
    assert [event["type"] for event in events[:3]] == ["message_start", "content_block_start", "ping"]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"]["cache_read_input_tokens"] == 4
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert [delta["type"] for delta in deltas[:2]] == ["thinking_delta", "signature_delta"]
    assert said(events) == "ab"
    assert json.loads("".join(delta.get("partial_json", "") for delta in deltas)) == {"a": 1}


async def test_the_place_in_a_script_is_said_by_the_conversation():
    text = marked([CALL], [{"results": True}])
    results = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "2"}]}
    called = {"role": "assistant", "content": [{"type": "tool_use", **CALL["tool_use"]}]}
    async with serving() as server:
        assert json.loads(said(await ask(server, asking(text, called, results)))) == {"toolu_1": "2"}
        over = {"role": "assistant", "content": "over"}
        assert said(await ask(server, asking(text, called, results, over, results))) == "ok"
        talk = asking("first word", over, {"role": "user", "content": "second"})
        assert "first word" in said(await ask(server, talk))


async def test_one_document_counts_and_errors():
    async with serving() as server, httpx.AsyncClient(base_url=server.url) as client:
        whole = (
            await client.post("/v1/messages", json=asking(marked([{"text": ["x", "y"]}, CALL]), stream=False))
        ).json()
        assert [block["type"] for block in whole["content"]] == ["text", "tool_use"]
        assert (whole["content"][0]["text"], whole["stop_reason"]) == ("xy", "tool_use")
        assert (await client.post("/v1/messages/count_tokens", json=asking("x"))).json()["input_tokens"] > 0
        assert (await client.head("/")).status_code == 200
        for status in (400, 401, 403, 404, 413, 429, 500, 529):
            refused = await client.post("/v1/messages", json=asking(marked({"status": status, "retry_after": 3})))
            assert (refused.status_code, refused.headers["retry-after"]) == (status, "3")
            assert refused.json()["type"] == "error"


@pytest.mark.parametrize(
    ("fault", "ends"),
    [
        ({"cut": True}, httpx.ReadError),
        ({"half": True}, None),
        ({"unended": True}, None),
        ({"error": {"type": "overloaded_error", "message": "x"}}, None),
        ({"raw": "data: {nonsense\n\n"}, None),
        ({"event": {"type": "of_tomorrow", "more": 1}}, None),
        ({"pause": 0.01}, None),
        ({"burst": [2000, 8]}, None),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_faults_in_a_stream(fault: dict[str, Any], ends: type[Exception] | None):
    async with serving() as server, httpx.AsyncClient() as client:
        body = asking(marked([{"text": ["begun"]}, fault]))
        if ends is not None:
            with pytest.raises((ends, httpx.RemoteProtocolError)):
                await client.post(f"{server.url}/v1/messages", json=body)
            return
        answer = (await client.post(f"{server.url}/v1/messages", json=body)).text
        whole = not {"half", "unended", "error"} & set(fault)
        assert "begun" in answer
        assert ("event: message_stop" in answer) == whole


async def test_hangs_end_with_the_server_and_a_unix_socket_serves(folder):
    path = str(folder / "m.sock")
    async with serving(path=path) as server:
        transport = httpx.AsyncHTTPTransport(uds=path)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            server.script({"hang": True})
            hanging = asyncio.ensure_future(client.post("/v1/messages", json=asking("x")))
            await server.came.wait()
            assert not hanging.done()
            assert server.open_connections == 1
            await server.close()
            with pytest.raises(httpx.HTTPError):
                await hanging


async def test_it_runs_by_hand():
    command = (sys.executable, "-m", "tests.standins.messages", "--port", "0")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        url = (await asyncio.wait_for(process.stdout.readline(), 90)).decode().strip()
        async with httpx.AsyncClient() as client:
            assert (await client.get(url)).status_code == 200
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 90) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.timeout(180)
async def test_the_real_program_understands_it(folder):
    heard: list[Any] = []
    with serving_in_thread() as server:
        options = ClaudeAgentOptions(
            tools=[],
            setting_sources=[],
            include_partial_messages=True,
            cwd=folder,
            env={
                "ANTHROPIC_BASE_URL": server.url,
                "ANTHROPIC_API_KEY": "k",
                "HOME": str(folder),
                "CLAUDE_CONFIG_DIR": str(folder / "config"),
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            },
        )
        async for message in query(prompt=marked([{"thinking": "hm"}, {"text": ["he", "llo"]}]), options=options):
            heard.append(message)
        assert server.asked[0].headers["x-api-key"] == "k"
    texts = [
        block.text
        for message in heard
        if isinstance(message, AssistantMessage)
        for block in message.content
        if isinstance(block, TextBlock)
    ]
    assert texts == ["hello"]
    assert any(isinstance(message, StreamEvent) for message in heard)
    assert isinstance(heard[-1], ResultMessage)
    assert not heard[-1].is_error
