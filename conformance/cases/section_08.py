"""Section 8: limits of the input. Images and documents are not looked at yet."""

from conformance.cases.registry import case
from conformance.failure import expect
from conformance.kit import Kit
from conformance.plane.run import text_of
from conformance.scenario import Say

MIB = 1024 * 1024


@case("R8.1", "a message at its bound")
async def r8_1_largest_message(kit: Kit) -> None:
    binding = await kit.binding()
    message = kit.message((Say("taken"),))
    # Space after it changes nothing of what it means.
    run = binding.run(message + " " * (MIB - len(message.encode())))
    expect(text_of(await run.play()) == "taken", "A message of 1 MiB did not do what a shorter one does.")
    run.expect_end("run_completed")


@case("R8.1", "a message over its bound")
async def r8_1_too_large(kit: Kit) -> None:
    binding = await kit.binding()
    message = kit.message((Say("must not be said"),))
    run = binding.run(message + " " * (MIB + 1 - len(message.encode())))
    refusal = await kit.target.refused("StartRun", run.start().call.read())
    allowed = ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
    expect(refusal.code in allowed, f"A message over 1 MiB was refused with {refusal}.")
    unknown = await kit.target.refused("AttachRun", run.attach().call.read())
    expect(unknown.code == "NOT_FOUND", f"AttachRun of the refused run was refused with {unknown}, not with NOT_FOUND.")
