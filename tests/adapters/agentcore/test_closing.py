"""Sessions of closed conversations are stopped, whatever became of their runtimes; harnesses that were removed are found again."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from adapters.agentcore.adapter import AgentCoreAdapter
from adapters.sdk.serve import serve_adapter
from conformance.plane.run import kinds
from harness.adapter.v1 import adapter_service_pb2
from tests.adapters.agentcore.rig import HARNESS, ROLE, RUNTIME
from tests.standins.agentcore import REGION, Fault

OURS: dict[str, Any] = {"mode": "per_agent", "per_agent": {"deployment": "d", "execution_role_arn": ROLE}}


def _closing(rig, conversation, agent_id="kit", **settings):
    request = adapter_service_pb2.CloseSessionRequest(
        fence=conversation.fence(), native_session_id="any", agent_id=agent_id
    )
    if settings:
        request.profile_settings.update({"region": REGION, "endpoint_url": rig.standin.url, **settings})
    return request


async def _close(rig, conversation, target=None, **settings):
    target = target or conversation.target
    await target.ask("CloseSession", target.adapter.CloseSession(_closing(rig, conversation, **settings), timeout=60))
    return rig.standin.of("StopRuntimeSession")


async def test_closing_a_conversation_stops_its_session_without_its_runtime_and_from_another_host(rig, capsys):
    known = rig.standin.control.add("agent")
    runtime = known["environment"]["agentCoreRuntimeEnvironment"]["agentRuntimeArn"]
    conversation = await rig.conversation(harness_arn=known["arn"])
    await conversation.say("hello")
    (invoked,) = rig.standin.of("InvokeHarness")
    await conversation.cleanup()
    (stopped,) = await _close(rig, conversation, await rig.another_host(), harness_arn=known["arn"])
    header = "x-amzn-bedrock-agentcore-runtime-session-id"
    assert stopped.request.headers[header] == invoked.request.headers[header]
    assert stopped.request.path[1] == runtime
    # Again, of one that is not there any more, and of a harness that is gone: closed is closed.
    assert len(await _close(rig, conversation, harness_arn=known["arn"])) == 2
    assert len(await _close(rig, conversation, harness_arn=HARNESS)) == 2
    assert "session_not_stopped" not in capsys.readouterr().out
    await asyncio.to_thread(rig.standin.wait, lambda: rig.standin.open_connections == 0)


async def test_a_custom_runtime_s_session_is_stopped_where_it_was_asked(rig):
    conversation = await rig.conversation(mode="runtime", runtime_arn=RUNTIME, qualifier="canary")
    await conversation.say("hello")
    (stopped,) = await _close(rig, conversation, mode="runtime", runtime_arn=RUNTIME, qualifier="canary")
    assert stopped.request.path[1] == RUNTIME
    assert stopped.request.query["qualifier"] == ["canary"]


async def test_nothing_is_stopped_where_the_profile_forbids_it_or_is_not_said(rig):
    conversation = await rig.conversation(harness_arn=rig.standin.control.add("agent")["arn"])
    await conversation.say("hello")
    assert await _close(rig, conversation) == []
    assert await _close(rig, conversation, harness_arn=HARNESS, stop_session=False) == []
    assert "GetHarness" not in rig.standin.control.calls


async def test_closing_with_a_harness_for_each_agent_makes_none(rig):
    conversation = await rig.conversation(harness_arn=HARNESS, **OURS)
    assert await _close(rig, conversation, **OURS) == []
    assert rig.standin.control.harnesses == {}
    await conversation.say("hello")
    (kept,) = rig.standin.control.harnesses.values()
    runtime = kept.document["environment"]["agentCoreRuntimeEnvironment"]["agentRuntimeArn"]
    # In a host that never saw the agent.
    (stopped,) = await _close(rig, conversation, await rig.another_host(), **OURS)
    assert stopped.request.path[1] == runtime
    # Of somebody else's harness with the agent's name nothing is touched.
    kept.tags["harness-mesh:deployment"] = "another"
    assert len(await _close(rig, conversation, await rig.another_host(), **OURS)) == 1
    assert len(rig.standin.control.harnesses) == 1


async def test_i18_a_harness_that_cannot_be_looked_for_is_told_without_its_names(rig):
    conversation = await rig.conversation(**OURS)
    rig.standin.control.faults.extend([Fault("ListHarnesses", "AccessDeniedException")] * 3)
    closing = conversation.target.adapter.CloseSession(_closing(rig, conversation, **OURS), timeout=60)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await closing
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "arn:" not in str(caught.value)


async def test_i11_a_harness_that_was_removed_is_made_again_for_the_turn_that_misses_it(rig):
    conversation = await rig.conversation(**OURS)
    assert kinds(await conversation.say("hello"))[-1] == "run_completed"
    rig.standin.control.harnesses.clear()
    drafts = await conversation.say("still there?")
    assert kinds(drafts)[-1] == "run_completed"
    (kept,) = rig.standin.control.harnesses.values()
    asked = [one.request.query["harnessArn"][0] for one in rig.standin.of("InvokeHarness")]
    assert asked[0] == asked[1] != asked[2] == kept.document["arn"]


async def test_a_harness_that_stays_away_ends_the_turn(rig):
    conversation = await rig.conversation(harness_arn=rig.standin.control.add("agent")["arn"])
    rig.standin.control.harnesses.clear()
    drafts = await conversation.say("hello")
    assert drafts[-1].payload.run_failed.code == "harness_unknown"
    assert len(rig.standin.of("InvokeHarness")) == 1


@pytest.mark.parametrize("used", [True, False])
async def test_i20_a_host_that_stops_closes_its_connections_to_the_control_plane(rig, used):
    adapter = AgentCoreAdapter()
    server = await serve_adapter(lambda: adapter, listen=f"unix:{rig.folder}/closing.sock")
    if used:
        settings = {"region": REGION, "endpoint_url": rig.standin.url, **OURS}
        assert (await adapter.reconcile_agents(settings, ["one"], [])).created == 1
        assert rig.standin.open_connections
    await server.stop(0)
    await asyncio.to_thread(rig.standin.wait, lambda: rig.standin.open_connections == 0)
