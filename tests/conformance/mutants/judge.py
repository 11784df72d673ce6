"""Runs the cases of one rule against a mutant, as the kit would, and says which of them found something."""

import asyncio
from dataclasses import dataclass, field

from conformance.cases import CASES, Case
from conformance.cases.registry import FIRST
from conformance.drivers import driver_named
from conformance.failure import Broken
from conformance.kit import Kit
from conformance.plane.binding import Binding, Setting
from conformance.plane.canary import Canaries
from conformance.plane.facades import Facades
from conformance.plane.observations import Observations
from conformance.plane.target import Target
from harness.adapter.v1 import adapter_service_pb2, descriptor_pb2
from harness.common.v1 import placement_pb2
from tests.conformance.mutants.wire import Mutation, Wire

# Far beyond what any case needs: a mutant is caught by what it says, never by this.
CASE_SECONDS = 90


@dataclass
class Verdict:
    """What came of each case, by its id: what it found, or nothing."""

    found: dict[str, str] = field(default_factory=dict[str, str])
    passed: list[str] = field(default_factory=list[str])


def cases_of(rule_id: str, *, worker: bool) -> list[Case]:
    """The cases of a rule, in the order in which a certification runs them."""
    placement = "worker" if worker else "adapter"
    return sorted((case for case in CASES if case.rule.id == rule_id and placement in case.placements), key=_when)


def _when(case: Case) -> int:
    return case.when


async def judge(rule_id: str, mutation: Mutation, *, worker: bool = False) -> Verdict:
    """Runs the cases of a rule in one certification. What is no Broken, a defect of kit or mutant, is raised."""
    verdict = Verdict()
    canaries = Canaries()
    async with Wire(mutation, worker=worker) as wire, Facades(canaries, wire.address) as facades:
        target = Target(wire.address, canaries)
        driver = driver_named("reference")
        setting = Setting(
            target,
            facades,
            await _descriptor(target, wire, worker=worker),
            Observations(),
            worker,
            placement_pb2.PLACEMENT_SANDBOX_POD if worker else placement_pb2.PLACEMENT_PROVIDER_MANAGED,
            driver.profile_settings(canaries.plant("profile-setting")),
            driver.options(),
        )
        shared = Binding(setting, target) if worker else None
        cases = cases_of(rule_id, worker=worker)
        if shared is not None and cases[0].when != FIRST:
            # Otherwise it is the case itself that binds the worker.
            await shared.create()
        for case in cases:
            kit = Kit(setting, driver, None, shared)
            try:
                async with asyncio.timeout(CASE_SECONDS):
                    await case.work(kit)
                    verdict.passed.append(case.id)
            except Broken as broken:
                verdict.found[case.id] = str(broken)
        await target.close()
    return verdict


async def _descriptor(target: Target, wire: Wire, *, worker: bool) -> descriptor_pb2.Descriptor:
    if worker:
        return wire.descriptor
    request = adapter_service_pb2.GetDescriptorRequest()
    return (await target.adapter.GetDescriptor(request)).descriptor
