"""Runs are cancelled over real gRPC at every boundary, and at their deadline (I12)."""

import asyncio
from contextlib import suppress

from structlog.testing import capture_logs

from adapters.sdk import errors, events
from adapters.sdk.testing import END, kinds, text_of
from harness.event.v1 import payload_pb2
from tests.adapters.scripted import CANCEL, forever, steered, three, until
from tests.adapters.status import drained, refused


async def test_i12_cancel_before_the_start_is_remembered():
    adapter, context = steered(three)
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        for _ in range(2):
            answer = await client.cancel(fence)
            assert not answer.already_ended
        await refused(drained(client.start(fence, client.input("x"))), "FAILED_PRECONDITION", "run_cancelled")
        assert not adapter.turns
        # Also when not even the runtime is known.
        other = client.another()
        await refused(other.cancel(other.fence(1, "r9")), "NOT_FOUND", "runtime_unknown")
        await other.create()
        await refused(
            drained(other.start(other.fence(1, "r9"), other.input("x"))), "FAILED_PRECONDITION", "run_cancelled"
        )


async def test_i12_cancel_during_a_run_stops_it_and_no_event_follows():
    adapter, context = steered(forever)
    adapter.side_effects = errors.KNOWN_SIDE_EFFECTS
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        await call.read()
        answers = await asyncio.gather(client.cancel(fence), client.cancel(fence))
        assert adapter.ended == ["r1"]
        assert {answer.side_effect_status for answer in answers} == {errors.KNOWN_SIDE_EFFECTS}
        (last,) = (await call.read()).batch.drafts
        assert last.payload.run_cancelled.reason == CANCEL
        assert last.payload.run_cancelled.side_effect_status == errors.KNOWN_SIDE_EFFECTS
        assert await call.read() is END
        assert adapter.runtimes[0].cancelled == [CANCEL]
        assert (await client.cancel(fence)).already_ended


async def test_i12_cancel_while_the_runtime_initialises():
    adapter, context = steered(three)
    never = asyncio.Event()

    async def initialize(self):
        adapter.begun.set()
        await never.wait()

    async with context as client:
        await client.create()
        type(adapter.runtimes[0]).initialize, before = initialize, type(adapter.runtimes[0]).initialize
        try:
            fence = client.fence(1, "r1")
            call = client.start(fence, client.input("x"))
            await adapter.begun.wait()
            answer = await client.cancel(fence)
            assert answer.side_effect_status == errors.NO_SIDE_EFFECTS
            drafts = await client.follow(call)
            assert kinds(drafts) == ["run.cancelled"]
            assert not adapter.turns
        finally:
            type(adapter.runtimes[0]).initialize = before


async def test_i12_cancel_after_the_end_changes_nothing():
    adapter, context = steered(three)
    async with context as client:
        drafts = await client.turn("x")
        run = adapter.turns[0].run_id
        answer = await client.cancel(client.fence(1, run))
        assert answer.already_ended
        assert kinds(drafts)[-1] == "run.completed"
        assert kinds(await client.turn("y"))[-1] == "run.completed"


async def test_i12_open_calls_and_subagents_are_closed_by_a_cancel():
    async def play(turn):
        yield events.tool_started("c1", "t")
        yield events.subagent_started("a1", "c1")
        yield events.tool_started("c2", "t", namespace=("a1",))
        await asyncio.Event().wait()

    _, context = steered(play)
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        seen = []
        while len(seen) < 3:
            seen += (await call.read()).batch.drafts
        await client.cancel(fence)
        seen += await client.follow(client.attach(fence, 3))
        assert kinds(seen)[3:] == ["tool.completed", "subagent.completed", "tool.completed", "run.cancelled"]
        assert {d.payload.tool_completed.outcome for d in seen if d.payload.HasField("tool_completed")} == {
            payload_pb2.TOOL_OUTCOME_CANCELLED
        }


async def test_late_events_after_a_cancel_are_discarded():
    stubborn = asyncio.Event()

    async def play(turn):
        yield events.text("a")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stubborn.set()
            yield events.text("late")
            yield events.completed()

    adapter, context = steered(play)
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        await call.read()
        await client.cancel(fence)
        assert stubborn.is_set()
        assert kinds(await client.follow(client.attach(fence, 1))) == ["run.cancelled"]
        await until(lambda: adapter.ended)
        assert kinds(await client.follow(client.attach(fence, 1))) == ["run.cancelled"]


async def test_late_events_of_a_provider_that_never_ends_are_counted_while_it_goes_on():
    said, release = asyncio.Event(), asyncio.Event()

    async def play(turn):
        yield events.text("a")
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        for number in range(25):
            yield events.text(f"late {number}")
        said.set()
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()

    adapter, context = steered(play)
    with capture_logs() as logged:
        async with context as client:
            await client.create()
            fence = client.fence(1, "r1")
            call = client.start(fence, client.input("x"))
            await call.read()
            await client.cancel(fence)
            await asyncio.wait_for(said.wait(), 90)

            def counted() -> list[int]:
                lines = [line for line in logged if line["event"] == "late_events_discarded"]
                assert all(line["run_id"] == "r1" for line in lines)
                return [line["count"] for line in lines]

            assert not adapter.ended
            assert counted() == [1, 10]
            release.set()
            await until(lambda: adapter.ended)
    assert counted() == [1, 10, 25]


async def test_i23_a_provider_that_says_more_and_more_while_it_is_told_to_stop_holds_nobody_up():
    """It never waits for anything, so that nothing but the host's own pauses lets others work."""
    flooding = asyncio.Event()

    async def play(turn):
        yield events.text("a")
        await flooding.wait()
        while True:
            yield events.text("more")

    adapter, context = steered(play)
    async with context as client:
        await client.create()
        others_turn = asyncio.Event()

        async def cancel(self, reason):
            flooding.set()
            for _ in range(3):
                await asyncio.sleep(0)
            others_turn.set()
            return errors.POSSIBLE_SIDE_EFFECTS

        kind = type(adapter.runtimes[0])
        kind.cancel, before = cancel, kind.cancel
        try:
            fence = client.fence(1, "r1")
            call = client.start(fence, client.input("x"))
            await call.read()
            await client.cancel(fence)
            assert others_turn.is_set()
            assert kinds(await client.follow(client.attach(fence, 1))) == ["run.cancelled"]
        finally:
            kind.cancel = before


async def test_a_provider_that_ignores_everything_is_given_up_and_its_runtime_takes_no_more():
    release = asyncio.Event()

    async def play(turn):
        yield events.text("a")
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    _, context = steered(play)
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        await call.read()
        await client.cancel(fence)
        assert kinds(await client.follow(client.attach(fence, 1))) == ["run.cancelled"]
        second = client.fence(2, "r2")
        drafts = await client.follow(client.start(second, client.input("y")))
        assert drafts[-1].payload.run_failed.code == "runtime_stuck"
        # Another binding is not disturbed.
        other = client.another()
        await other.create()
        other_fence = other.fence(1, "o1")
        other_call = other.start(other_fence, other.input("x"))
        assert text_of((await other_call.read()).batch.drafts) == "a"
        release.set()
        await client.follow(other_call)


async def test_the_deadline_ends_a_run():
    adapter, context = steered(forever)
    async with context as client:
        drafts = await client.turn("x", seconds=0.3)
        assert kinds(drafts) == ["content.delta", "run.cancelled"]
        assert drafts[-1].payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_DEADLINE
        assert adapter.ended
        assert 0 <= adapter.turns[0].deadline.remaining() <= 0.3
