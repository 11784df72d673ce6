"""Portable tools as an adapter has them: names, calls through a broker, what may go wrong, and what is shown (worker protocol, facades; I24, I25)."""

import asyncio
import json
from functools import partial
from typing import Any

import pytest
from google.protobuf import json_format

from adapters.reference.adapter import ReferenceAdapter
from adapters.sdk import events, facade, tools
from adapters.sdk.cancellation import CancellationToken, Deadline
from adapters.sdk.errors import AuthorizationError
from adapters.sdk.facade import FacadeAccess
from adapters.sdk.testing import kinds, served, text_of
from adapters.sdk.tools import ApprovalNeeded, ToolResult, Tools
from harness.common.v1 import blueprint_pb2, fence_pb2
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2
from services.common.errors import FieldIssue, HarnessError, Reason, invalid_request
from tests.adapters.patience import check_patience
from tests.adapters.scripted import steered
from tests.adapters.test_interrupts import decision
from tests.adapters.tool_broker import TOKEN, brokered, error, rejected, success, tool, waits

SUM = {"expression": "1 + 1"}
SENSITIVE = tool("mail.send", sensitive=True, provider_name="mail_send__1")
KNOWN = (tool("calculator"), SENSITIVE, tool("crm.find", provider_name="crm_find__1"))
ALWAYS, NEVER = blueprint_pb2.APPROVAL_POLICY_ALWAYS, blueprint_pb2.APPROVAL_POLICY_NEVER


def call(call_id, name, arguments=None, **more):
    return {"tool": {"id": call_id, "name": name, "arguments": arguments or {}, **more}}


def reference(broker, **settings):
    settings.setdefault("persistence", blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL)
    return served(ReferenceAdapter, tool_address=broker.address, tools=KNOWN, **settings)


async def play(broker, *steps, **settings):
    async with reference(broker, **settings) as client:
        return await client.turn(json.dumps({"script": list(steps)}), tool_token=TOKEN)


def completions(drafts):
    return [draft.payload.tool_completed for draft in drafts if draft.payload.HasField("tool_completed")]


def starts(drafts):
    return [draft.payload.tool_started for draft in drafts if draft.payload.HasField("tool_started")]


# --- a call and its events ---


@pytest.mark.parametrize("worker", [False, True])
async def test_a_call_goes_through_the_broker_with_the_runs_fence_and_token(worker):
    async with brokered(calculator=[success({"value": "2"})]) as broker, reference(broker, worker=worker) as client:
        await client.create()
        fence = client.fence(1, "run-1", traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
        turn = client.input(json.dumps({"script": [call("c1", "calculator", SUM)]}), tool_token=TOKEN)
        drafts = await client.follow(client.start(fence, turn), fence)
    assert kinds(drafts) == ["tool.started", "tool.completed", "run.completed"]
    assert (starts(drafts)[0].tool_call_id, starts(drafts)[0].tool_name) == ("c1", "calculator")
    assert json_format.MessageToDict(starts(drafts)[0].arguments) == SUM
    (completed,) = completions(drafts)
    assert (completed.tool_call_id, completed.outcome) == ("c1", payload_pb2.TOOL_OUTCOME_SUCCESS)
    assert json_format.MessageToDict(completed.result) == {"value": "2"}
    assert broker.calls == [("c1", "calculator", SUM)]
    assert broker.requests[0].fence == fence
    assert broker.credentials == [f"Bearer {TOKEN}"]


async def test_a_call_that_cannot_wait_is_shown_before_its_outcome_is_there():
    go_on = asyncio.Event()

    async def slowly(request):
        await go_on.wait()
        return success()

    async with brokered(calculator=slowly) as broker, reference(broker) as client:
        await client.create()
        fence = client.fence(1, "run-1")
        turn = client.input(json.dumps({"script": [call("c1", "calculator", SUM)]}), tool_token=TOKEN)
        stream = client.start(fence, turn)
        first = await stream.read()
        assert kinds(first.batch.drafts) == ["tool.started"]
        go_on.set()
        assert kinds(await client.follow(stream)) == ["tool.completed", "run.completed"]


async def test_streamed_arguments_join_to_what_the_broker_got():
    arguments = {"expression": "1 + 1", "note": "ä" * 100}
    async with brokered(calculator=[success()]) as broker:
        drafts = await play(broker, call("c1", "calculator", arguments, stream_arguments=True))
    fragments = [d.payload.tool_arguments_delta.delta for d in drafts if d.payload.HasField("tool_arguments_delta")]
    assert kinds(drafts) == [
        "tool.started",
        *["tool.arguments.delta"] * len(fragments),
        "tool.completed",
        "run.completed",
    ]
    assert len(fragments) > 2
    assert not starts(drafts)[0].HasField("arguments")
    assert json.loads("".join(fragments)) == arguments == broker.calls[0][2]


async def test_a_model_may_say_a_tools_name_or_its_id_and_events_say_the_id():
    async with brokered(**{"crm.find": [success(), success()]}) as broker:
        drafts = await play(broker, call("a", "crm_find__1"), call("b", "crm.find"))
    assert [started.tool_name for started in starts(drafts)] == ["crm.find", "crm.find"]
    assert [called[1] for called in broker.calls] == ["crm.find", "crm.find"]


async def test_ids_that_a_script_leaves_out_are_unique_in_the_conversation():
    async with brokered(calculator=[success()] * 4) as broker, reference(broker) as client:
        for _ in range(2):
            steps = [{"tool": {"name": "calculator"}}, {"tool": {"name": "calculator"}}]
            await client.turn(json.dumps({"script": steps}), tool_token=TOKEN)
    assert len({called[0] for called in broker.calls}) == 4


# --- what goes wrong ---


async def test_failures_of_tools_are_told_and_the_run_goes_on():
    refused = invalid_request([FieldIssue("arguments.expression", "required", "Missing: expression.")], "Does not fit.")
    answers = [
        error("division_by_zero", "Division by zero."),
        refused,
        HarnessError(Reason.PERMISSION_DENIED, "The agent has no such tool."),
        HarnessError(Reason.CAPACITY, "The run has made its 3 tool calls.", retryable=False),
        HarnessError(Reason.IDEMPOTENCY_MISMATCH, "Another call has this id."),
        success(),
    ]
    async with brokered(calculator=answers) as broker:
        drafts = await play(broker, *(call(f"c{number}", "calculator", SUM) for number in range(6)), {"text": "done"})
    assert kinds(drafts)[-2:] == ["content.delta", "run.completed"]
    told = [(completed.outcome, completed.error.code) for completed in completions(drafts)]
    failed = payload_pb2.TOOL_OUTCOME_ERROR
    assert told == [
        (failed, "division_by_zero"),
        (failed, "invalid_request"),
        (failed, "permission_denied"),
        (failed, "capacity"),
        (failed, "idempotency_mismatch"),
        (payload_pb2.TOOL_OUTCOME_SUCCESS, ""),
    ]
    assert "arguments.expression: Missing: expression." in completions(drafts)[1].error.message
    assert len(broker.requests) == 6


async def test_a_tool_the_agent_does_not_have_costs_its_own_call_alone():
    async with brokered(calculator=[success()]) as broker:
        drafts = await play(broker, call("a", "weather"), call("b", "calculator"))
    assert [completed.error.code for completed in completions(drafts)] == ["tool_unknown", ""]
    assert [called[0] for called in broker.calls] == ["b"]


async def test_arguments_that_no_event_can_hold_fail_their_call_alone():
    deep: dict = {}
    for _ in range(12):
        deep = {"in": deep}
    async with brokered(calculator=[success()]) as broker:
        drafts = await play(broker, call("a", "calculator", deep), call("b", "calculator", SUM))
    assert kinds(drafts) == ["tool.started", "tool.completed"] * 2 + ["run.completed"]
    assert [completed.error.code for completed in completions(drafts)] == ["arguments_invalid", ""]
    assert [called[0] for called in broker.calls] == ["b"]


async def test_a_result_that_no_event_can_hold_is_left_out_of_it_and_the_run_goes_on():
    async with brokered(calculator=[success([0] * 40_000)]) as broker:
        drafts = await play(broker, call("a", "calculator"))
    assert kinds(drafts) == ["tool.started", "tool.completed", "run.completed"]
    assert completions(drafts)[0].result.string_value == "The result is not shown: too_large."


async def test_i10_a_call_during_a_takeover_is_made_again_for_the_next_executor():
    refused = HarnessError(Reason.STALE_LEASE, "Another executor has taken over.", retryable=True)
    async with brokered(calculator=[refused, success()]) as broker, reference(broker) as client:
        await client.create()
        fence = client.fence(1, "run-1")
        turn = client.input(json.dumps({"script": [call("c1", "calculator", SUM)]}), tool_token=TOKEN)
        first = client.start(fence, turn)
        await broker.asked.wait()
        next_fence = client.fence(1, "run-1", run_generation=2)
        drafts = await client.follow(client.attach(next_fence), next_fence)
        first.cancel()
    assert kinds(drafts) == ["tool.started", "tool.completed", "run.completed"]
    assert [request.fence.run_generation for request in broker.requests] == [1, 2]
    assert {called[0] for called in broker.calls} == {"c1"}


@pytest.mark.parametrize(
    ("reason", "code"), [(Reason.STALE_LEASE, "stale_lease"), (Reason.UNAUTHENTICATED, "tool_token_refused")]
)
async def test_i12_a_run_that_is_not_the_runtimes_any_more_ends(reason, code):
    async with brokered(calculator=[HarnessError(reason, "canary-text")]) as broker:
        drafts = await play(broker, call("c1", "calculator", SUM), {"text": "never"})
    failed = drafts[-1].payload.run_failed
    assert (kinds(drafts)[-1], failed.code, failed.retryable) == ("run.failed", code, False)
    assert len(broker.requests) == 1
    assert "canary" not in failed.message


async def test_i34_a_call_is_made_again_while_its_broker_is_away_or_has_no_room(monkeypatch):
    monkeypatch.setattr(tools, "FULL_SECONDS", 0.01)
    answers = [
        HarnessError(Reason.STORE_UNAVAILABLE, "Away.", retry_after=1.0),
        HarnessError(Reason.CAPACITY, "No room.", retry_after=1.0),
        success(),
    ]
    async with brokered(calculator=answers) as broker:
        drafts = await play(broker, call("c1", "calculator", SUM))
    assert kinds(drafts) == ["tool.started", "tool.completed", "run.completed"]
    assert broker.calls == [("c1", "calculator", SUM)] * 3


async def test_i34_a_call_that_its_facade_refuses_for_good_is_not_made_again():
    await check_patience(partial(served, ReferenceAdapter, persistence=blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL))


def test_the_facades_are_waited_for_as_long_as_their_contracts_say():
    assert (tools.AWAY_SECONDS, facade.AWAY_SECONDS) == (30, 10)


async def test_i35_a_broker_that_never_has_room_costs_its_own_call(monkeypatch):
    monkeypatch.setattr(tools, "FULL_SECONDS", 0.001)
    full = HarnessError(Reason.CAPACITY, "No room.", retry_after=1.0)
    async with brokered(calculator=[full] * 50) as broker:
        drafts = await play(broker, call("c1", "calculator", SUM))
    assert len(broker.requests) == 1 + tools.FULL_TRIES
    assert (completions(drafts)[0].error.code, completions(drafts)[0].error.retryable) == ("capacity", True)


async def test_i35_a_broker_that_cannot_be_reached_costs_its_own_call(monkeypatch):
    monkeypatch.setattr(tools, "AWAY_SECONDS", 0.01)
    async with brokered() as broker:
        broker.address = "unix:/nowhere.sock"
        drafts = await play(broker, call("c1", "calculator", SUM), {"text": "on"})
    assert kinds(drafts) == ["tool.started", "tool.completed", "content.delta", "run.completed"]
    told = completions(drafts)[0].error
    assert (told.code, told.retryable) == ("tool_unavailable", True)
    assert "may have had its effect" in told.message


async def test_a_call_that_takes_long_is_asked_for_again_under_the_same_id(monkeypatch):
    monkeypatch.setattr(tools, "ASK_SECONDS", 0.2)

    async def late(request):
        if len(broker.requests) < 3:
            await asyncio.Event().wait()
        return success()

    async with brokered(calculator=late) as broker:
        drafts = await play(broker, call("c1", "calculator", SUM))
    assert kinds(drafts) == ["tool.started", "tool.completed", "run.completed"]
    assert completions(drafts)[0].outcome == payload_pb2.TOOL_OUTCOME_SUCCESS
    assert len(broker.requests) >= 3
    assert {called[0] for called in broker.calls} == {"c1"}


async def test_a_cancel_ends_the_wait_for_a_tool_and_makes_no_further_call():
    async def never(request):
        await asyncio.Event().wait()
        return success()

    async with brokered(calculator=never) as broker, reference(broker) as client:
        await client.create()
        fence = client.fence(1, "run-1")
        steps = [call("c1", "calculator", SUM), call("c2", "calculator", SUM)]
        stream = client.start(fence, client.input(json.dumps({"script": steps}), tool_token=TOKEN))
        await broker.asked.wait()
        await client.cancel(fence)
        drafts = await client.follow(stream, fence)
        await broker.given_up.wait()
        assert kinds(drafts) == ["tool.started", "tool.completed", "run.cancelled"]
        assert completions(drafts)[0].outcome == payload_pb2.TOOL_OUTCOME_CANCELLED
        assert [called[0] for called in broker.calls] == ["c1"]


async def test_without_access_to_tools_a_script_that_calls_one_is_refused():
    async with served(ReferenceAdapter, tools=KNOWN) as client:
        drafts = await client.turn(json.dumps({"script": [call("c1", "calculator", SUM)]}), tool_token=TOKEN)
    assert drafts[-1].payload.run_failed.code == "tools_unavailable"


# --- approvals ---


async def test_i25_calls_that_wait_are_asked_about_together_and_have_not_started():
    async def ask(request):
        return waits(request)

    async with brokered(**{"mail.send": ask, "calculator": [success()]}) as broker, reference(broker) as client:
        steps = [call("c1", "calculator"), call("m1", "mail.send", {"to": "a"}), call("m2", "mail.send"), {"text": "x"}]
        await client.create()
        fence = client.fence(1, "run-1")
        turn = client.input(json.dumps({"script": steps}), tool_token=TOKEN)
        drafts = await client.follow(client.start(fence, turn), fence)
        assert kinds(drafts) == ["tool.started", "tool.completed", "interrupt.requested", "run.interrupted"]
        asked = drafts[2].payload.interrupt_requested
        assert asked.interrupt_type == payload_pb2.INTERRUPT_TYPE_TOOL_APPROVAL
        assert [approval.tool_call_id for approval in asked.tool_approvals] == ["m1", "m2"]
        assert asked.tool_approvals[0] == waits(broker.requests[1])
        assert await client.pending_interrupt() is not None


def one(call_id, **decided):
    made = runtime_pb2.ToolDecision(tool_call_id=call_id)
    if "edit" in decided:
        made.edit.update(decided["edit"])
    elif "reject" in decided:
        made.reject = decided["reject"]
    else:
        made.approve = True
    return made


async def asked_and_resumed(broker, made, *steps, **settings):
    async with reference(broker, **settings) as client:
        await client.create()
        fence = client.fence(1, "run-1")
        turn = client.input(json.dumps({"script": list(steps)}), tool_token=TOKEN)
        first = await client.follow(client.start(fence, turn), fence)
        fence = client.fence(2, "run-2")
        resume = client.resume(fence, client.input("", tool_token=TOKEN), made)
        return first, await client.follow(resume, fence)


async def test_i25_what_was_decided_is_done_and_the_script_goes_on():
    answers = [None, None, None, success({"sent": 1}), success({"sent": 2}), rejected("Not that one.")]

    async def answer(request):
        return answers.pop(0) or waits(request)

    made = decision("run-1", calls=[one("a"), one("b", edit={"to": "x"}), one("c", reject="Not that one.")])
    async with brokered(**{"mail.send": answer}) as broker:
        calls = [call(name, "mail.send", {"to": name}) for name in "abc"]
        first, second = await asked_and_resumed(broker, made, *calls, {"text": "after"}, {"decision": True})
    assert kinds(first) == ["interrupt.requested", "run.interrupted"]
    assert kinds(second) == ["tool.started", "tool.completed"] * 3 + ["content.delta"] * 2 + ["run.completed"]
    shown = [json_format.MessageToDict(started.arguments) for started in starts(second)]
    assert shown == [{"to": "a"}, {"to": "x"}, {"to": "c"}]
    assert [completed.outcome for completed in completions(second)] == [
        payload_pb2.TOOL_OUTCOME_SUCCESS,
        payload_pb2.TOOL_OUTCOME_SUCCESS,
        payload_pb2.TOOL_OUTCOME_REJECTED,
    ]
    # The same calls again: what was decided is read by the broker where it is stored, never from the runtime.
    assert broker.calls[:3] == broker.calls[3:] == [(name, "mail.send", {"to": name}) for name in "abc"]
    assert text_of(second).startswith("after")


async def test_a_dismissed_question_is_a_rejection_for_the_broker_to_tell():
    answers = [None, rejected("The question was dismissed.")]

    async def answer(request):
        return answers.pop(0) or waits(request)

    async with brokered(**{"mail.send": answer}) as broker:
        _, second = await asked_and_resumed(broker, decision("run-1"), call("m", "mail.send"))
    assert kinds(second) == ["tool.started", "tool.completed", "run.completed"]
    assert completions(second)[0].outcome == payload_pb2.TOOL_OUTCOME_REJECTED


async def test_every_script_of_a_message_is_played_also_across_an_approval():
    answers = [None, success()]

    async def answer(request):
        return answers.pop(0) or waits(request)

    scripts = [[call("m", "mail.send"), {"text": "rest"}], [{"text": "next"}]]
    async with brokered(**{"mail.send": answer}) as broker, reference(broker) as client:
        await client.create()
        fence = client.fence(1, "run-1")
        turn = client.input(json.dumps({"scripts": scripts}), tool_token=TOKEN)
        await client.follow(client.start(fence, turn), fence)
        drafts = await resumed_with(client, decision("run-1", calls=[one("m")]))
    assert kinds(drafts) == ["tool.started", "tool.completed", *["content.delta"] * 2, "run.completed"]
    assert text_of(drafts) == "restnext"


async def resumed_with(client, made):
    fence = client.fence(2, "run-2")
    return await client.follow(client.resume(fence, client.input("", tool_token=TOKEN), made), fence)


async def test_i25_an_approval_that_nobody_expected_fails_the_call_that_was_shown_already():
    async def ask(request):
        return waits(request)

    async with brokered(calculator=ask) as broker, reference(broker) as client:
        script = json.dumps({"script": [call("c1", "calculator", SUM), {"text": "on"}]})
        drafts = await client.turn(script, tool_token=TOKEN)
        assert kinds(drafts) == ["tool.started", "tool.completed", "content.delta", "run.completed"]
        assert completions(drafts)[0].error.code == "approval_needed"
        # From then on the runtime knows: the next call waits, as it has to.
        script = json.dumps({"script": [call("c2", "calculator", SUM), {"text": "on"}]})
        drafts = await client.turn(script, tool_token=TOKEN)
        assert kinds(drafts) == ["interrupt.requested", "run.interrupted"]


async def test_a_call_that_may_wait_and_does_not_is_shown_with_its_outcome():
    async with brokered(calculator=[success()]) as broker:
        drafts = await play(broker, call("c1", "calculator", SUM), tool_policy=ALWAYS)
    assert kinds(drafts) == ["tool.started", "tool.completed", "run.completed"]


async def test_i24_a_call_inside_a_subagent_never_waits_unseen():
    async def ask(request):
        return waits(request)

    inner = {"subagent": {"agent_id": "helper", "script": [call("m", "mail.send")]}}
    async with brokered(**{"mail.send": ask}) as broker:
        drafts = await play(broker, inner)
    assert kinds(drafts)[-1] == "run.completed"
    assert [completed.error.code for completed in completions(drafts)] == ["approval_in_subagent", ""]


# --- the handle itself ---


def handles(access: Any = None, *, policies=(), known=KNOWN):
    context = runtime_pb2.RuntimeContext(tools=known)
    for tool_id, policy in policies:
        context.blueprint.tools.bindings.add(tool_id=tool_id, approval_policy=policy)
    return Tools(context, access, CancellationToken())


def test_a_handle_says_what_a_model_may_see():
    found = handles().find("crm_find__1")
    assert found is not None
    assert (found.tool_id, found.provider_name, found.description) == ("crm.find", "crm_find__1", "Does crm.find.")
    assert found.input_schema == {"type": "object"}
    assert handles().find("crm.find") is not None
    assert handles().find("nothing") is None
    assert [each.tool_id for each in handles()] == ["calculator", "mail.send", "crm.find"]


def test_a_name_is_looked_for_before_an_id():
    known = (tool("a", provider_name="x"), tool("x", provider_name="y"))
    found = handles(known=known)
    assert [getattr(found.find(name), "tool_id", None) for name in ("x", "y", "a")] == ["a", "x", "a"]


@pytest.mark.parametrize(
    ("policy", "expected"), [(None, [True, True]), (NEVER, [False, False]), (ALWAYS, [True, True]), (2, [False, True])]
)
def test_i25_a_call_may_wait_unless_it_is_known_not_to(policy, expected):
    bound = [(tool_id, policy) for tool_id in ("calculator", "mail.send") if policy is not None]
    found = handles(policies=bound)
    assert [tool.may_wait for tool in found][:2] == expected


class Executor:
    generation = 1

    async def wait_for_another(self, generation, seconds):
        return False


def access_with(stub) -> Any:
    fence = fence_pb2.Fence(run_id="run-1", run_generation=1)
    return FacadeAccess(stub, fence, Executor(), TOKEN, Deadline(9e9))


async def test_i12_a_run_that_must_stop_makes_no_call():
    asked = []
    cancellation = CancellationToken()
    cancellation.cancel(payload_pb2.CANCEL_REASON_CLIENT_REQUEST)
    found = Tools(runtime_pb2.RuntimeContext(tools=KNOWN), access_with(lambda: asked.append(1)), cancellation)
    answer = await found.invoke("calculator", SUM, "c1")
    assert isinstance(answer, ToolResult)
    assert answer.completed.outcome == payload_pb2.TOOL_OUTCOME_CANCELLED
    assert asked == []


def test_i28_no_representation_holds_the_token():
    access = access_with(lambda: None)
    found = handles(access)
    assert TOKEN not in f"{access!r}{found!r}{[*found]!r}{found._access!r}"
    assert found.connected


async def test_i28_a_turn_and_its_failures_say_nothing_of_the_token(capsys):
    seen = []

    async def play_one(turn):
        seen.append(repr(turn))
        found = turn.tools.find("calculator")
        try:
            await found.invoke(SUM, tool_call_id="c1")
        except AuthorizationError as failure:
            seen.append(repr(failure))
            seen.append(failure.diagnostic)
        yield events.completed()

    refused = HarnessError(Reason.UNAUTHENTICATED, f"bad {TOKEN}")
    async with brokered(calculator=[refused]) as broker:
        _, context = steered(play_one, tool_address=broker.address, tools=KNOWN)
        async with context as client:
            await client.turn("go", tool_token=TOKEN)
    output = capsys.readouterr()
    assert len(seen) == 3
    assert TOKEN not in "".join([*seen, output.out, output.err])


async def test_a_handle_tells_results_and_approvals_apart():
    seen = []

    async def play_one(turn):
        calculator, mail = turn.tools.find("calculator"), turn.tools.find("mail.send")
        seen.append(await calculator.invoke(SUM, tool_call_id="c1"))
        seen.append(await mail.invoke({}, tool_call_id="m1"))
        turn.cancellation.cancel(payload_pb2.CANCEL_REASON_CLIENT_REQUEST)
        seen.append(await calculator.invoke(SUM, tool_call_id="c2"))
        yield events.completed()

    async def ask(request):
        return waits(request)

    async with brokered(**{"calculator": [success({"value": 2})], "mail.send": ask}) as broker:
        _, context = steered(play_one, tool_address=broker.address, tools=KNOWN)
        async with context as client:
            await client.turn("go", tool_token=TOKEN)
    done, waiting, stopped = seen
    assert isinstance(done, ToolResult)
    assert (done.succeeded, done.value, done.completed.tool_call_id) == (True, {"value": 2}, "c1")
    assert isinstance(waiting, ApprovalNeeded)
    assert waiting.approval.tool_call_id == "m1"
    # A run that must stop makes no call any more.
    assert stopped.completed.outcome == payload_pb2.TOOL_OUTCOME_CANCELLED
    assert len(broker.requests) == 2
