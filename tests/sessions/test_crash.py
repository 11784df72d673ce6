"""Whatever is killed, what was acknowledged is there (I3, I6, I33)."""

import asyncio
import signal
from typing import Any

from services.common.errors import HarnessError
from services.common.store import open_record_store
from services.sessions.store import COLLECTIONS, SessionStore
from tests.sessions.conftest import Start
from tests.sessions.processes import ENQUEUE, EXISTING, GRANTED, WAITING, Client, Sessions, fence_of

CONVERSATIONS = 8


async def test_i33_a_kill_during_a_storm_loses_no_acknowledged_fact(start: Start) -> None:
    for life in range(3):
        client = await start("a")
        told: list[tuple[str, str, Any]] = []
        enough = asyncio.Event()

        async def storm(
            lane: int, client: Client = client, life: int = life, told: Any = told, enough: Any = enough
        ) -> None:
            for n in range(10_000):
                run_id, conversation = f"r{life}-{lane}-{n}", f"c{life}-{(lane + n) % CONVERSATIONS}"
                try:
                    told.append((run_id, conversation, await client.reserve(run_id, conversation, policy=ENQUEUE)))
                except HarnessError:
                    return
                if len(told) >= 100:
                    enough.set()

        lanes = [asyncio.create_task(storm(lane)) for lane in range(16)]
        await enough.wait()
        await client.sessions.stop(signal.SIGKILL)
        await asyncio.gather(*lanes)
        restarted = await start("a")
        bindings = {f"c{life}-{n}": await restarted.find(f"c{life}-{n}") for n in range(CONVERSATIONS)}
        for run_id, conversation, answer in told:
            binding = bindings[conversation]
            assert binding.binding_id == answer.binding.binding_id
            if answer.outcome == GRANTED:
                assert (binding.active.run_id, binding.turn) == (run_id, 1)
            elif answer.outcome == WAITING:
                assert run_id in [place.run_id for place in binding.waiting]
                assert (await restarted.reserve("again", conversation, key=f"key-{run_id}")).outcome == EXISTING
        await restarted.sessions.stop()


async def test_i33_a_kill_during_commits_keeps_each_that_was_answered(start: Start) -> None:
    client = await start("a")
    committed = 0

    async def turns() -> None:
        nonlocal committed
        for n in range(10_000):
            try:
                fence = fence_of(await client.granted(f"r{n}"))
                part = await client.write(fence, "k", str(n).encode())
                assert await client.commit(fence, [part], replace=True) == n + 1
                committed = n + 1
                if committed == 30:
                    enough.set()
                await client.release(fence.binding_id, f"r{n}")
            except HarnessError:
                return

    enough = asyncio.Event()
    task = asyncio.create_task(turns())
    await enough.wait()
    await client.sessions.stop(signal.SIGKILL)
    await task
    restarted = await start("a")
    binding = await restarted.find()
    assert binding.head.revision in (committed, committed + 1)
    if binding.HasField("active"):
        await restarted.release(binding.binding_id, binding.active.run_id)
    fence = fence_of(await restarted.granted("after"))
    pieces = await restarted.load(fence)
    assert b"".join(piece.chunk for piece in pieces) == str(binding.head.revision - 1).encode()


async def test_i33_a_stop_is_graceful(start: Start) -> None:
    client = await start("a")
    await client.granted("r1")
    assert await client.sessions.stop() == 0
    again = await start("a")
    assert (await again.find()).active.run_id == "r1"


async def test_i5_a_clear_whose_helper_died_between_archive_and_epoch_is_finished_by_the_next(start: Start) -> None:
    """The step between the two writes is made by hand: the archive is there, the epoch not opened."""
    client = await start("a")
    binding = await client.granted("r1")
    await client.release(binding.binding_id, "r1")
    await client.begin_clear()
    await _archive_only(client.sessions, binding.binding_id)
    assert not (await client.get(binding.binding_id)).archived
    assert await client.finish_clear(binding.binding_id) == 2
    assert (await client.get(binding.binding_id)).archived
    assert (await client.find()).epoch == 2


async def _archive_only(sessions: Sessions, binding_id: str) -> None:
    records = await open_record_store(f"sqlite://{sessions.database}", COLLECTIONS)
    store = SessionStore(records)
    found = await store.binding_by_id(binding_id)
    assert found is not None
    assert await store.archive(found[1])
    await records.close()
