"""What a cleanup left is said, of every generation, and tried again; calls to an adapter that hangs are bounded (I20, I35)."""

import asyncio

from adapters.sdk import events
from adapters.sdk.host.bounds import call_seconds
from adapters.sdk.host.health import HealthLooks
from adapters.sdk.host.limits import HostLimits
from adapters.sdk.host.registry import RuntimeRegistry
from harness.adapter.v1 import adapter_service_pb2
from harness.common.v1 import health_pb2
from harness.runtime.v1 import runtime_service_pb2 as pb2
from harness.worker.v1 import worker_service_pb2
from tests.adapters.scripted import SteeredRuntime, forever, steered, three, until
from tests.adapters.status import refused

QUICK = HostLimits(stop_seconds=0.2, cleanup_seconds=0.4, restart_seconds=0.2)
NOT_IN_TIME = "The adapter did not release the runtime in time."
STILL_WORKS = "The provider of a run ignores its end and is still at work."


class Holding(SteeredRuntime):
    """Its cleanup ends when it is let, and it hangs wherever the test says."""

    def __init__(self, adapter, construction):
        super().__init__(adapter, construction)
        self.let = asyncio.Event()
        self.hangs: set[str] = set()

    async def cleanup(self):
        await super().cleanup()
        await self.let.wait()

    async def pending_interrupt(self):
        await self._held("pending_interrupt")

    async def restart(self):
        await super().restart()
        await self._held("restart")

    async def _held(self, what):
        if what in self.hangs:
            await asyncio.Event().wait()


def holding(adapter):
    """The runtimes that the adapter makes from now on."""
    runtimes = []

    async def create_runtime(construction):
        runtimes.append(Holding(adapter, construction))
        return runtimes[-1]

    adapter.create_runtime = create_runtime
    return runtimes


async def clean_up(client, generation):
    fence = client.fence(runtime_generation=generation)
    return await client.runtime.Cleanup(pb2.CleanupRequest(fence=fence), timeout=90)


async def clean(client, generation):
    """Until nothing is left; a try may be cut off where the machine is slow."""
    async with asyncio.timeout(90):
        while (said := await clean_up(client, generation)).incomplete:
            continue
    assert said.left == ""


async def test_i20_an_older_generation_of_which_something_is_left_is_told_with_the_next_ones_cleanup():
    adapter, context = steered(three, limits=QUICK)
    runtimes = holding(adapter)
    async with context as client:
        await client.create()
        await client.another(binding_id=client.binding_id, runtime_generation=2).create()
        await runtimes[0].cleaning.wait()
        runtimes[1].let.set()
        said = await clean_up(client, 2)
        assert runtimes[1].cleaned
        assert (said.incomplete, said.left) == (True, NOT_IN_TIME)
        runtimes[0].let.set()
        await clean(client, 2)
        assert runtimes[0].cleaned > 1


async def test_i20_what_is_left_of_a_replaced_runtime_is_tried_again_and_degrades_the_host_until_then():
    adapter, context = steered(three, limits=QUICK)
    runtimes = holding(adapter)
    registry = RuntimeRegistry(adapter, "this-process", QUICK)
    looks = HealthLooks(adapter, registry)
    async with context as client:  # for its fences alone
        await registry.create(client.fence(), client.context(), 60.0)
        assert await registry.cleanup(client.fence(), 0.2) == NOT_IN_TIME
        async with asyncio.timeout(60):
            await until(lambda: registry.unclean)
        (check,) = (each for each in (await looks.report(5.0)).checks if each.name == "cleanup")
        assert check.status == health_pb2.HEALTH_STATUS_DEGRADED
        assert check.reason.startswith("Of 1 ended runtimes something is left")
        runtimes[0].let.set()
        registry.clean_again()
        async with asyncio.timeout(90):
            while await registry.cleanup(client.fence(), 60.0):
                continue
        assert registry.unclean == 0
        assert runtimes[0].cleaned > 1
        assert all(each.name != "cleanup" for each in (await looks.report(5.0)).checks)
    await registry.close()


async def test_i20_a_provider_that_goes_on_is_left_whatever_its_adapter_released():
    let = asyncio.Event()

    async def deaf(_):
        yield events.text("begun")
        while not let.is_set():
            try:
                await let.wait()
            except asyncio.CancelledError:
                continue

    adapter, context = steered(deaf, limits=QUICK)
    async with context as client:
        await client.create()
        call = client.start(client.fence(1, "r1"), client.input("x"))
        await call.read()
        said = await clean_up(client, 1)
        assert (said.incomplete, said.left) == (True, STILL_WORKS)
        assert adapter.runtimes[0].cleaned == 1
        let.set()
        await clean(client, 1)
        call.cancel()


async def test_i20_a_workers_shutdown_says_what_is_left():
    adapter, context = steered(forever, worker=True, limits=QUICK)
    runtimes = holding(adapter)
    async with context as client:
        await client.create()
        request = worker_service_pb2.ShutdownRequest(fence=client.fence())
        request.grace.FromMilliseconds(200)
        said = await client.sandbox.Shutdown(request, timeout=90)
        assert (said.incomplete, said.left) == (True, NOT_IN_TIME)
        runtimes[0].let.set()
        request.grace.FromSeconds(60)
        said = await client.sandbox.Shutdown(request, timeout=90)
        assert (said.incomplete, said.left) == (False, "")


class Call:
    """A call of gRPC, as far as its time goes."""

    def __init__(self, left):
        self._left = left

    def time_remaining(self):
        return self._left


def test_a_call_is_answered_before_its_caller_gives_up_and_within_the_hosts_bound():
    assert call_seconds(Call(10.0), 3600.0) == 9.0
    assert call_seconds(Call(10.0), 5.0) == 5.0
    assert call_seconds(Call(None), 5.0) == 5.0
    assert call_seconds(Call(0.0), 5.0) > 0


async def test_i35_making_a_runtime_is_bounded_and_tried_again():
    adapter, context = steered(three, limits=QUICK)
    make, asked = adapter.create_runtime, []

    async def create_runtime(construction):
        asked.append(construction)
        if len(asked) == 1:
            await asyncio.Event().wait()
        return await make(construction)

    adapter.create_runtime = create_runtime
    async with context as client:
        request = adapter_service_pb2.CreateRuntimeRequest(fence=client.fence(), context=client.context())
        await refused(client.adapter.CreateRuntime(request), "DEADLINE_EXCEEDED", "create_timeout")
        assert await client.create()
        assert len(asked) == 2


async def test_i35_a_question_about_a_pause_is_bounded():
    adapter, context = steered(three, limits=QUICK)
    runtimes = holding(adapter)
    async with context as client:
        await client.create()
        runtimes[0].hangs.add("pending_interrupt")
        runtimes[0].let.set()
        request = pb2.GetPendingInterruptRequest(fence=client.fence())
        await refused(client.runtime.GetPendingInterrupt(request), "DEADLINE_EXCEEDED", "pending_interrupt_timeout")


async def test_i35_an_initialisation_waits_no_longer_for_another_operation_than_for_itself():
    _, context = steered(forever, limits=QUICK)
    async with context as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input("x"))
        await call.read()  # the turn holds the runtime until it ends
        request = pb2.InitializeRequest(fence=client.fence())
        await refused(client.runtime.Initialize(request), "DEADLINE_EXCEEDED", "initialize_timeout")
        await client.cancel(fence)
        assert not (await client.runtime.Initialize(request)).initialized  # the turn did it
