"""Profile settings and agent options: each problem with the name of its key; what is missing is a clear line."""

import pytest
from google.protobuf import json_format

from adapters.claude_agent_sdk.adapter import ClaudeAdapter
from adapters.claude_agent_sdk.options import AgentOptions, read_options, turns_of
from adapters.claude_agent_sdk.profile import Profile, read_profile
from adapters.sdk.errors import ConfigurationError
from adapters.sdk.models import model_of
from adapters.sdk.testing import served
from harness.adapter.v1 import adapter_service_pb2
from harness.common.v1 import blueprint_pb2, health_pb2, placement_pb2

IN_PROCESS, SANDBOX = placement_pb2.PLACEMENT_IN_PROCESS, placement_pb2.PLACEMENT_SANDBOX_POD
WRONG = [
    ({"modle": "x"}, "modle"),
    ({"model": ""}, "model"),
    ({"models": {"small": 3}}, "models.small"),
    ({"models": []}, "models"),
    ({"permission_mode": "yolo"}, "permission_mode"),
    ({"builtin_tools": "Bash"}, "builtin_tools"),
    ({"allowed_tools": [1]}, "allowed_tools[0]"),
    ({"credential_kind": "basic"}, "credential_kind"),
    ({"credential_file": "canary-path", "credential_env": "KEY"}, "credential_env"),
    ({"base_url": "ftp://canary"}, "base_url"),
    ({"base_url": "https://user:canary@host"}, "base_url"),
    ({"max_turns": 1.5}, "max_turns"),
    ({"max_retries": 11}, "max_retries"),
    ({"idle_seconds": True}, "idle_seconds"),
    ({"max_budget_usd": -1}, "max_budget_usd"),
    ({"skills": {"tea": 5}}, "skills.tea"),
    ({"subagents": {"one": {"prompt": "p"}}}, "subagents.one.description"),
    ({"subagents": {"one": {"description": "d", "prompt": ""}}}, "subagents.one.prompt"),
    ({"subagents": {"one": {"description": "d", "prompt": "p", "colour": "red"}}}, "subagents.one"),
]


@pytest.mark.parametrize(("settings", "key"), WRONG)
def test_i18_a_wrong_setting_is_named_and_not_quoted(settings: dict, key: str):
    with pytest.raises(ConfigurationError) as refused:
        read_profile(settings)
    assert key in refused.value.message
    assert "canary" not in refused.value.message


def test_options_and_models_are_read_with_the_operators_bounds():
    profile = read_profile({"model": "big", "models": {"small": "tiny"}, "max_turns": 8.0})
    assert (profile.model, profile.max_turns) == ("big", 8)
    alias = blueprint_pb2.ModelSpec(policy=blueprint_pb2.MODEL_POLICY_ALIAS, alias="small")
    assert (model_of(blueprint_pb2.ModelSpec(), profile), model_of(alias, profile)) == ("big", "tiny")
    with pytest.raises(ConfigurationError, match=r"model\.alias"):
        model_of(blueprint_pb2.ModelSpec(policy=blueprint_pb2.MODEL_POLICY_ALIAS, alias="other"), profile)
    assert [turns_of(AgentOptions(max_turns=n), profile) for n in (0, 3, 20)] == [8, 3, 8]
    assert turns_of(AgentOptions(), Profile()) == 0
    wanted = {
        "max_turns": 3.0,
        "thinking": {"type": "enabled", "budget_tokens": 2048.0},
        "effort": "low",
        "ask_person": True,
    }
    assert read_options(wanted) == AgentOptions(3, "enabled", 2048, "low", ask_person=True)
    for wrong in ({"colour": 1}, {"thinking": {"type": "enabled"}}, {"thinking": {"budget_tokens": 2048}}):
        with pytest.raises(ConfigurationError, match=r"harness\.options"):
            read_options(wrong)


async def test_an_evaluation_names_everything_that_does_not_fit():
    blueprint = blueprint_pb2.AgentBlueprint(
        id="a",
        name="A",
        skills=["tea", "coffee"],
        model=blueprint_pb2.ModelSpec(policy=blueprint_pb2.MODEL_POLICY_ALIAS, alias="small"),
    )
    json_format.ParseDict({"thinking": {"type": "enabled"}}, blueprint.harness.options)
    settings = {"skills": {"tea": "/somewhere"}, "credential_file": "/canary"}
    said = await ClaudeAdapter().evaluate(blueprint, SANDBOX, settings)
    assert [(one.path, one.code) for one in said.issues] == [
        ("harness.options", "options_invalid"),
        ("model.alias", "model_unknown"),
        ("harness.profile_id", "profile_invalid"),
        ("skills[1]", "skill_unknown"),
    ]
    assert "canary" not in str(said.issues)
    fits = blueprint_pb2.AgentBlueprint(id="a", name="A", skills=["tea"])
    said = await ClaudeAdapter().evaluate(fits, IN_PROCESS, settings)
    assert said.issues == []
    assert said.normalized_options == {"max_turns": 0, "effort": "provider", "ask_person": False}
    fits.tools.bindings.add(tool_id="ask_person")
    json_format.ParseDict({"ask_person": True}, fits.harness.options)
    said = await ClaudeAdapter().evaluate(fits, IN_PROCESS, settings)
    assert [(one.path, one.code) for one in said.issues] == [("tools.bindings", "tool_name_taken")]
    broken = await ClaudeAdapter().evaluate(fits, IN_PROCESS, {"modle": "x"})
    assert [one.path for one in broken.issues] == ["harness.profile_id"]


async def test_health_says_in_a_line_what_is_missing(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY_FILE", raising=False)
    async with served(ClaudeAdapter) as client:

        async def configuration() -> health_pb2.HealthCheck:
            response = await client.adapter.CheckHealth(adapter_service_pb2.CheckHealthRequest())
            checks = {check.name: check for check in response.report.checks}
            assert checks["dependency"].status == health_pb2.HEALTH_STATUS_HEALTHY
            return checks["configuration"]

        check = await configuration()
        assert check.status == health_pb2.HEALTH_STATUS_DEGRADED
        assert "set ANTHROPIC_API_KEY_FILE" in check.reason
        monkeypatch.setenv("ANTHROPIC_API_KEY_FILE", "-")
        assert (await configuration()).status == health_pb2.HEALTH_STATUS_HEALTHY
        monkeypatch.setenv("ANTHROPIC_API_KEY_FILE", str(tmp_path / "canary"))
        check = await configuration()
        assert check.status == health_pb2.HEALTH_STATUS_DEGRADED
        assert check.reason == "The credential cannot be read: ANTHROPIC_API_KEY_FILE: No such file or directory."
        (tmp_path / "canary").write_text("key\n")
        assert (await configuration()).status == health_pb2.HEALTH_STATUS_HEALTHY
