"""The memory of a host's runs is bounded in total: who gives drafts up, who waits, and what readers are told (I35)."""

import asyncio

from adapters.sdk import events
from adapters.sdk.host.limits import HostLimits
from adapters.sdk.host.registry import RuntimeRegistry
from adapters.sdk.testing import kinds, text_of
from harness.runtime.v1 import runtime_pb2
from tests.adapters.scripted import steered, until
from tests.adapters.status import drained, refused

LARGE = 1000


def bounded(play, total, **settings):
    return steered(play, limits=HostLimits(max_buffered_bytes=total, stop_seconds=0.2), **settings)


async def large(turn):
    """As many large events as the message says."""
    for _ in range(int(turn.message)):
        yield events.text("x" * LARGE)
    yield events.completed()


async def ended(client, turns=1, size="2"):
    """A run that was read to its end and that nobody has acknowledged."""
    await client.create()
    fence = client.fence(turns, f"run-{client.binding_id}-{turns}")
    drafts = await client.follow(client.start(fence, client.input(size)))
    assert kinds(drafts)[-1] == "run.completed"
    return fence


async def settled():
    """Everything that can run has run."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_i35_ended_runs_that_were_handed_over_give_their_drafts_up_oldest_first():
    adapter, context = bounded(large, 6 * LARGE)
    async with context as client:
        first, second, third = client, client.another(), client.another()
        oldest, younger = await ended(first), await ended(second)
        await third.create()
        fence = third.fence(1, "r3")
        call = third.start(fence, third.input("3"))
        # 4,000 bytes are kept, and 2,000 of the new run reach the bound: the oldest run goes, and that is enough.
        assert len(await third.follow(call)) == 4
        await refused(drained(first.attach(oldest, 0)), "OUT_OF_RANGE", "offset_forgotten")
        assert len(await second.follow(second.attach(younger, 0))) == 3
        # Nobody has said that the forgotten drafts are durable, so a repeated start is no empty stream either.
        await refused(drained(first.start(oldest, first.input("2"))), "OUT_OF_RANGE", "offset_forgotten")
        # A late acknowledgement is one of a run that is still known; one beyond its end is refused as ever.
        await first.ack(oldest, 3)
        await first.ack(oldest, 3)
        await refused(first.ack(oldest, 4), "OUT_OF_RANGE", "offset_ahead")
        assert await drained(first.start(oldest, first.input("2"))) == []
        assert len(adapter.turns) == 3


async def test_i35_no_provider_is_read_while_the_memory_is_full_of_runs_at_work():
    adapter, context = bounded(large, 4 * LARGE)
    async with context as client:
        other = client.another()
        await client.create()
        await other.create()
        fence, other_fence = client.fence(1, "r1"), other.fence(1, "o1")
        call = client.start(fence, client.input("9"))
        await call.read()
        await until(lambda: adapter.taken == 4)
        # The other run's provider is begun only when there is room for what it says.
        other_call = other.start(other_fence, other.input("2"))
        await until(lambda: len(adapter.streams) == 2)
        await settled()
        assert adapter.taken == 4
        assert len(adapter.turns) == 1
        # Room goes to who has waited longest, and then to the next.
        await client.ack(fence, 2)
        await until(lambda: adapter.taken == 6)
        await settled()
        assert len(adapter.turns) == 1
        await client.ack(fence, 4)
        await until(lambda: len(adapter.turns) == 2)
        seen, rest = await asyncio.gather(
            other.follow(other_call, other_fence), client.follow(client.attach(fence, 4), fence)
        )
        assert kinds(seen) == ["content.delta"] * 2 + ["run.completed"]
        assert kinds(rest)[-1] == "run.completed"
        assert text_of(rest) == "x" * LARGE * 5


async def test_i35_a_run_that_waited_for_its_own_bound_goes_on_although_the_hosts_is_reached_meanwhile():
    async def play(turn):
        yield events.text("x" * (LARGE if turn.run_id == "small" else 5 * LARGE))
        yield events.text("y")
        yield events.completed()

    adapter, context = bounded(play, 2 * LARGE)
    async with context as client:
        client.limits = runtime_pb2.RuntimeLimits(max_unacked_events=1)
        other = client.another()
        await client.create()
        await other.create()
        small, big = client.fence(1, "small"), other.fence(1, "big")
        call = client.start(small, client.input("x"))
        await call.read()
        await until(lambda: adapter.taken == 1)
        other_call = other.start(big, other.input("x"))
        await other_call.read()
        await until(lambda: adapter.taken == 2)
        # Room in the run, none in the host: and then there is.
        await client.ack(small, 1)
        await settled()
        assert adapter.taken == 2
        await other.ack(big, 1)
        seen, _ = await asyncio.gather(client.follow(call, small), other.follow(other_call, big))
        assert kinds(seen) == ["content.delta", "run.completed"]


async def test_i35_drafts_that_somebody_reads_again_are_not_given_up_before_he_has_them_all():
    adapter, context = steered(large)
    async with context as client:
        other = client.another()
        registry = RuntimeRegistry(adapter, "this-process", HostLimits(max_buffered_bytes=900 * LARGE))
        await registry.create(client.fence(), client.context(), 60.0)
        await registry.create(other.fence(), other.context(), 60.0)
        run = registry.start(client.fence(1, "r1"), "this-process", client.input("600"))
        assert sum([len(drafts) async for _, drafts in run.follow(0)]) == 601
        again = run.follow(0)
        seen = len((await anext(again))[1])
        assert seen < 601
        waiting = registry.start(other.fence(1, "o1"), "this-process", other.input("400"))
        await until(lambda: adapter.taken > 800)
        run.acknowledge(1)
        await settled()
        assert run.keeps_drafts
        assert not waiting.finished
        seen += sum([len(drafts) async for _, drafts in again])
        assert seen == 601
        # Now they may go, and the other run goes on.
        await until(lambda: waiting.finished)
        assert not run.keeps_drafts
        await registry.close()


async def test_i35_a_cancel_ends_a_run_that_waits_for_room():
    adapter, context = bounded(large, 2 * LARGE)
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("9"))
        await call.read()
        await until(lambda: adapter.taken == 2)
        await client.cancel(fence)
        assert kinds(await client.follow(client.attach(fence, 0))) == ["content.delta"] * 2 + ["run.cancelled"]
        # What it left makes room for the next run.
        client.turns = 1
        assert len(await client.turn("1")) == 2
