"""Native state: what is committed, by whom, and what a runtime is shown (thread state; I30, I35)."""

import asyncio
import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest

from harness.state.v1.thread_state_service_pb2 import LoadHeadRequest, WritePartsRequest
from services.common.errors import HarnessError, Reason
from tests.sessions.conftest import Start
from tests.sessions.processes import Client, fence_of, refused, token_of

MIB = 1 << 20


async def _next_run(client: Client, run_id: str, conversation: str = "c1") -> Any:
    """Ends the run in the slot and starts another; its fence."""
    binding = await client.find(conversation)
    await client.release(binding.binding_id, binding.active.run_id)
    return fence_of(await client.granted(run_id, conversation))


async def _loaded(client: Client, fence: Any) -> tuple[int, str, list[bytes]]:
    pieces = await client.load(fence)
    assert len({(piece.revision, piece.codec) for piece in pieces}) == 1
    parts: dict[int, bytes] = {}
    for piece in pieces:
        assert len(piece.chunk) <= MIB
        parts[piece.part_index] = parts.get(piece.part_index, b"") + piece.chunk
    assert list(parts) == list(range(len(parts)))
    return pieces[0].revision, pieces[0].codec, list(parts.values())


async def test_i30_restore_gives_the_committed_head_and_nothing_pending(client: Client) -> None:
    fence = fence_of(await client.granted("r1"))
    assert await _loaded(client, fence) == (0, "", [b""])
    large = bytes(range(256)) * (10 * 1024) + b"end"  # two chunks and a half
    first = await client.write(fence, "k1", large)
    second = await client.write(fence, "k2", b"second")
    assert await _loaded(client, fence) == (0, "", [b""])
    assert await client.commit(fence, [first, second]) == 1
    assert await _loaded(client, fence) == (1, "reference.v1", [large, b"second"])
    await client.write(fence, "k3", b"pending behind the head")
    fence = await _next_run(client, "r2")
    await client.write(fence, "k1", b"pending of another run")
    assert await _loaded(client, fence) == (1, "reference.v1", [large, b"second"])


async def test_a_commit_appends_replaces_or_leaves_the_parts(client: Client) -> None:
    fence = fence_of(await client.granted("r1"))
    a = await client.write(fence, "a", b"a")
    assert await client.commit(fence, [a]) == 1
    fence = await _next_run(client, "r2")
    b = await client.write(fence, "b", b"b")
    assert await client.commit(fence, [b]) == 2
    assert await _loaded(client, fence) == (2, "reference.v1", [b"a", b"b"])
    fence = await _next_run(client, "r3")
    assert await client.commit(fence, None, reason="max_tokens") == 3
    head = (await client.find()).head
    assert (head.run_id, head.part_refs, head.outcome.stop_reason) == ("r3", [a, b], "max_tokens")
    fence = await _next_run(client, "r4")
    c = await client.write(fence, "c", b"c", codec="reference.v2")
    await refused(client.commit(fence, [c]), Reason.INVALID_REQUEST)  # an append of another codec
    assert await client.commit(fence, [c], replace=True) == 4
    assert await _loaded(client, fence) == (4, "reference.v2", [b"c"])
    fence = await _next_run(client, "r5")
    d = await client.write(fence, "d", b"d", codec="reference.v2")
    assert await client.commit(fence, [d, c], replace=True) == 5
    assert await _loaded(client, fence) == (5, "reference.v2", [b"d", b"c"])
    fence = await _next_run(client, "r6")
    assert await client.commit(fence, [], replace=True) == 6
    assert await _loaded(client, fence) == (6, "", [b""])


async def test_a_repeated_commit_answers_what_was_committed(client: Client) -> None:
    fence = fence_of(await client.granted("r1"))
    part = await client.write(fence, "k", b"content")
    assert await client.commit(fence, [part]) == 1
    before = await client.find()
    assert await client.commit(fence, None, reason="other") == 1
    await client.begin_clear()
    assert await client.commit(fence, [part]) == 1
    assert (await client.find()).head == before.head


async def test_i30_only_parts_of_the_run_or_of_the_head_are_committed(client: Client) -> None:
    other = fence_of(await client.granted("x1", "c2"))
    foreign = await client.write(other, "k", b"of another conversation")
    fence = fence_of(await client.granted("r1"))
    left = await client.write(fence, "left", b"never committed")
    fence = await _next_run(client, "r2")
    mine = await client.write(fence, "mine", b"mine")
    before = await client.find()
    for parts in ([foreign], [left], ["prt_unknown"], [mine, left], [mine, mine]):
        for replace in (False, True):
            await refused(client.commit(fence, parts, replace=replace), Reason.INVALID_REQUEST)
    assert await client.find() == before
    assert await client.commit(fence, [mine]) == 1
    fence = await _next_run(client, "r3")
    await refused(client.commit(fence, [mine]), Reason.INVALID_REQUEST)  # it would be there twice
    assert await client.commit(fence, [mine], replace=True) == 2


async def test_i5_parts_of_an_old_epoch_are_unknown_in_the_next(client: Client) -> None:
    fence = fence_of(await client.granted("r1"))
    part = await client.write(fence, "k", b"old")
    await client.commit(fence, [part])
    binding = await client.find()
    await client.begin_clear()
    await client.release(binding.binding_id, "r1")
    await client.finish_clear(binding.binding_id)
    fence = fence_of(await client.granted("r1"))
    assert await _loaded(client, fence) == (0, "", [b""])
    await refused(client.commit(fence, [part]), Reason.INVALID_REQUEST)
    # The same run id and key in another epoch is another part.
    assert await client.write(fence, "k", b"new") != part


async def test_the_same_key_is_the_same_part_and_other_content_a_conflict(client: Client) -> None:
    fence = fence_of(await client.granted("r1"))
    answers = await asyncio.gather(*(client.write(fence, "k", b"content") for _ in range(3)))
    assert len(set(answers)) == 1
    await refused(client.write(fence, "k", b"other"), Reason.IDEMPOTENCY_MISMATCH)
    await refused(client.write(fence, "k", b"content", codec="reference.v2"), Reason.IDEMPOTENCY_MISMATCH)
    assert await client.write(fence, "k2", b"content") != answers[0]
    fence = await _next_run(client, "r2")
    assert await client.write(fence, "k", b"other") != answers[0]


async def test_i30_after_uncertain_nothing_of_the_run_is_committed(client: Client) -> None:
    fence = fence_of(await client.granted("r1"))
    part = await client.write(fence, "k", b"content")
    assert await client.mark_uncertain(fence) is False
    assert await client.mark_uncertain(fence) is False
    assert (await client.find()).active.uncertain
    await refused(client.commit(fence, [part]), Reason.THREAD_DURABILITY_UNCERTAIN)
    # Another executor of the run may not either.
    fence = fence_of(await client.claim(fence.binding_id, "r1", 2))
    await refused(client.commit(fence, [part]), Reason.THREAD_DURABILITY_UNCERTAIN)
    assert not (await client.find()).HasField("head")
    fence = await _next_run(client, "r2")
    assert not (await client.find()).active.uncertain
    assert await client.commit(fence, None) == 1


async def test_i30_a_committed_run_is_not_uncertain(client: Client) -> None:
    fence = fence_of(await client.granted("r1"))
    assert await client.commit(fence, None) == 1
    assert await client.mark_uncertain(fence) is True
    assert not (await client.find()).active.uncertain
    await client.begin_clear()
    assert await client.mark_uncertain(fence) is True


async def test_i35_a_part_of_more_than_eight_mebibytes_is_refused(client: Client) -> None:
    fence = fence_of(await client.granted("r1"))
    whole = bytes(8 * MIB)
    part = await client.write(fence, "most", whole)
    error = await refused(client.write(fence, "more", whole + b"x"), Reason.CAPACITY)
    assert not error.retryable
    await client.commit(fence, [part])
    assert (await _loaded(client, fence))[2] == [whole]


async def test_i35_a_run_writes_sixty_four_parts_also_raced(start: Start) -> None:
    clients = [await start(name, max_part_transfers=128, max_part_transfers_of_binding=64) for name in ("a", "b")]
    fence = fence_of(await clients[0].granted("r1"))
    for n in range(56):
        await clients[0].write(fence, f"k{n}", b"x")
    raced = await asyncio.gather(
        *(clients[n % 2].write(fence, f"raced{n}", b"x") for n in range(24)), return_exceptions=True
    )
    written = [answer for answer in raced if isinstance(answer, str)]
    refusals = [answer for answer in raced if isinstance(answer, HarnessError)]
    assert len(written) == len(set(written)) == 8
    assert len(refusals) == 16
    assert all(error.reason is Reason.CAPACITY and not error.retryable for error in refusals)
    # A key that is there already is answered, bound or not.
    assert await clients[1].write(fence, "k0", b"x")


async def test_i35_parts_on_their_way_are_bounded(start: Start) -> None:
    client = await start(max_part_transfers_of_binding=1)
    fence = fence_of(await client.granted("r1"))
    finish = asyncio.Event()

    slow = [_slow_write(client, fence, key, finish) for key in ("k1", "k2", "k3")]
    # Of three that do not end by themselves one has the place, so exactly two are refused.
    pending: set[Any] = set(slow)
    while len(pending) > 1:
        ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for call in ended:
            error = await refused(call, Reason.CAPACITY)
            assert error.retryable
    # Another conversation is not disturbed.
    other = fence_of(await client.granted("x1", "c2"))
    assert await client.write(other, "k", b"x")
    finish.set()
    assert (await pending.pop()).part_ref
    assert await client.write(fence, "k", b"x")


async def test_i14_a_reader_that_stops_is_cut_off(start: Start) -> None:
    client = await start(part_transfer_seconds=0.5, max_part_transfers_of_binding=1)
    fence = fence_of(await client.granted("r1"))
    parts = [await client.write(fence, f"k{n}", bytes(8 * MIB)) for n in range(3)]
    await client.commit(fence, parts)
    # More than the transport takes in on its own, and no deadline: only the service can end this.
    call = client.state.LoadHead(
        LoadHeadRequest(fence=fence), metadata=client.worker.metadata(credential=token_of(fence))
    )
    assert (await call.read()).revision == 1
    end = time.monotonic() + 30
    try:
        while isinstance(answer := await _tried(client.write(fence, "k9", b"x")), HarnessError):
            assert answer.reason is Reason.CAPACITY
            assert time.monotonic() < end
    finally:
        call.cancel()


async def test_i14_a_writer_that_stops_is_cut_off(start: Start) -> None:
    client = await start(part_transfer_seconds=0.3, max_part_transfers_of_binding=1)
    fence = fence_of(await client.granted("r1"))
    await refused(_slow_write(client, fence, "k", asyncio.Event()), Reason.DEADLINE_EXCEEDED)
    assert await client.write(fence, "k", b"x")


async def test_the_first_message_says_what_the_part_is(client: Client) -> None:
    fence = fence_of(await client.granted("r1"))
    for missing in ("fence", "codec", "idempotency_key"):
        message = WritePartsRequest(fence=fence, codec="reference.v1", idempotency_key="k", chunk=b"x")
        message.ClearField(missing)
        call = client.worker.call(client.state.WriteParts, _one(message), credential=token_of(fence))
        error = await refused(call, Reason.INVALID_REQUEST)
        assert [issue.path for issue in error.details] == [missing]
    call = client.worker.call(client.state.WriteParts, _none(), credential=token_of(fence))
    await refused(call, Reason.INVALID_REQUEST)


async def test_i5_a_write_that_began_before_the_clear_is_refused_at_its_end(start: Start) -> None:
    client = await start(max_part_transfers_of_binding=1)
    fence = fence_of(await client.granted("r1"))
    finish = asyncio.Event()
    slow = [_slow_write(client, fence, key, finish) for key in ("k1", "k2")]
    (ended,), (admitted,) = await asyncio.wait(slow, return_when=asyncio.FIRST_COMPLETED)
    # There is one place: as one write was refused for want of it, the other was admitted.
    await refused(ended, Reason.CAPACITY)
    await client.begin_clear()
    finish.set()
    await refused(admitted)


@pytest.mark.parametrize("closed", [False, True])
async def test_parts_nobody_needs_are_collected(start: Start, closed: bool) -> None:
    client = await start(part_sweep_seconds=0.05, part_grace_seconds=1, part_recheck_seconds=1)
    fence = fence_of(await client.granted("r1"))
    kept = await client.write(fence, "kept", b"kept")
    await client.write(fence, "left", b"left")
    await client.commit(fence, [kept])
    fence = await _next_run(client, "r2")
    pending = await client.write(fence, "pending", b"pending")
    store = _Parts(client)
    await _until(lambda: store.refs() == {kept, pending})
    # Looked at several times since, and still there: the one is in the head, the other's run may commit it.
    seen = store.checks()
    await _until(lambda: all(store.checks()[ref] > seen[ref] for ref in (kept, pending)))
    assert (await _loaded(client, fence))[2] == [b"kept"]
    if closed:
        await client.begin_clear()
        await client.release(fence.binding_id, "r2")
        await client.finish_clear(fence.binding_id)
        await _until(lambda: store.refs() == set())
    else:
        await client.commit(fence, [pending], replace=True)
        await _until(lambda: store.refs() == {pending})


async def test_parts_of_a_closed_epoch_go_at_once(start: Start) -> None:
    client = await start(part_sweep_seconds=0.05)
    fence = fence_of(await client.granted("r1"))
    part = await client.write(fence, "k", b"content")
    other = fence_of(await client.granted("x1", "c2"))
    stays = await client.write(other, "k", b"content")
    await client.commit(fence, [part])
    await client.begin_clear()
    await client.release(fence.binding_id, "r1")
    await client.finish_clear(fence.binding_id)
    store = _Parts(client)
    await _until(lambda: store.refs() == {stays})


class _Parts:
    """Looks into the store's file."""

    def __init__(self, client: Client) -> None:
        self._path = client.sessions.database

    def _rows(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as connection:
            return connection.execute(sql).fetchall()

    def refs(self) -> set[str]:
        return {key for (key,) in self._rows("SELECT key FROM records_parts")}

    def checks(self) -> dict[str, int]:
        return dict(self._rows("SELECT key, rev FROM records_parts"))


async def _until(condition: Any) -> None:
    """Nothing signals a collection, so its effect is looked for, within a generous bound."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


def _slow_write(client: Client, fence: Any, key: str, finish: asyncio.Event) -> "asyncio.Task[Any]":
    """A write that goes on until `finish` is set."""

    async def messages():
        yield WritePartsRequest(fence=fence, codec="reference.v1", idempotency_key=key, chunk=b"x")
        await finish.wait()

    write = client.worker.call(client.state.WriteParts, messages(), timeout=60, credential=token_of(fence))
    return asyncio.create_task(write)


async def _tried(call: Any) -> Any:
    try:
        return await call
    except HarnessError as error:
        return error


async def _one(message: Any):
    yield message


async def _none():
    return
    yield
