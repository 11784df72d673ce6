"""Section 11: providers that fail, and adapters' own mistakes."""

import asyncio
import re
import secrets

from conformance.cases.registry import case
from conformance.failure import NotApplicableError, expect
from conformance.kit import Kit
from conformance.plane.rehearsals import is_rehearsal
from conformance.plane.run import Run, kind, text_of
from conformance.scenario import Crash, Emit, FailWith, Hang, Say, Steps
from harness.common.v1 import error_pb2
from harness.event.v1 import payload_pb2

CATEGORIES = (
    "configuration", "authentication", "authorization", "capacity", "throttled", "unavailable", "timeout", "protocol",
    "persistence", "cancelled", "internal",
)  # fmt: skip
RETRYABLE = {
    "configuration": False, "authorization": False, "capacity": True, "throttled": True, "unavailable": True,
    "protocol": False, "cancelled": False, "internal": False,
}  # fmt: skip
INTERNAL = error_pb2.ERROR_CATEGORY_INTERNAL
PROTOCOL = error_pb2.ERROR_CATEGORY_PROTOCOL
NONE = error_pb2.SIDE_EFFECT_STATUS_NONE
_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")


async def _failed(kit: Kit, *steps: Steps) -> tuple[Run, payload_pb2.RunFailed]:
    binding = await kit.binding()
    run = binding.run(kit.message(*steps))
    await run.play()
    return run, run.expect_end("run_failed").payload.run_failed


def _name(category: "error_pb2.ErrorCategory.ValueType") -> str:
    if category not in error_pb2.ErrorCategory.values():
        return str(category)
    return error_pb2.ErrorCategory.Name(category).removeprefix("ERROR_CATEGORY_").lower()


@case("R11.1", "each of the eleven categories")
async def r11_1_categories(kit: Kit) -> None:
    binding = await kit.binding()
    for category in CATEGORIES:
        message = f"The provider said {category}."
        run = binding.run(kit.message((FailWith(category, message),)))
        await run.play()
        failed = run.expect_end("run_failed").payload.run_failed
        expect(_name(failed.category) == category, f"A failure of {category} came as {_name(failed.category)}.")
        expect(failed.message == message, f"The message of {category} came as {failed.message[:80]!r}.")
        expect(_CODE.fullmatch(failed.code) is not None, f"The code of {category} came as {failed.code!r}.")
    _, failed = await _failed(kit, (FailWith("unavailable", code="provider_overloaded"),))
    expect(failed.code == "provider_overloaded", f"The provider's own code came as {failed.code!r}.")


@case("R11.1", "failures that the provider itself has")
async def r11_1_own(kit: Kit) -> None:
    binding = await kit.binding()
    said: list[str] = []
    for category in CATEGORIES:
        message = kit.message((FailWith(category),))
        if is_rehearsal(message):
            continue
        run = binding.run(message)
        await run.play()
        failed = run.expect_end("run_failed").payload.run_failed
        expect(_name(failed.category) == category, f"A failure of {category} came as {_name(failed.category)}.")
        expect(_CODE.fullmatch(failed.code) is not None, f"The code of {category} came as {failed.code!r}.")
        expect(bool(failed.message), f"The failure of {category} has no message.")
        said.append(category)
    kit.figures["categories"] = ", ".join(said)
    if not said:
        raise NotApplicableError("The driver makes the provider itself say no failure: all of them are rehearsed.")


@case("R11.2", "what may be tried again")
async def r11_2_retryable(kit: Kit) -> None:
    binding = await kit.binding()
    for category, wanted in RETRYABLE.items():
        for said in (None, not wanted):
            run = binding.run(kit.message((FailWith(category, retryable=said),)))
            await run.play()
            told = run.expect_end("run_failed").payload.run_failed.retryable
            due = wanted if said is None else said
            expect(told == due, f"A failure of {category} said retryable = {str(told).lower()}.")
    _, failed = await _failed(kit, (FailWith("throttled", retry_after=7),))
    expect(failed.retry_after_seconds == 7, "The provider's retry interval is not told.")


@case("R11.3", "an unclassified exception")
async def r11_3_unclassified(kit: Kit) -> None:
    secret = f"secret-{secrets.token_hex(8)}"
    run, failed = await _failed(kit, (Say("begun"), Crash(f"cannot reach db at {secret}")))
    expect(failed.category == INTERNAL, f"The exception came as category {_name(failed.category)}.")
    expect(not failed.retryable, "The exception came as retryable.")
    expect(failed.side_effect_status not in (0, NONE), "The run says that it had no side effects, after output.")
    leaked = any(secret.encode() in draft.SerializeToString() for draft in run.drafts)
    expect(not leaked, "The text of the exception came back in an event.")


async def _illegal(kit: Kit, event: Emit, field: str) -> None:
    run, failed = await _failed(kit, (Say("begun"), event, Say("after")))
    expect(failed.category == PROTOCOL, f"The run failed with category {_name(failed.category)}, not protocol.")
    expect(all(kind(draft) != field for draft in run.drafts), f"The illegal {event.type} was sent.")
    expect("after" not in text_of(run.drafts), "The run went on after the illegal event.")


@case("R11.4", "a completion without a start")
async def r11_4_out_of_order(kit: Kit) -> None:
    event = Emit("tool.completed", {"tool_call_id": "never-started", "outcome": "TOOL_OUTCOME_SUCCESS"})
    await _illegal(kit, event, "tool_completed")


@case("R11.5", "an id with forbidden characters")
async def r11_5_malformed(kit: Kit) -> None:
    await _illegal(kit, Emit("tool.started", {"tool_call_id": "no spaces!", "tool_name": "x"}), "tool_started")


@case("R11.5", "an event over 256 KiB")
async def r11_5_oversized(kit: Kit) -> None:
    details = {"text": "x" * (300 * 1024)}
    await _illegal(kit, Emit("warning", {"code": "large", "message": "Large.", "details": details}), "warning")


@case("R11.6", "the next turn after a failure and after a cancel")
async def r11_6_next_turn(kit: Kit) -> None:
    binding = await kit.binding()
    failed = binding.run(kit.message((Say("begun"), FailWith("unavailable"))))
    await failed.play()
    failed.expect_end("run_failed")
    expect(text_of(await binding.say(kit.message((Say("one"),)))) == "one", "After a failed run the next turn failed.")
    cancelled = binding.run(kit.message((Say("begun"), Hang())))
    stream = cancelled.start()
    await stream.read_until(1)
    await cancelled.cancel()
    await cancelled.follow(stream, commit=False)
    run = binding.run(kit.message((Say("two"),)))
    expect(text_of(await run.play()) == "two", "After a cancelled run the next turn failed.")
    run.expect_end("run_completed")


@case("R11.7", "a flood, a hang and a failure beside others")
async def r11_7_apart(kit: Kit) -> None:
    flooded, hung, broken, quiet = [await kit.binding() for _ in range(4)]
    flood = flooded.run(kit.driver.burst(5_000, 64))
    hang = hung.run(kit.message((Say("begun"), Hang())))
    stream = hang.start()
    await stream.read_until(1)
    flooding = asyncio.ensure_future(flood.play())
    failing = asyncio.ensure_future(broken.run(kit.message((Say("begun"), Crash("x")))).play())
    for number in range(3):
        said = text_of(await quiet.say(kit.message((Say(f"turn {number}"),))))
        expect(said == f"turn {number}", f"Beside a flood, a hang and a failure a run said {said[:60]!r}.")
    await asyncio.gather(flooding, failing)
    expect(len(text_of(flood.drafts)) == 5_000 * 64, "The flood itself lost something.")
    await hang.cancel()
    await hang.follow(stream, commit=False)
    hang.expect_end("run_cancelled")
