"""AG-UI and custom streams of a running gateway: from any cursor, shared, for slow readers, and over a restart of runs (I7, I8, I14)."""

import asyncio
from typing import Any

import httpx
import pytest

from adapters.sdk import events as drafts
from harness.common.v1 import blueprint_pb2
from harness.event.v1 import event_pb2, payload_pb2
from services.common.errors import HarnessError, Reason
from services.gateway.encodings import Encoding
from tests.gateway.conftest import Running
from tests.gateway.test_encodings import encode, parse
from tests.gateway.test_streams import RawStream, dechunked, streams_active
from tests.gateway.test_turn import read_stream
from tests.gateway.toy_mesh import ToyRun, delta

pytestmark = pytest.mark.asyncio(loop_scope="module")
PROTOCOLS = {"agui": blueprint_pb2.STREAM_PROTOCOL_AGUI, "custom": blueprint_pb2.STREAM_PROTOCOL_CUSTOM}
TURN = [
    drafts.reasoning("hm"),
    drafts.text("one"),
    drafts.text("two"),
    drafts.tool_started("c1", "search"),
    drafts.tool_arguments("c1", '{"q":'),
    drafts.tool_arguments("c1", "1}"),
    drafts.subagent_started("s1", "c1"),
    drafts.text("inner", namespace=("s1",)),
    drafts.subagent_completed("s1", "c1"),
    drafts.tool_succeeded("c1", {"hits": 1}),
    drafts.text("three", message_id="m2"),
    drafts.usage(input_tokens=4),
    drafts.completed(),
]


@pytest.fixture
def gateway(shared_gateway: Running) -> Running:
    shared_gateway.mesh.forget()
    return shared_gateway


async def tell(gateway: Running, run: ToyRun, *told: event_pb2.EventDraft) -> None:
    for draft in told:
        await gateway.mesh.emit(run, draft.payload, namespace=draft.namespace)


def expected(run: ToyRun, protocol: str, after: int = 0) -> bytes:
    frames = encode(Encoding(PROTOCOLS[protocol], run.record.conversation_id), run.events)
    return b"".join(frames[after:])


async def begin(client: httpx.AsyncClient, run: ToyRun, **params: Any) -> "asyncio.Task[bytes]":
    """A subscriber whose answer has begun, so that it has joined the others."""
    begun = asyncio.Event()

    async def follow() -> bytes:
        path = f"/api/v1/runs/{run.record.run_id}/events/stream"
        async with client.stream("GET", path, params=params) as response:
            begun.set()
            return await response.aread()

    task = asyncio.create_task(follow())
    async with asyncio.timeout(30):
        await begun.wait()
    return task


def fragment(text: str) -> payload_pb2.EventPayload:
    return payload_pb2.EventPayload(tool_arguments_delta=payload_pb2.ToolArgumentsDelta(tool_call_id="c1", delta=text))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_i8_begun_anywhere_it_is_the_rest_of_the_whole(gateway: Running, protocol: str) -> None:
    run = await gateway.mesh.make_run(conversation_id="conversation-7")
    await tell(gateway, run, *TURN)
    async with gateway.client() as client:
        for after in range(len(run.events) + 1):
            body = await read_stream(
                client, run.record.run_id, params={"protocol": protocol}, headers={"Last-Event-ID": str(after)}
            )
            assert body == expected(run, protocol, after)
    if protocol == "agui":
        assert parse(expected(run, protocol))[0][2]["threadId"] == "conversation-7"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_live_subscribers_share_one_encoding_and_can_join_before_it(gateway: Running, protocol: str) -> None:
    run = await gateway.mesh.make_run()
    await tell(gateway, run, *TURN[:5])
    async with gateway.client() as client:
        # The first begins in the middle of a call, so the next finds a feed that has nothing before it.
        middle = await begin(client, run, protocol=protocol, after=5)
        whole = await begin(client, run, protocol=protocol)
        early = await begin(client, run, protocol=protocol, after=2)
        canonical = await begin(client, run)
        await tell(gateway, run, *TURN[5:])
        assert await middle == expected(run, protocol, 5)
        assert await whole == expected(run, protocol)
        assert await early == expected(run, protocol, 2)
        assert (await canonical).count(b"id: ") == len(run.events)
    assert gateway.mesh.counts["WatchRun"] == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_i14_a_slow_subscriber_reads_the_log_in_its_encoding(start_gateway: Any, protocol: str) -> None:
    gateway: Running = await start_gateway(HARNESS_STREAM_RING_BYTES="65536")
    run = await gateway.mesh.make_run()
    more = "Connection: close\r\n"
    slow = await RawStream.open(gateway, run, query=f"?protocol={protocol}", receive_buffer=4096, more=more)
    await gateway.mesh.wait_watching(run.record.run_id, 1)
    async with gateway.client() as client:
        fast = asyncio.create_task(read_stream(client, run.record.run_id, params={"protocol": protocol}))
        await streams_active(client, 2)
        for part in range(40):
            # Messages over many pages, and stretches that custom does not show.
            await gateway.mesh.emit(run, *(delta("y" * 900, f"m{part // 7}") for _ in range(100)))
            await gateway.mesh.emit(run, *(fragment("z") for _ in range(30)))
        await gateway.mesh.finish(run)
        assert await fast == expected(run, protocol)
        seen = await slow.until(b"end_turn")
        seen += await slow.reader.read()
        metrics = (await client.get("/metrics")).text
    assert dechunked(seen) == expected(run, protocol)
    assert "harness_stream_fallbacks_total 0.0" not in metrics
    assert "harness_stream_restored_events_total 0.0" not in metrics
    slow.close()


async def test_the_start_at_a_cursor_reads_what_was_before_it_once(start_gateway: Any) -> None:
    gateway: Running = await start_gateway()
    run = await gateway.mesh.make_run()
    await gateway.mesh.emit(run, *(delta("x" * 500) for _ in range(2_500)))
    async with gateway.client() as client:
        readers = await asyncio.gather(*(begin(client, run, protocol="agui", after=2_400) for _ in range(5)))
        await gateway.mesh.finish(run)
        for reader in readers:
            assert await reader == expected(run, "agui", 2_400)
        assert "harness_stream_restored_events_total 2400.0" in (await client.get("/metrics")).text
    assert gateway.mesh.counts["ListEvents"] == 3
    assert gateway.mesh.counts["WatchRun"] == 1


async def test_an_expired_cursor_is_410_in_every_encoding(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    await tell(gateway, run, *TURN)
    run.first_kept = len(run.events) + 1
    async with gateway.client() as client:
        for protocol in PROTOCOLS:
            for after in (0, 3):
                path = f"/api/v1/runs/{run.record.run_id}/events/stream"
                response = await client.get(path, params={"protocol": protocol, "after": after})
                assert (response.status_code, response.json()["code"]) == (410, "cursor_expired")


async def test_i2_another_subject_sees_no_run_in_any_encoding(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    async with gateway.client("mallory") as client:
        for protocol in PROTOCOLS:
            for after in (0, 1):
                path = f"/api/v1/runs/{run.record.run_id}/events/stream"
                response = await client.get(path, params={"protocol": protocol, "after": after})
                assert (response.status_code, response.json()["code"]) == (404, "not_found")


async def test_events_that_are_not_shown_do_not_hold_back_the_keep_alive(start_gateway: Any) -> None:
    gateway: Running = await start_gateway(HARNESS_STREAM_KEEP_ALIVE_SECONDS="0.3")
    run = await gateway.mesh.make_run()
    stream = await RawStream.open(gateway, run, query="?protocol=custom")
    await gateway.mesh.wait_watching(run.record.run_id, 1)
    waiting = asyncio.create_task(stream.until(b": keep-alive\n\n"))
    while not waiting.done():
        await gateway.mesh.emit(run, fragment("z"))
        await asyncio.wait([waiting], timeout=0.02)
    assert b"id: " not in await waiting
    stream.close()


async def test_a_page_of_the_log_with_nothing_to_show(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    await tell(gateway, run, TURN[3], *(drafts.tool_arguments("c1", "z") for _ in range(8)))
    async with gateway.client() as client:
        first = await begin(client, run, protocol="custom", after=9)
        early = await begin(client, run, protocol="custom", after=3)
        await tell(gateway, run, *TURN[9:])
        assert await early == await first == expected(run, "custom", 9)
    # The page was read: the feed had nothing before 9.
    assert gateway.mesh.counts["ListEvents"] >= 3


async def test_restoring_outlives_a_restart_of_runs(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    await tell(gateway, run, *TURN[:5])
    # More than one call of the peer tries by itself.
    gateway.mesh.fail_reads = [HarnessError(Reason.UNAVAILABLE, "The toy is away.") for _ in range(12)]
    async with gateway.client() as client:
        reading = asyncio.create_task(read_stream(client, run.record.run_id, params={"protocol": "agui", "after": 5}))
        await gateway.mesh.wait_watching(run.record.run_id, 1)
        await tell(gateway, run, *TURN[5:])
        assert await reading == expected(run, "agui", 5)
    assert gateway.mesh.fail_reads == []
