"""Streams of runs over real gRPC: offsets, acknowledgements, attach, backpressure."""

import asyncio
import contextlib
import dataclasses
import time

import structlog

from adapters.sdk import events
from adapters.sdk.cancellation import Deadline
from adapters.sdk.host.background import Background
from adapters.sdk.host.hooks import RunHooks
from adapters.sdk.host.limits import FlowLimits
from adapters.sdk.host.memory import DraftMemory
from adapters.sdk.host.run import HostedRun
from adapters.sdk.testing import END, kinds, text_of
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2
from tests.adapters.scripted import FAST, forever, gate, steered, three, until
from tests.adapters.status import details, drained, refused


async def test_a_turn_streams_its_events_and_exactly_one_terminal():
    _, context = steered(three)
    async with context as client:
        drafts = await client.turn("hi")
        assert kinds(drafts) == ["content.delta"] * 3 + ["run.completed"]
        assert text_of(drafts) == "012"
        assert kinds(await client.turn("again"))[-1] == "run.completed"


async def test_the_first_event_does_not_wait_for_more():
    queue, play = gate()
    _, context = steered(play)
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        queue.put_nowait(events.text("one"))
        response = await call.read()
        assert (response.batch.first_offset, text_of(response.batch.drafts)) == (1, "one")
        queue.put_nowait(events.completed())
        assert kinds((await call.read()).batch.drafts) == ["run.completed"]
        assert await call.read() is END


async def test_start_again_joins_from_the_first_unacknowledged_event_and_ends_the_older_stream():
    queue, play = gate()
    adapter, context = steered(play)
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        older = client.start(fence, client.input("x"))
        for word in "ab":
            queue.put_nowait(events.text(word))
            await older.read()
        await client.ack(fence, 1)
        younger = client.start(fence, client.input("x"))
        response = await younger.read()
        assert (response.batch.first_offset, text_of(response.batch.drafts)) == (2, "b")
        await refused(drained(older), "ABORTED", "stream_superseded")
        queue.put_nowait(events.completed())
        assert kinds((await younger.read()).batch.drafts) == ["run.completed"]
        assert len(adapter.turns) == 1
        # After the end it is still the same run.
        assert kinds((await client.start(fence, client.input("x")).read()).batch.drafts) == [
            "content.delta",
            "run.completed",
        ]
        assert len(adapter.turns) == 1


async def test_start_is_idempotent_when_raced():
    adapter, context = steered(three)
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        calls = [client.start(fence, client.input("x")) for _ in range(5)]
        outcomes = await asyncio.gather(*(drained(call) for call in calls), return_exceptions=True)
        ended = [outcome for outcome in outcomes if isinstance(outcome, list)]
        assert ended
        for outcome in outcomes:
            if not isinstance(outcome, list):
                assert details(outcome)[1].reason == "stream_superseded"
        assert len(adapter.turns) == 1


async def test_losing_the_stream_does_not_end_the_run_and_attach_goes_on_from_the_durable_offset():
    queue, play = gate()
    adapter, context = steered(play)
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        queue.put_nowait(events.text("a"))
        await call.read()
        call.cancel()
        for word in "bc":
            queue.put_nowait(events.text(word))
        queue.put_nowait(events.completed())
        queue.put_nowait(None)
        await until(lambda: adapter.ended)
        assert text_of(await client.follow(client.attach(fence, 1))) == "bc"
        assert text_of(await client.follow(client.attach(fence, 0))) == "abc"
        await client.ack(fence, 2)
        assert text_of(await client.follow(client.attach(fence, 2))) == "c"
        await refused(drained(client.attach(fence, 1)), "OUT_OF_RANGE", "offset_forgotten")
        await refused(drained(client.attach(fence, 9)), "OUT_OF_RANGE", "offset_ahead")
        await client.ack(fence, 1)
        await client.ack(fence, 4)
        await client.ack(fence, 4)
        await refused(client.ack(fence, 5), "OUT_OF_RANGE", "offset_ahead")
        responses = await drained(client.attach(fence, 4))
        assert len(responses) == 1
        assert not responses[0].HasField("batch")


async def test_attach_with_nothing_new_answers_at_once():
    queue, play = gate()
    _, context = steered(play)
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        queue.put_nowait(events.text("a"))
        await call.read()
        attached = client.attach(fence, 1)
        assert not (await attached.read()).HasField("batch")
        queue.put_nowait(events.completed())
        assert kinds((await attached.read()).batch.drafts) == ["run.completed"]


async def test_backpressure_stops_the_provider_at_the_bound_and_nothing_is_lost():
    async def play(turn):
        for number in range(100):
            yield events.text(f"{number},")
        yield events.completed()

    adapter, context = steered(play, flow=runtime_pb2.RuntimeLimits(max_unacked_events=5))
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        seen = []
        while len(seen) < 5:
            seen += (await call.read()).batch.drafts
        # Everything that can run has run: the provider was not asked for more than fits.
        for _ in range(20):
            await asyncio.sleep(0)
        assert adapter.taken == 5
        await client.ack(fence, 3)
        await until(lambda: adapter.taken == 8)
        while len(seen) < 101:
            seen += (await call.read()).batch.drafts
            await client.ack(fence, len(seen))
        assert text_of(seen) == "".join(f"{number}," for number in range(100))


async def test_backpressure_counts_bytes_too():
    async def play(turn):
        for _ in range(50):
            yield events.text("x" * 1000)
        yield events.completed()

    adapter, context = steered(play, flow=runtime_pb2.RuntimeLimits(max_unacked_bytes=3000))
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        await call.read()
        for _ in range(20):
            await asyncio.sleep(0)
        assert adapter.taken == 3
        call.cancel()
        await client.cancel(fence)


async def test_a_full_buffer_does_not_keep_a_cancel_from_ending_the_run():
    async def play(turn):
        while True:
            yield events.text("x")

    adapter, context = steered(play, flow=runtime_pb2.RuntimeLimits(max_unacked_events=4))
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        await call.read()
        await until(lambda: adapter.taken == 4)
        await client.cancel(fence)
        assert adapter.ended == ["r1"]
        drafts = await client.follow(client.attach(fence, 0))
        assert kinds(drafts) == ["content.delta"] * 4 + ["run.cancelled"]


async def test_detached_for_too_long_is_cancelled():
    adapter, context = steered(forever, flow=runtime_pb2.RuntimeLimits(detach_grace_seconds=1))
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        await call.read()
        call.cancel()
        await until(lambda: adapter.ended)
        drafts = await client.follow(client.attach(fence, 1))
        assert kinds(drafts) == ["run.cancelled"]
        assert drafts[0].payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_SHUTDOWN


@contextlib.asynccontextmanager
async def left_alone(kept_seconds):
    """A run that nobody reads, with a grace of a second, and its client; the run is over."""
    limits = dataclasses.replace(FAST, kept_seconds=kept_seconds)
    adapter, context = steered(forever, limits=limits, flow=runtime_pb2.RuntimeLimits(detach_grace_seconds=1))
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        await call.read()
        call.cancel()
        await until(lambda: adapter.ended)
        yield client, fence


async def test_drafts_of_an_ended_run_outlast_a_short_grace(monkeypatch):
    """An executor that was held up for longer than the grace still gets the end of its run."""
    graces = []
    over = HostedRun._on_detached

    def counted(run):
        over(run)
        graces.append(run.run_id)

    monkeypatch.setattr(HostedRun, "_on_detached", counted)
    async with left_alone(kept_seconds=3600.0) as (client, fence):
        # The first grace ended the run. When the second is over the drafts are there all the same.
        await until(lambda: len(graces) >= 2)
        assert kinds(await client.follow(client.attach(fence, 1))) == ["run.cancelled"]


async def test_i35_drafts_of_an_ended_run_are_given_up_when_nobody_comes_for_them_in_all_that_time():
    with structlog.testing.capture_logs() as said:
        async with left_alone(kept_seconds=1.5) as (client, fence):
            await until(lambda: any(entry["event"] == "drafts_given_up" for entry in said))
            await refused(client.attach(fence, 1).read(), "OUT_OF_RANGE", "offset_forgotten")


async def test_i7_what_nobody_reads_waits_at_the_bound_for_the_next_executor():
    async def play(turn):
        for number in range(100):
            yield events.text(f"{number},")
        yield events.completed()

    adapter, context = steered(play, flow=runtime_pb2.RuntimeLimits(max_unacked_events=5))
    async with context as client:
        await client.create()
        call = client.start(client.fence(1, "r1", 1), client.input("x"))
        await call.read()
        call.cancel()
        await until(lambda: adapter.taken == 5)
        # The next one knows that two are durable, although nobody has acknowledged them.
        young = client.fence(1, "r1", 2)
        call = client.attach(young, 2)
        seen = []
        while len(seen) < 3:
            seen += (await call.read()).batch.drafts
        for _ in range(20):
            await asyncio.sleep(0)
        assert adapter.taken == 5
        await client.ack(young, 2 + len(seen))
        while len(seen) < 99:
            seen += (await call.read()).batch.drafts
            await client.ack(young, 2 + len(seen))
        assert text_of(seen) == "".join(f"{number}," for number in range(2, 100))
        assert len(adapter.turns) == 1


async def test_i11_what_was_left_alone_for_too_long_is_remembered_and_never_started_again():
    adapter, context = steered(forever, flow=runtime_pb2.RuntimeLimits(detach_grace_seconds=1))
    async with context as client:
        await client.create()
        call = client.start(client.fence(1, "r1", 1), client.input("x"))
        await call.read()
        call.cancel()
        await until(lambda: adapter.ended)
        joined = await client.follow(client.start(client.fence(1, "r1", 2), client.input("x")))
        assert kinds(joined) == ["content.delta", "run.cancelled"]
        assert kinds(await client.follow(client.attach(client.fence(1, "r1", 3), 1))) == ["run.cancelled"]
        assert len(adapter.turns) == 1


async def test_a_reader_that_was_overtaken_by_an_acknowledgement_goes_on_behind_it():
    class Hooks(RunHooks):
        async def begin(self):
            return many()

        async def admit(self, draft):
            return draft

        def released(self):
            pass

    async def many():
        for number in range(2000):
            yield events.text(str(number))
        yield events.completed()

    flow = FlowLimits(10_000, 1 << 30, 60)
    run = HostedRun("r", 1, 1, Deadline(time.time() + 60), flow, FAST, Background(), DraftMemory(1 << 30))
    run.start(Hooks())
    batches = run.follow(0)
    first, drafts = await anext(batches)
    assert first == 1
    await until(lambda: run.finished)
    assert len(drafts) < 1500
    run.acknowledge(1500)
    following, _ = await anext(batches)
    assert following == 1501
    await batches.aclose()
    run.acknowledge(2001)
