"""The tools an operator registers: what the file may say of them, what a draft may bind, what a version is granted (design 0003)."""

import json
from pathlib import Path
from typing import Any

import protovalidate
import pytest
import yaml
from google.protobuf import json_format

from harness.adapter.v1.adapter_service_pb2 import EvaluateResponse
from harness.adapter.v1.descriptor_pb2 import Descriptor
from harness.catalog.v1.resolution_service_pb2 import ToolGrant
from harness.common.v1 import blueprint_pb2 as pb
from harness.common.v1.capability_pb2 import CAPABILITY_LEVEL_UNSUPPORTED
from services.catalog.blueprint import normalized
from services.catalog.builtin_tools import BUILTIN_TOOLS
from services.catalog.descriptor_policy import admit
from services.catalog.operator_file import AllowedAdapter, Operator, ProfileEntry, load_operator_file
from services.catalog.snapshot import HarnessState, Snapshot, catalog_revision
from services.catalog.tool_grants import grants
from services.catalog.tool_registry import Tools
from services.catalog.validation import Verdict, evaluated, judge
from services.common.errors import ConfigurationError
from tests.catalog.conftest import Host, Start
from tests.catalog.processes import AVAILABLE, blueprint, message, operator, toy_entry, until
from tests.catalog.toy_adapter import NATIVE, descriptor

CRM: dict[str, Any] = {
    "id": "crm.find",
    "provider": "127.0.0.1:7001",
    "description": "Finds a customer.",
    "input_schema": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "token": {"type": "string", "description": "See https://crm.example/x"},
        },
        "required": ["path"],
    },
}
CLOCK = {"id": "clock", "provider": "builtin"}
CALCULATOR = {"id": "calculator", "provider": "builtin"}
HTTP_GET = {"id": "http_get", "provider": "builtin", "settings": {"hosts": ["example.com"], "networks": ["10.0.0.0/8"]}}
BASIC = ("thread.durable_commit", "session.multi_turn", "tool.builtin")


def file_with(*tools: dict[str, Any]) -> dict[str, Any]:
    """An operator file with these tools, no two of which share a value: the file knows no aliases."""
    return json.loads(json.dumps(operator(tools=list(tools))))


def load(path: Path, *tools: dict[str, Any], environment: dict[str, str] | None = None) -> Operator:
    path.write_text(yaml.safe_dump(file_with(*tools)))
    return load_operator_file(path, path.parent, environment or {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "harness.yaml"


# --- the file ---


def test_a_builtin_tool_needs_nothing_but_its_id(path: Path) -> None:
    tools = load(path, CLOCK, CALCULATOR, HTTP_GET).tools
    assert set(tools) == {"clock", "calculator", "http_get"}
    for name, tool in tools.items():
        assert tool.provider_name == name
        assert tool.description == BUILTIN_TOOLS[name].description
        assert tool.input_schema == BUILTIN_TOOLS[name].input_schema
        assert tool.idempotent
        assert tool.sensitive == (name == "http_get")
        assert (tool.timeout_seconds, tool.max_attempts, tool.max_result_bytes) == (30, 1, 65_536)


def test_a_tool_of_a_team_has_everything_the_operator_says(path: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("file-token-88\n")
    entry = CRM | {
        "provider": "unix:run/crm.sock",
        "token_file": str(tmp_path / "token"),
        "sensitive": False,
        "idempotent": True,
        "timeout_seconds": 5,
        "max_attempts": 3,
        "max_result_bytes": 1000,
        "settings": {"region": "canary-setting-77"},
    }
    operator_file = load(path, entry)
    tool = operator_file.tools["crm.find"]
    assert tool.provider == f"unix:{tmp_path}/run/crm.sock"
    assert tool.token is not None
    assert tool.token.get_secret_value() == "file-token-88"
    assert (tool.sensitive, tool.idempotent) == (False, True)
    assert (tool.timeout_seconds, tool.max_attempts, tool.max_result_bytes) == (5, 3, 1000)
    assert tool.provider_name.startswith("crm_find__")
    # Objects are closed: arguments that the schema does not name are no arguments of the tool.
    assert tool.input_schema["additionalProperties"] is False
    assert "file-token-88" not in repr(operator_file)
    assert "canary-setting-77" not in repr(tool)


def test_a_tool_nobody_described_further_asks_before_it_is_called_and_once(path: Path) -> None:
    tool = load(path, CRM).tools["crm.find"]
    assert tool.sensitive
    assert not tool.idempotent
    assert tool.token is None


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (
            [{"id": "weather", "provider": "builtin"}],
            "tools[0].id: there is no such built-in tool; there is: calculator,",
        ),
        ([CLOCK | {"input_schema": {}}], "tools[0].input_schema: a built-in tool has its own"),
        ([HTTP_GET | {"settings": {}}], "tools[0].settings.hosts: must be a list of the hosts"),
        ([HTTP_GET | {"settings": {"hosts": [5]}}], "tools[0].settings.hosts: must be a list of the hosts"),
        (
            [HTTP_GET | {"settings": {"hosts": ["a"], "networks": ["10.0.0.0/33"]}}],
            "tools[0].settings.networks[0]: is no network",
        ),
        (
            [HTTP_GET | {"settings": {"hosts": ["a"], "allowed": []}}],
            "tools[0].settings.allowed: there is no such setting",
        ),
        ([CLOCK | {"token_env": "X"}], "tools[0].token_env: a built-in tool needs no token"),
        (
            [CLOCK | {"idempotent": False, "max_attempts": 2}],
            "tools[0].max_attempts: more than one try needs a tool that is idem",
        ),
        ([CRM | {"max_attempts": 2}], "tools[0].max_attempts: more than one try needs a tool that is idem"),
        (
            [CRM | {"idempotent": True, "max_attempts": 6}],
            "tools[0].max_attempts: Input should be less than or equal to 5",
        ),
        ([CRM | {"timeout_seconds": 0}], "tools[0].timeout_seconds: Input should be greater"),
        ([CRM | {"max_result_bytes": 262_145}], "tools[0].max_result_bytes: Input should be less"),
        ([CRM | {"sensitive": "no"}], "tools[0].sensitive: Input should be a valid boolean"),
        ([CRM | {"id": "x y"}], "tools[0].id: String should match"),
        ([CRM | {"surprise": 1}], "tools[0].surprise: there is no such key"),
        ([CRM | {"provider": "crm"}], "tools[0].provider: "),
        ([CRM | {"token_env": "NOT_SET"}], "tools[0].token_env: the environment variable NOT_SET is not set"),
        ([CRM | {"token_env": "SET", "token_file": "/x"}], "tools[0].token_env: token_file is set as well"),
        ([CRM | {"description": "Use AKIAIOSFODNN7EXAMPLE"}], "tools[0].description: holds a credential"),
        ([{key: CRM[key] for key in ("id", "provider", "input_schema")}], "tools[0].description: is missing"),
        ([{key: CRM[key] for key in ("id", "provider", "description")}], "tools[0].input_schema: is missing"),
        ([CRM | {"input_schema": {"type": "array"}}], "tools[0].input_schema: the root must be of type object"),
        (
            [CRM | {"input_schema": {"properties": {"a": {"$dynamicRef": "#x"}}}}],
            "tools[0].input_schema.properties.a[key 0]: is no keyword",
        ),
        (
            [CRM | {"input_schema": {"properties": {"a": {"pattern": "(a+)+$"}}}}],
            "tools[0].input_schema.properties.a.pattern: must not repeat a group",
        ),
        (
            [CRM | {"input_schema": {"properties": {"a": {"type": "text"}}}}],
            "tools[0].input_schema.properties.a.type: is no valid",
        ),
        ([CRM | {"input_schema": {"description": "x" * 65_537}}], "tools[0].input_schema: has more than 65536 bytes"),
        (
            [CRM | {"input_schema": {"maximum": float("inf")}}],
            "tools[0].input_schema: input_schema.maximum is not a finite",
        ),
        (
            [CRM | {"input_schema": {"properties": {"a": {"default": "AKIAIOSFODNN7EXAMPLE"}}}}],
            "tools[0].input_schema.properties.a.default: holds a credential",
        ),
        ([CRM | {"settings": {"n": 2**60}}], "tools[0].settings: settings.n is beyond 2^53"),
        ([CLOCK, CRM, CLOCK], "tools[2].id: 'clock' is already that of tools[0]"),
    ],
)
def test_each_mistake_is_named_with_its_field(path: Path, tools: list[dict[str, Any]], expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(path, *tools, environment={"SET": "x"})
    assert f"{path}: {expected}" in str(caught.value)
    assert "AKIA" not in str(caught.value)


def test_all_mistakes_are_told_at_once(path: Path) -> None:
    bad = CRM | {"max_attempts": 2, "token_env": "NOT_SET", "provider": "crm", "input_schema": {"type": "array"}}
    with pytest.raises(ConfigurationError) as caught:
        load(path, CLOCK, bad, {"id": "weather", "provider": "builtin"})
    lines = str(caught.value).splitlines()
    for place in ("[1].max_attempts", "[1].token_env", "[1].provider", "[1].input_schema", "[2].id"):
        assert any(f"tools{place}: " in line for line in lines), place


# --- drafts ---


def snapshot(tools: Tools, capabilities: tuple[str, ...] = BASIC) -> Snapshot:
    profiles = [ProfileEntry.model_validate(profile) for profile in toy_entry()["profiles"]]
    adapter = AllowedAdapter("toy", "unix:/nowhere", None, True, {profile.id: profile for profile in profiles})
    said = descriptor(capabilities={key: {"level": NATIVE} for key in capabilities})
    state = HarnessState(adapter, admit("toy", json_format.ParseDict(said, Descriptor())))
    return Snapshot({"toy": state}, catalog_revision([state], ["standard"], tools), ("standard",), tools)


def bound(*tool_ids: str, **more: Any) -> dict[str, Any]:
    return blueprint(tools={"bindings": [{"tool_id": tool_id} for tool_id in tool_ids]}, **more)


def issues(verdict: Verdict) -> set[tuple[str, str]]:
    return {(issue.path, issue.code) for issue in verdict.issues}


@pytest.fixture
def tools(path: Path) -> Tools:
    return load(path, CLOCK, CRM).tools


def test_a_binding_to_a_tool_that_is_not_registered_is_refused_at_its_field(tools: Tools) -> None:
    verdict = judge(message(bound("clock", "wheather", "clock")), snapshot(tools))
    assert issues(verdict) == {
        ("tools.bindings[1].tool_id", "tool_unregistered"),
        ("tools.bindings[2].tool_id", "duplicate"),
    }
    assert "there is: clock, crm.find." in verdict.issues[0].message


def test_without_any_tool_registered_the_message_says_so() -> None:
    verdict = judge(message(bound("clock")), snapshot({}))
    assert "there is: none." in verdict.issues[0].message


def test_an_agent_with_tools_may_call_at_least_one(tools: Tools) -> None:
    assert issues(judge(message(bound("clock", limits={"max_tool_calls": 0})), snapshot(tools))) == {
        ("limits.max_tool_calls", "out_of_range")
    }
    assert judge(message(bound("clock", limits={"max_tool_calls": 1})), snapshot(tools)).valid
    assert judge(message(bound(limits={"max_tool_calls": 0})), snapshot(tools)).valid


def test_a_harness_that_calls_no_tools_is_told_once(tools: Tools) -> None:
    verdict = judge(message(bound("clock", "crm.find")), snapshot(tools, (*BASIC[:2], "interrupt.tool_approval")))
    assert issues(verdict) == {("tools.bindings", "harness_capability_unsupported")}


def test_i25_a_sensitive_tool_needs_a_harness_that_can_ask(tools: Tools) -> None:
    document = bound("clock", "crm.find")
    refused = {("tools.bindings[1].approval_policy", "harness_capability_unsupported")}
    assert issues(judge(message(document), snapshot(tools))) == refused
    able = snapshot(tools, (*BASIC, "interrupt.tool_approval"))
    verdict = judge(message(document), able)
    assert verdict.valid
    # The adapter itself may say that it cannot ask for this agent.
    answer = EvaluateResponse()
    answer.capabilities["interrupt.tool_approval"].level = CAPABILITY_LEVEL_UNSUPPORTED
    assert issues(evaluated(verdict, answer, tools)) == refused
    document["tools"]["bindings"][1]["approval_policy"] = "APPROVAL_POLICY_NEVER"
    assert judge(message(document), snapshot(tools)).valid


def test_the_catalogs_revision_tells_of_tools_that_come_go_or_become_sensitive(path: Path, tools: Tools) -> None:
    revisions = {
        catalog_revision([], [], found)
        for found in ({}, tools, load(path, CLOCK, CRM | {"sensitive": False}).tools, load(path, CLOCK).tools)
    }
    assert len(revisions) == 4
    assert catalog_revision([], [], tools) == catalog_revision([], [], load(path, CRM, CLOCK).tools)


# --- grants ---


def granted(document: dict[str, Any], tools: Tools) -> list[ToolGrant]:
    return grants(normalized(message(document), {}).tools, tools)


def test_grants_say_what_the_operator_registers_now(path: Path) -> None:
    entry = CRM | {
        "token_env": "CRM_TOKEN",
        "settings": {"region": "north"},
        "timeout_seconds": 7,
        "max_result_bytes": 9,
    }
    tools = load(path, CLOCK, entry, environment={"CRM_TOKEN": "canary-token"}).tools
    document = bound("crm.find", "clock")
    document["tools"]["approval_policy"] = "APPROVAL_POLICY_ALWAYS"
    document["tools"]["bindings"][1]["approval_policy"] = "APPROVAL_POLICY_NEVER"
    crm, clock = granted(document, tools)
    assert crm.descriptor.tool_id == "crm.find"
    assert crm.descriptor.provider_name == tools["crm.find"].provider_name
    assert json_format.MessageToDict(crm.descriptor.input_schema)["required"] == ["path"]
    assert (crm.descriptor.sensitive, crm.descriptor.idempotent) == (True, False)
    assert crm.approval_policy == pb.APPROVAL_POLICY_ALWAYS
    assert (crm.provider, crm.provider_token) == ("127.0.0.1:7001", "canary-token")
    assert json_format.MessageToDict(crm.settings) == {"region": "north"}
    assert (crm.timeout_seconds, crm.max_attempts, crm.max_result_bytes) == (7, 1, 9)
    assert (clock.provider, clock.provider_token) == ("builtin", "")
    assert clock.approval_policy == pb.APPROVAL_POLICY_NEVER


def test_i25_a_policy_nobody_stated_is_sensitive_only(tools: Tools) -> None:
    spec = pb.ToolsSpec(bindings=[pb.ToolBinding(tool_id="clock")])
    assert [grant.approval_policy for grant in grants(spec, tools)] == [pb.APPROVAL_POLICY_SENSITIVE_ONLY]


def test_a_tool_that_is_gone_has_no_grant(path: Path) -> None:
    tools = load(path, CLOCK).tools
    assert [grant.descriptor.tool_id for grant in granted(bound("clock", "crm.find"), tools)] == ["clock"]


async def test_a_version_keeps_its_tools_and_is_granted_what_is_registered_now(host: Host, start: Start) -> None:
    await host(
        descriptor=descriptor(capabilities={key: {"level": NATIVE} for key in (*BASIC, "interrupt.tool_approval")})
    )
    first = await start(operator(tools=[CLOCK, CRM]))
    await until(first.harness, lambda harness: harness.availability == AVAILABLE)
    saved = await first.save(bound("crm.find", "clock"))
    answer = await first.resolve_agent()
    assert [grant.descriptor.tool_id for grant in answer.tools] == ["crm.find", "clock"]
    assert not (await first.resolve_agent(record_only=True)).tools
    await first.catalog.stop()
    later = await start(operator(tools=[CLOCK]))
    answer = await later.resolve_agent()
    assert answer.version.config_fingerprint == saved.version.config_fingerprint
    assert [binding.tool_id for binding in answer.version.blueprint.tools.bindings] == ["crm.find", "clock"]
    assert [grant.descriptor.tool_id for grant in answer.tools] == ["clock"]


def test_grants_are_within_their_contract(path: Path) -> None:
    tools = load(path, CLOCK, CALCULATOR, HTTP_GET, CRM).tools
    for grant in granted(bound(*tools), tools):
        assert protovalidate.collect_violations(grant) == []
