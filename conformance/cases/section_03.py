"""Section 3: portable tools through the broker, with approval, and tools of the provider's own."""

import json
from typing import Any

import grpc

from conformance.cases.registry import case
from conformance.failure import expect
from conformance.kit import Kit, plain
from conformance.plane.binding import Binding
from conformance.plane.broker import ECHO, PAY, SUM, AskFirst, Break, Refuse, Reject, Succeed
from conformance.plane.run import Draft, Run, kind, kinds, text_of
from conformance.scenario import CallTool, OwnTool, Say, Steps
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2

SUCCESS = payload_pb2.TOOL_OUTCOME_SUCCESS
ERROR = payload_pb2.TOOL_OUTCOME_ERROR
REJECTED = payload_pb2.TOOL_OUTCOME_REJECTED
GREETING = {"text": "grüß dich"}
PAYMENT = {"to": "anna", "amount": 12.5}


def _started(drafts: list[Draft], call_id: str) -> list[payload_pb2.ToolStarted]:
    found = [draft.payload.tool_started for draft in drafts if kind(draft) == "tool_started"]
    return [started for started in found if started.tool_call_id == call_id]


def _completed(drafts: list[Draft], call_id: str) -> payload_pb2.ToolCompleted:
    found = [draft.payload.tool_completed for draft in drafts if kind(draft) == "tool_completed"]
    mine = [completed for completed in found if completed.tool_call_id == call_id]
    expect(len(mine) == 1, f"The call {call_id} completed {len(mine)} times.")
    return mine[0]


def _outcome(completed: payload_pb2.ToolCompleted) -> str:
    return payload_pb2.ToolOutcome.Name(completed.outcome).removeprefix("TOOL_OUTCOME_").lower()


async def _called(kit: Kit, steps: Steps, **answers: Any) -> tuple[Binding, Run]:
    binding = await kit.binding()
    binding.tools.answers = {"kit." + name: answer for name, answer in answers.items()}
    run = binding.run(kit.message(steps))
    await run.play()
    return binding, run


@case("R3.1", "fence, token, id and arguments of a call")
async def r3_1_through_the_broker(kit: Kit) -> None:
    binding, run = await _called(kit, (CallTool("c1", ECHO, GREETING),), echo=Succeed("hello"))
    run.expect_end("run_completed")
    calls = binding.tools.calls
    expect(len(calls) == 1, f"The broker got {len(calls)} calls, it should have got one.")
    expect(calls[0].tool_id == ECHO, f"The broker was asked for {calls[0].tool_id!r}, not for {ECHO!r}.")
    expect(calls[0].arguments == GREETING, "The broker got other arguments than the model gave.")
    faults = [call.fault for call in run.grants["tool"].calls if call.fault]
    expect(not faults, f"A call of the broker came with {faults[0] if faults else ''}.")


@case("R3.2", "a success is told")
async def r3_2_success(kit: Kit) -> None:
    answer = {"said": "hello", "list": [1, 2]}
    binding, run = await _called(kit, (CallTool("c1", ECHO, GREETING), Say("done")), echo=Succeed(answer))
    call_id = binding.tools.calls[0].tool_call_id if binding.tools.calls else "c1"
    started = _started(run.drafts, call_id)
    expect(len(started) == 1, f"The call started {len(started)} times.")
    expect(started[0].tool_name == ECHO, f"tool.started names {started[0].tool_name!r}, not {ECHO!r}.")
    completed = _completed(run.drafts, call_id)
    expect(completed.outcome == SUCCESS, f"The broker's success was told as {_outcome(completed)}.")
    expect(plain(completed.result) == answer, "The result is not the broker's.")
    order = kinds(run.drafts)
    expect(order.index("tool_started") < order.index("tool_completed"), "tool.completed came before tool.started.")
    expect(text_of(run.drafts) == "done", "The run did not go on after the call.")
    run.expect_end("run_completed")


@case("R3.3", "arguments that stream")
async def r3_3_streamed_arguments(kit: Kit) -> None:
    arguments = {"text": "word " * 200}
    binding, run = await _called(kit, (CallTool("c1", ECHO, arguments, stream=True),), echo=Succeed("ok"))
    started = _started(run.drafts, "c1")
    expect(len(started) == 1 and not started[0].HasField("arguments"), "tool.started carries arguments that stream.")
    deltas = [draft.payload.tool_arguments_delta for draft in run.drafts if kind(draft) == "tool_arguments_delta"]
    joined = "".join(delta.delta for delta in deltas if delta.tool_call_id == "c1")
    try:
        parsed = json.loads(joined)
    except ValueError:
        parsed = None
    expect(parsed == arguments, "The joined tool.arguments.delta are not the call's arguments as JSON.")
    expect(binding.tools.calls[0].arguments == arguments, "The broker got other arguments than were streamed.")
    order = kinds(run.drafts)
    last_delta = max(index for index, each in enumerate(order) if each == "tool_arguments_delta")
    expect(last_delta < order.index("tool_completed"), "A fragment of the arguments came after the completion.")


@case("R3.4", "an error is told, and the run goes on")
async def r3_4_error(kit: Kit) -> None:
    steps = (CallTool("c1", ECHO, GREETING), Say("after"))
    binding, run = await _called(kit, steps, echo=Break("quota_spent", "No more today."))
    completed = _completed(run.drafts, "c1")
    expect(completed.outcome == ERROR, f"The broker's error was told as {_outcome(completed)}.")
    expect(completed.error.code == "quota_spent", f"The error's code came as {completed.error.code!r}.")
    ids = {call.tool_call_id for call in binding.tools.calls}
    expect(ids == {"c1"}, "The call that failed was made again under another id.")
    expect(text_of(run.drafts) == "after", "The run did not go on after a call that failed.")
    run.expect_end("run_completed")


@case("R3.4", "a rejection is told, and the run goes on")
async def r3_4_rejection(kit: Kit) -> None:
    _, run = await _called(kit, (CallTool("c1", ECHO, GREETING), Say("after")), echo=Reject())
    completed = _completed(run.drafts, "c1")
    expect(completed.outcome == REJECTED, f"The broker's rejection was told as {_outcome(completed)}.")
    told = completed.error.code if completed.HasField("error") else "rejected"
    expect(told == "rejected", f"The broker's rejection was told with the code {told!r}.")
    expect(text_of(run.drafts) == "after", "The run did not go on after a call that was rejected.")
    run.expect_end("run_completed")


@case("R3.5", "a refusal is no success")
async def r3_5_refusal(kit: Kit) -> None:
    refuse = Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "tool_calls_exhausted")
    _, run = await _called(kit, (CallTool("c1", ECHO, GREETING), Say("after")), echo=refuse)
    told = [draft.payload.tool_completed for draft in run.drafts if kind(draft) == "tool_completed"]
    expect(all(each.outcome != SUCCESS for each in told), "A call that the broker refused was told as success.")
    failed = kind(run.last) == "run_failed"
    expect(failed or any(each.outcome == ERROR for each in told), "A call that the broker refused was not told at all.")


@case("R3.6", "several calls, several outcomes")
async def r3_6_several(kit: Kit) -> None:
    steps = (
        CallTool("c1", ECHO, GREETING),
        CallTool("c2", SUM, {"numbers": [1, 2]}),
        CallTool("c3", ECHO, {"text": "b"}),
    )
    binding, run = await _called(kit, steps, echo=Succeed("e"), sum=Break("sum_broken"))
    ids = [call.tool_call_id for call in binding.tools.calls]
    expect(len(set(ids)) == 3, f"Three calls went under the ids {ids}.")
    outcomes = [_outcome(_completed(run.drafts, call_id)) for call_id in ids]
    expect(outcomes == ["success", "error", "success"], f"The outcomes came as {outcomes}.")


async def _waiting(kit: Kit, ask: AskFirst, *after: Steps) -> tuple[Binding, Run]:
    binding = await kit.binding()
    binding.tools.answers = {PAY: ask, ECHO: Succeed("ok")}
    run = binding.run(kit.message((CallTool("c1", PAY, PAYMENT),), *after))
    await run.play()
    return binding, run


def _asked(run: Run) -> payload_pb2.InterruptRequested:
    found = [draft.payload.interrupt_requested for draft in run.drafts if kind(draft) == "interrupt_requested"]
    expect(
        len(found) == 1, f"The run asked {len(found)} times; its call waits for approval. It had {kinds(run.drafts)}."
    )
    return found[0]


async def _decided(binding: Binding, run: Run, **decision: Any) -> Run:
    interrupt = _asked(run)
    made = runtime_pb2.ResumeDecision(interrupt_id=interrupt.interrupt_id, revision=1)
    one = made.tool_decisions.decisions.add(tool_call_id=interrupt.tool_approvals[0].tool_call_id)
    if "edit" in decision:
        one.edit.update(decision["edit"])
    elif "reject" in decision:
        one.reject = decision["reject"]
    else:
        one.approve = True
    return await binding.resume(run, made)


@case("R3.7", "a call that needs approval interrupts the run")
async def r3_7_approval_required(kit: Kit) -> None:
    allowed = (payload_pb2.APPROVAL_DECISION_KIND_APPROVE, payload_pb2.APPROVAL_DECISION_KIND_REJECT)
    binding, run = await _waiting(kit, AskFirst(allowed=allowed))
    interrupt = _asked(run)
    approval_type = payload_pb2.INTERRUPT_TYPE_TOOL_APPROVAL
    expect(interrupt.interrupt_type == approval_type, "The interrupt is not of type tool_approval.")
    expect(len(interrupt.tool_approvals) == 1, f"The interrupt asks about {len(interrupt.tool_approvals)} calls.")
    asked, call = interrupt.tool_approvals[0], binding.tools.calls[0]
    expect(asked.tool_call_id == call.tool_call_id, "The interrupt asks about another call than the broker's.")
    expect(asked.tool_name == PAY, f"The interrupt names the tool {asked.tool_name!r}, not {PAY!r}.")
    expect(plain(asked.arguments) == PAYMENT, "The interrupt shows other arguments than the call's.")
    expect(sorted(asked.allowed) == sorted(allowed), "The interrupt allows other decisions than the broker.")
    ended = run.expect_end("run_interrupted").payload.run_interrupted
    expect(ended.interrupt_id == interrupt.interrupt_id, "run.interrupted names another interrupt.")
    expect(not _started(run.drafts, call.tool_call_id), "A call that waits for approval was told as started.")


@case("R3.8", "an approved call is made by the resumed run")
async def r3_8_approved(kit: Kit) -> None:
    binding, run = await _waiting(kit, AskFirst(then=Succeed("paid")))
    expect(not binding.tools.done, "The call was carried out before it was approved.")
    resumed = await _decided(binding, run)
    calls = binding.tools.calls
    expect(len(calls) == 2, f"The broker got {len(calls)} calls, it should have got two.")
    expect(calls[1].tool_call_id == calls[0].tool_call_id, "The approved call was made under another id.")
    expect(calls[1].arguments == PAYMENT, "The approved call was made with other arguments.")
    expect(calls[1].run_id == resumed.fence.run_id, "The approved call was not made by the resumed run.")
    completed = _completed(resumed.drafts, calls[0].tool_call_id)
    expect(completed.outcome == SUCCESS, f"The approved call was told as {_outcome(completed)}.")
    expect(len(_started(resumed.drafts, calls[0].tool_call_id)) == 1, "The approved call has not started once.")
    resumed.expect_end("run_completed")


@case("R3.9", "an edited call is what the broker made of it")
async def r3_9_edited(kit: Kit) -> None:
    binding, run = await _waiting(kit, AskFirst(edited=Succeed("paid less")))
    resumed = await _decided(binding, run, edit={"to": "anna", "amount": 1})
    ids = {call.tool_call_id for call in binding.tools.calls}
    expect(len(binding.tools.calls) == 2 and len(ids) == 1, "The edited call did not go through the broker again.")
    completed = _completed(resumed.drafts, next(iter(ids)))
    expect(completed.result.string_value == "paid less", "The edited call's result is not the broker's.")


@case("R3.9", "a refusal of edited arguments is told")
async def r3_9_edit_refused(kit: Kit) -> None:
    refusal = Break("arguments_invalid", "There is no such field.")
    binding, run = await _waiting(kit, AskFirst(edited=refusal))
    resumed = await _decided(binding, run, edit={"to": "anna", "amount": 1, "everything": True})
    completed = _completed(resumed.drafts, binding.tools.calls[0].tool_call_id)
    expect(completed.outcome == ERROR, f"Edited arguments that the broker refused were told as {_outcome(completed)}.")
    expect(completed.error.code == "arguments_invalid", "The broker's refusal of the edited arguments is not told.")


@case("R3.10", "a rejected call is no success")
async def r3_10_rejected(kit: Kit) -> None:
    binding, run = await _waiting(kit, AskFirst())
    resumed = await _decided(binding, run, reject="too much")
    told = [draft.payload.tool_completed for draft in resumed.drafts if kind(draft) == "tool_completed"]
    expect(all(each.outcome == REJECTED for each in told), "A call that a person rejected was not told as rejected.")
    expect(not binding.tools.done, "A call that a person rejected was carried out.")
    resumed.expect_end("run_completed")


@case("R3.11", "tools of the provider's own")
async def r3_11_own_tools(kit: Kit) -> None:
    binding, run = await _called(kit, (OwnTool("p1", "search", {"q": "harness"}, result={"hits": 3}),))
    expect(len(_started(run.drafts, "p1")) == 1, "The provider's call was not told as started, once.")
    completed = _completed(run.drafts, "p1")
    told = completed.outcome == SUCCESS and plain(completed.result) == {"hits": 3}
    expect(told, "The provider's result is not told.")
    expect(not binding.tools.calls, "A tool of the provider's own reached the broker.")
    run.expect_end("run_completed")


@case("R3.11", "an error of a tool of the provider's own")
async def r3_11_own_error(kit: Kit) -> None:
    binding, run = await _called(kit, (OwnTool("p2", "search", {"q": "x"}, error=("no_index", "There is no index.")),))
    completed = _completed(run.drafts, "p2")
    expect(completed.outcome == ERROR and completed.error.code == "no_index", "The provider's error is not told.")
    expect(not binding.tools.calls, "A tool of the provider's own reached the broker.")
    run.expect_end("run_completed")
