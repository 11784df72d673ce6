"""Section 12: what must not come back, and what must not be left. Metrics and exported telemetry do not cross this wire."""

from conformance.cases.registry import LAST, case
from conformance.failure import expect
from conformance.kit import Kit
from conformance.plane.run import kind


@case("R12.1", "no planted secret comes back", when=LAST)
async def r12_1_canaries(kit: Kit) -> None:
    if kit.shared is None:
        await kit.health()
        await kit.describe()
    found = kit.target.canaries.found
    expect(not found, f"Planted secrets came back {len(found)} times, first in {found[0] if found else ''}.")


@case("R12.2", "facade calls carry the run's trace")
async def r12_2_trace(kit: Kit) -> None:
    kit.need_state()
    binding = await kit.binding()
    run = binding.run(kit.driver.talk("hello"))
    await run.play()
    calls = run.grants["state"].calls
    expect(len(calls) > 0, "The turn made no call of the state facade.")
    trace = run.fence.traceparent.split("-")[1]
    foreign = [call.method for call in calls if call.fence.traceparent.split("-")[1:2] != [trace]]
    expect(not foreign, f"{foreign[0] if foreign else ''} carries another trace than its run.")


@case("R12.3", "nothing is left of ended runs", when=LAST)
async def r12_3_nothing_left(kit: Kit) -> None:
    binding = await kit.binding()
    drafts = await binding.say(kit.driver.talk("last"))
    expect(kind(drafts[-1]) == "run_completed", f"The last run ended with {kind(drafts[-1])}.")
    await binding.cleanup()

    async def idle() -> bool:
        report = await kit.health()
        return not report.HasField("capacity") or report.capacity.active == 0

    report = await kit.health()
    kit.figures["capacity"] = report.capacity.active if report.HasField("capacity") else "not given"
    # What others do with the same target meanwhile is theirs; the kit waits for its own.
    expect(await kit.until(idle, 60), "Capacity still counts runs 60 seconds after the last one ended.")
