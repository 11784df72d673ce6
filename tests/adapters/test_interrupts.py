"""Interrupts of the reference harness and its host: asked, kept, gone on with (reference harness, interrupt; worker protocol, ResumeRun)."""

import json

import grpc
import pytest

from adapters.reference.adapter import ReferenceAdapter
from adapters.sdk.testing import kinds, served, text_of
from harness.common.v1 import blueprint_pb2
from harness.event.v1 import payload_pb2
from harness.runtime.v1 import runtime_pb2

FORM = {"interrupt": {"form": [{"name": "city", "required": True}], "prompt": "Where?"}}
CALLS = {
    "interrupt": {
        "approve": [
            {"id": "c1", "name": "mail", "arguments": {"to": "a"}, "allowed": ["approve", "reject", "edit"]},
            {"id": "c2", "name": "pay"},
        ]
    }
}


def reference():
    return served(ReferenceAdapter, persistence=blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL)


def decision(run_id, interrupt_id="interrupt-1", **answer) -> runtime_pb2.ResumeDecision:
    made = runtime_pb2.ResumeDecision(interrupt_id=interrupt_id, revision=1, interrupted_run_id=run_id)
    if "form" in answer:
        made.form_values.update(answer["form"])
    elif "calls" in answer:
        made.tool_decisions.decisions.extend(answer["calls"])
    else:
        made.dismiss = True
    return made


async def paused(client, *steps):
    """The first turn, which pauses."""
    await client.create()
    fence = client.fence(1, "run-1")
    return await client.follow(client.start(fence, client.input(json.dumps({"script": list(steps)}))), fence)


async def resumed(client, made, turn=2, run_id="run-2"):
    fence = client.fence(turn, run_id)
    return await client.follow(client.resume(fence, client.input(""), made), fence)


async def test_a_form_is_asked_and_its_values_are_told():
    async with reference() as client:
        drafts = await paused(client, {"text": "before"}, FORM, {"text": "never"})
        assert kinds(drafts) == ["content.delta", "interrupt.requested", "run.interrupted"]
        asked = drafts[1].payload.interrupt_requested
        assert (asked.interrupt_id, asked.revision, asked.prompt) == ("interrupt-1", 1, "Where?")
        assert (asked.fields[0].name, asked.fields[0].type) == ("city", payload_pb2.FORM_FIELD_TYPE_STRING)
        assert drafts[2].payload.run_interrupted.interrupt_id == "interrupt-1"
        drafts = await resumed(client, decision("run-1", form={"city": "Rome"}))
        assert kinds(drafts) == ["run.completed"]


async def test_the_next_script_goes_on_with_each_decision():
    async with reference() as client:
        await client.create()
        message = json.dumps({"scripts": [[CALLS], [{"decision": True}]]})
        fence = client.fence(1, "run-1")
        drafts = await client.follow(client.start(fence, client.input(message)), fence)
        approvals = drafts[0].payload.interrupt_requested.tool_approvals
        assert [(one.tool_call_id, list(one.allowed)) for one in approvals] == [("c1", [1, 2, 3]), ("c2", [1, 2])]
        edited = runtime_pb2.ToolDecision(tool_call_id="c1")
        edited.edit.update({"to": "b"})
        calls = [edited, runtime_pb2.ToolDecision(tool_call_id="c2", reject="no")]
        drafts = await resumed(client, decision("run-1", calls=calls))
        assert kinds(drafts) == ["content.delta", "run.completed"]
        assert json.loads(text_of(drafts)) == {"calls": {"c1": {"edit": {"to": "b"}}, "c2": {"reject": "no"}}}


async def test_the_runtime_knows_its_pause_until_it_goes_on():
    async with reference() as client:
        await paused(client, FORM)
        pending = await client.pending_interrupt()
        assert pending is not None
        assert (pending.interrupt_id, pending.revision, pending.run_id) == ("interrupt-1", 1, "run-1")
        await resumed(client, decision("run-1"))
        assert await client.pending_interrupt() is None


@pytest.mark.parametrize("made", [decision("run-9"), decision("run-1", "interrupt-9")])
async def test_i25_another_interrupt_is_never_gone_on_with(made):
    async with reference() as client:
        await paused(client, FORM)
        failed = (await resumed(client, made))[-1].payload.run_failed
        assert failed.code == "interrupt_unknown"
        # The right one still is.
        assert kinds(await resumed(client, decision("run-1"), 3, "run-3")) == ["run.completed"]


async def test_what_nobody_knows_any_more_ends_the_run_truthfully():
    async with reference() as client:
        await paused(client, FORM)
    async with reference() as client:
        await client.create()
        failed = (await resumed(client, decision("run-1")))[-1].payload.run_failed
        assert (failed.code, failed.retryable) == ("interrupt_lost", False)


async def test_a_resume_that_is_repeated_joins_what_is_there():
    async with reference() as client:
        await paused(client, FORM)
        first = await resumed(client, decision("run-1"))
        fence = client.fence(2, "run-2")
        again = await client.follow(client.resume(fence, client.input(""), decision("run-1")))
        assert kinds(first) == ["run.completed"]
        assert not again  # all of it was acknowledged


async def test_an_interrupt_inside_a_subagent_ends_the_whole_turn():
    async with reference() as client:
        drafts = await paused(client, {"subagent": {"agent_id": "helper", "script": [FORM]}}, {"text": "never"})
        assert kinds(drafts)[:3] == ["tool.started", "subagent.started", "interrupt.requested"]
        assert list(drafts[2].namespace) == ["helper"]
        assert kinds(drafts)[3:] == ["subagent.completed", "tool.completed", "run.interrupted"]
        outcomes = {payload_pb2.TOOL_OUTCOME_CANCELLED}
        assert {
            one.payload.tool_completed.outcome for one in drafts if one.payload.HasField("tool_completed")
        } == outcomes


async def test_a_decision_without_an_answer_is_refused_by_the_host():
    async with reference() as client:
        await paused(client, FORM)
        made = runtime_pb2.ResumeDecision(interrupt_id="interrupt-1", revision=1, interrupted_run_id="run-1")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await resumed(client, made)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
