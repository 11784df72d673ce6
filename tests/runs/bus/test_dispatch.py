"""Announcing queued runs to executors: each to one of them until it has decided, and nothing that a lost or forgetful server could break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from services.runs.bus import NoBus, RedisBus, metrics
from services.runs.bus.redis_dispatch import GROUP, MAX_ANNOUNCED, dispatch_key
from services.runs.bus.redis_sender import Entry
from tests.runs.bus.valkey import ValkeyServer
from tests.runs.live.runlog import settled

NEVER = 3600.0
"""Seconds after which a pending announcement is claimed, where none is to be."""
KEY = dispatch_key("e1")


class Buses:
    """Makes buses on one server, and closes them."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self._url = url
        self._stack = stack
        self._made: list[RedisBus] = []

    async def add(self, environment: str = "e1", *, holder: str | None = None, claim_after: float = NEVER) -> RedisBus:
        bus = RedisBus(self._url, environment, holder, claim_after)
        await bus.start()
        self._stack.push_async_callback(bus.close)
        self._made.append(bus)
        # Now, not with the next look that is due: the first may only make the group, and the last tells all of each other.
        for _ in range(3):
            for one in self._made:
                await one._announcements.look()
        return bus


@pytest.fixture
async def buses(valkey: ValkeyServer) -> AsyncGenerator[Buses]:
    async with AsyncExitStack() as stack:
        yield Buses(valkey.url, stack)


async def collect(bus: RedisBus, into: list[str], *, settle: bool = True) -> None:
    while True:
        for run_id in await bus.announced(4):
            into.append(run_id)
            if settle:
                bus.settle(run_id)


async def pending(valkey: ValkeyServer) -> int:
    async with valkey.client() as client:
        return (await client.xpending(KEY, GROUP))["pending"]


async def consumers(valkey: ValkeyServer) -> list[str]:
    async with valkey.client() as client:
        return [consumer["name"].decode() for consumer in await client.xinfo_consumers(KEY, GROUP)]


async def until(condition: Any) -> None:
    """As `settled`, where the condition asks the server."""
    while not await condition():  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.005)


async def test_each_announcement_reaches_one_replica_of_its_environment(buses: Buses, valkey: ValkeyServer) -> None:
    three = [await buses.add(environment) for environment in ("e1", "e1", "e2")]
    got: list[list[str]] = [[], [], []]
    tasks = [asyncio.create_task(collect(bus, into)) for bus, into in zip(three, got, strict=True)]
    names = [f"run-{number}" for number in range(200)]
    for name in names:
        three[0].announce(name)
    await settled(lambda: len(got[0]) + len(got[1]) == len(names))
    assert sorted(got[0] + got[1]) == sorted(names)
    assert got[2] == []

    async def nothing_is_left() -> bool:
        async with valkey.client() as client:
            return not await client.xlen(KEY) and not await pending(valkey)

    await until(nothing_is_left)  # what was settled is acknowledged and deleted
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_who_does_not_ask_takes_nothing_and_nobody_gets_more_than_asked_for(buses: Buses) -> None:
    first, second = await buses.add(), await buses.add()
    for number in range(4):
        first.announce(f"run-{number}")
    assert await first.announced(1) == ["run-0"]
    got: list[str] = []
    while len(got) < 3:
        got += await second.announced(2)
    assert got == ["run-1", "run-2", "run-3"]


async def test_what_a_dead_replica_did_not_decide_is_handed_to_another(buses: Buses, valkey: ValkeyServer) -> None:
    dead, living = await buses.add(), await buses.add(claim_after=0.05)
    for name in ("decided", "undecided"):
        dead.announce(name)
    got: list[str] = []
    while len(got) < 2:
        got += await dead.announced(2)
    dead.settle("decided")

    async def one_is_pending() -> bool:
        return await pending(valkey) == 1

    await until(one_is_pending)
    claimed = metrics.CLAIMED._value.get()
    assert await living.announced(5) == ["undecided"]
    assert metrics.CLAIMED._value.get() == claimed + 1


async def test_what_was_left_pending_is_handed_out_until_it_is_decided(buses: Buses, valkey: ValkeyServer) -> None:
    alone, other = await buses.add(claim_after=0.05), await buses.add()
    other.announce("a")
    for _ in range(3):  # its own as well: whoever was full then may have room by now
        assert await alone.announced(1) == ["a"]
    assert await pending(valkey) == 1
    alone.settle("a")

    async def nothing_is_pending() -> bool:
        return not await pending(valkey)

    await until(nothing_is_pending)


async def test_what_a_living_replica_is_deciding_is_claimed_by_nobody(buses: Buses) -> None:
    deciding, other = await buses.add(), await buses.add(claim_after=NEVER)
    deciding.announce("a")
    assert await deciding.announced(1) == ["a"]
    deciding.announce("b")
    assert await other.announced(5) == ["b"]


async def test_i35_consumers_that_are_gone_are_removed_unless_they_hold_something(
    buses: Buses, valkey: ValkeyServer
) -> None:
    gone, holding = await buses.add(holder="gone"), await buses.add(holder="holding")
    gone.announce("a")
    assert await gone.announced(1) == ["a"]
    gone.settle("a")

    async def nothing_is_pending() -> bool:
        return not await pending(valkey)

    await until(nothing_is_pending)
    gone.announce("b")
    assert await holding.announced(1) == ["b"]
    watching = await buses.add(holder="watching", claim_after=0.01)  # looks every 10 ms

    async def only_the_other_is_left() -> bool:
        return sorted(await consumers(valkey)) == ["holding", "watching"]

    await until(only_the_other_is_left)
    assert await watching.announced(1) == ["b"]

    async def it_alone() -> bool:
        return await consumers(valkey) == ["watching"]

    await until(it_alone)


async def test_a_replica_that_stops_leaves_the_group_unless_others_have_to_claim(
    buses: Buses, valkey: ValkeyServer
) -> None:
    idle, busy = await buses.add(holder="idle"), await buses.add(holder="busy")
    for bus in (idle, busy):
        busy.announce("r")
        assert await bus.announced(1) == ["r"]
    idle.settle("r")

    async def one_is_pending() -> bool:
        return await pending(valkey) == 1

    await until(one_is_pending)
    await settled(lambda: idle.is_up and busy.is_up)
    await idle.close()
    await busy.close()
    assert await consumers(valkey) == ["busy"]


async def test_who_is_alone_announces_nothing_and_hears_of_others_soon(buses: Buses, valkey: ValkeyServer) -> None:
    alone = await buses.add(claim_after=0.02)
    await until(lambda: _knows_others(alone, 0))
    before = metrics.NOT_ANNOUNCED._value.get()
    alone.announce("kept here")
    assert metrics.NOT_ANNOUNCED._value.get() == before + 1
    other = await buses.add()
    asking = asyncio.create_task(other.announced(1))
    await until(lambda: _knows_others(alone, 1))
    alone.announce("r")
    assert await asking == ["r"]


async def _knows_others(bus: RedisBus, number: int) -> bool:
    return bus._announcements._others == number


async def test_i35_the_stream_is_trimmed_by_its_bound(buses: Buses, valkey: ValkeyServer) -> None:
    bus, _ = await buses.add(), await buses.add()
    async with valkey.client() as client:
        pipeline = client.pipeline(transaction=False)
        for number in range(MAX_ANNOUNCED + 500):
            pipeline.xadd(KEY, {"run": f"run-{number}"})
        await pipeline.execute()
        bus.announce("newest")

        async def trimmed() -> bool:
            # Whole nodes go, so about as many stay.
            return await client.xlen(KEY) <= MAX_ANNOUNCED + 200

        await until(trimmed)
        newest: Any = await client.xrevrange(KEY, count=1)
        assert newest[0][1] == {b"run": b"newest"}


def test_i35_a_dispatch_entry_is_trimmed_about_and_a_notice_exactly() -> None:
    assert Entry(KEY, (b"a", b"b"), 3, 60, exactly=False).arguments[:2] == ("~", 3)
    assert Entry(KEY, (b"a", b"b"), 3, 60).arguments[:2] == ("=", 3)


async def test_a_server_that_forgot_everything_or_was_restarted_is_used_again(
    buses: Buses, valkey: ValkeyServer
) -> None:
    first, second = await buses.add(), await buses.add()
    got: list[str] = []
    task = asyncio.create_task(collect(second, got))
    first.announce("a")
    await settled(lambda: got == ["a"])
    async with valkey.client() as client:
        await client.flushall()
    first.announce("b")
    await settled(lambda: got == ["a", "b"])
    valkey.kill()
    await settled(lambda: not first.is_up)
    valkey.start()
    await settled(lambda: first.is_up)
    first.announce("c")
    await settled(lambda: got[-1] == "c")
    task.cancel()
    await asyncio.wait([task])


async def test_i12_a_signal_that_is_the_first_to_meet_a_server_that_came_back_is_not_lost(
    buses: Buses, valkey: ValkeyServer
) -> None:
    first = await buses.add(holder="first")
    heard: list[str] = []
    second = RedisBus(valkey.url, "e1", "second")
    second.on_signal(heard.append)
    await second.start()
    buses._stack.push_async_callback(second.close)
    first.signal("second", "before")
    await settled(lambda: heard == ["before"])
    valkey.kill()
    valkey.start()
    # Its sender has sent nothing since, so it finds out with this.
    first.signal("second", "after")
    await settled(lambda: heard[-1] == "after")


async def test_an_announcement_that_is_none_of_ours_is_taken_out_of_the_way(buses: Buses, valkey: ValkeyServer) -> None:
    bus, _ = await buses.add(), await buses.add()
    async with valkey.client() as client:
        await client.xadd(KEY, {"what": "else"})
    bus.announce("r")
    assert await bus.announced(1) == ["r"]
    bus.settle("r")

    async def nothing_is_left() -> bool:
        return not await pending(valkey)

    await until(nothing_is_left)


async def test_i12_a_signal_reaches_the_holder_it_is_for_and_one_that_was_told_before_it_listened(
    buses: Buses, valkey: ValkeyServer
) -> None:
    heard: dict[str, list[str]] = {"one": [], "two": []}
    sender = await buses.add(holder="sender")
    sender.signal("two", "early")
    async with valkey.client() as client:

        async def sent() -> bool:
            return bool(await client.exists("harness:holder:two"))

        await until(sent)
    for holder, into in heard.items():
        bus = RedisBus(valkey.url, "e1", holder)
        bus.on_signal(into.append)
        await bus.start()
        buses._stack.push_async_callback(bus.close)
    sender.signal("one", "r1")
    sender.signal("two", "r2")
    await settled(lambda: "r1" in heard["one"] and "r2" in heard["two"])
    assert set(heard["one"]) == {"r1"}
    assert set(heard["two"]) <= {"early", "r2"}


async def test_without_a_bus_nothing_is_ever_announced() -> None:
    bus = NoBus()
    bus.announce("r")
    bus.signal("h", "r")
    bus.settle("r")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await bus.announced(1)
