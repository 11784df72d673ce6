"""Two replicas on one log: whoever watches where the run is not executed sees all of it, whatever happens to the bus."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.runs.bus.notices import ENDED_SECONDS, MAX_CARRIED_BYTES, MAX_NOTICES, live_key
from services.runs.live import metrics
from tests.runs.bus.conftest import Replicas
from tests.runs.bus.valkey import ValkeyServer
from tests.runs.live.runlog import RunLog, settled, watched


async def test_i7_a_remote_watcher_sees_every_event_once(replicas: Replicas) -> None:
    here, there = await replicas.add(executes=True), await replicas.add()
    run = RunLog(here.log)
    here.hub.published("r", await run.append(1))
    watchers = [asyncio.create_task(watched(there.hub, after)) for after in (0, 1, 5)]
    for count in (3, 1, 7):
        here.hub.published("r", await run.append(count))
    here.hub.published("r", await run.append(1, terminal=True))
    for after, seen in zip((0, 1, 5), await asyncio.gather(*watchers), strict=True):
        assert seen == run.events[after:]


async def test_a_carried_segment_needs_no_log_and_a_large_one_is_read_once(replicas: Replicas) -> None:
    here, there = await replicas.add(executes=True), await replicas.add()
    run = RunLog(here.log)
    heard = [0] * 20

    async def watch(number: int) -> None:
        async for packed in there.hub.watch("r", 0):
            heard[number] = packed.events[-1].sequence

    watchers = [asyncio.create_task(watch(number)) for number in range(20)]
    here.hub.published("r", await run.append(1))
    # From here on every watcher is at the end of the log.
    await settled(lambda: heard == [1] * 20)
    before = [child._value.get() for child in (metrics.READS_OF_WATCHERS, metrics.READS_OF_FOLLOWERS)]
    here.hub.published("r", await run.append(2))
    await settled(lambda: heard == [3] * 20)
    assert [child._value.get() for child in (metrics.READS_OF_WATCHERS, metrics.READS_OF_FOLLOWERS)] == before
    here.hub.published("r", await run.append(1, text="x" * MAX_CARRIED_BYTES))
    await settled(lambda: heard == [4] * 20)
    assert metrics.READS_OF_WATCHERS._value.get() == before[0]
    assert metrics.READS_OF_FOLLOWERS._value.get() == before[1] + 1
    here.hub.published("r", await run.append(1, terminal=True))
    await asyncio.gather(*watchers)


async def test_a_run_taken_over_by_another_replica_goes_on_for_its_watchers(replicas: Replicas) -> None:
    first, second, third = [await replicas.add() for _ in range(3)]
    run = RunLog(first.log)
    watchers = [asyncio.create_task(watched(replica.hub)) for replica in (first, second, third)]
    first.hub.published("r", await run.append(3))
    run._log = second.log
    await run.seal()
    second.hub.published("r", await run.append(3))
    second.hub.published("r", await run.append(1, terminal=True))
    assert await asyncio.gather(*watchers) == [run.events] * 3


@pytest.mark.parametrize("what", ["flushed", "killed and restarted"])
async def test_i7_a_bus_that_forgets_everything_loses_nothing(
    replicas: Replicas, valkey: ValkeyServer, what: str
) -> None:
    here, there = await replicas.add(executes=True), await replicas.add(poll_seconds=0.02)
    run = RunLog(here.log)
    watcher = asyncio.create_task(watched(there.hub))
    for step in range(30):
        here.hub.published("r", await run.append(1 + step % 3))
        if step % 10 == 5 and what == "flushed":
            async with valkey.client() as client:
                await client.flushall()
        elif step % 10 == 5:
            valkey.kill()
            here.hub.published("r", await run.append(2))
            valkey.start()
    here.hub.published("r", await run.append(1, terminal=True))
    assert await watcher == run.events


async def test_i34_while_the_bus_is_away_watchers_poll_and_it_recovers_by_itself(
    replicas: Replicas, valkey: ValkeyServer
) -> None:
    here, there = await replicas.add(executes=True), await replicas.add(poll_seconds=0.02)
    await settled(lambda: here.bus.is_up and there.bus.is_up)
    valkey.kill()
    await settled(lambda: not there.bus.is_up)
    run = RunLog(here.log)
    here.hub.published("r", await run.append(4))
    assert await watched(there.hub, until=4) == run.events  # the log alone
    watcher = asyncio.create_task(watched(there.hub))
    here.hub.published("r", await run.append(2))
    here.hub.published("r", await run.append(1, terminal=True))
    assert await watcher == run.events
    valkey.start()
    await settled(lambda: here.bus.is_up and there.bus.is_up)


async def test_after_an_outage_notices_wake_watchers_again(replicas: Replicas, valkey: ValkeyServer) -> None:
    here, there = await replicas.add(executes=True), await replicas.add()  # no poll: only the bus can wake
    run = RunLog(here.log)
    watcher = asyncio.create_task(watched(there.hub))
    await settled(lambda: there.bus.is_up)
    valkey.kill()
    await settled(lambda: not there.bus.is_up)
    here.hub.published("r", await run.append(5))  # lost: nobody is there to take it
    valkey.start()
    await settled(lambda: there.bus.is_up)
    await settled(lambda: here.bus.is_up)
    here.hub.published("r", await run.append(1, terminal=True))
    assert await watcher == run.events


async def test_streams_are_short_and_expire(replicas: Replicas, valkey: ValkeyServer) -> None:
    here = await replicas.add(executes=True)
    run = RunLog(here.log)
    for _ in range(MAX_NOTICES * 3):
        here.hub.published("r", await run.append(1))
    async with valkey.client() as client:

        async def ends(sequence: int) -> None:
            while True:
                newest: Any = await client.xrevrange(live_key("r"), count=1)
                if newest and newest[0][1][b"at"].split()[2] == b"%d" % sequence:
                    return

        await ends(run.last_sequence)
        assert await client.xlen(live_key("r")) == MAX_NOTICES
        assert await client.ttl(live_key("r")) > ENDED_SECONDS
        here.hub.published("r", await run.append(1, terminal=True))
        await ends(run.last_sequence)
        while await client.ttl(live_key("r")) > ENDED_SECONDS:
            pass
        assert 0 < await client.ttl(live_key("r")) <= ENDED_SECONDS
