"""Section 12: what must not come back, and what must not be left. Metrics and exported telemetry do not cross this wire."""

from collections.abc import Callable

from conformance.cases.registry import LAST, case
from conformance.failure import NotApplicableError, expect
from conformance.kit import Kit
from conformance.plane.binding import Binding
from conformance.plane.machine import SEES, connections_to
from conformance.plane.run import kind

# Bindings that come and go while the kit counts: what is left of each shows as growth, and what a target opens once does not.
COMING = 3
WAIT_SECONDS = 60


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


async def _came_and_went(kit: Kit) -> Binding:
    """A binding whose one turn ended, and whose runtime was cleaned up."""
    binding = await kit.binding()
    drafts = await binding.say(kit.driver.talk("last"))
    expect(kind(drafts[-1]) == "run_completed", f"The last run ended with {kind(drafts[-1])}.")
    await binding.cleanup()
    return binding


@case("R12.3", "capacity counts no run that has ended", when=LAST)
async def r12_3_capacity(kit: Kit) -> None:
    await _came_and_went(kit)

    async def idle() -> bool:
        report = await kit.health()
        return report.capacity.active == 0

    report = await kit.health()
    if not report.HasField("capacity"):
        raise NotApplicableError("The target's health gives no capacity.")
    kit.figures["capacity"] = report.capacity.active
    # What others do with the same target meanwhile is theirs; the kit waits for its own.
    expect(
        await kit.until(idle, WAIT_SECONDS),
        f"Capacity still counts runs {WAIT_SECONDS} seconds after the last one ended.",
    )


@case("R12.3", "no facade call and no connection of bindings that were cleaned up", when=LAST)
async def r12_3_facades(kit: Kit) -> None:
    facades = kit.setting.facades
    # Each with the number of its calls at its cleanup.
    gone: list[tuple[Binding, int]] = []
    before = 0
    for number in range(COMING + 1):
        binding = await _came_and_went(kit)
        gone.append((binding, len(facades.grants.calls_of(binding.binding_id))))
        if number == 0 and SEES:
            before = connections_to(facades.address)
    if not any(calls for _, calls in gone):
        raise NotApplicableError("The target made no call of a facade, and so no connection to one.")

    async def quiet() -> bool:
        return not any(call.open for binding, _ in gone for call in facades.grants.calls_of(binding.binding_id))

    expect(await kit.until(quiet, WAIT_SECONDS), "A facade call of a binding is still open a minute after its cleanup.")
    for binding, calls in gone:
        later = facades.grants.calls_of(binding.binding_id)[calls:]
        expect(not later, f"{later[0].method if later else ''} was called for a binding after its cleanup.")
    if not SEES:
        return

    async def few() -> bool:
        return connections_to(facades.address) < before + COMING

    there = f"{COMING} bindings came and went, and the connections to the facades grew by as many"
    expect(await kit.until(few, WAIT_SECONDS), f"{there}: {before} before, {connections_to(facades.address)} now.")
    kit.figures["connections"] = connections_to(facades.address)


@case("R12.3", "no process and no descriptor of bindings that were cleaned up", when=LAST)
async def r12_3_machine(kit: Kit) -> None:
    process = kit.setting.process
    if process is None:
        raise NotApplicableError(
            "The target's process was not named: give it with --pid, where it runs on this machine."
        )
    await _came_and_went(kit)
    looks = {"processes below it": process.processes, "open descriptors": process.descriptors}
    before = {what: look() for what, look in looks.items()}
    for _ in range(COMING):
        await _came_and_went(kit)
    for what, look in looks.items():

        async def few(what: str = what, look: Callable[[], int] = look) -> bool:
            return look() < before[what] + COMING

        there = f"{COMING} bindings came and went, and the {what} of the target grew by as many"
        expect(await kit.until(few, WAIT_SECONDS), f"{there}: {before[what]} before, {look()} now.")
        kit.figures[what] = look()
