"""Event streams: sharing, cursors, slow and absent readers, and a runs service that restarts (I7, I8, I13, I14)."""

import asyncio
import itertools
import socket
from typing import Any

import httpx
import pytest

from tests.gateway.conftest import API_TOKEN, Running, headers
from tests.gateway.test_turn import frames, read_stream
from tests.gateway.toy_mesh import ToyRun, completed, delta

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def gateway(shared_gateway: Running) -> Running:
    shared_gateway.mesh.forget()
    return shared_gateway


async def streams_active(client: httpx.AsyncClient, count: int) -> None:
    """Until the gateway has exactly so many subscribers; its metrics are all there is to see it by."""
    async with asyncio.timeout(60):
        for pause in itertools.chain((0.0,), itertools.repeat(0.02)):
            await asyncio.sleep(pause)
            if f"harness_streams_active {count}.0" in (await client.get("/metrics")).text:
                return


class RawStream:
    """A subscriber on a bare socket: reads when told to, and sees bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(
        cls, gateway: Running, run: ToyRun, query: str = "", receive_buffer: int = 0, more: str = ""
    ) -> "RawStream":
        connection = socket.socket()
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", gateway.port))
        # A small limit: the client's own buffering must not read for a subscriber that does not.
        reader, writer = await asyncio.open_connection(sock=connection, limit=1024)
        path = f"/api/v1/runs/{run.record.run_id}/events/stream{query}"
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_TOKEN}\r\nX-Harness-Engine-Subject: {run.owner}\r\n{more}\r\n"
        writer.write(request.encode())
        return cls(reader, writer)

    async def until(self, text: bytes) -> bytes:
        data = bytearray()
        async with asyncio.timeout(60):
            while data.find(text, max(0, len(data) - 65_536 - len(text))) < 0:
                piece = await self.reader.read(65_536)
                if not piece:
                    raise AssertionError(f"the stream ended before {text!r}: …{bytes(data[-200:])!r}")
                data += piece
        return bytes(data)

    def close(self) -> None:
        self.writer.transport.abort()


async def test_headers_come_at_once_and_say_what_they_must(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    async with gateway.client() as client:
        path = f"/api/v1/runs/{run.record.run_id}/events/stream"
        # Nothing will come after 1 for now, and yet the head is here.
        async with client.stream("GET", path, params={"after": 1}, headers={"accept-encoding": "gzip"}) as response:
            assert response.status_code == 200
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert response.headers["cache-control"] == "no-store"
            assert response.headers["x-accel-buffering"] == "no"
            assert "content-encoding" not in response.headers
        await gateway.mesh.wait_watching(run.record.run_id, 0)


async def test_i8_two_subscribers_identical_bytes(gateway: Running) -> None:
    """Live from the start, late, and by replay: the same bytes, from one upstream watch."""
    run = await gateway.mesh.make_run()
    run_id = run.record.run_id
    async with gateway.client() as client:
        first = asyncio.create_task(read_stream(client, run_id))
        await gateway.mesh.wait_watching(run_id, 1)
        await gateway.mesh.emit(run, *(delta(f"text {n}") for n in range(50)))
        second = asyncio.create_task(read_stream(client, run_id))
        third = asyncio.create_task(read_stream(client, run_id, params={"after": 20}))
        await streams_active(client, 3)
        assert gateway.mesh.counts["WatchRun"] == 1
        await gateway.mesh.emit(run, *(delta(f"more {n}") for n in range(50)))
        await gateway.mesh.finish(run)
        bodies = await asyncio.gather(first, second, third)
        replay = await read_stream(client, run_id)
    assert bodies[0] == bodies[1] == replay
    assert [frame["id"] for frame in frames(bodies[0])] == list(range(1, 103))
    assert bodies[0].endswith(bodies[2])
    assert [frame["id"] for frame in frames(bodies[2])] == list(range(21, 103))
    await gateway.mesh.wait_watching(run_id, 0)


async def test_last_event_id_wins_over_after(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    await gateway.mesh.emit(run, delta("a"), delta("b"))
    await gateway.mesh.finish(run)
    async with gateway.client() as client:
        for after in ("0", "3", "nonsense"):
            body = await read_stream(client, run.record.run_id, params={"after": after}, headers={"Last-Event-ID": "2"})
            assert [frame["id"] for frame in frames(body)] == [3, 4]


@pytest.mark.parametrize("after", [4, 5, 4_294_967_295])
async def test_past_the_end_of_a_finished_run_the_stream_ends_at_once(gateway: Running, after: int) -> None:
    run = await gateway.mesh.make_run()
    await gateway.mesh.emit(run, delta("a"), delta("b"), completed())
    async with gateway.client() as client:
        assert await read_stream(client, run.record.run_id, params={"after": after}) == b""


async def test_a_cursor_ahead_of_a_running_run_waits_for_it(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    async with gateway.client() as client:
        ahead = asyncio.create_task(read_stream(client, run.record.run_id, params={"after": 3}))
        await gateway.mesh.wait_watching(run.record.run_id, 1)
        whole = asyncio.create_task(read_stream(client, run.record.run_id))
        await gateway.mesh.emit(run, *(delta(f"{n}") for n in range(4)))
        await gateway.mesh.finish(run)
        assert [frame["id"] for frame in frames(await ahead)] == [4, 5, 6]
        assert [frame["id"] for frame in frames(await whole)] == [1, 2, 3, 4, 5, 6]


async def test_expired_cursor_is_410_and_only_then(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    await gateway.mesh.emit(run, *(delta(f"{n}") for n in range(9)))
    await gateway.mesh.finish(run)
    run.first_kept = 6
    async with gateway.client() as client:
        for path in ("events", "events/stream"):
            for after in (0, 4):
                response = await client.get(f"/api/v1/runs/{run.record.run_id}/{path}", params={"after": after})
                assert (response.status_code, response.json()["code"]) == (410, "cursor_expired")
        assert frames(await read_stream(client, run.record.run_id, params={"after": 5}))[0]["id"] == 6


async def test_expired_cursor_of_one_who_joins_others_is_410(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    await gateway.mesh.emit(run, *(delta(f"{n}") for n in range(9)))
    run.first_kept = 6
    async with gateway.client() as client:
        following = asyncio.create_task(read_stream(client, run.record.run_id, params={"after": 8}))
        await gateway.mesh.wait_watching(run.record.run_id, 1)
        response = await client.get(f"/api/v1/runs/{run.record.run_id}/events/stream", params={"after": 3})
        assert (response.status_code, response.json()["code"]) == (410, "cursor_expired")
        await gateway.mesh.finish(run)
        assert [frame["id"] for frame in frames(await following)] == [9, 10, 11]


async def test_unknown_encodings_are_refused(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    async with gateway.client() as client:
        path = f"/api/v1/runs/{run.record.run_id}/events/stream"
        response = await client.get(path, params={"protocol": "morse"})
        assert (response.status_code, response.json()["code"]) == (422, "invalid_request")
        await gateway.mesh.finish(run)
        assert frames(await read_stream(client, run.record.run_id, params={"protocol": "canonical"}))


async def test_i13_a_subscriber_that_goes_away_frees_everything_and_the_run_goes_on(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    run_id = run.record.run_id
    first = await RawStream.open(gateway, run)
    second = await RawStream.open(gateway, run)
    await first.until(b"run.started")
    await second.until(b"run.started")
    assert gateway.mesh.counts["WatchRun"] == 1
    first.close()
    await gateway.mesh.emit(run, delta("x"))
    await second.until(b"content.delta")
    second.close()
    # The upstream watch ends with its last subscriber, without any event to notice it by.
    await gateway.mesh.wait_watching(run_id, 0)
    assert run.record.status == 2
    async with gateway.client() as client:
        assert "harness_stream_feeds 0.0" in (await client.get("/metrics")).text
        await gateway.mesh.finish(run)
        assert len(frames(await read_stream(client, run_id))) == 3
    assert gateway.mesh.counts["CancelRun"] == 0


async def test_i13_a_client_that_leaves_an_invoke_frees_the_call(gateway: Running) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    body = b'{"agent_id":"agent","conversation_id":"c","message":"hang"}'
    lines = [f"{key}: {value}" for key, value in headers().items()]
    head = "\r\n".join(["POST /api/v1/invoke HTTP/1.1", "Host: x", *lines, f"Content-Length: {len(body)}", "", ""])
    writer.write(head.encode() + body)
    async with gateway.client() as client, asyncio.timeout(30):
        while not gateway.mesh.counts["Invoke"]:
            await client.get("/healthz")
    writer.transport.abort()
    await gateway.mesh.wait_watching("invoke cancelled", 1)


async def test_i14_never_reading_costs_bounded_memory_and_delays_nobody(start_gateway: Any) -> None:
    gateway: Running = await start_gateway(HARNESS_STREAM_RING_BYTES="1048576", HARNESS_STREAM_STALL_SECONDS="600")
    run = await gateway.mesh.make_run()
    stuck = [await RawStream.open(gateway, run, receive_buffer=4096) for _ in range(10)]
    async with gateway.client() as client:
        reading = asyncio.create_task(read_stream(client, run.record.run_id))
        await gateway.mesh.wait_watching(run.record.run_id, 1)
        before = gateway.memory_mib()
        text = "x" * 1000
        for _ in range(100):
            await gateway.mesh.emit(run, *(delta(text) for _ in range(500)))
        await gateway.mesh.finish(run)
        async with asyncio.timeout(90):
            body = await reading
        # 50 MB went by, to one of eleven.
        assert len(body) > 50_000_000
        assert body.count(b"\nevent: ") + body.startswith(b"event: ") == 50_002
        assert gateway.memory_mib() - before < 60
        assert "harness_streams_active 10.0" in (await client.get("/metrics")).text
    for subscriber in stuck:
        subscriber.close()
    await gateway.mesh.wait_watching(run.record.run_id, 0)


async def test_i14_a_slow_subscriber_reads_the_log_and_sees_everything(start_gateway: Any) -> None:
    """It falls out of the ring, pages, and joins again: 1..n without gap (I7), the same bytes as the fast one (I8)."""
    gateway: Running = await start_gateway(HARNESS_STREAM_RING_BYTES="65536")
    run = await gateway.mesh.make_run()
    slow = await RawStream.open(gateway, run, receive_buffer=4096, more="Connection: close\r\n")
    seen = await slow.until(b"run.started")
    async with gateway.client() as client:
        reading = asyncio.create_task(read_stream(client, run.record.run_id))
        for part in range(40):
            await gateway.mesh.emit(run, *(delta(f"{part} {'y' * 900}") for _ in range(100)))
        await gateway.mesh.finish(run)
        fast = await reading
        seen += await slow.until(b"0\r\n\r\n")
        metrics = (await client.get("/metrics")).text
        replay = await read_stream(client, run.record.run_id)
    assert dechunked(seen) == fast == replay
    assert [frame["id"] for frame in frames(fast)] == list(range(1, 4003))
    assert "harness_stream_fallbacks_total 0.0" not in metrics
    slow.close()


async def test_i14_a_late_subscriber_reads_the_log_up_to_the_shared_stream(start_gateway: Any) -> None:
    gateway: Running = await start_gateway(HARNESS_STREAM_RING_BYTES="65536")
    run = await gateway.mesh.make_run()
    async with gateway.client() as client:
        first = asyncio.create_task(read_stream(client, run.record.run_id))
        await gateway.mesh.wait_watching(run.record.run_id, 1)
        await gateway.mesh.emit(run, *(delta(f"{n} {'y' * 900}") for n in range(1000)))
        async with asyncio.timeout(30):
            while "harness_stream_events_total 1001.0" not in (await client.get("/metrics")).text:
                await client.get("/healthz")
        late = asyncio.create_task(read_stream(client, run.record.run_id))
        await streams_active(client, 2)
        await gateway.mesh.emit(run, delta("for both"))
        await gateway.mesh.finish(run)
        assert await late == await first
        assert gateway.mesh.counts["WatchRun"] == 1
        assert gateway.mesh.counts["ListEvents"] > 1


async def test_i14_a_newcomer_at_the_head_gets_a_feed_going_that_waited_for_a_stuck_reader(start_gateway: Any) -> None:
    gateway: Running = await start_gateway(HARNESS_STREAM_RING_BYTES="65536", HARNESS_STREAM_STALL_SECONDS="600")
    run = await gateway.mesh.make_run()
    stuck = await RawStream.open(gateway, run, receive_buffer=4096)
    await gateway.mesh.wait_watching(run.record.run_id, 1)
    # More than the buffers of both ends hold, so that the feed waits with most of it unread upstream.
    await gateway.mesh.emit(run, *(delta("z" * 20_000) for _ in range(1000)))
    async with gateway.client() as client:
        reading = asyncio.create_task(read_stream(client, run.record.run_id, params={"after": 1001}))
        await streams_active(client, 2)
        await gateway.mesh.finish(run)
        assert [frame["id"] for frame in frames(await reading)] == [1002]
    stuck.close()


async def test_i35_a_feed_reads_no_further_than_its_fastest_subscriber_needs(start_gateway: Any) -> None:
    """A lone slow reader is never overtaken: the upstream waits for it, and the log is not read a second time."""
    gateway: Running = await start_gateway(HARNESS_STREAM_RING_BYTES="1048576")
    run = await gateway.mesh.make_run()
    slow = await RawStream.open(gateway, run, receive_buffer=65_536)
    await gateway.mesh.wait_watching(run.record.run_id, 1)
    await gateway.mesh.emit(run, *(delta("z" * 1_000) for _ in range(30_000)))
    await gateway.mesh.finish(run)
    async with gateway.client() as client:
        # Nothing is read meanwhile, so the feed comes to rest: at its bound, or without one at the end of the run.
        seen, now = -1.0, 0.0
        async with asyncio.timeout(60):
            while now != seen or now < 1000:
                await asyncio.sleep(0.3)
                text = (await client.get("/metrics")).text
                seen, now = now, float(text.split("\nharness_stream_events_total ")[1].split()[0])
        await slow.until(b"run.completed")
        assert gateway.mesh.counts["ListEvents"] == 0
        assert "harness_stream_fallbacks_total 0.0" in (await client.get("/metrics")).text
    slow.close()


def dechunked(raw: bytes) -> bytes:
    _, _, rest = raw.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        body, rest = body + rest[:length], rest[length + 2 :]
    return body


async def test_i14_one_that_reads_nothing_for_too_long_is_dropped(start_gateway: Any) -> None:
    gateway: Running = await start_gateway(HARNESS_STREAM_STALL_SECONDS="0.5", HARNESS_STREAM_RING_BYTES="65536")
    run = await gateway.mesh.make_run()
    stuck = await RawStream.open(gateway, run, receive_buffer=4096)
    await gateway.mesh.wait_watching(run.record.run_id, 1)
    # More than the buffers of both ends hold.
    await gateway.mesh.emit(run, *(delta("z" * 30_000) for _ in range(500)))
    await gateway.mesh.wait_watching(run.record.run_id, 0)
    stuck.close()


async def test_silence_is_filled_with_comments(start_gateway: Any) -> None:
    gateway: Running = await start_gateway(HARNESS_STREAM_KEEP_ALIVE_SECONDS="0.1")
    run = await gateway.mesh.make_run()
    stream = await RawStream.open(gateway, run)
    data = await stream.until(b": keep-alive\n\n")
    await gateway.mesh.emit(run, delta("x"))
    data += await stream.until(b"content.delta")
    data += await stream.until(b": keep-alive\n\n")
    await gateway.mesh.finish(run)
    data += await stream.until(b"0\r\n\r\n")
    assert [frame["id"] for frame in frames(dechunked(data))] == [1, 2, 3]
    stream.close()


async def test_i7_subscribers_notice_nothing_of_a_runs_service_that_restarts(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    async with gateway.client() as client:
        first = asyncio.create_task(read_stream(client, run.record.run_id))
        stream = await RawStream.open(gateway, run)
        await stream.until(b"run.started")
        await gateway.mesh.stop()
        run.changed = asyncio.Condition()
        await gateway.mesh.emit(run, delta("while away"))
        await gateway.mesh.start()
        await stream.until(b"while away")
        await gateway.mesh.emit(run, delta("afterwards"))
        await gateway.mesh.finish(run)
        assert [frame["id"] for frame in frames(await first)] == [1, 2, 3, 4]
        await stream.until(b"run.completed")
    stream.close()


async def test_i35_when_the_runs_service_stays_away_streams_end_and_resume_by_cursor(start_gateway: Any) -> None:
    gateway: Running = await start_gateway(HARNESS_STREAM_RETRY_SECONDS="0.3")
    run = await gateway.mesh.make_run()
    async with gateway.client() as client:
        stream = await RawStream.open(gateway, run)
        data = await stream.until(b"run.started")
        await gateway.mesh.stop()
        # An orderly end: whatever was sent is whole.
        data += await stream.until(b"0\r\n\r\n")
        stream.close()
        assert [frame["id"] for frame in frames(dechunked(data))] == [1]
        response = await client.get(f"/api/v1/runs/{run.record.run_id}/events/stream", params={"after": 1})
        assert (response.status_code, response.json()["code"]) == (503, "unavailable")
        run.changed = asyncio.Condition()
        await gateway.mesh.start()
        await gateway.mesh.finish(run)
        async with asyncio.timeout(30):
            while True:
                try:
                    body = await read_stream(client, run.record.run_id, headers={"Last-Event-ID": "1"})
                    break
                except AssertionError:
                    await asyncio.sleep(0.05)
        assert [frame["id"] for frame in frames(body)] == [2]


async def test_a_watch_that_ends_without_a_terminal_is_opened_again(gateway: Running) -> None:
    """As when the service hands the stream over at its stop: the log goes on after the cursor."""
    run = await gateway.mesh.make_run()
    run.watch_limit = 1
    stream = await RawStream.open(gateway, run)
    data = await stream.until(b"run.started")
    for text in ("one", "two"):
        await gateway.mesh.emit(run, delta(text))
        data += await stream.until(text.encode())
    await gateway.mesh.finish(run)
    data += await stream.until(b"0\r\n\r\n")
    stream.close()
    assert [frame["id"] for frame in frames(dechunked(data))] == [1, 2, 3, 4]
    assert gateway.mesh.counts["WatchRun"] > 1


@pytest.mark.parametrize("fault", ["repeat", "skip"])
async def test_i7_a_watch_that_repeats_or_skips_is_corrected_from_the_log(gateway: Running, fault: str) -> None:
    run = await gateway.mesh.make_run()
    run.watch_fault = fault
    async with gateway.client() as client:
        reading = asyncio.create_task(read_stream(client, run.record.run_id))
        await gateway.mesh.wait_watching(run.record.run_id, 1)
        await gateway.mesh.emit(run, delta("a"), delta("b"), delta("c"))
        await gateway.mesh.finish(run)
        assert [frame["id"] for frame in frames(await reading)] == [1, 2, 3, 4, 5]


async def test_i7_what_a_silent_watch_withholds_is_found_in_the_log(gateway: Running) -> None:
    """As when the process behind the watch is stopped, which nothing says for long."""
    run = await gateway.mesh.make_run()
    run.watch_fault = "silent"
    async with gateway.client() as client:
        reading = [asyncio.create_task(read_stream(client, run.record.run_id)) for _ in range(3)]
        await streams_active(client, 3)
        await gateway.mesh.emit(run, *(delta(f"{number}") for number in range(1_000)))
        await gateway.mesh.finish(run)
        async with asyncio.timeout(60):
            bodies = await asyncio.gather(*reading)
    assert [frame["id"] for frame in frames(bodies[0])] == list(range(1, 1_003))
    assert len(set(bodies)) == 1
    assert gateway.mesh.counts["WatchRun"] == 1


async def test_i35_streams_are_bounded(start_gateway: Any) -> None:
    gateway: Running = await start_gateway(HARNESS_MAX_STREAMS="2")
    run = await gateway.mesh.make_run()
    held = [await RawStream.open(gateway, run) for _ in range(2)]
    for stream in held:
        await stream.until(b"run.started")
    async with gateway.client() as client:
        path = f"/api/v1/runs/{run.record.run_id}/events/stream"
        response = await client.get(path)
        assert (response.status_code, response.json()["code"]) == (503, "capacity")
        assert int(response.headers["retry-after"]) >= 1
        # The rest of the surface is as it was.
        assert (await client.get(f"/api/v1/runs/{run.record.run_id}")).status_code == 200
        held.pop().close()
        await streams_active(client, 1)
        async with client.stream("GET", path) as again:
            assert again.status_code == 200
    held.pop().close()


async def test_many_subscribers_share_one_watch_and_all_see_everything(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    limits = httpx.Limits(max_connections=None)
    async with gateway.client(limits=limits) as client:
        readers = [asyncio.create_task(read_stream(client, run.record.run_id)) for _ in range(60)]
        await streams_active(client, 60)
        for number in range(100):
            await gateway.mesh.emit(run, delta(f"{number}"))
        await gateway.mesh.finish(run)
        bodies = set(await asyncio.gather(*readers))
    assert len(bodies) == 1
    assert [frame["id"] for frame in frames(bodies.pop())] == list(range(1, 103))
    assert gateway.mesh.counts["WatchRun"] == 1


async def test_long_poll_answers_with_the_next_event(gateway: Running) -> None:
    run = await gateway.mesh.make_run()
    async with gateway.client() as client:
        path = f"/api/v1/runs/{run.record.run_id}/events"
        waiting = asyncio.create_task(client.get(path, params={"after": 1, "wait": 30}))
        async with asyncio.timeout(30):
            while not gateway.mesh.counts["ListEvents"]:
                await client.get("/healthz")
        await gateway.mesh.emit(run, delta("x"))
        answer = (await waiting).json()["data"]
    assert [event["sequence"] for event in answer["events"]] == [2]
    assert (answer["next_cursor"], answer["run"]["last_sequence"]) == (2, 2)
