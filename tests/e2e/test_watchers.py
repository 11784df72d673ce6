"""Everybody who watches, from anywhere and at any time, sees the same run, whole (I7, I8, I14), over two replicas and all that may fail."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.chaos.judge import violations_of
from tests.chaos.recorded import Recorded
from tests.chaos.stored import StoredMesh
from tests.e2e.turns import (
    assert_whole,
    conversation,
    counted,
    counting,
    frame_of,
    save_agent,
    start_body,
    start_when_possible,
)
from tests.e2e.watching import (
    SUBJECT,
    Audience,
    Pair,
    Subscriber,
    audience,
    cancelled,
    pair_on,
    stopped_outside_of_a_write,
)
from tests.support.mesh import PATIENCE_SECONDS, RunningMesh, poll_until, running_mesh
from tests.support.processes import ProcessHandle

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]
HANG = {"script": [{"text": "begun"}, {"hang": True}]}
BEYOND = (1 << 32) - 1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    with running_mesh(tmp_path_factory.mktemp("watchers")) as mesh:
        async with pair_on(mesh) as pair:
            yield pair


@pytest_asyncio.fixture(loop_scope="module")
async def stored(pair: Pair) -> AsyncIterator[StoredMesh]:
    """The stores, in which nothing may be left undone or broken by the end of a test."""
    stored = StoredMesh(pair.mesh.data_dir)
    yield stored
    await until(lambda: not stored.unsettled(), "everything to come to its end")
    assert violations_of(stored, Recorded({})) == []


@pytest_asyncio.fixture(loop_scope="module")
async def watched(stored: StoredMesh) -> AsyncIterator[tuple[httpx.AsyncClient, Audience]]:
    async with audience() as (client, watching):
        yield client, watching


async def until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(poll_until, condition, what)


async def started(mesh: RunningMesh, message: Any, talk: str = "", agent: str = "", **more: Any) -> str:
    """A run that the mesh's own runs service executes."""

    def begin() -> str:
        with mesh.client(SUBJECT) as client:
            of = agent or save_agent(client, profile="faults")
            if not more:
                return start_when_possible(client, of, message, talk or conversation())
            answer = client.post("/api/v1/runs", json=start_body(of, message, talk or conversation(), **more))
            assert answer.status_code == 202, answer.text
            run_id: str = answer.json()["data"]["run_id"]
            return run_id

    return await asyncio.to_thread(begin)


async def new_agent(mesh: RunningMesh) -> str:
    def save() -> str:
        with mesh.client(SUBJECT) as client:
            return save_agent(client, profile="faults")

    return await asyncio.to_thread(save)


async def metric(client: httpx.AsyncClient, url: str, name: str) -> float:
    text = (await client.get(f"{url}/metrics")).text
    return float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[1])


async def kill(pid: int) -> None:
    def end() -> None:
        handle = ProcessHandle(pid)
        handle.kill()
        assert handle.wait_gone()
        handle.close()

    await asyncio.to_thread(end)


def all_the_same(subscribers: list[Subscriber]) -> list[bytes]:
    """I8: what they were sent, which is the same from wherever each began."""
    whole = max((subscriber.raw for subscriber in subscribers), key=len)
    for subscriber in subscribers:
        assert subscriber.raw == whole[subscriber.after :]
    return whole


async def test_i7_i8_many_watchers_anywhere_at_any_cursor_see_one_run(
    pair: Pair, watched: tuple[httpx.AsyncClient, Audience]
) -> None:
    client, watching = watched
    run_id = await started(pair.mesh, counting(5))
    feeds, encoded = [
        await each(client, pair, name) for name in ("harness_stream_feeds", "harness_stream_events_total")
    ]
    early = [watching.add(run_id, [url], after) for url in pair.urls for after in (0, 0, 0, 1, 5, 5_000, BEYOND)]
    for subscriber in early:
        if subscriber.after < 5_000:
            await subscriber.has(10)
    # One subscription and one encoding for each gateway, whatever the number of its subscribers.
    assert [
        after - before for before, after in zip(feeds, await each(client, pair, "harness_stream_feeds"), strict=True)
    ] == [1, 1]
    late = [watching.add(run_id, [url], after) for url in pair.urls for after in (0, 5, 9)]
    for subscriber in late:
        await subscriber.has(15)
    last = await cancelled(run_id, pair.urls[0])
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(one.has(last) for one in (*early, *late) if one.after < last))
    shown = await each(client, pair, "harness_stream_events_total")
    assert [after - before for before, after in zip(encoded, shown, strict=True)] == [last, last]
    beyond = [subscriber for subscriber in early if subscriber.after > last]
    await watching.leave()  # those beyond the end come back for ever, as a browser would, and get nothing
    assert [subscriber.raw for subscriber in beyond] == [[]] * len(beyond)
    whole = all_the_same([subscriber for subscriber in (*early, *late) if subscriber.after < last])
    assert_whole(early[0].frames)
    assert len(whole) == last == len(counted(early[0].frames)) + 2


async def each(client: httpx.AsyncClient, pair: Pair, name: str) -> list[float]:
    return [await metric(client, url, name) for url in pair.urls]


@pytest.mark.parametrize("state", ["finished", "running", "queued"])
async def test_i7_any_cursor_is_answered_at_a_gateway_that_never_saw_the_run(
    pair: Pair, watched: tuple[httpx.AsyncClient, Audience], state: str
) -> None:
    client, watching = watched
    talk, agent = conversation(), await new_agent(pair.mesh)
    occupant = await started(pair.mesh, HANG if state != "finished" else "hello", talk, agent)
    run_id = occupant
    if state == "queued":
        run_id = await started(pair.mesh, "hello", talk, agent, on_conflict="enqueue")
    seen = Subscriber(run_id, pair.urls[:1])
    if state == "finished":
        await seen.to_the_end(client)
    path = f"{pair.urls[1]}/api/v1/runs/{run_id}/events/stream"
    for cursor in ("-1", "abc", "", "1.5", str(1 << 32), "0x1", "1e3", "9" * 400):
        for asked in ({"params": {"after": cursor}}, {"headers": {"Last-Event-ID": cursor}}):
            answer = await client.get(path, **asked)  # pyright: ignore[reportArgumentType] - one of two ways to say it
            assert answer.status_code == 422, (asked, answer.text)
            assert answer.json()["code"] == "invalid_request"
    if state == "finished":
        for cursor in (seen.last, seen.last + 1, BEYOND):
            for asked in ({"params": {"after": cursor}}, {"headers": {"Last-Event-ID": str(cursor)}}):
                answer = await client.get(path, **asked)  # pyright: ignore[reportArgumentType] - as above
                assert (answer.status_code, answer.content) == (200, b"")
    stranger = await client.get(path, headers={"X-Harness-Engine-Subject": "a stranger"})
    assert (stranger.status_code, stranger.json()["code"]) == (404, "not_found")
    ahead = [watching.add(run_id, [url], after) for url in pair.urls for after in (0, 1)] if state != "finished" else []
    if state == "running":
        for subscriber in ahead:
            await subscriber.has(2)
    if state != "finished":
        # The cancel is asked where the run is not executed.
        assert (await client.delete(f"{pair.urls[1]}/api/v1/runs/{occupant}")).status_code == 200
    await watching.all_ended()
    if ahead:
        all_the_same(ahead)
        assert ahead[0].frames[-1].event_type == ("run.cancelled" if state == "running" else "run.completed")


async def test_i7_a_queued_runs_watchers_see_it_cancelled(
    pair: Pair, watched: tuple[httpx.AsyncClient, Audience]
) -> None:
    client, watching = watched
    talk, agent = conversation(), await new_agent(pair.mesh)
    occupant = await started(pair.mesh, HANG, talk, agent)
    queued = await started(pair.mesh, "hello", talk, agent, on_conflict="enqueue")
    waiting = [watching.add(queued, [url]) for url in pair.urls]
    await watching.add(occupant, pair.urls).has(2)
    for run_id in (queued, occupant):
        assert (await client.delete(f"{pair.urls[1]}/api/v1/runs/{run_id}")).status_code == 200
    await watching.all_ended()
    assert all_the_same(waiting) == waiting[0].raw
    assert [frame.event_type for frame in waiting[0].frames] == ["run.started", "run.cancelled"]


async def test_i7_i34_the_last_notice_is_lost_with_the_bus_and_watchers_find_the_end_by_themselves(
    pair: Pair, watched: tuple[httpx.AsyncClient, Audience]
) -> None:
    _, watching = watched
    run_id = await started(pair.mesh, {"n": 40, "rate": 20})
    subscribers = [watching.add(run_id, [url]) for url in pair.urls]
    await subscribers[1].has(10)
    bus = pair.mesh.pid("bus")
    os.kill(bus, signal.SIGSTOP)
    try:
        await watching.all_ended()
    finally:
        os.kill(bus, signal.SIGCONT)
    assert_whole(subscribers[1].frames)
    all_the_same(subscribers)


async def test_i7_i13_gateways_and_readers_of_the_other_replica_die_and_watchers_come_back(
    pair: Pair, watched: tuple[httpx.AsyncClient, Audience]
) -> None:
    _, watching = watched
    run_id = await started(pair.mesh, counting(20))
    subscribers = [watching.add(run_id, urls) for urls in (pair.urls[:1], pair.urls[1:], pair.urls, pair.urls[::-1])]
    for sequence, find in (
        (20, lambda: pair.second("gateway")),
        (60, lambda: pair.mesh.pid("gateway")),
        (100, lambda: pair.second("runs")),
        (140, lambda: pair.second("gateway")),
    ):
        for subscriber in subscribers:
            await subscriber.has(sequence)
        await kill(find())
    for subscriber in subscribers:
        await subscriber.has(180)
    last = await cancelled(run_id, pair.urls[1])
    await watching.all_ended()
    for subscriber in subscribers:
        assert_whole(subscriber.frames)
    all_the_same(subscribers)
    assert len(counted(subscribers[0].frames)) == last - 2
    # It was going on when the gateways were killed, so whoever came back did so for more of it.
    assert subscribers[2].connections > 1


@pytest.fixture
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningMesh]:
    with running_mesh(tmp_path_factory.mktemp("forgetful"), environment={"HARNESS_RETENTION_SECONDS": "45"}) as mesh:
        yield mesh


async def test_i7_i14_a_slow_reader_whose_run_is_trimmed_hears_that_and_never_skips(forgetful: RunningMesh) -> None:
    async with audience() as (client, watching):
        run_id = await started(forgetful, {"n": 5_000, "size": 4_000})
        path = f"{forgetful.url}/api/v1/runs/{run_id}/events/stream"
        seen, buffer = list[int](), b""
        async with client.stream("GET", path) as response:
            chunks = response.aiter_raw()
            fast = watching.add(
                run_id, [forgetful.url]
            )  # it has most of it before the run ends, and the retention begins
            buffer += await anext(chunks)
            await watching.all_ended()
            assert_whole(fast.frames)
            async with asyncio.timeout(45 + PATIENCE_SECONDS):
                kept = f"{forgetful.url}/api/v1/runs/{run_id}/events?limit=1"
                while (await client.get(kept)).status_code == 200:  # noqa: ASYNC110 - nothing signals it
                    await asyncio.sleep(0.2)
            # What was under way comes whole, and then the stream ends: what is left is not there any more.
            async for chunk in chunks:
                buffer += chunk
        while (end := buffer.find(b"\n\n")) >= 0:
            raw, buffer = buffer[: end + 2], buffer[end + 2 :]
            if (frame := frame_of(raw)) is not None:
                seen.append(frame.sequence)
        assert buffer == b""
        assert seen == list(range(1, len(seen) + 1))
        assert 0 < len(seen) < 5_000
        answer = await client.get(path, headers={"Last-Event-ID": str(seen[-1])})
        assert (answer.status_code, answer.json()["code"]) == (410, "cursor_expired")
        # Who had all of it has missed nothing.
        assert (await client.get(path, headers={"Last-Event-ID": "5002"})).content == b""


@pytest.fixture
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningMesh]:
    several = ("--replicas", "runs=2,sessions=2,gateway=2")
    with running_mesh(tmp_path_factory.mktemp("replicated"), several) as mesh:
        yield mesh


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_i7_i9_behind_replicas_a_death_is_a_pause_in_the_same_stream(replicated: RunningMesh, how: str) -> None:
    """Whichever replica executes the run, and whichever a gateway reads from: each is taken away, and no stream ends."""
    stored = StoredMesh(replicated.data_dir)
    async with audience() as (_, watching):
        run_id = await started(replicated, counting(20))
        subscribers = [watching.add(run_id, [url], after) for url in replicated.urls for after in (0, 0, 3)]
        # One that is stopped is believed to be there until it answers no ping of its connections, so that goes slowly.
        for name in ("runs", "runs-2") if how == "killed" else ("runs",):
            for subscriber in subscribers:
                await subscriber.has(subscriber.last + 20)
            if how == "killed":
                await asyncio.to_thread(replicated.kill, name)
                continue
            pid = await asyncio.to_thread(stopped_outside_of_a_write, replicated.data_dir, replicated.pid(name))
            try:
                # The other replica executes it by now, or still does, and every gateway reads from there.
                for subscriber in subscribers:
                    await subscriber.has(subscriber.last + 20)
            finally:
                os.kill(pid, signal.SIGCONT)
        last = await cancelled(run_id, replicated.urls[0])
        await watching.all_ended()
    for subscriber in subscribers:
        assert subscriber.connections == 1
    all_the_same(subscribers)
    assert_whole(subscribers[0].frames)
    assert len(counted(subscribers[0].frames)) == last - 2
    assert subscribers[0].frames[-1].event_type == "run.cancelled"
    await until(lambda: not stored.unsettled(), "everything to come to its end")
    assert violations_of(stored, Recorded({})) == []
