"""The agent's own tools: the tool loop over re-invocation, and calls that wait for a person (I24, I25)."""

import pytest

from conformance.plane.broker import ECHO, PAY, SUM, AskFirst, Stall
from conformance.plane.run import kind, kinds
from harness.runtime.v1 import runtime_pb2
from tests.adapters.agentcore.rig import answers, call, script
from tests.adapters.rig import decision

FORM = {"prompt": "Who?", "fields": [{"name": "who", "label": "Who", "type": "string"}]}


def text_of(drafts):
    return "".join(draft.payload.content_delta.text for draft in drafts)


def completed(drafts):
    return [
        (one.payload.tool_completed.tool_call_id, one.payload.tool_completed.outcome)
        for one in drafts
        if kind(one) == "tool_completed"
    ]


async def test_calls_of_a_message_are_made_and_all_answered(rig):
    conversation = await rig.conversation()
    calls = [call(ECHO, "a", text="x"), call(SUM, "b", numbers=[1]), call("kit_nothing", "c")]
    drafts = await conversation.say(
        script({"usage": {}}, {"tools": calls, "pieces": 4}, {"usage": {}}, {"text": "end"})
    )
    assert completed(drafts) == [("a", 1), ("b", 2), ("c", 2)]
    assert text_of(drafts) == "end"
    assert drafts[-2].payload.usage_updated.input_tokens == 20
    told = answers(rig.standin)
    assert told["a"] == {"result": {"said": "hello"}, "status": "success"}
    assert (told["b"]["code"], told["b"]["status"]) == ("sum_failed", "error")
    assert told["c"]["status"] == "error"
    first, second = rig.standin.of("InvokeHarness")
    header = "x-amzn-bedrock-agentcore-runtime-session-id"
    assert first.request.headers[header] == second.request.headers[header]
    assert {tool["type"] for tool in second.document["tools"]} == {"inline_function"}


@pytest.mark.parametrize("ephemeral", [False, True])
async def test_i24_i25_several_calls_wait_and_go_on_in_other_processes(rig, ephemeral):
    conversation = await rig.conversation(options={"ask_person": True}, ephemeral=ephemeral)
    calls = [
        call(PAY, "a", amount=1),
        call(ECHO, "b", text="x"),
        call(PAY, "c", amount=3),
        call("ask_person", "d", **FORM),
        call(PAY, "e", amount=5),
    ]
    first = conversation.run(script({"tools": calls}, {"text": "Done."}))
    await first.play()
    assert kinds(first.drafts)[-2:] == ["interrupt_requested", "run_interrupted"]
    asked = first.drafts[-2].payload.interrupt_requested
    assert [one.tool_call_id for one in asked.tool_approvals] == ["a", "c", "e"]
    assert conversation.tools.done == ["b"]
    assert len(rig.standin.of("InvokeHarness")) == 1

    if not ephemeral:
        await conversation.replace(await rig.another_host())
    decided = decision(first, a="approve", c="not them", e={"amount": 4})
    second = await conversation.resume(first, decided)
    assert completed(second.drafts) == [("a", 1), ("c", 3), ("e", 1)]
    form = second.drafts[-2].payload.interrupt_requested
    assert [one.name for one in form.fields] == ["who"]

    if not ephemeral:
        await conversation.replace(await rig.another_host())
    filled = runtime_pb2.ResumeDecision(interrupt_id=form.interrupt_id, revision=1)
    filled.form_values.update({"who": "the team"})
    third = await conversation.resume(second, filled)
    assert text_of(third.drafts) == "Done."
    assert kinds(third.drafts)[-1] == "run_completed"
    told = answers(rig.standin)
    assert list(told) == ["a", "b", "c", "d", "e"]
    assert told["a"]["result"] == "paid"
    assert "not them" in told["c"]["rejected"]
    assert told["d"]["values"] == {"who": "the team"}
    assert told["e"] == {
        "result": "paid otherwise",
        "arguments_changed_by_a_person": {"amount": 4.0},
        "status": "success",
    }
    assert conversation.tools.done == ["b", "a", "e"]
    assert await conversation.pending() is None
    # Nothing waits any more, also for a process that has only the committed state.
    if not ephemeral:
        await conversation.replace(await rig.another_host())
    assert text_of(await conversation.say("thanks")) == "You said: thanks"


async def test_i25_a_message_in_the_place_of_a_decision_makes_no_call(rig):
    conversation = await rig.conversation()
    await conversation.say(script({"tools": [call(PAY, "a", amount=1)]}, {"text": "paid?"}))
    await conversation.replace(await rig.another_host())
    drafts = await conversation.say("never mind")
    assert kinds(drafts)[-1] == "run_completed"
    assert answers(rig.standin)["a"]["status"] == "error"
    assert conversation.tools.done == []
    content = rig.standin.of("InvokeHarness")[-1].document["messages"][0]["content"]
    assert content[-1] == {"text": "never mind"}
    # Whether somebody decided elsewhere is not known here, and so is not said.
    assert "nor whether it was made" in answers(rig.standin)["a"]["error"]


@pytest.mark.parametrize("ephemeral", [False, True])
async def test_i11_after_a_resume_that_broke_the_model_is_told_what_was_done(rig, ephemeral):
    conversation = await rig.conversation(ephemeral=ephemeral, stop_session=False)
    conversation.tools.answers[PAY] = AskFirst(Stall(), Stall())
    calls = [call(PAY, "a", amount=1), call(ECHO, "b", text="x"), call(PAY, "c", amount=3)]
    first = conversation.run(script({"tools": calls}))
    await first.play()
    # The first is refused, which needs no tool; the second is at work when the turn is cut off.
    second = conversation.resumed(first, decision(first, a="not that", c="approve"))
    stream = second.start()
    while kinds(stream.drafts)[-2:] != ["tool_completed", "tool_started"]:
        assert await stream.read() is not None
    await second.cancel()
    drafts = await conversation.say("what now?")
    assert kinds(drafts)[-1] == "run_completed"
    told = answers(rig.standin)
    assert "not that" in told["a"]["rejected"]
    assert told["b"] == {"result": {"said": "hello"}, "status": "success"}
    assert "nor whether it was made" in told["c"]["error"] if not ephemeral else "not known" in told["c"]["error"]


async def test_i11_a_turn_that_is_cut_off_tells_the_calls_it_made(rig):
    conversation = await rig.conversation(stop_session=False)
    conversation.tools.answers[SUM] = Stall()
    run = conversation.run(script({"tools": [call(ECHO, "a", text="x"), call(SUM, "b")]}, {"text": "never"}))
    stream = run.start()
    while kinds(stream.drafts).count("tool_started") < 2:
        assert await stream.read() is not None
    await run.cancel()
    rig.standin.queue([{"refuse": "ThrottlingException", "retry_after": 60}])
    assert kinds(await conversation.say("refused for now"))[-1] == "run_failed"
    told = answers(rig.standin)
    assert told["a"] == {"result": {"said": "hello"}, "status": "success"}
    assert "not known" in told["b"]["error"]
    # What was not taken in the turn that was refused is told again; this stand-in had taken it, so the message goes alone in the end.
    assert kinds(await conversation.say("next"))[-1] == "run_completed"
    assert answers(rig.standin, -2) == told
    assert answers(rig.standin) == {}
    assert len(rig.standin.of("InvokeHarness")) == 4
    assert kinds(await conversation.say("and on"))[-1] == "run_completed"
    assert answers(rig.standin) == {}


async def test_i11_results_that_were_taken_are_not_told_again(rig):
    conversation = await rig.conversation()
    broken = script({"tools": [call(ECHO, "a", text="x")]}, {"text": "So "}, {"exception": "internalServerException"})
    assert kinds(await conversation.say(broken))[-1] == "run_failed"
    assert kinds(await conversation.say("go on"))[-1] == "run_completed"
    # The service began to answer them, so it has them.
    assert answers(rig.standin) == {}
    assert len(rig.standin.of("InvokeHarness")) == 3


async def test_i11_a_message_that_was_taken_is_never_said_twice(rig):
    conversation = await rig.conversation()
    await conversation.say(script({"tools": [call(PAY, "a", amount=1)]}))
    message = script({"text": "Begun. "}, {"tools": [call(ECHO, "b", text="x")]}, {"refuse": "ValidationException"})
    drafts = await conversation.say(message)
    assert drafts[-1].payload.run_failed.code == "request_refused"
    assert text_of(drafts) == "Begun. "
    assert conversation.tools.done == ["b"]


async def test_state_that_cannot_be_kept_ends_the_turn_as_uncertain(rig):
    conversation = await rig.conversation()
    conversation.thread.fail_writes = True
    drafts = await conversation.say(script({"text": "So far."}, {"tools": [call(PAY, "a", amount=1)]}))
    failed = drafts[-1].payload.run_failed
    assert (failed.code, failed.retryable) == ("thread_durability_uncertain", False)
    assert "interrupt_requested" not in kinds(drafts)


async def test_a_session_that_forgot_its_calls_is_told_the_message_alone(rig):
    conversation = await rig.conversation()
    await conversation.say(script({"tools": [call(PAY, "a", amount=1)]}))
    for session in rig.standin.data.sessions.known.values():
        session.rest = None
    drafts = await conversation.say("still there?")
    assert text_of(drafts) == "You said: still there?"
    assert answers(rig.standin) == {}


async def test_a_decision_on_what_nobody_knows_or_can_do_any_more_is_refused(rig):
    conversation = await rig.conversation()
    first = conversation.run(script({"tools": [call(PAY, "a", amount=1)]}))
    await first.play()
    wrong = decision(first, a="approve")
    wrong.interrupt_id = "interrupt-7"
    failed = (await conversation.resume(first, wrong)).last.payload.run_failed
    assert failed.code == "interrupt_unknown"
    gone = conversation.context()
    del gone.tools[:]
    conversation.runtime_generation += 1
    created = await conversation.create_call(conversation.fence(), context=gone)
    conversation.incarnation = created.incarnation
    failed = (await conversation.resume(first, decision(first, a="approve"))).last.payload.run_failed
    assert failed.code == "tool_unavailable_at_resume"
    assert conversation.tools.done == []
    assert len(rig.standin.of("InvokeHarness")) == 1


async def test_a_form_that_is_none_is_the_models_to_mend(rig):
    conversation = await rig.conversation(options={"ask_person": True})
    wrong = {"prompt": "Which?", "fields": [{"name": "which", "label": "Which", "type": "choice"}]}
    drafts = await conversation.say(script({"tools": [call("ask_person", "a", **wrong)]}, {"text": "Then not."}))
    assert completed(drafts) == [("a", 2)]
    assert "options" in answers(rig.standin)["a"]["error"]
