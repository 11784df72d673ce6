"""Announcing queued runs to executors: each to one of them, and nothing that a lost or forgetful server could break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack

import pytest

from services.runs.bus import NoBus, RedisBus
from services.runs.bus.redis_dispatch import dispatch_key
from tests.runs.bus.valkey import ValkeyServer
from tests.runs.live.runlog import settled


@pytest.fixture
async def buses(valkey: ValkeyServer) -> AsyncGenerator[list[RedisBus]]:
    async with AsyncExitStack() as stack:
        made = [RedisBus(valkey.url, environment) for environment in ("e1", "e1", "e2")]
        for bus in made:
            await bus.start()
            stack.push_async_callback(bus.close)
        yield made


async def collect(announcements: AsyncIterator[str], into: list[str]) -> None:
    async for run_id in announcements:
        into.append(run_id)


async def test_each_announcement_reaches_one_replica_of_its_environment(buses: list[RedisBus]) -> None:
    got: list[list[str]] = [[], [], []]
    tasks = [asyncio.create_task(collect(bus.announcements(), into)) for bus, into in zip(buses, got, strict=True)]
    names = [f"run-{number}" for number in range(200)]
    for name in names:
        buses[0].announce(name)
    buses[0].announce("last")
    await settled(lambda: len(got[0]) + len(got[1]) == len(names) + 1)
    assert sorted(got[0] + got[1]) == sorted([*names, "last"])
    assert got[2] == []
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_who_does_not_ask_takes_nothing(buses: list[RedisBus]) -> None:
    busy, idle = buses[0].announcements(), buses[1].announcements()
    for number in range(4):
        buses[2].announce("elsewhere")
        buses[0].announce(f"run-{number}")
    assert await anext(busy) == "run-0"
    assert [await anext(idle) for _ in range(3)] == ["run-1", "run-2", "run-3"]


async def test_a_server_that_forgot_everything_or_was_restarted_is_used_again(
    buses: list[RedisBus], valkey: ValkeyServer
) -> None:
    got: list[str] = []
    task = asyncio.create_task(collect(buses[1].announcements(), got))
    buses[0].announce("a")
    await settled(lambda: got == ["a"])
    async with valkey.client() as client:
        await client.flushall()
    buses[0].announce("b")
    await settled(lambda: got == ["a", "b"])
    valkey.kill()
    await settled(lambda: not buses[0].is_up)
    valkey.start()
    await settled(lambda: buses[0].is_up)
    buses[0].announce("c")
    await settled(lambda: got[-1] == "c")
    task.cancel()
    await asyncio.wait([task])


async def test_replicas_that_are_gone_leave_nothing_behind(buses: list[RedisBus], valkey: ValkeyServer) -> None:
    for bus in buses[:2]:
        bus.announce("r")
        announcements = bus.announcements()
        assert await anext(announcements) == "r"
        await announcements.aclose()
    async with valkey.client() as client:
        assert len(await client.xinfo_consumers(dispatch_key("e1"), "executors")) == 1
        pending = await client.xpending(dispatch_key("e1"), "executors")
        assert pending["pending"] == 0


async def test_without_a_bus_nothing_is_ever_announced() -> None:
    bus = NoBus()
    bus.announce("r")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(bus.announcements())
