"""One mutating operation at a time, restart and cancel as often as you like, cleanup whatever hangs (contract, Lifecycle requirements; I20)."""

import asyncio

import grpc
import grpc.aio
import pytest

from adapters.sdk import errors, events
from adapters.sdk.host.limits import HostLimits
from adapters.sdk.testing import kinds
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_service_pb2 as pb2
from tests.adapters.scripted import SteeredRuntime, forever, steered, three
from tests.adapters.status import refused

BOUNDS = HostLimits(stop_seconds=0.2, cleanup_seconds=1.0, restart_seconds=60.0)
CANARY = "canary-3d90"


class Restarting(SteeredRuntime):
    """Restarts when it is let, or as the test says."""

    def __init__(self, adapter, construction):
        super().__init__(adapter, construction)
        self.entered, self.let = asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None
        # Operations that change something, at this moment and at most.
        self.at_work = self.most_at_work = 0

    async def _alone(self, work):
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            return await work
        finally:
            self.at_work -= 1

    async def initialize(self):
        await self._alone(super().initialize())

    async def restart(self):
        await super().restart()
        self.entered.set()
        if self.error is not None:
            raise self.error
        await self._alone(self.let.wait())

    async def cleanup(self):
        await self._alone(super().cleanup())

    async def _stream(self, turn):
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            async for event in super()._stream(turn):
                yield event
        finally:
            self.at_work -= 1


def restarting(play, limits=BOUNDS):
    adapter, context = steered(play, limits=limits)
    runtimes = []

    async def create_runtime(construction):
        runtimes.append(Restarting(adapter, construction))
        return runtimes[-1]

    adapter.create_runtime = create_runtime
    return adapter, runtimes, context


def restart(client, **call):
    return client.runtime.Restart(pb2.RestartRequest(fence=client.fence()), **call)


async def test_one_operation_works_at_a_time_and_what_only_looks_does_not_wait():
    _, runtimes, context = restarting(three)
    async with context as client:
        await client.create()
        (runtime,) = runtimes
        first = asyncio.create_task(asyncio.wait_for(restart(client), 90))
        await runtime.entered.wait()
        await refused(restart(client), "ABORTED", "operation_in_progress")
        # A turn waits for its turn.
        fence = client.fence(1, "r1")
        turn = asyncio.create_task(client.follow(client.start(fence, client.input("x")), fence))
        initialize = asyncio.create_task(
            asyncio.wait_for(client.runtime.Initialize(pb2.InitializeRequest(fence=client.fence())), 90)
        )
        assert await client.pending_interrupt() is None
        assert not turn.done()
        runtime.let.set()
        await first
        assert kinds(await turn)[-1] == "run.completed"
        await initialize
        assert runtime.most_at_work == 1
        assert (runtime.restarted, runtime.initialized) == (1, 1)


async def attached(client, fence):
    """A stream of the run, once that is here: it says so although there is nothing new."""
    async with asyncio.timeout(90):
        while True:
            call = client.attach(fence)
            try:
                await call.read()
            except grpc.aio.AioRpcError:
                continue
            return call


async def test_a_turn_that_waits_for_a_restart_can_be_cancelled():
    _, runtimes, context = restarting(three)
    async with context as client:
        await client.create()
        first = asyncio.create_task(asyncio.wait_for(restart(client), 90))
        await runtimes[0].entered.wait()
        fence = client.fence(1, "r1")
        started = client.start(fence, client.input("x"))
        call = await attached(client, fence)
        await client.cancel(fence)
        drafts = await client.follow(call)
        assert kinds(drafts) == ["run.cancelled"]
        assert drafts[-1].payload.run_cancelled.side_effect_status == errors.NO_SIDE_EFFECTS
        runtimes[0].let.set()
        await first
        assert not runtimes[0].adapter.turns
        started.cancel()


async def test_restart_may_be_repeated_and_each_next_turn_initialises_again():
    _, runtimes, context = restarting(three)
    async with context as client:
        await client.turn("x")
        runtimes[0].let.set()
        for _ in range(2):
            await restart(client)
        assert kinds(await client.turn("y"))[-1] == "run.completed"
        assert (runtimes[0].restarted, runtimes[0].initialized) == (2, 2)


async def test_a_restart_keeps_the_conversation():
    async def remembers(turn):
        yield events.text(f"{turn.native_session_id} {turn.thread_revision} {turn.number}")
        yield events.completed()

    adapter, runtimes, context = restarting(remembers)
    async with context as client:
        await client.turn("x", native_session_id="native-1", thread_revision=3)
        runtimes[0].let.set()
        await restart(client)
        await client.turn("y", native_session_id="native-1", thread_revision=4)
        # The same runtime object of the same binding and generation goes on with what is durable.
        assert len(runtimes) == 1
        first, second = adapter.turns
        assert (second.native_session_id, second.thread_revision, second.number) == ("native-1", 4, 2)
        assert first.construction is second.construction
        assert await client.pending_interrupt() is None


async def test_i35_a_restart_that_hangs_is_cut_off_and_the_runtime_goes_on():
    _, runtimes, context = restarting(three, HostLimits(stop_seconds=0.2, cleanup_seconds=1.0, restart_seconds=0.2))
    async with context as client:
        await client.create()
        info = await refused(restart(client), "DEADLINE_EXCEEDED", "restart_timeout")
        assert info.metadata["category"] == "timeout"
        assert kinds(await client.turn("x"))[-1] == "run.completed"
        assert runtimes[0].initialized == 1


async def test_i22_a_restart_that_fails_is_classified_and_the_runtime_goes_on():
    _, runtimes, context = restarting(three)
    async with context as client:
        await client.create()
        for error, code, reason in (
            (errors.UnavailableError("The SDK does not stop.", diagnostic=CANARY), "UNAVAILABLE", "unavailable"),
            (RuntimeError(CANARY), "INTERNAL", "adapter_defect"),
        ):
            runtimes[0].error = error
            assert CANARY not in str(await refused(restart(client), code, reason))
        runtimes[0].error = None
        assert kinds(await client.turn("x"))[-1] == "run.completed"


@pytest.mark.parametrize("fails", [False, True])
async def test_i20_cleanup_releases_the_runtime_although_a_restart_hangs(fails):
    _, runtimes, context = restarting(three)
    async with context as client:
        await client.create()
        runtime = runtimes[0]
        first = asyncio.create_task(asyncio.wait_for(restart(client), 90))
        await runtime.entered.wait()
        runtime.adapter.cleanup_hangs = fails
        assert await client.cleanup() is not fails
        assert runtime.cleaned == 1
        # What was cut off is tried again; what is clean stays clean.
        runtime.adapter.cleanup_hangs = False
        assert await client.cleanup()
        assert runtime.cleaned == (2 if fails else 1)
        assert await client.cleanup()
        assert runtime.cleaned == (2 if fails else 1)
        runtime.let.set()
        await first


async def deaf(_):
    yield events.text("begun")
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if DEAF.is_set():
                raise


DEAF = asyncio.Event()


async def test_i20_a_provider_that_does_not_stop_leaves_time_to_release_the_runtime():
    DEAF.clear()
    # Its grace and the wait for its end are longer than the whole cleanup may take.
    limits = HostLimits(cancel_grace_seconds=4.0, stop_seconds=4.0, cleanup_seconds=1.0)
    _, runtimes, context = restarting(deaf, limits)
    async with context as client:
        await client.create()
        call = client.start(client.fence(1, "r1"), client.input("x"))
        await call.read()
        await client.cleanup(timeout=30.0)
        assert runtimes[0].cleaned == 1
        DEAF.set()
        call.cancel()


async def test_i20_a_cleanup_goes_on_when_its_caller_leaves_and_others_wait_for_it():
    _, runtimes, context = restarting(three, HostLimits(cleanup_seconds=60.0))
    let = asyncio.Event()

    async def slow():
        runtimes[0].cleaned += 1
        runtimes[0].cleaning.set()
        await let.wait()

    async with context as client:
        await client.turn("x")
        runtimes[0].cleanup = slow
        first = client.runtime.Cleanup(pb2.CleanupRequest(fence=client.fence()), timeout=90)
        await runtimes[0].cleaning.wait()
        first.cancel()
        second = asyncio.create_task(client.cleanup(timeout=90.0))
        third = asyncio.create_task(client.cleanup(timeout=90.0))
        # The runtime is gone for everybody, although it is not yet clean.
        await refused(
            client.runtime.Initialize(pb2.InitializeRequest(fence=client.fence())), "NOT_FOUND", "runtime_gone"
        )
        assert not second.done()
        let.set()
        assert await second
        assert await third
        assert runtimes[0].cleaned == 1


async def test_i35_an_initialize_that_hangs_is_cut_off_and_tried_again():
    _, runtimes, context = restarting(three, HostLimits(restart_seconds=0.2))

    async def hang():
        runtimes[0].initialized += 1
        if runtimes[0].initialized == 1:
            await asyncio.Event().wait()

    async with context as client:
        await client.create()
        runtimes[0].initialize = hang
        call = client.runtime.Initialize(pb2.InitializeRequest(fence=client.fence()))
        await refused(call, "DEADLINE_EXCEEDED", "initialize_timeout")
        assert kinds(await client.turn("x"))[-1] == "run.completed"
        assert runtimes[0].initialized == 2


async def test_i20_a_cleanup_that_fails_is_the_hosts_business_alone():
    _, runtimes, context = restarting(three)

    async def fail():
        raise RuntimeError(CANARY)

    async with context as client:
        await client.turn("x")
        runtimes[0].cleanup = fail
        assert not await client.cleanup()
        assert not await client.cleanup()
        # The binding's next generation is not hindered by it.
        following = client.another(binding_id=client.binding_id, runtime_generation=2)
        assert kinds(await following.turn("y"))[-1] == "run.completed"


async def test_i12_cancel_is_the_same_however_often_it_comes():
    adapter, runtimes, context = restarting(forever)
    adapter.side_effects = errors.KNOWN_SIDE_EFFECTS
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        await call.read()
        answers = await asyncio.gather(*(client.cancel(fence) for _ in range(3)))
        answers += [await client.cancel(fence, payload_pb2.CANCEL_REASON_SHUTDOWN)]
        assert {answer.side_effect_status for answer in answers} == {errors.KNOWN_SIDE_EFFECTS}
        assert answers[-1].already_ended
        drafts = await client.follow(call)
        assert kinds(drafts) == ["run.cancelled"]
        assert drafts[0].payload.run_cancelled.reason == payload_pb2.CANCEL_REASON_CLIENT_REQUEST  # the first counts
        assert len(runtimes[0].cancelled) == 1


async def test_i20_an_initialize_whose_caller_went_away_is_made_again_by_the_next():
    _, runtimes, context = restarting(three)
    begun = asyncio.Event()

    async def slow():
        runtimes[0].initialized += 1
        begun.set()
        if runtimes[0].initialized == 1:
            await asyncio.Event().wait()

    async with context as client:
        await client.create()
        runtimes[0].initialize = slow
        call = client.runtime.Initialize(pb2.InitializeRequest(fence=client.fence()))
        await begun.wait()
        call.cancel()
        with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
            await call
        assert kinds(await client.turn("x"))[-1] == "run.completed"
        assert runtimes[0].initialized == 2
