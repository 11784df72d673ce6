"""Runs in a host over real gRPC: offsets, acknowledgements, attach, backpressure, cancel, fences, bad streams."""

import asyncio
import time
from contextlib import aclosing

import grpc
import pytest

from adapters.sdk import errors, events
from adapters.sdk.cancellation import Deadline
from adapters.sdk.host.background import Background
from adapters.sdk.host.limits import FlowLimits, HostLimits
from adapters.sdk.host.refusal import Refusal
from adapters.sdk.host.registry import RuntimeRegistry
from adapters.sdk.host.run import HostedRun, RunHooks
from adapters.sdk.testing import END, kinds, served, text_of
from harness.adapter.v1 import adapter_service_pb2 as adapter_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.runtime.v1 import runtime_pb2
from harness.runtime.v1 import runtime_service_pb2 as pb2
from tests.adapters.scripted import SteeredAdapter, until
from tests.adapters.status import details, drained, refused

CANCEL = payload_pb2.CANCEL_REASON_CLIENT_REQUEST
FAST = HostLimits(stop_seconds=0.2, cleanup_seconds=1.0)


def steered(play, **settings):
    """An adapter that plays `play`, and the context in which it is served with a client."""
    adapter = SteeredAdapter(play)
    settings.setdefault("limits", FAST)
    flow = settings.pop("flow", None)
    if flow is not None:
        limits = settings["limits"]
        return adapter, _served_with_flow(adapter, limits, flow)
    return adapter, served(lambda: adapter, **settings)


def _served_with_flow(adapter, limits, flow):
    import contextlib

    @contextlib.asynccontextmanager
    async def context():
        async with served(lambda: adapter, limits=limits) as client:
            client.limits = flow
            yield client

    return context()


async def three(turn):
    for number in range(3):
        yield events.text(str(number))
    yield events.completed()


async def forever(turn):
    yield events.text("begun")
    await asyncio.Event().wait()


def gate():
    """A play that goes on event by event as the test lets it."""
    queue: asyncio.Queue = asyncio.Queue()

    async def play(turn):
        while (event := await queue.get()) is not None:
            yield event

    return queue, play


# --- streams, offsets, acknowledgements ---


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

    run = HostedRun("r", 1, 1, Deadline(time.time() + 60), FlowLimits(10_000, 1 << 30, 60), FAST, Background())
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


# --- cancel at every boundary ---


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


# --- fences ---


async def test_i6_a_lower_turn_is_refused_and_a_higher_one_ends_the_older():
    adapter, context = steered(forever)
    async with context as client:
        await client.create()
        old = client.fence(2, "r2")
        call = client.start(old, client.input("x"))
        await call.read()
        await refused(
            drained(client.start(client.fence(1, "r1"), client.input("x"))), "FAILED_PRECONDITION", "STALE_LEASE"
        )
        await refused(
            drained(client.start(client.fence(2, "other"), client.input("x"))), "FAILED_PRECONDITION", "STALE_LEASE"
        )
        young = client.start(client.fence(3, "r3"), client.input("x"))
        await young.read()
        assert adapter.ended == ["r2"]
        drafts = (await call.read()).batch.drafts
        assert drafts[-1].payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_SUPERSEDED
        # The older run can still be read to its end.
        assert kinds(await client.follow(client.attach(old, 0))) == ["content.delta", "run.cancelled"]
        await client.cancel(client.fence(3, "r3"))


async def test_i10_an_older_executor_is_refused_everywhere():
    _, context = steered(forever)
    async with context as client:
        await client.create()
        call = client.start(client.fence(1, "r1", 2), client.input("x"))
        await call.read()
        await client.attach(client.fence(1, "r1", 3), 1).read()
        old = client.fence(1, "r1", 2)
        for refusal in (
            drained(client.start(old, client.input("x"))),
            drained(client.attach(old)),
            client.ack(old, 1),
            client.cancel(old),
        ):
            await refused(refusal, "FAILED_PRECONDITION", "STALE_LEASE")
        await client.ack(client.fence(1, "r1", 3), 1)
        await client.cancel(client.fence(1, "r1", 3))


async def test_i11_what_was_issued_to_another_incarnation_is_not_started():
    adapter, context = steered(three)
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        other = "another-incarnation"
        await refused(
            drained(client.start(fence, client.input("x"), other)), "FAILED_PRECONDITION", "incarnation_mismatch"
        )
        await refused(drained(client.attach(fence, 0, other)), "FAILED_PRECONDITION", "incarnation_mismatch")
        await refused(drained(client.attach(fence)), "NOT_FOUND", "run_unknown")
        await refused(client.ack(fence, 0), "NOT_FOUND", "run_unknown")
        assert not adapter.turns


async def test_i27_a_higher_runtime_generation_ends_the_older_runtime_and_a_lower_one_never_comes_back():
    adapter, context = steered(forever)
    async with context as client:
        assert await client.create()
        assert not await client.create()
        call = client.start(client.fence(1, "r1"), client.input("x"))
        await call.read()
        client.runtime_generation = 2
        assert await client.create()
        await until(lambda: adapter.runtimes[0].cleaned == 1)
        assert adapter.ended == ["r1"]
        assert kinds((await call.read()).batch.drafts) == ["run.cancelled"]
        old = client.fence(2, "r2", runtime_generation=1)
        await refused(drained(client.start(old, client.input("x"))), "FAILED_PRECONDITION", "STALE_LEASE")
        await refused(client.runtime.Initialize(pb2.InitializeRequest(fence=old)), "FAILED_PRECONDITION", "STALE_LEASE")
        client.runtime_generation = 1
        await refused(client.create(), "FAILED_PRECONDITION", "STALE_LEASE")
        client.runtime_generation, client.epoch = 1, 2
        assert await client.create()
        unknown = client.fence(1, "r1", runtime_generation=5)
        await refused(drained(client.start(unknown, client.input("x"))), "NOT_FOUND", "runtime_unknown")


async def test_i6_two_bindings_work_at_once_and_one_binding_works_on_one():
    _, context = steered(forever)
    async with context as client:
        clients = [client, client.another(), client.another()]
        calls = []
        for each in clients:
            await each.create()
            calls.append(each.start(each.fence(1, f"run-{each.binding_id}"), each.input("x")))
        for call in calls:
            assert text_of((await call.read()).batch.drafts) == "begun"
        health = await client.adapter.CheckHealth(adapter_pb2.CheckHealthRequest())
        assert health.report.capacity.active == 3
        for each in clients:
            await each.cancel(each.fence(1, f"run-{each.binding_id}"))


async def test_requests_are_checked_against_the_contract():
    _, context = steered(three)
    async with context as client:
        await client.create()
        canary = "canary value"
        info = await refused(client.cancel(client.fence(1, canary)), "INVALID_ARGUMENT", "invalid_request")
        assert canary not in str(info)
        await refused(
            drained(client.start(client.fence(0, "r1"), client.input("x"))), "INVALID_ARGUMENT", "invalid_request"
        )
        await refused(
            drained(client.start(client.fence(1, ""), client.input("x"))), "INVALID_ARGUMENT", "invalid_request"
        )
        for method, kind in (("AckRun", "unary_unary"), ("StartRun", "unary_stream")):
            call = getattr(client.channel, kind)(f"/harness.runtime.v1.RuntimeService/{method}")(b"\xff\xff")
            await refused(call if kind == "unary_unary" else drained(call), "INVALID_ARGUMENT", "invalid_request")
        await refused(client.cancel(client.fence(1, "r", protocol_version=2)), "FAILED_PRECONDITION", "WORKER_MISMATCH")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.runtime.AckRun(pb2.AckRunRequest())
        _, _, status = details(caught.value)
        assert len(status.details) == 2


# --- bad streams (I19) and errors (I22) ---

ILLEGAL = [
    ([events.completed(), events.completed()], ["run.completed"]),
    ([events.tool_arguments("c1", "{}")], ["run.failed"]),
    ([events.text("a"), events.tool_succeeded("c1"), events.text("b")], ["content.delta", "run.failed"]),
    ([events.text("x", message_id="not an id")], ["run.failed"]),
    ([events.text("x", namespace=("nowhere",))], ["run.failed"]),
    ([events.text("only text")], ["content.delta", "run.failed"]),
    ([], ["run.failed"]),
    ([event_pb2.EventDraft()], ["run.failed"]),
]


@pytest.mark.parametrize("case", range(len(ILLEGAL)))
async def test_i19_a_bad_stream_fails_the_run_and_disturbs_no_other(case):
    bad, expected = ILLEGAL[case]

    async def play(turn):
        for event in bad if turn.message == "bad" else [events.completed()]:
            yield event

    adapter, context = steered(play)
    async with context as client:
        drafts = await client.turn("bad")
        assert kinds(drafts) == expected
        if expected[-1] == "run.failed":
            failed = drafts[-1].payload.run_failed
            assert (failed.category, failed.code, failed.retryable) == (8, "protocol_violation", False)
        assert adapter.ended
        assert kinds(await client.turn("good")) == ["run.completed"]
        other = client.another()
        assert kinds(await other.turn("good")) == ["run.completed"]


async def test_i19_the_provider_is_closed_after_a_bad_event():
    async def play(turn):
        while True:
            yield events.tool_succeeded("never-started")

    adapter, context = steered(play)
    async with context as client:
        assert kinds(await client.turn("x")) == ["run.failed"]
        # The second run gets the runtime only once the first one's provider is done with.
        assert kinds(await client.turn("y")) == ["run.failed"]
        assert adapter.ended[:1] == [adapter.turns[0].run_id]


CANARY = "canary-7c1f"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(CANARY), (11, "adapter_defect", False)),
        (SystemExit(CANARY), (11, "adapter_defect", False)),
        (asyncio.CancelledError(CANARY), (11, "adapter_defect", False)),
        (KeyError(CANARY), (11, "adapter_defect", False)),
        (errors.ThrottledError("Slow down.", diagnostic=CANARY, retry_after=2.5), (5, "rate_limited", True)),
        (errors.AuthenticationError("No key.", diagnostic=CANARY), (2, "provider_authentication", False)),
        (errors.UnavailableError("Away.", code=f"Bad {CANARY}", retryable=False), (6, "unavailable", False)),
    ],
)
async def test_i22_errors_cross_classified_and_without_a_canary(error, expected):
    async def play(turn):
        yield events.text("a")
        raise error

    _, context = steered(play)
    async with context as client:
        drafts = await client.turn("x")
        assert kinds(drafts) == ["content.delta", "run.failed"]
        failed = drafts[-1].payload.run_failed
        assert (failed.category, failed.code, failed.retryable) == expected
        assert failed.side_effect_status == errors.POSSIBLE_SIDE_EFFECTS
        assert CANARY.encode() not in drafts[-1].SerializeToString()
        if expected[1] == "rate_limited":
            assert failed.retry_after_seconds == 3


async def test_i22_errors_outside_a_run_cross_classified_and_without_a_canary():
    adapter, context = steered(three)
    async with context as client:
        await client.create()
        for error, code, reason in (
            (ValueError(CANARY), "INTERNAL", "adapter_defect"),
            (errors.AuthenticationError("No key.", diagnostic=CANARY), "UNAUTHENTICATED", "provider_authentication"),
        ):
            adapter.initialize_error = error
            request = pb2.InitializeRequest(fence=client.fence())
            for _ in range(2):
                info = await refused(client.runtime.Initialize(request), code, reason)
                assert CANARY not in str(info)
            await client.runtime.Restart(pb2.RestartRequest(fence=client.fence()))
        adapter.initialize_error = None
        adapter.checks = RuntimeError(CANARY)
        report = (await client.adapter.CheckHealth(adapter_pb2.CheckHealthRequest())).report
        assert report.status == 3
        assert CANARY not in str(report)


async def test_a_refused_provider_had_no_side_effects():
    async def play(turn):
        raise errors.AuthenticationError("No key.")
        yield

    _, context = steered(play)
    async with context as client:
        (failed,) = await client.turn("x")
        assert failed.payload.run_failed.side_effect_status == errors.NO_SIDE_EFFECTS


# --- initialise, restart, clean up (I20) ---


async def test_i20_initialize_is_idempotent_and_gives_the_same_error_again():
    adapter, context = steered(three)
    async with context as client:
        await client.create()
        request = pb2.InitializeRequest(fence=client.fence())
        first, second = await asyncio.gather(*(client.runtime.Initialize(request) for _ in range(2)))
        assert {first.initialized, second.initialized} == {True, False}
        await client.turn("x")
        assert adapter.runtimes[0].initialized == 1
        failing = client.another()
        adapter.initialize_error = errors.ConfigurationError("Wrong model.")
        await failing.create()
        for _ in range(2):
            drafts = await failing.turn("x")
            assert kinds(drafts) == ["run.failed"]
            assert drafts[0].payload.run_failed.message == "Wrong model."
        assert adapter.runtimes[1].initialized == 1


async def test_restart_is_refused_while_a_run_works_and_then_initialises_again():
    adapter, context = steered(forever)
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        await call.read()
        request = pb2.RestartRequest(fence=client.fence())
        await refused(client.runtime.Restart(request), "ABORTED", "operation_in_progress")
        await client.cancel(fence)
        await client.runtime.Restart(request)
        call = client.start(client.fence(2, "r2"), client.input("x"))
        await call.read()
        assert (adapter.runtimes[0].restarted, adapter.runtimes[0].initialized) == (1, 2)
        await client.cancel(client.fence(2, "r2"))


async def test_i20_cleanup_is_idempotent_ends_the_run_and_forgets_the_runtime():
    adapter, context = steered(forever)
    async with context as client:
        await client.create()
        call = client.start(client.fence(1, "r1"), client.input("x"))
        await call.read()
        await asyncio.gather(client.cleanup(), client.cleanup())
        await client.cleanup()
        assert adapter.ended == ["r1"]
        assert adapter.runtimes[0].cleaned == 1
        assert kinds((await call.read()).batch.drafts) == ["run.cancelled"]
        await refused(drained(client.start(client.fence(2, "r2"), client.input("x"))), "NOT_FOUND", "runtime_unknown")


async def test_i20_cleanup_is_bounded_by_its_deadline():
    adapter, context = steered(three)
    adapter.cleanup_hangs = True
    async with context as client:
        await client.create()
        begun = time.monotonic()
        await client.cleanup(timeout=0.5)
        assert adapter.runtimes[0].cleaning.is_set()
        assert time.monotonic() - begun < 20
        adapter.cleanup_hangs = False


async def test_i35_idle_runtimes_make_room_and_busy_ones_do_not():
    adapter, context = steered(forever, limits=HostLimits(max_runtimes=2, max_runs=2, stop_seconds=0.2))
    async with context as client:
        first, second, third = client, client.another(), client.another()
        await first.create()
        call = first.start(first.fence(1, "r1"), first.input("x"))
        await call.read()
        await second.create()
        await third.create()
        await until(lambda: adapter.runtimes[1].cleaned == 1)
        await refused(drained(second.start(second.fence(1, "s1"), second.input("x"))), "NOT_FOUND", "runtime_unknown")
        other = third.start(third.fence(1, "t1"), third.input("x"))
        await other.read()
        info = await refused(second.create(), "RESOURCE_EXHAUSTED", "capacity")
        assert info.metadata["retryable"] == "true"
        await first.cancel(first.fence(1, "r1"))
        assert adapter.runtimes[0].cleaned == 0
        await third.cancel(third.fence(1, "t1"))


async def test_i35_an_ended_run_makes_room_once_it_was_read_although_nobody_acknowledged_it():
    queue, play = gate()
    adapter, context = steered(play)
    async with context as client:
        registry = RuntimeRegistry(adapter, "this-process", HostLimits(max_runtimes=1))
        fence, other = client.fence(1, "r1"), client.another()
        await registry.create(fence, client.context())
        run = registry.start(fence, "this-process", client.input("x"))
        async with aclosing(run.follow(0)) as batches:
            queue.put_nowait(events.text("a"))
            await anext(batches)
        queue.put_nowait(events.completed())
        queue.put_nowait(None)
        await until(lambda: not run.working)
        with pytest.raises(Refusal, match="at work"):
            await registry.create(other.fence(), other.context())
        assert [len(drafts) async for _, drafts in run.follow(0)] == [2]
        assert await registry.create(other.fence(), other.context())
        await until(lambda: adapter.runtimes[0].cleaned == 1)
        await registry.close()


async def test_i35_more_runs_than_the_host_takes_are_refused():
    _, context = steered(forever, limits=HostLimits(max_runs=1, stop_seconds=0.2))
    async with context as client:
        await client.create()
        call = client.start(client.fence(1, "r1"), client.input("x"))
        await call.read()
        other = client.another()
        await other.create()
        await refused(drained(other.start(other.fence(1, "o1"), other.input("x"))), "RESOURCE_EXHAUSTED", "capacity")
        # Joining the run that is here needs no room.
        await client.start(client.fence(1, "r1"), client.input("x")).read()
        await client.cancel(client.fence(1, "r1"))


async def test_i35_runtimes_idle_for_long_are_dropped_and_created_again():
    adapter, context = steered(three, limits=HostLimits(runtime_idle_seconds=0.2))
    async with context as client:
        await client.turn("x")
        await until(lambda: adapter.runtimes[0].cleaned == 1)
        assert await client.create()
        assert kinds(await client.turn("y"))[-1] == "run.completed"


async def test_a_session_event_carries_a_validated_native_id():
    async def play(turn):
        yield events.session_updated("native-1")
        yield events.session_updated("not printable\n")
        yield events.completed()

    _, context = steered(play)
    async with context as client:
        drafts = await client.turn("x")
        assert [draft.native_session_id for draft in drafts] == ["native-1", ""]
        assert kinds(drafts) == ["session.updated", "run.completed"]


async def test_the_turn_carries_what_the_adapter_may_see():
    adapter, context = steered(three)
    async with context as client:
        await client.turn(
            "hello", system_prompt="be kind", user_id="u-1", native_session_id="native-9", thread_revision=4
        )
        (turn,) = adapter.turns
        assert (turn.message, turn.system_prompt, turn.user_id) == ("hello", "be kind", "u-1")
        assert (turn.native_session_id, turn.thread_revision, turn.number) == ("native-9", 4, 1)
        assert turn.construction.binding.binding_id == client.binding_id
        assert not any(secret in repr(turn) for secret in ("hello", "be kind", "native-9"))
