"""Calls that wait for a person: one interrupt for a message's calls, and each decision carried out once, in whatever process."""

import json

from adapters.claude_agent_sdk.resumption import UNDECIDED
from conformance.plane.run import kind, kinds, text_of
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2
from tests.adapters.claude.model import Refused, portable, text
from tests.adapters.claude.rig import Rig, calls, results
from tests.adapters.rig import decision

FORM = {"prompt": "Who is it for?", "fields": [{"name": "who", "label": "Who", "type": "string", "required": True}]}


async def test_i24_i25_each_of_several_calls_gets_its_decision_once_in_another_process(rig: Rig):
    conversation = rig.conversation(options={"ask_person": True})
    await conversation.create()
    rig.model.script(
        [
            text("Let me pay."),
            portable("kit_pay", "call_a", to="a", amount=1),
            portable("kit_echo", "call_b", text="hello"),
            portable("kit_pay", "call_c", to="c", amount=3),
            portable("ask_person", "call_d", **FORM),
            portable("kit_pay", "call_e", to="e", amount=5),
        ]
    )
    first = conversation.run("pay them")
    drafts = await first.play()
    assert kinds(drafts) == [
        "content_delta",
        "tool_started",
        "tool_completed",
        "usage_updated",
        "session_updated",
        "interrupt_requested",
        "run_interrupted",
    ]
    # I25: what waits has not started, and what need not wait did not wait for it.
    assert calls(drafts) == [("call_b", "1")]
    assert conversation.tools.done == ["call_b"]
    asked = drafts[-2].payload.interrupt_requested
    assert [one.tool_call_id for one in asked.tool_approvals] == ["call_a", "call_c", "call_e"]
    pending = await conversation.pending()
    assert pending is not None
    assert (pending.interrupt_id, pending.run_id) == (asked.interrupt_id, first.fence.run_id)

    # Another host, with nothing of the first: approved, refused, changed. The form is asked for next.
    await conversation.cleanup()
    await conversation.replace(await rig.another_host())
    decided = decision(first, call_a="approve", call_c="not them", call_e={"to": "e", "amount": 4})
    second = await conversation.resume(first, decided)
    assert calls(second.drafts) == [("call_a", "1"), ("call_c", "3"), ("call_e", "1")]
    started = [one.payload.tool_started for one in second.drafts if kind(one) == "tool_started"]
    assert [one.arguments.fields["amount"].number_value for one in started] == [1, 3, 4]
    form = second.drafts[-2].payload.interrupt_requested
    assert form.interrupt_type == payload_pb2.INTERRUPT_TYPE_FORM_INPUT
    assert (form.prompt, [(one.name, one.required) for one in form.fields]) == (FORM["prompt"], [("who", True)])
    assert len(rig.model.requests) == 1

    # A third host: the form is filled in, and the model hears of everything at once.
    await conversation.replace(await rig.another_host())
    rig.model.script([text("Done.")])
    filled = runtime_pb2.ResumeDecision(interrupt_id=form.interrupt_id, revision=1)
    filled.form_values.update({"who": "the team"})
    third = await conversation.resume(second, filled)
    assert text_of(third.drafts) == "Done."
    assert kinds(third.drafts)[-1] == "run_completed"
    told = results(rig.model)
    assert told == {
        "call_a": "paid",
        "call_b": '{"said":"hello"}',
        "call_c": "A person did not allow this call, and it was not made. not them",
        "call_d": '{"who": "the team"}',
        "call_e": 'A person changed the arguments of this call to {"amount":4.0,"to":"e"}.\npaid otherwise',
    }
    assert conversation.tools.done == ["call_b", "call_a", "call_e"]
    assert await conversation.pending() is None

    # And what they came to stays in the conversation.
    await conversation.say("thanks")
    assert results(rig.model) == told
    assert conversation.tools.done == ["call_b", "call_a", "call_e"]


async def test_i25_a_message_in_the_place_of_a_decision_makes_no_call(rig: Rig):
    conversation = rig.conversation()
    await conversation.create()
    rig.model.script([portable("kit_pay", "call_a", amount=1), portable("kit_pay", "call_b", amount=2)])
    await conversation.say("pay")
    rig.model.script([text("As you like.")])
    assert text_of(await conversation.say("never mind")) == "As you like."
    assert set(results(rig.model)) == {"call_a", "call_b"}
    assert set(results(rig.model).values()) == {UNDECIDED}
    assert conversation.tools.done == []
    assert rig.model.said[-1] == ("user", "never mind")


async def test_i11_a_call_whose_turn_failed_behind_it_is_not_said_to_have_been_left_undone(rig: Rig):
    conversation = rig.conversation(max_retries=0)
    await conversation.create()
    rig.model.script([portable("kit_pay", "call_a", amount=1)], Refused(529))
    first = conversation.run("pay")
    await first.play()
    second = await conversation.resume(first, decision(first, call_a="approve"))
    assert (kinds(second.drafts)[-1], conversation.tools.done) == ("run_failed", ["call_a"])
    rig.model.script([text("I see.")])
    await conversation.say("and?")
    assert "may have been made" in results(rig.model)["call_a"]
    assert "not made" not in results(rig.model)["call_a"]
    assert conversation.tools.done == ["call_a"]


async def test_a_dismissed_question_and_one_without_thread_state_go_on(rig: Rig):
    conversation = rig.conversation(options={"ask_person": True}, change=_ephemeral)
    await conversation.create()
    wrong = {"prompt": "Which?", "fields": [{"name": "which", "label": "Which", "type": "choice"}]}
    rig.model.script([portable("ask_person", "call_a", **wrong)], [portable("ask_person", "call_b", **FORM)])
    first = conversation.run("ask")
    drafts = await first.play()
    assert calls(drafts) == [("call_a", "2")], "a form without options for a choice is the model's to mend"
    rig.model.script([text("Then not.")])
    dismissed = runtime_pb2.ResumeDecision(interrupt_id=first.last.payload.run_interrupted.interrupt_id, revision=1)
    dismissed.dismiss = True
    second = await conversation.resume(first, dismissed)
    assert calls(second.drafts) == [("call_b", "3")]
    assert text_of(second.drafts) == "Then not."
    assert "options" in results(rig.model)["call_a"]
    assert results(rig.model)["call_b"] == "The person dismissed the question, and the call was not made."


async def test_a_decision_on_what_nobody_knows_or_can_do_any_more_is_refused(rig: Rig):
    conversation = rig.conversation()
    await conversation.create()
    rig.model.script([portable("kit_pay", "call_a", amount=1)])
    first = conversation.run("pay")
    await first.play()
    asked = len(rig.model.requests)
    wrong = decision(first, call_a="approve")
    wrong.interrupt_id = "interrupt-7"
    failed = (await conversation.resume(first, wrong)).last.payload.run_failed
    assert failed.code == "interrupt_unknown"

    conversation.change = None
    gone = conversation.context()
    del gone.tools[:]
    conversation.runtime_generation += 1
    created = await conversation.create_call(conversation.fence(), context=gone)
    conversation.incarnation = created.incarnation
    failed = (await conversation.resume(first, decision(first, call_a="approve"))).last.payload.run_failed
    assert failed.code == "tool_unavailable_at_resume"
    assert conversation.tools.done == []
    assert len(rig.model.requests) == asked

    other = rig.conversation()
    await other.create()
    lost = runtime_pb2.ResumeDecision(interrupt_id="interrupt-1", revision=1, interrupted_run_id="run-1", dismiss=True)
    run = other.run("")
    run.decision = lost
    await run.play()
    assert run.last.payload.run_failed.code == "interrupt_lost"


async def test_tools_are_called_through_the_broker_and_told_as_they_ended(rig: Rig):
    conversation = rig.conversation()
    await conversation.create()
    rig.model.script(
        [portable("kit_echo", "call_a", text="x"), portable("kit_sum", "call_b", numbers=[1, 2.5])],
        [portable("kit_nothing", "call_c", deep={"er": [1]})],
        [portable("kit_echo", "call d/é", text="odd id " * 100)],
        [text("end")],
    )
    drafts = await conversation.say("go")
    ended = [one.payload.tool_completed for one in drafts if kind(one) == "tool_completed"]
    assert [(one.outcome, one.error.code) for one in ended] == [
        (1, ""),
        (2, "sum_failed"),
        (2, "tool_refused"),
        (1, ""),
    ]
    made = conversation.tools.calls
    assert [(one.tool_call_id, one.arguments) for one in made[:2]] == [
        ("call_a", {"text": "x"}),
        ("call_b", {"numbers": [1.0, 2.5]}),
    ]
    assert made[2].tool_call_id == ended[3].tool_call_id
    assert made[2].tool_call_id.startswith("call-")
    fragments = [one.payload.tool_arguments_delta.delta for one in drafts if kind(one) == "tool_arguments_delta"]
    assert json.loads("".join(fragments)) == made[2].arguments == {"text": "odd id " * 100}
    assert results(rig.model)["call_b"] == "sum_failed: Cannot add."


async def test_i22_what_fails_in_a_call_ends_the_turn_and_reaches_no_model(rig: Rig):
    conversation = rig.conversation()
    await conversation.create()
    rig.model.script([portable("kit_echo", "call_a", text="x")], [text("never")])
    run = conversation.run("go")
    next(token for token in run.input.tokens if token.audience == "tool").value = "of another time"
    await run.play()
    assert run.last.payload.run_failed.code == "tool_token_refused"
    assert len(rig.model.requests) == 1
    assert conversation.tools.calls == []


def _ephemeral(blueprint):
    blueprint.thread.persistence = 2
