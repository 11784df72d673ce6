"""Section 7: cancel at every boundary of a run."""

import asyncio
import time

from conformance.cases.registry import case
from conformance.cases.section_06 import decision, paused
from conformance.failure import Broken, NotApplicableError, expect
from conformance.kit import Kit
from conformance.plane.binding import Binding
from conformance.plane.broker import ECHO, Stall
from conformance.plane.run import TERMINALS, Run, Stream, kind, kinds
from conformance.scenario import CallTool, Hang, Say
from harness.common.v1 import error_pb2
from harness.event.v1 import payload_pb2

NONE = error_pb2.SIDE_EFFECT_STATUS_NONE
DEADLINE = payload_pb2.CANCEL_REASON_DEADLINE
CLEARED = payload_pb2.CANCEL_REASON_SESSION_CLEARED
# Beyond the grace that the call names.
BOUND_SECONDS = 30.0


async def _hanging(kit: Kit) -> tuple[Binding, Run, Stream]:
    binding = await kit.binding()
    run = binding.run(kit.message((Say("begun"), Hang())))
    stream = run.start()
    await stream.read_until(1)
    return binding, run, stream


@case("R7.1", "a cancel that comes first")
async def r7_1_before(kit: Kit) -> None:
    binding = await kit.binding()
    run = binding.run(kit.message((Say("must not be said"),)))
    answer = await run.cancel()
    expect(not answer.already_ended, "A cancel of a run that never came says that it had ended.")
    expect(answer.side_effect_status == NONE, "A cancel of a run that never came speaks of side effects.")
    stream = run.start()
    while await stream.read() is not None:
        pass
    kit.setting.observations.look(run, stream)
    shown = kinds(stream.drafts)
    expect(stream.refusal is not None or shown == ["run_cancelled"], f"The cancelled run started, and had {shown}.")
    again = binding.run(kit.message((Say("next"),)))
    await again.play()
    again.expect_end("run_completed")


@case("R7.2", "a cancel ends a run that hangs")
async def r7_2_during(kit: Kit) -> None:
    _, run, stream = await _hanging(kit)
    grace = 2.0
    begun = time.monotonic()
    answer = await kit.target.ask("CancelRun", run.cancel_call(CLEARED, grace=grace))
    seconds = time.monotonic() - begun
    kit.figures["cancel_seconds"] = round(seconds, 3)
    expect(seconds <= grace + BOUND_SECONDS, f"CancelRun took {seconds:.1f} s.")
    expect(not answer.already_ended, "CancelRun says that the run had ended already.")
    # The terminal is there by now: a fresh stream has it, without waiting for anything.
    seen = await run.follow(run.attach(0), ack=False, commit=False)
    cancelled = run.expect_end("run_cancelled").payload.run_cancelled
    expect(cancelled.reason == CLEARED, "run.cancelled has another reason than the call gave.")
    expect(sum(each in TERMINALS for each in kinds(seen)) == 1, "The cancelled run has several terminal events.")
    again = await run.follow(run.attach(0), ack=False, commit=False)
    expect(again == seen, "The cancelled run shows other drafts later.")
    stream.leave()


@case("R7.3", "a cancel after completion")
async def r7_3_after(kit: Kit) -> None:
    binding = await kit.binding()
    run = binding.run(kit.message((Say("done"),)))
    before = await run.play(ack=False)
    answer = await run.cancel()
    expect(answer.already_ended, "A cancel after the end does not say that the run had ended.")
    after = await run.follow(run.attach(0), commit=False)
    expect(after == before, "A cancel after the end changed the run.")


@case("R7.3", "a cancel of an interrupted run")
async def r7_3_interrupted(kit: Kit) -> None:
    if not kit.claims("interrupt.form_input"):
        raise NotApplicableError("The target claims no interrupt.form_input, so it asks nothing.")
    binding, run = await paused(kit)
    answer = await run.cancel()
    expect(answer.already_ended, "A cancel of an interrupted run does not say that it had ended.")
    resumed = await binding.resume(run, decision(run))
    resumed.expect_end("run_completed")


@case("R7.4", "cancels at once and again")
async def r7_4_repeated(kit: Kit) -> None:
    _, run, stream = await _hanging(kit)
    await asyncio.gather(*(run.cancel() for _ in range(4)))
    answer = await run.cancel()
    expect(answer.already_ended, "A repeated cancel does not say that the run had ended.")
    drafts = await run.follow(stream, ack=False, commit=False)
    expect(sum(each in TERMINALS for each in kinds(drafts)) == 1, "The cancelled run has several terminal events.")
    run.expect_end("run_cancelled")


@case("R7.5", "a deadline ends the run")
async def r7_5_deadline(kit: Kit) -> None:
    binding = await kit.binding()
    run = binding.run(kit.message((Say("begun"), Hang())), seconds=1.5)
    await run.play()
    cancelled = run.expect_end("run_cancelled").payload.run_cancelled
    expect(cancelled.reason == DEADLINE, "The run was cancelled for another reason than its deadline.")


@case("R7.6", "what was shown may have had effects")
async def r7_6_side_effects(kit: Kit) -> None:
    _, run, stream = await _hanging(kit)
    answer = await run.cancel()
    await run.follow(stream, commit=False)
    told = run.expect_end("run_cancelled").payload.run_cancelled.side_effect_status
    expect(answer.side_effect_status not in (0, NONE), "CancelRun says that a run with output had no side effects.")
    expect(told not in (0, NONE), "run.cancelled says that a run with output had no side effects.")


@case("R7.7", "a cancel during a tool call")
async def r7_7_open_call(kit: Kit) -> None:
    binding = await kit.binding()
    binding.tools.answers = {ECHO: Stall()}
    run = binding.run(kit.message((CallTool("c1", ECHO, {"text": "x"}), Say("never"))))
    following = asyncio.ensure_future(run.play(commit=False))
    await binding.tools.came.wait()
    await run.cancel()
    drafts = await following
    run.expect_end("run_cancelled")
    told = [draft.payload.tool_completed.outcome for draft in drafts if kind(draft) == "tool_completed"]
    expect(payload_pb2.TOOL_OUTCOME_SUCCESS not in told, "The call that was cancelled was told as success.")
    given_up = await kit.until(_set(binding.tools.given_up), 30)
    expect(given_up, "The runtime still waits for the broker 30 seconds after the cancel.")


def _set(event: asyncio.Event):
    async def is_set() -> bool:
        return event.is_set()

    return is_set


@case("R7.8", "a run that nobody follows is cancelled")
async def r7_8_detached(kit: Kit) -> None:
    binding = await kit.binding(detach_grace_seconds=1)
    run = binding.run(kit.message((Say("begun"), Hang())))
    stream = run.start()
    await stream.read_until(1)
    # Looking at the run begins its grace anew, so it is left alone for longer each time.
    for seconds in (1.5, 4.0, 12.0, 30.0):
        stream.leave()
        await asyncio.sleep(seconds)
        stream = run.attach(0)
        await stream.read_until(1)
        if kind(stream.drafts[-1]) in TERMINALS:
            break
    else:
        await run.cancel()
        raise Broken("With detach_grace_seconds of 1 the run was still at work after 30 seconds without a stream.")
    await run.follow(stream, commit=False)
    run.expect_end("run_cancelled")
