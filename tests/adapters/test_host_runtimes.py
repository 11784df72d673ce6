"""Runtimes over real gRPC: initialised, restarted, cleaned up, bounded, and what their turns carry (I20, I35)."""

import asyncio
import time
from contextlib import aclosing

import pytest

from adapters.sdk import errors, events
from adapters.sdk.host.limits import HostLimits
from adapters.sdk.host.refusal import Refusal
from adapters.sdk.host.registry import RuntimeRegistry
from adapters.sdk.testing import kinds
from harness.runtime.v1 import runtime_service_pb2 as pb2
from tests.adapters.scripted import forever, gate, steered, three, until
from tests.adapters.status import drained, refused


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
        await refused(drained(client.start(client.fence(2, "r2"), client.input("x"))), "NOT_FOUND", "runtime_gone")


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
        await refused(drained(second.start(second.fence(1, "s1"), second.input("x"))), "NOT_FOUND", "runtime_gone")
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
        await registry.create(fence, client.context(), 60.0)
        run = registry.start(fence, "this-process", client.input("x"))
        async with aclosing(run.follow(0)) as batches:
            queue.put_nowait(events.text("a"))
            await anext(batches)
        queue.put_nowait(events.completed())
        queue.put_nowait(None)
        await until(lambda: not run.working)
        with pytest.raises(Refusal, match="at work"):
            await registry.create(other.fence(), other.context(), 60.0)
        assert [len(drafts) async for _, drafts in run.follow(0)] == [2]
        assert await registry.create(other.fence(), other.context(), 60.0)
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
