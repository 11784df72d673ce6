"""Clearing a conversation (run protocol, Clear; I5)."""

import asyncio

from services.common.errors import Reason
from tests.sessions.conftest import Start
from tests.sessions.processes import CLOSING, ENQUEUE, GRANTED, INTERRUPT, REJECT, WAITING, Client, fence_of, refused


async def _used(client: Client, conversation: str = "c1", run_id: str = "r1") -> str:
    binding = await client.granted(run_id, conversation)
    await client.release(binding.binding_id, run_id)
    return binding.binding_id


async def test_i5_raced_and_repeated_clears_raise_the_epoch_by_one(start: Start) -> None:
    clients = [await start("a"), await start("b")]
    binding_id = await _used(clients[0])
    for epoch in (2, 3):
        begun = await asyncio.gather(*(clients[n % 2].begin_clear() for n in range(20)))
        assert all(answer.closing and answer.binding.binding_id == binding_id for answer in begun)
        finished = await asyncio.gather(*(clients[n % 2].finish_clear(binding_id) for n in range(20)))
        assert set(finished) == {epoch}
        assert await clients[1].finish_clear(binding_id) == epoch
        binding = await clients[1].find()
        assert binding.epoch == epoch
        assert (await clients[0].get(binding_id)).archived
        binding_id = await _used(clients[1])
        assert binding_id == binding.binding_id


async def test_i5_a_whole_clear_raced_with_starts_leaves_no_run_of_the_old_epoch(start: Start) -> None:
    clients = [await start("a"), await start("b")]
    binding_id = await _used(clients[0])

    async def begin(client: Client, n: int) -> str:
        answer = await client.reserve(f"n{n}")
        return answer.binding.binding_id if answer.outcome == GRANTED else ""

    starts = asyncio.gather(*(begin(clients[n % 2], n) for n in range(10)))
    cleared = await clients[0].begin_clear()
    begun = await starts
    binding = cleared.binding
    assert cleared.closing
    if binding.HasField("active"):
        # A start was faster: it is in the old epoch, and the clear waits for its end.
        assert begun.count(binding_id) == 1
        await refused(clients[1].finish_clear(binding_id), Reason.HARNESS_SESSION_CONFLICT)
        await clients[1].release(binding_id, binding.active.run_id)
    else:
        assert begun.count(binding_id) == 0
    assert await clients[1].finish_clear(binding_id) == 2
    assert not (await clients[0].find()).HasField("active")


async def test_nothing_used_is_nothing_to_clear(client: Client) -> None:
    answer = await client.begin_clear()
    assert not answer.closing
    assert not answer.HasField("binding")
    binding = await client.granted("r1")
    await client.release(binding.binding_id, "r1", stored=False)
    before = await client.find()
    answer = await client.begin_clear()
    assert not answer.closing
    assert answer.binding == before
    assert await client.find() == before
    await refused(client.finish_clear(binding.binding_id), Reason.HARNESS_SESSION_CONFLICT)
    # And an epoch that was opened by a clear and not used yet is not closed again.
    binding_id = await _used(client)
    assert (await client.begin_clear()).closing
    assert await client.finish_clear(binding_id) == 2
    assert not (await client.begin_clear()).closing
    assert (await client.find()).epoch == 2


async def test_each_use_makes_the_epoch_clearable(client: Client) -> None:
    async def head(conversation: str) -> None:
        await client.commit(fence_of(await client.find(conversation)), None)

    async def native(conversation: str) -> None:
        await client.record_session(fence_of(await client.find(conversation)))

    async def runtime(conversation: str) -> None:
        await client.record_runtime(fence_of(await client.find(conversation)))

    async def uncertain(conversation: str) -> None:
        await client.mark_uncertain(fence_of(await client.find(conversation)))

    async def claimed(conversation: str) -> None:
        await client.claim((await client.find(conversation)).binding_id, "r1", 2)

    async def withdrawn(conversation: str) -> None:
        await client.reserve("q1", conversation, policy=ENQUEUE)
        await client.withdraw((await client.find(conversation)).binding_id, "q1")

    for number, use in enumerate((head, native, runtime, uncertain, claimed, withdrawn)):
        binding = await client.granted("r1", f"c{number}")
        await use(f"c{number}")
        answer = await client.release(binding.binding_id, "r1", stored=False)
        assert answer.binding.used, use.__name__
        assert (await client.begin_clear(f"c{number}")).closing


async def test_i5_closing_refuses_turns_and_nobody_moves_up(client: Client) -> None:
    binding = await client.granted("r1")
    await client.reserve("r2", policy=ENQUEUE)
    assert (await client.begin_clear()).closing
    again = await client.begin_clear()
    assert again.closing
    for policy in (REJECT, ENQUEUE, INTERRUPT):
        answer = await client.reserve("r3", policy=policy)
        assert (answer.outcome, answer.run_id) == (CLOSING, "")
        assert answer.binding == again.binding
    held = await refused(client.finish_clear(binding.binding_id), Reason.HARNESS_SESSION_CONFLICT)
    assert held.metadata["run_id"] == "r1"
    # A forced end takes the run first; that still works.
    assert (await client.claim(binding.binding_id, "r1", 2)).active.run_generation == 2
    released = await client.release(binding.binding_id, "r1")
    assert released.released
    assert not released.binding.HasField("active")
    assert [place.run_id for place in released.binding.waiting] == ["r2"]
    awaited = await refused(client.finish_clear(binding.binding_id), Reason.HARNESS_SESSION_CONFLICT)
    assert awaited.metadata["run_id"] == "r2"
    assert (await client.reserve("r3", policy=ENQUEUE)).outcome == CLOSING
    assert (await client.withdraw(binding.binding_id, "r2")).withdrawn
    assert await client.finish_clear(binding.binding_id) == 2


async def test_i5_nothing_is_carried_over_but_the_turn(client: Client) -> None:
    binding = await client.granted("r1")
    fence = fence_of(binding)
    await client.record_runtime(fence)
    await client.record_session(fence)
    await client.commit(fence, [await client.write(fence, "k", b"state")])
    await client.release(binding.binding_id, "r1")
    closing = (await client.begin_clear()).binding
    await client.finish_clear(binding.binding_id)
    archived = await client.get(binding.binding_id)
    assert archived.archived
    closing.revision = archived.binding.revision  # the archive's document was written once
    assert archived.binding == closing
    opened = await client.find()
    assert opened.binding_id != binding.binding_id
    assert (opened.epoch, opened.turn, opened.status) == (2, 1, 1)
    for field in ("head", "runtime_ref", "pin", "active"):
        assert not opened.HasField(field), field
    assert (opened.native_session_id, opened.session_revision, opened.runtime_generation) == ("", 0, 0)
    assert not opened.used
    granted = await client.granted("r2")
    assert (granted.turn, granted.runtime_generation) == (2, 1)
    # What ended in the old epoch may be ended again, and changes nothing.
    assert not (await client.release(binding.binding_id, "r1")).released
    assert not (await client.withdraw(binding.binding_id, "r1")).withdrawn
    assert await client.get(binding.binding_id) == archived
    assert (await client.find()).active.run_id == "r2"


async def test_a_runtime_made_meanwhile_is_recorded_so_that_the_clear_can_release_it(client: Client) -> None:
    binding = await client.granted("r1")
    await client.begin_clear()
    await client.record_runtime(fence_of(binding))
    assert (await client.find()).runtime_ref.incarnation == "inc1"
    await refused(client.advance(fence_of(binding)))


async def test_i27_one_generation_is_one_runtime(client: Client) -> None:
    fence = fence_of(await client.granted("r1"))
    await client.record_runtime(fence)
    before = await client.find()
    await client.record_runtime(fence)
    await refused(client.record_runtime(fence, "inc2"))
    assert await client.find() == before
    fence = fence_of(await client.advance(fence))
    await client.record_runtime(fence, "inc2")
    assert (await client.find()).runtime_ref.incarnation == "inc2"


async def test_the_same_native_session_counts_once(client: Client) -> None:
    fence = fence_of(await client.granted("r1"))
    assert [await client.record_session(fence, name) for name in ("a", "a", "b", "a")] == [1, 1, 2, 3]
    binding = await client.find()
    assert (binding.native_session_id, binding.session_revision) == ("a", 3)


async def test_unknown_bindings(client: Client) -> None:
    await refused(client.finish_clear("bnd_unknown"), Reason.NOT_FOUND)
    await refused(client.get("bnd_unknown"), Reason.NOT_FOUND)
    await refused(client.claim("bnd_unknown", "r1", 2), Reason.NOT_FOUND)
    await refused(client.withdraw("bnd_unknown", "r1"), Reason.NOT_FOUND)
    assert (await client.reserve("r1", policy=ENQUEUE)).outcome != WAITING
