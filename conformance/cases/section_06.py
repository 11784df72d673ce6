"""Section 6: questions to a person, and what is done with the answers."""

from typing import Any

from conformance.cases.registry import case
from conformance.failure import Broken, CannotExpressError, expect
from conformance.kit import Kit, plain
from conformance.plane.binding import Binding
from conformance.plane.broker import PAY, AskFirst, Succeed
from conformance.plane.run import Run, kind, kinds, text_of
from conformance.scenario import (
    ApprovalCall,
    AskApproval,
    AskForm,
    CallTogether,
    CallTool,
    FormField,
    Say,
    TellDecision,
)
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2

FIELDS = (
    FormField("city", "string", required=True, label="City"),
    FormField("nights", "number"),
    FormField("breakfast", "boolean"),
    FormField("room", "choice", options=("single", "double")),
)
VALUES = {"city": "Köln", "nights": 3, "breakfast": True, "room": "double"}
FORM = AskForm(FIELDS, "Where to?")
CALLS = (
    ApprovalCall("c1", "send_mail", {"to": "anna", "body": "hello"}, ("approve", "reject", "edit")),
    ApprovalCall("c2", "pay", {"amount": 12}, ("approve", "reject")),
)
# Of the kit's tools the one that is sensitive: others never wait.
PAY_BEN = CallTool("c1", PAY, {"to": "ben", "amount": 3})
PAY_ANNA = CallTool("c2", PAY, {"to": "anna", "amount": 12.5})
_CLOSING = frozenset({"tool_completed", "subagent_completed"})


def asked(run: Run) -> payload_pb2.InterruptRequested:
    """The one interrupt of a run that ended with it."""
    found = [draft.payload.interrupt_requested for draft in run.drafts if kind(draft) == "interrupt_requested"]
    expect(len(found) == 1, f"The run asked {len(found)} times, it should have once; it had {kinds(run.drafts)}.")
    ended = run.expect_end("run_interrupted").payload.run_interrupted
    expect(ended.interrupt_id == found[0].interrupt_id, "run.interrupted names another interrupt than was requested.")
    return found[0]


def decision(run: Run, **answer: Any) -> runtime_pb2.ResumeDecision:
    """A decision on the interrupt of a run: `form`, `calls`, or a dismissal."""
    interrupt = asked(run)
    made = runtime_pb2.ResumeDecision(interrupt_id=interrupt.interrupt_id, revision=interrupt.revision)
    made.interrupted_run_id = run.fence.run_id
    if "form" in answer:
        made.form_values.update(answer["form"])
    elif "calls" in answer:
        made.tool_decisions.decisions.extend(answer["calls"])
    else:
        made.dismiss = True
    return made


async def paused_at_calls(kit: Kit, *calls: CallTool) -> tuple[Binding, Run]:
    """As `paused`, at calls of portable tools which the broker wants a person to be asked about."""
    binding = await kit.binding()
    binding.tools.answers = {call.tool_id: AskFirst(Succeed("done"), Succeed("done otherwise")) for call in calls}
    step = calls[0] if len(calls) == 1 else CallTogether(calls)
    run = binding.run(kit.message((Say("one moment"), step), (TellDecision(),)))
    await run.play()
    return binding, run


async def paused(kit: Kit, step: AskForm | AskApproval = FORM) -> tuple[Binding, Run]:
    """A binding whose run asks; the resume tells what was decided."""
    binding = await kit.binding()
    run = binding.run(kit.message((Say("one moment"), step), (TellDecision(),)))
    await run.play()
    return binding, run


@case("R6.1", "a form is asked, and the run is interrupted with it")
async def r6_1_form(kit: Kit) -> None:
    _, run = await paused(kit)
    interrupt = asked(run)
    form = payload_pb2.INTERRUPT_TYPE_FORM_INPUT
    expect(interrupt.interrupt_type == form, "The interrupt is not of type form_input.")
    expect(interrupt.prompt == "Where to?", f"The prompt came as {interrupt.prompt[:80]!r}.")
    types = {"string": 1, "number": 2, "boolean": 3, "choice": 4}
    wanted = [(field.name, types[field.type], field.required, list(field.options)) for field in FIELDS]
    came = [(field.name, int(field.type), field.required, list(field.options)) for field in interrupt.fields]
    expect(came == wanted, f"The fields came as {came}.")
    order = kinds(run.drafts)
    between = set(order[order.index("interrupt_requested") + 1 : -1])
    expect(between <= _CLOSING, f"Between interrupt.requested and run.interrupted came {sorted(between - _CLOSING)}.")


@case("R6.2", "the pause is known while it waits")
async def r6_2_pending(kit: Kit) -> None:
    binding, run = await paused(kit)
    interrupt = asked(run)
    pending = await binding.pending()
    if pending is None:
        raise Broken("GetPendingInterrupt knows nothing of the interrupt that waits.")
    expect(pending.interrupt_id == interrupt.interrupt_id, "GetPendingInterrupt names another interrupt.")
    expect(pending.run_id == run.fence.run_id, "GetPendingInterrupt names another run.")
    await binding.resume(run, decision(run, form=VALUES))
    expect(await binding.pending() is None, "GetPendingInterrupt still names an interrupt that was gone on with.")


@case("R6.3", "values reach the provider")
async def r6_3_values(kit: Kit) -> None:
    binding, run = await paused(kit)
    resumed = await binding.resume(run, decision(run, form=VALUES))
    resumed.expect_end("run_completed")
    told = kit.driver.decision_in(text_of(resumed.drafts))
    expect(told == {"form": VALUES}, f"The provider was told {str(told)[:160]}.")


@case("R6.3", "a dismissal reaches the provider")
async def r6_3_dismissal(kit: Kit) -> None:
    binding, run = await paused(kit)
    resumed = await binding.resume(run, decision(run))
    resumed.expect_end("run_completed")
    told = kit.driver.decision_in(text_of(resumed.drafts))
    expect(told == {"dismiss": True}, f"The provider was told {str(told)[:160]}.")


@case("R6.4", "a pause outlives its runtime")
async def r6_4_outlives(kit: Kit) -> None:
    kit.need_state()
    binding, run = await paused(kit)
    last = run.expect_end("run_interrupted")
    expect(bool(last.pending_head.part_refs), "run.interrupted left no state, so that nobody else could go on.")
    await binding.cleanup()
    await binding.replace(kit.replica)
    resumed = await binding.resume(run, decision(run, form=VALUES))
    resumed.expect_end("run_completed")
    told = kit.driver.decision_in(text_of(resumed.drafts))
    expect(told == {"form": VALUES}, "The new runtime did not go on with the pause of the old one.")


@case("R6.5", "a decision on another interrupt goes on with nothing")
async def r6_5_another_interrupt(kit: Kit) -> None:
    binding, run = await paused(kit)
    right = decision(run, form=VALUES)
    for change in ({"interrupt_id": "interrupt-of-nobody"}, {"interrupted_run_id": "run-of-nobody"}):
        wrong = runtime_pb2.ResumeDecision()
        wrong.CopyFrom(right)
        for name, value in change.items():
            setattr(wrong, name, value)
        await _goes_on_with_nothing(binding.resumed(run, wrong))
    resumed = await binding.resume(run, right)
    resumed.expect_end("run_completed")


async def _goes_on_with_nothing(resumed: Run) -> None:
    stream = resumed.start()
    while await stream.read() is not None:
        pass
    resumed.binding.setting.observations.look(resumed, stream)
    if stream.refusal is None:
        resumed.drafts = stream.drafts
        resumed.expect_end("run_failed")


@case("R6.6", "a repeated resume joins")
async def r6_6_repeated(kit: Kit) -> None:
    binding, run = await paused(kit)
    resumed = binding.resumed(run, decision(run, form=VALUES))
    first = resumed.start()
    while await first.read() is not None:
        pass
    again = resumed.start()
    await resumed.follow(again)
    expect(resumed.drafts == first.drafts, "A repeated ResumeRun showed other drafts than the first.")
    resumed.expect_end("run_completed")


@case("R6.7", "a decision is used once")
async def r6_7_used_once(kit: Kit) -> None:
    binding, run = await paused(kit)
    used = decision(run, form=VALUES)
    await binding.resume(run, used)
    await _goes_on_with_nothing(binding.resumed(run, used))


@case("R6.8", "calls are asked about, and none has started")
async def r6_8_approvals(kit: Kit) -> None:
    try:
        _, run = await paused(kit, AskApproval(CALLS[:1], "May I?"))
        calls = CALLS[:1]
    except CannotExpressError:
        _, run = await paused_at_calls(kit, PAY_BEN)
        calls = _as_asked(PAY_BEN)
    interrupt = asked(run)
    approval = payload_pb2.INTERRUPT_TYPE_TOOL_APPROVAL
    expect(interrupt.interrupt_type == approval, "The interrupt is not of type tool_approval.")
    _check_calls(interrupt, calls)
    expect("tool_started" not in kinds(run.drafts), "A call that waits for approval was told as started.")


def _as_asked(*calls: CallTool) -> tuple[ApprovalCall, ...]:
    """What a person is shown of calls of portable tools: all decisions are allowed of them here."""
    decisions = ("approve", "reject", "edit")
    return tuple(ApprovalCall(call.call_id, call.tool_id, call.arguments, decisions) for call in calls)


def _check_calls(interrupt: payload_pb2.InterruptRequested, calls: tuple[ApprovalCall, ...]) -> None:
    kinds_of = {"approve": 1, "reject": 2, "edit": 3}
    wanted = [
        (call.call_id, call.name, call.arguments, sorted(kinds_of[allowed] for allowed in call.allowed))
        for call in calls
    ]
    came = [
        (each.tool_call_id, each.tool_name, plain(each.arguments), sorted(each.allowed))
        for each in interrupt.tool_approvals
    ]
    expect(came == wanted, f"The calls came as {str(came)[:200]}.")


@case("R6.8", "approve, reject and edit reach the provider")
async def r6_8_decisions(kit: Kit) -> None:
    one = runtime_pb2.ToolDecision
    edited = one(tool_call_id="c1")
    edited.edit.update({"to": "ben", "body": "hi"})
    for made, wanted in (
        (one(tool_call_id="c1", approve=True), "approve"),
        (one(tool_call_id="c1", reject="not now"), {"reject": "not now"}),
        (edited, {"edit": {"to": "ben", "body": "hi"}}),
    ):
        try:
            binding, run = await paused(kit, AskApproval(CALLS[:1]))
        except CannotExpressError:
            await _decisions_on_portable_calls(kit)
            return
        resumed = await binding.resume(run, decision(run, calls=[made]))
        resumed.expect_end("run_completed")
        told = kit.driver.decision_in(text_of(resumed.drafts))
        expect(told == {"calls": {"c1": wanted}}, f"The provider was told {str(told)[:160]}.")


async def _decisions_on_portable_calls(kit: Kit) -> None:
    one = runtime_pb2.ToolDecision
    edited = one(tool_call_id="c1")
    edited.edit.update({"to": "ben", "amount": 1})
    for made, came in (
        (one(tool_call_id="c1", approve=True), (payload_pb2.TOOL_OUTCOME_SUCCESS, "done")),
        (one(tool_call_id="c1", reject="not now"), (payload_pb2.TOOL_OUTCOME_REJECTED, None)),
        (edited, (payload_pb2.TOOL_OUTCOME_SUCCESS, "done otherwise")),
    ):
        binding, run = await paused_at_calls(kit, PAY_BEN)
        resumed = await binding.resume(run, decision(run, calls=[made]))
        resumed.expect_end("run_completed")
        expect(_outcomes(resumed) == {"c1": came}, f"The call came to {str(_outcomes(resumed))[:160]}.")
        told = text_of(resumed.drafts)
        expect(not made.reject or made.reject in told, f"The model was not told the reason, but {told[:160]!r}.")


def _outcomes(run: Run) -> dict[str, tuple[int, Any]]:
    """What calls came to, with their results."""
    completed = [draft.payload.tool_completed for draft in run.drafts if kind(draft) == "tool_completed"]
    return {
        each.tool_call_id: (each.outcome, plain(each.result) if each.HasField("result") else None) for each in completed
    }


@case("R6.9", "several calls, each with its own decision")
async def r6_9_several(kit: Kit) -> None:
    decisions = [
        runtime_pb2.ToolDecision(tool_call_id="c1", approve=True),
        runtime_pb2.ToolDecision(tool_call_id="c2", reject="too much"),
    ]
    try:
        binding, run = await paused(kit, AskApproval(CALLS))
    except CannotExpressError:
        binding, run = await paused_at_calls(kit, PAY_BEN, PAY_ANNA)
        _check_calls(asked(run), _as_asked(PAY_BEN, PAY_ANNA))
        resumed = await binding.resume(run, decision(run, calls=decisions))
        resumed.expect_end("run_completed")
        came = {"c1": (payload_pb2.TOOL_OUTCOME_SUCCESS, "done"), "c2": (payload_pb2.TOOL_OUTCOME_REJECTED, None)}
        expect(_outcomes(resumed) == came, f"The calls came to {str(_outcomes(resumed))[:160]}.")
        expect(binding.tools.done == ["c1"], f"The broker carried out {binding.tools.done}.")
        return
    _check_calls(asked(run), CALLS)
    resumed = await binding.resume(run, decision(run, calls=decisions))
    told = kit.driver.decision_in(text_of(resumed.drafts))
    wanted = {"calls": {"c1": "approve", "c2": {"reject": "too much"}}}
    expect(told == wanted, f"The provider was told {str(told)[:160]}.")
