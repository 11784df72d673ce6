"""The reference harness, served in this process: bursts, scripts, every step, faults (reference harness)."""

import asyncio
import json
import os
import time

import pytest
from google.protobuf import json_format

from adapters.reference.adapter import ReferenceAdapter
from adapters.sdk.capabilities import CAPABILITY_KEYS
from adapters.sdk.testing import kinds, served, text_of
from harness.adapter.v1 import adapter_service_pb2 as adapter_pb2
from harness.common.v1 import blueprint_pb2, capability_pb2, error_pb2, placement_pb2
from tests.adapters.scripted import until

FAULTS = {"allow_faults": True}


def reference(**settings):
    settings.setdefault("persistence", blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL)
    return served(ReferenceAdapter, **settings)


def script(*steps) -> str:
    return json.dumps({"script": list(steps)})


async def play(*steps, **settings):
    async with reference(**settings) as client:
        return await client.turn(script(*steps))


async def test_the_descriptor_names_all_38_capabilities_and_claims_no_more_than_there_is():
    async with reference() as client:
        descriptor = (await client.adapter.GetDescriptor(adapter_pb2.GetDescriptorRequest())).descriptor
    assert len(CAPABILITY_KEYS) == 38
    assert set(descriptor.capabilities) == set(CAPABILITY_KEYS)
    assert list(descriptor.placements) == [
        placement_pb2.PLACEMENT_PROVIDER_MANAGED,
        placement_pb2.PLACEMENT_SANDBOX_POD,
    ]
    for missing in ("tool.mcp", "memory.semantic", "subagents.mixed_harness"):
        assert descriptor.capabilities[missing].level == capability_pb2.CAPABILITY_LEVEL_UNAVAILABLE
    assert descriptor.options_schema["additionalProperties"] is False


async def test_a_burst_has_exactly_what_was_asked_for():
    async with reference() as client:
        drafts = await client.turn('{"n": 20, "size": 5}')
        assert kinds(drafts) == ["content.delta"] * 20 + ["run.completed"]
        assert text_of(drafts) == "xxxxx" * 20
        before = time.time()
        drafts = await client.turn('{"n": 2, "stamp": true, "yield0": true}')
        for draft in drafts[:2]:
            stamp, _, rest = draft.payload.content_delta.text.partition(" ")
            assert before - 1 <= float(stamp.removeprefix("ts=")) <= time.time() + 1
            assert rest == "x" * 16
        assert kinds(await client.turn('{"n": 0}')) == ["run.completed"]
        assert len(await client.turn('{"n": 3000}')) == 3001
        begun = time.monotonic()
        await client.turn('{"n": 5, "rate": 50, "delay": 0.1}')
        assert time.monotonic() - begun >= 0.1 + 4 / 50


@pytest.mark.parametrize(
    "message",
    ['{"n": -1}', '{"n": "x"}', '{"n": 1, "size": 1e9}', '{"script": 1}', '{"scripts": []}', '{"script": [1]}'],
)
async def test_a_wrong_instruction_is_refused_with_what_to_do(message):
    async with reference() as client:
        (failed,) = await client.turn(message)
    assert failed.payload.run_failed.code == "message_invalid"
    assert "must be" in failed.payload.run_failed.message


async def test_plain_text_answers_word_by_word_with_a_session_and_usage():
    async with reference(options={"greeting": "Good day."}) as client:
        drafts = await client.turn("hello there")
        assert kinds(drafts)[0] == "session.updated"
        assert kinds(drafts)[-2:] == ["usage.updated", "run.completed"]
        assert drafts[0].native_session_id.startswith("ref-")
        assert text_of(drafts).startswith("Good day.\nThis is turn 1")
        assert "hello there" in text_of(drafts)
        assert len(kinds(drafts)) > 8
        again = await client.turn("again", native_session_id=drafts[0].native_session_id)
        assert "session.updated" not in kinds(again)
        assert kinds(await client.turn("{not json"))[-1] == "run.completed"


async def test_a_script_plays_its_steps_in_order():
    drafts = await play(
        {"reasoning": "let me think"},
        {"text": "one two"},
        {"text": "", "chunks": ["a", "b  c"]},
        {"tool_result": {"id": "t1", "name": "look", "arguments": {"q": 1}, "result": {"found": [1, 2]}}},
        {"tool_result": {"id": "t2", "name": "look", "error": "not there"}},
        {"usage": {"input_tokens": 3}},
        {"warning": {"code": "slow", "message": "took long"}},
        {"metadata": {"region": "x"}},
        {"sleep": 0},
        {
            "subagent": {
                "agent_id": "helper",
                "script": [{"text": "inner"}, {"subagent": {"agent_id": "deeper", "script": []}}],
            }
        },
    )
    assert kinds(drafts) == [
        *["reasoning.delta"] * 3,
        *["content.delta"] * 4,
        *["tool.started", "tool.completed"] * 2,
        "usage.updated",
        "warning",
        "provider.metadata",
        *["tool.started", "subagent.started", "content.delta"],
        *["tool.started", "subagent.started", "subagent.completed", "tool.completed"],
        *["subagent.completed", "tool.completed"],
        "run.completed",
    ]
    assert text_of(drafts) == "one twoab  cinner"
    assert [list(d.namespace) for d in drafts if d.payload.content_delta.text == "inner"] == [["helper"]]
    assert json_format.MessageToDict(drafts[8].payload.tool_completed.result) == {"found": [1, 2]}
    assert drafts[10].payload.tool_completed.error.message == "not there"


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ({"tool": {"id": "t", "name": "n"}}, "tools_unavailable"),
        ({"interrupt": {"form": []}}, "step_invalid"),
        ({"interrupt": {"form": [{"name": "a", "type": "colour"}]}}, "step_invalid"),
        ({"interrupt": {"form": [{"name": "a"}], "approve": [{"id": "c"}]}}, "step_invalid"),
        ({"interrupt": {"approve": [{"id": "c", "name": "n", "allowed": ["maybe"]}]}}, "step_invalid"),
        ({"interrupt": {"approve": ["c"]}}, "step_invalid"),
        ({"interrupt": 3}, "step_invalid"),
        ({"memory": {"op": "get"}}, "memory_unavailable"),
        ({"subagent": {"agent_id": "a", "delegate": True}}, "delegation_unavailable"),
        ({"dance": 1}, "step_unknown"),
        ({"text": "a", "usage": {}}, "step_unknown"),
        ({"usage": 3}, "step_invalid"),
        ({"usage": {"nothing": 3}}, "step_invalid"),
        ({"fail": {"category": "bad luck"}}, "step_invalid"),
    ],
)
async def test_what_is_not_there_is_refused_clearly_and_before_anything_is_played(step, code):
    drafts = await play(step)
    assert kinds(drafts) == ["run.failed"]
    assert (drafts[0].payload.run_failed.code, drafts[0].payload.run_failed.category) == (code, 1)
    later = await play({"text": "a"}, step)
    assert later[-1].payload.run_failed.code == code


@pytest.mark.parametrize("step", [{"emit": {}}, {"raise": "x"}, {"exit": 9}, {"hang": True}, {"spin": 1}])
async def test_faults_are_refused_unless_the_operator_allows_them(step):
    for settings in ({}, {"profile_settings": {"allow_faults": "yes"}}):
        nested = {"subagent": {"agent_id": "a", "script": [step]}}
        for steps in ([{"text": "first"}, step], [{"text": "first"}, nested]):
            (failed,) = await play(*steps, **settings)
            assert failed.payload.run_failed.code == "faults_not_allowed"
            assert failed.payload.run_failed.category == 1


async def test_metadata_nested_deeper_than_the_wire_carries_is_a_protocol_failure():
    nested: dict = {}
    for _ in range(60):
        nested = {"a": nested}
    failed = (await play({"metadata": nested}))[-1].payload.run_failed
    assert (failed.code, failed.category) == ("nested_too_deep", error_pb2.ERROR_CATEGORY_PROTOCOL)


async def test_a_classified_failure_is_what_the_step_says():
    step = {"fail": {"category": "throttled", "message": "Slow down.", "provider_code": "429", "retry_after": 7}}
    failed = (await play({"text": "a"}, step))[-1].payload.run_failed
    assert (failed.category, failed.message, failed.retryable) == (5, "Slow down.", True)
    assert (failed.provider_code, failed.retry_after_seconds) == ("429", 7)
    assert not (await play({"fail": {"category": "throttled", "retryable": False}}))[-1].payload.run_failed.retryable


async def test_i22_a_raised_text_reaches_no_draft():
    drafts = await play({"text": "a"}, {"raise": "canary-raise"}, profile_settings=FAULTS)
    assert kinds(drafts) == ["content.delta", "run.failed"]
    assert b"canary" not in b"".join(draft.SerializeToString() for draft in drafts)


async def test_i19_emitted_events_are_checked_like_any_other():
    legal = {"emit": {"content_delta": {"message_id": "m9", "text": "as given"}}}
    named = {"emit": {"type": "warning", "data": {"code": "c", "message": "m"}}}
    drafts = await play(legal, named, profile_settings=FAULTS)
    assert kinds(drafts) == ["content.delta", "warning", "run.completed"]
    illegal = {"emit": {"payload": {"tool_completed": {"tool_call_id": "t", "outcome": 1}}, "namespace": ["x"]}}
    assert kinds(await play(legal, illegal, profile_settings=FAULTS)) == ["content.delta", "run.failed"]
    started = {"emit": {"run_started": {"harness_id": "reference", "agent_version": 1, "binding_id": "b"}}}
    assert kinds(await play(started, profile_settings=FAULTS)) == ["run.failed"]
    assert kinds(await play({"emit": {"run_completed": {}}}, legal, profile_settings=FAULTS)) == ["run.completed"]


async def test_hang_and_spin_end_by_cancel_and_by_themselves():
    async with reference(profile_settings=FAULTS) as client:
        await client.create()
        fence = client.fence(1, "r1")
        call = client.start(fence, client.input(script({"text": "a"}, {"hang": True})))
        await call.read()
        await client.cancel(fence)
        assert kinds((await call.read()).batch.drafts) == ["run.cancelled"]
        client.turns = 1
        assert kinds(await client.turn(script({"spin": 0.01}))) == ["run.completed"]


async def test_evaluate_writes_defaults_out():
    blueprint = blueprint_pb2.AgentBlueprint(id="a", name="A", harness=blueprint_pb2.HarnessSelection(id="reference"))
    async with reference() as client:
        answer = await client.adapter.Evaluate(
            adapter_pb2.EvaluateRequest(blueprint=blueprint, placement=placement_pb2.PLACEMENT_PROVIDER_MANAGED)
        )
        assert not answer.issues
        assert dict(answer.normalized_options) == {"greeting": ""}


async def test_the_probe_reports_what_the_process_can_reach(folder):
    (folder / "seen").write_text("x")
    os.environ["PROBE_CANARY"] = "canary-value"
    try:
        server = await asyncio.start_unix_server(lambda _, writer: writer.close(), folder / "s.sock")
        async with server:
            asked = {
                "paths": [str(folder), str(folder / "seen"), "/nowhere"],
                "writable": [str(folder), "/nowhere"],
                "connect": [f"unix:{folder}/s.sock", "unix:/nowhere", "127.0.0.1:x"],
            }
            report_text = text_of(await play({"probe": asked}, profile_settings=FAULTS))
    finally:
        del os.environ["PROBE_CANARY"]
    report = json.loads(report_text)
    assert "PROBE_CANARY" in report["environment"]["names"]
    assert "canary-value" not in report_text
    assert report["ids"]["uid"] == os.getuid()
    assert os.getpid() in report["processes"]["pids"]
    assert report["paths"][str(folder)]["entries"] == ["s.sock", "seen"]
    assert report["paths"][str(folder / "seen")] == {"kind": "file", "size": 1}
    assert "error" in report["paths"]["/nowhere"]
    assert report["writable"] == {str(folder): True, "/nowhere": False}
    assert report["connect"][f"unix:{folder}/s.sock"] == "connected"
    assert report["connect"]["unix:/nowhere"] == "No such file or directory"
    assert report["connect"]["127.0.0.1:x"] == "not an address"
    assert set(report["namespaces"]) == {"user", "network", "mount", "pid"}
    assert "CapEff" in report["status"]
    assert "lo" in report["interfaces"]


async def test_the_probe_is_refused_in_a_host_that_all_share():
    failed = (await play({"text": "x"}, {"probe": {}}))[-1].payload.run_failed
    assert (failed.code, failed.category) == ("probe_not_allowed", error_pb2.ERROR_CATEGORY_CONFIGURATION)


async def test_sessions_are_opened_and_closed_idempotently():
    async with reference() as client:
        request = adapter_pb2.OpenSessionRequest(fence=client.fence(), context=client.context())
        for _ in range(2):
            assert (await client.adapter.OpenSession(request)).native_session_id == ""
        closing = adapter_pb2.CloseSessionRequest(fence=client.fence(), native_session_id="ref-x")
        for _ in range(2):
            await client.adapter.CloseSession(closing)


async def test_many_runs_leave_no_task_behind():
    async with reference() as client:
        await client.turn('{"n": 1}')
        before = len(asyncio.all_tasks())
        await asyncio.gather(*(client.another().turn('{"n": 5}') for _ in range(30)))
        await until(lambda: len(asyncio.all_tasks()) <= before)
