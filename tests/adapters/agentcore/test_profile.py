"""What an operator and an author may say, what is told of it, and what health looks at (I4, I18, I32)."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from botocore.exceptions import (
    ConfigParseError,
    CredentialRetrievalError,
    InvalidConfigError,
    NoCredentialsError,
    ProfileNotFound,
    SSOTokenLoadError,
    UnauthorizedSSOTokenError,
)

from adapters.agentcore.adapter import AgentCoreAdapter
from adapters.agentcore.clients import Clients
from adapters.agentcore.failures import failure_of
from adapters.agentcore.profile import read_profile
from adapters.agentcore.requests import checked_session
from adapters.sdk.errors import NO_SIDE_EFFECTS, AuthenticationError, HarnessError
from adapters.sdk.health import Impaired, Probe
from adapters.sdk.session import BindingView, CallerAssignedSessions
from conformance.plane.run import kind
from harness.common.v1 import blueprint_pb2, placement_pb2
from tests.adapters.agentcore.rig import HARNESS, RUNTIME

ROOT = Path(__file__).parents[3]
GOOD = {"region": "eu-central-1", "harness_arn": HARNESS}


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"region": "eu-central-1"}, "harness_arn"),
        ({"mode": "runtime"}, "runtime_arn"),
        ({**GOOD, "mode": "other"}, "mode"),
        ({**GOOD, "region": "canary"}, "region"),
        ({**GOOD, "harness_arn": "arn:canary"}, "harness_arn"),
        ({**GOOD, "endpoint_url": "ftp://canary"}, "endpoint_url"),
        ({**GOOD, "endpoint_url": "http://canary:notaport"}, "endpoint_url"),
        ({**GOOD, "max_connections": 0}, "max_connections"),
        ({**GOOD, "max_connections": 1.5}, "max_connections"),
        ({**GOOD, "stop_session": "canary"}, "stop_session"),
        ({**GOOD, "models": {"fast": 1}}, "models.fast"),
        ({**GOOD, "provider_tools": [{"type": "inline_function"}]}, "provider_tools[0]"),
        ({**GOOD, "canaryless": 1}, "canaryless"),
    ],
)
async def test_i32_a_wrong_setting_is_named_and_its_value_is_not(settings, key):
    with pytest.raises(HarnessError) as caught:
        read_profile(settings)
    assert key in caught.value.message
    assert "canary" not in caught.value.message.replace("canaryless", "")
    blueprint = blueprint_pb2.AgentBlueprint(id="a")
    said = await AgentCoreAdapter().evaluate(blueprint, placement_pb2.PLACEMENT_PROVIDER_MANAGED, settings)
    assert [issue.path for issue in said.issues] == ["harness.profile_id"]


async def test_a_missing_region_a_model_and_options_are_told_where_they_stand(monkeypatch):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    adapter, placement = AgentCoreAdapter(), placement_pb2.PLACEMENT_PROVIDER_MANAGED
    blueprint = blueprint_pb2.AgentBlueprint(id="a")
    said = await adapter.evaluate(blueprint, placement, {"harness_arn": HARNESS})
    assert [issue.code for issue in said.issues] == ["region_missing"]
    blueprint.model.policy = blueprint_pb2.MODEL_POLICY_ALIAS
    blueprint.model.alias = "fast"
    blueprint.harness.options.update({"temperature": 1})
    blueprint.tools.bindings.add(tool_id="clock")
    runtime = {"mode": "runtime", "runtime_arn": RUNTIME, "region": "eu-central-1"}
    said = await adapter.evaluate(blueprint, placement, runtime)
    assert [issue.path for issue in said.issues] == ["harness.options", "model.alias", "tools.bindings"]
    assert "tool.builtin" in said.capabilities
    del blueprint.harness.options["temperature"]
    # A tool of the name of the function with which a model asks could never be called.
    blueprint.tools.bindings.add(tool_id="ask_person")
    for asks in (False, True):
        blueprint.harness.options.update({"ask_person": asks})
        said = await adapter.evaluate(blueprint, placement, {**GOOD, "models": {"fast": "m"}})
        assert [issue.code for issue in said.issues] == ["tool_name_taken"] * asks
    del blueprint.tools.bindings[1]
    said = await adapter.evaluate(blueprint, placement, {**GOOD, "models": {"fast": "m"}})
    assert not said.issues


def test_i18_nothing_of_a_profile_is_in_descriptor_or_repr():
    profile = read_profile({**GOOD, "endpoint_url": "http://secret.example", "note": "canary"})
    assert "arn:" not in repr(profile)
    assert "secret" not in repr(profile)
    assert "canary" not in repr(profile)
    assert "arn:" not in str(AgentCoreAdapter().descriptor)


def test_names_of_sessions_are_what_the_service_takes():
    sessions = AgentCoreAdapter().session_manager
    assert isinstance(sessions, CallerAssignedSessions)
    first = sessions.derive(BindingView("b-1", 1, 1))
    assert checked_session(first) == sessions.derive(BindingView("b-1", 1, 7)) == first
    assert first != sessions.derive(BindingView("b-1", 2, 1))
    for wrong in ("x" * 32, "x" * 101, "-" + "x" * 40, "x" * 40 + "é"):
        with pytest.raises(HarnessError):
            checked_session(wrong)


async def test_health_looks_for_credentials_and_a_region(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    (probe,) = await AgentCoreAdapter().health()
    assert isinstance(probe, Probe)
    with pytest.raises(AuthenticationError):
        await probe.look()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDCANARY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    with pytest.raises(Impaired):
        await probe.look()
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    await probe.look()
    # Settings that cannot be used are told by kind; what they name is not.
    monkeypatch.setenv("AWS_PROFILE", "canary-profile")
    with pytest.raises(AuthenticationError, match="ProfileNotFound") as caught:
        await probe.look()
    assert "canary" not in caught.value.message
    with pytest.raises(AuthenticationError):
        await Clients().acquire(read_profile(GOOD))


@pytest.mark.parametrize(
    "error",
    [
        NoCredentialsError(),
        CredentialRetrievalError(provider="canary", error_msg="canary"),
        SSOTokenLoadError(error_msg="canary"),
        UnauthorizedSSOTokenError(),
        ProfileNotFound(profile="canary"),
        InvalidConfigError(error_msg="canary"),
        ConfigParseError(path="canary", error="canary"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_i11_what_the_chain_of_credentials_raises_ran_nothing_and_is_no_broken_connection(error):
    failure = failure_of(error)
    assert (type(failure), failure.side_effects) == (AuthenticationError, NO_SIDE_EFFECTS)
    assert "canary" not in failure.message + failure.diagnostic


async def test_without_credentials_a_turn_says_so(rig, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    conversation = await rig.conversation()
    failed = (await conversation.say("x"))[-1].payload.run_failed
    assert failed.code == "provider_authentication"


async def test_i4_two_versions_of_an_agent_use_one_harness_each_with_its_own_words(rig):
    older = await rig.conversation(options={"max_tokens": 10}, model="m-1")
    newer = await rig.conversation(options={"max_tokens": 20}, model="m-2")
    for one in (older, newer, older):
        assert kind((await one.say("x"))[-1]) == "run_completed"
    asked = [one.document for one in rig.standin.of("InvokeHarness")]
    assert [one["maxTokens"] for one in asked] == [10, 20, 10]
    assert [one["model"]["bedrockModelConfig"]["modelId"] for one in asked] == ["m-1", "m-2", "m-1"]


async def test_clients_are_shared_and_the_last_user_closes_them(standin):
    clients, profile = Clients(), read_profile({**GOOD, "endpoint_url": standin.url})
    first, second = await asyncio.gather(clients.acquire(profile), clients.acquire(profile))
    assert first is second
    released = asyncio.ensure_future(clients.release(first))
    third = await clients.acquire(profile)
    await released
    assert third is first
    await clients.release(second)
    await clients.release(third)
    fourth = await clients.acquire(profile)
    assert fourth is not first
    await clients.release(fourth)


async def test_i18_no_log_has_an_arn_or_a_prompt_at_any_level(rig, caplog):
    caplog.set_level("DEBUG")
    conversation = await rig.conversation()
    assert kind((await conversation.say("canary-prompt"))[-1]) == "run_completed"
    logged = "\n".join(f"{one.name} {one.getMessage()}" for one in caplog.records)
    assert "arn:" not in logged
    assert "canary-prompt" not in logged


def test_a_process_without_the_sdk_starts_and_says_what_it_lacks():
    code = f"""
import asyncio, sys
sys.modules["boto3"] = sys.modules["botocore"] = None
from adapters.agentcore.adapter import AgentCoreAdapter
from adapters.sdk.contract import RuntimeConstruction
from adapters.sdk.session import BindingView
from harness.runtime.v1 import runtime_pb2
context = runtime_pb2.RuntimeContext()
context.profile_settings.update({GOOD!r})
adapter = AgentCoreAdapter()
print(adapter.descriptor.harness_id)
try:
    asyncio.run(adapter.create_runtime(RuntimeConstruction(BindingView("b", 1, 1), context)))
except Exception as error:
    print(error.code)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=90)
    assert (done.stdout.split(), done.stderr) == (["agentcore", "sdk_missing"], "")
