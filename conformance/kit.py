"""What a case has in its hands: bindings, words for the target, and its own figures."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format

from conformance.drivers.driver import Driver
from conformance.failure import Broken, NotApplicableError
from conformance.plane.binding import Binding, Setting
from conformance.plane.target import Target
from conformance.scenario import Steps
from harness.adapter.v1 import adapter_service_pb2, descriptor_pb2
from harness.common.v1 import health_pb2
from harness.runtime.v1 import runtime_pb2
from harness.worker.v1 import worker_service_pb2


@dataclass
class Kit:
    """One case's view of the certification. `figures` go into the evidence."""

    setting: Setting
    driver: Driver
    # Another replica of the target; None: there is none.
    replica: Target | None
    # The one binding of a worker; None: every case has its own.
    shared: Binding | None
    # The bindings of all workers that take part, `shared` among them.
    workers: list[Binding] = field(default_factory=list[Binding])
    figures: dict[str, int | float | str] = field(default_factory=dict[str, "int | float | str"])
    made: list[Binding] = field(default_factory=list[Binding])

    @property
    def target(self) -> Target:
        """The endpoint."""
        return self.setting.target

    @property
    def descriptor(self) -> descriptor_pb2.Descriptor:
        """What the adapter says of itself."""
        return self.setting.descriptor

    def claims(self, key: str) -> bool:
        """Whether a capability is claimed `native` or `emulated`."""
        return is_claimed(self.descriptor, key)

    async def binding(self, **limits: int) -> Binding:
        """A binding with a runtime. In a worker it is the one it has, with a conversation that begins anew; its limits stay."""
        if self.shared is not None:
            return begin_anew(self.shared)
        binding = self.unmade(**limits)
        await binding.create()
        return binding

    def unmade(self, **limits: int) -> Binding:
        """A binding of its own, whose runtime is not made yet."""
        binding = Binding(self.setting, self.target, limits=runtime_pb2.RuntimeLimits(**limits))
        self.made.append(binding)
        return binding

    def message(self, *turns: Steps) -> str:
        """The message that makes the target do this; see Driver.message."""
        return self.driver.message(*turns)

    async def health(self) -> health_pb2.HealthReport:
        """The target's health."""
        call = self.target.adapter.CheckHealth(
            adapter_service_pb2.CheckHealthRequest(), timeout=30, metadata=self.target.metadata
        )
        return (await self.target.ask("CheckHealth", call)).report

    async def describe(self) -> adapter_service_pb2.GetDescriptorResponse:
        """The target's descriptor, asked for again."""
        call = self.target.adapter.GetDescriptor(
            adapter_service_pb2.GetDescriptorRequest(), timeout=30, metadata=self.target.metadata
        )
        return await self.target.ask("GetDescriptor", call)

    async def readiness(self) -> worker_service_pb2.GetReadinessResponse:
        """The worker's readiness."""
        call = self.target.worker.GetReadiness(
            worker_service_pb2.GetReadinessRequest(), timeout=30, metadata=self.target.metadata
        )
        return await self.target.ask("GetReadiness", call)

    async def release(self) -> None:
        """Cleans up every runtime that the case made, under its last generation. Raises the first Broken once all were tried."""
        faults: list[Broken] = []
        for binding in self.made:
            if binding.incarnation:
                try:
                    await binding.cleanup()
                except Broken as fault:
                    faults.append(fault)
        if faults:
            raise faults[0]

    async def until(self, condition: Callable[[], Awaitable[bool]], seconds: float) -> bool:
        """Whether the condition held within `seconds`: for what nothing on the wire signals."""
        try:
            async with asyncio.timeout(seconds):
                pause = 0.02
                while not await condition():
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 1.0)
        except TimeoutError:
            return False
        return True

    def need_state(self) -> None:
        """Raises NotApplicableError where the harness keeps its state elsewhere, or none."""
        strategy = self.descriptor.thread_state_strategy
        if strategy not in (
            descriptor_pb2.THREAD_STATE_STRATEGY_ADAPTER_STORE,
            descriptor_pb2.THREAD_STATE_STRATEGY_LANGGRAPH,
        ):
            name = descriptor_pb2.ThreadStateStrategy.Name(strategy).removeprefix("THREAD_STATE_STRATEGY_").lower()
            raise NotApplicableError(f"The harness keeps no state through the state facade ({name}).")


def is_claimed(descriptor: descriptor_pb2.Descriptor, key: str) -> bool:
    """Whether a descriptor claims a capability `native` or `emulated`."""
    if key not in descriptor.capabilities:
        return False
    # Levels 1 and 2: native, emulated.
    return descriptor.capabilities[key].level in (1, 2)


def begin_anew(shared: Binding) -> Binding:
    """The worker's binding with nothing committed, so that a case does not depend on those before it; its turns go on."""
    from conformance.plane.broker import Tools
    from conformance.plane.thread import Thread

    shared.thread, shared.tools, shared.native_session_id = Thread(), Tools(), ""
    return shared


def plain(value: Any) -> dict[str, Any]:
    """A Struct as plain JSON values."""
    return json_format.MessageToDict(value)
