"""The verdict on a draft: all problems at once, by field; one fingerprint per intent (I17)."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format, struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from harness.adapter.v1.descriptor_pb2 import Descriptor
from harness.common.v1.blueprint_pb2 import AgentBlueprint
from services.catalog.descriptor_policy import admit
from services.catalog.operator_file import AllowedAdapter, ProfileEntry
from services.catalog.snapshot import HarnessState, Snapshot, catalog_revision
from services.catalog.tool_registry import ToolEntry, registered
from services.catalog.validation import Verdict, judge
from tests.catalog.conftest import Host, Start
from tests.catalog.processes import AVAILABLE, Client, blueprint, message, operator, toy_entry, until
from tests.catalog.toy_adapter import NATIVE, descriptor

ALL_DEFAULTS: dict[str, Any] = {
    "description": "",
    "harness": {"id": "toy", "profile_id": "default", "options": {"max_turns": 20}},
    "prompt": {"system": "", "variables": {}, "context_sources": []},
    "model": {"policy": "MODEL_POLICY_HARNESS_DEFAULT", "alias": ""},
    "tools": {"bindings": [], "approval_policy": "APPROVAL_POLICY_SENSITIVE_ONLY"},
    "thread": {"persistence": "THREAD_PERSISTENCE_DURABLE", "retention_profile": "standard"},
    "memory": {"enabled": False, "write_policy": "MEMORY_WRITE_POLICY_DISABLED", "retention_profile": "standard"},
    "workspace": {"persistence": "WORKSPACE_PERSISTENCE_NONE"},
    "streaming": {"protocol": "STREAM_PROTOCOL_CANONICAL", "replay": "REPLAY_POLICY_REQUIRED"},
    "delegation": {"agents": [], "max_depth": 1, "max_parallel": 1},
    "limits": {"max_run_seconds": 900, "max_tool_calls": 50},
    "skills": [],
}


def snapshot(**changes: Any) -> Snapshot:
    """A catalog with the toy harness, without any process."""
    profiles = [ProfileEntry.model_validate(profile) for profile in toy_entry()["profiles"]]
    adapter = AllowedAdapter("toy", "unix:/nowhere", None, True, {profile.id: profile for profile in profiles})
    state = HarnessState(adapter, admit("toy", json_format.ParseDict(descriptor(**changes), Descriptor())))
    return Snapshot({"toy": state}, catalog_revision([state], ["standard"], TOOLS), ("standard",), TOOLS)


TOOLS, _ = registered(
    [ToolEntry(id="t", provider="unix:/t", description="T.", input_schema={}, sensitive=False)], Path(), {}
)
CATALOG = snapshot()
ABLE = snapshot(
    capabilities={
        key: {"level": NATIVE}
        for key in ("tool.builtin", "memory.semantic", "memory.user_scope", "subagents", "skills", "session.multi_turn")
    }
)


def verdict(document: dict[str, Any] | AgentBlueprint, catalog: Snapshot = CATALOG) -> Verdict:
    return judge(document if isinstance(document, AgentBlueprint) else message(document), catalog)


def found(document: dict[str, Any] | AgentBlueprint, catalog: Snapshot = CATALOG) -> set[tuple[str, str]]:
    return {(issue.path, issue.code) for issue in verdict(document, catalog).issues}


# --- I17 ---

JSON_NUMBERS = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False))
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
OPTIONS = st.recursive(
    st.none() | st.booleans() | JSON_NUMBERS | TEXT,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(TEXT, children, max_size=3),
    max_leaves=8,
)
OPEN = snapshot(options_schema={"type": "object", "additionalProperties": True, "properties": {"n": {"default": 5}}})


def shuffled(value: Any, order: random.Random) -> Any:
    """The same JSON with other key orders and, where it can be, other spellings of its numbers."""
    if isinstance(value, dict):
        items = [(key, shuffled(child, order)) for key, child in value.items()]
        order.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [shuffled(child, order) for child in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


@st.composite
def two_spellings(draw: st.DrawFn) -> tuple[str, str]:
    """One intent as JSON twice: keys in another order, whitespace, defaults left out or written out."""
    names = sorted(draw(st.sets(st.from_regex(r"[a-z]{1,6}", fullmatch=True), max_size=4)))
    document = blueprint(
        name=draw(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20))
    )
    document["harness"] = {"id": "toy", "options": draw(st.dictionaries(TEXT, OPTIONS, max_size=4))}
    document["prompt"] = {
        "system": " ".join(f"{{{{{name}}}}}" for name in names),
        "variables": {name: draw(TEXT) for name in names},
    }
    if draw(st.booleans()):
        document["limits"] = {"max_tool_calls": draw(st.integers(0, 10_000))}
    if draw(st.booleans()):
        document["memory"] = {"enabled": draw(st.booleans())}
    order = random.Random(draw(st.integers()))
    other = shuffled(document, order)
    for section, defaults in ALL_DEFAULTS.items():
        if section in ("harness", "prompt"):
            continue
        if not isinstance(defaults, dict):
            other.setdefault(section, defaults)
            continue
        other[section] = {key: value for key, value in defaults.items() if order.random() < 0.7} | other.get(
            section, {}
        )
    if order.random() < 0.5:
        other["harness"]["profile_id"] = "default"
    if "n" not in other["harness"]["options"] and order.random() < 0.5:
        other["harness"]["options"]["n"] = 5.0
    return json.dumps(document), json.dumps(other, indent=order.choice([None, 4]))


@given(two_spellings())
def test_i17_one_intent_has_one_fingerprint_however_it_is_written(spellings: tuple[str, str]) -> None:
    one, other = (judge(json_format.Parse(text, AgentBlueprint()), OPEN) for text in spellings)
    assert one.normalized == other.normalized
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint


@given(two_spellings())
def test_i17_normalising_again_changes_nothing(spellings: tuple[str, str]) -> None:
    once = judge(json_format.Parse(spellings[0], AgentBlueprint()), OPEN)
    assert once.normalized is not None
    twice = judge(once.normalized, OPEN)
    assert twice.normalized == once.normalized
    assert twice.fingerprint == once.fingerprint


def test_i17_all_defaults_written_out_are_the_same_blueprint() -> None:
    short, long = verdict(blueprint()), verdict(blueprint(**ALL_DEFAULTS))
    assert short.valid
    assert short.fingerprint == long.fingerprint
    assert short.fingerprint.startswith("sha256:")
    assert short.normalized == long.normalized
    assert short.normalized is not None
    assert short.normalized.limits.max_run_seconds == 900
    assert short.normalized.harness.profile_id == "default"


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Other"},
        {"description": "x"},
        {"harness": {"id": "toy", "options": {"max_turns": 21}}},
        {"harness": {"id": "toy", "profile_id": "sandboxed"}},
        {"prompt": {"system": "x"}},
        {"limits": {"max_tool_calls": 0}},
        {"limits": {"max_run_seconds": 901}},
        {"thread": {"persistence": "THREAD_PERSISTENCE_EPHEMERAL"}},
        {"streaming": {"protocol": "STREAM_PROTOCOL_AGUI"}},
    ],
)
def test_i17_another_intent_has_another_fingerprint(change: dict[str, Any]) -> None:
    assert verdict(blueprint(**change)).fingerprint not in ("", verdict(blueprint()).fingerprint)


def test_i17_numbers_count_by_value() -> None:
    one = message(blueprint())
    one.harness.options["max_turns"] = 1
    other = message(blueprint())
    other.harness.options.fields["max_turns"].number_value = 1.0
    assert verdict(one).fingerprint == verdict(other).fingerprint


# --- issues ---


def test_all_problems_are_told_at_once_by_field() -> None:
    document = blueprint(
        name="",
        harness={"id": "toy", "profile_id": "nothing"},
        limits={"max_run_seconds": 0},
        delegation={"max_depth": 9},
        tools={"bindings": [{"tool_id": "ok"}, {"tool_id": " "}]},
    )
    issues = found(document)
    assert {path for path, _ in issues} == {
        "name",
        "limits.max_run_seconds",
        "delegation.max_depth",
        "tools.bindings[1].tool_id",
        "harness.profile_id",
    }
    assert ("name", "string.min_len") in issues
    assert ("harness.profile_id", "profile_unknown") in issues
    assert verdict(document).fingerprint == ""
    assert verdict(document).normalized is None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"harness": {"id": "nobody"}}, {("harness.id", "harness_unknown")}),
        ({"harness": {"id": "toy", "profile_id": "nothing"}}, {("harness.profile_id", "profile_unknown")}),
        (
            {"harness": {"id": "toy", "profile_id": "inside"}},
            {("harness.profile_id", "harness_capability_unsupported")},
        ),
        (
            {"harness": {"id": "toy", "options": {"permission_mode": "x", "max_turns": "5"}}},
            {("harness.options.permission_mode", "unknown_option"), ("harness.options.max_turns", "wrong_type")},
        ),
        (
            {"prompt": {"system": "Hi {{who}}, {{ spaced }}", "variables": {"other": "x"}}},
            {
                ("prompt.system", "template_variable_missing"),
                ('prompt.variables["other"]', "template_variable_unused"),
            },
        ),
        ({"prompt": {"context_sources": ["kb"]}}, {("prompt.context_sources[0]", "context_source_unknown")}),
        ({"thread": {"retention_profile": "eternal"}}, {("thread.retention_profile", "retention_profile_unknown")}),
        ({"memory": {"retention_profile": "eternal"}}, {("memory.retention_profile", "retention_profile_unknown")}),
        ({"limits": {"max_run_seconds": 1201}}, {("limits.max_run_seconds", "out_of_range")}),
        ({"model": {"policy": "MODEL_POLICY_ALIAS", "alias": "slow"}}, {("model.alias", "model_alias_unknown")}),
        ({"model": {"policy": "MODEL_POLICY_ALIAS"}}, {("model.alias", "model_alias_unknown")}),
        ({"model": {"alias": "fast"}}, {("model.alias", "not_allowed")}),
        ({"tools": {"bindings": [{"tool_id": "t"}]}}, {("tools.bindings", "harness_capability_unsupported")}),
        (
            {"memory": {"enabled": True}},
            {
                ("memory.enabled", "not_available"),
                ("memory.kinds[0]", "harness_capability_unsupported"),
                ("memory.read_scopes[0]", "harness_capability_unsupported"),
            },
        ),
        (
            {"delegation": {"agents": ["other"]}},
            {("delegation.agents", "harness_capability_unsupported"), ("delegation.agents", "not_available")},
        ),
        ({"skills": ["s"]}, {("skills", "harness_capability_unsupported")}),
        (
            {"workspace": {"persistence": "WORKSPACE_PERSISTENCE_RUN"}},
            {("workspace.persistence", "harness_capability_unsupported")},
        ),
    ],
)
def test_what_the_harness_or_profile_cannot_serve_is_an_issue_at_its_field(
    change: dict[str, Any], expected: set[tuple[str, str]]
) -> None:
    assert found(blueprint(**change)) == expected
    assert all(issue.message for issue in verdict(blueprint(**change)).issues)


def test_what_the_harness_can_serve_is_valid() -> None:
    document = blueprint(
        tools={"bindings": [{"tool_id": "t"}]},
        skills=["s"],
        model={"policy": "MODEL_POLICY_ALIAS", "alias": "fast"},
        prompt={"system": "Hi {{who}}", "variables": {"who": "you"}},
    )
    assert found(document, ABLE) == set()


def test_what_the_mesh_itself_has_no_service_for_is_valid_with_no_harness() -> None:
    document = blueprint(memory={"enabled": True}, delegation={"agents": ["other"]})
    assert found(document, ABLE) == {("memory.enabled", "not_available"), ("delegation.agents", "not_available")}


def test_more_rules_between_fields() -> None:
    document = blueprint(
        tools={
            "approval_policy": "APPROVAL_POLICY_ALWAYS",
            "bindings": [{"tool_id": "t"}, {"tool_id": "t", "approval_policy": "APPROVAL_POLICY_NEVER"}],
        },
        memory={
            "enabled": True,
            "write_scope": "MEMORY_SCOPE_ORGANIZATION",
            "write_policy": "MEMORY_WRITE_POLICY_AUTOMATIC",
        },
    )
    assert found(document, ABLE) == {
        ("tools.approval_policy", "harness_capability_unsupported"),
        ("tools.bindings[1].tool_id", "duplicate"),
        ("memory.enabled", "not_available"),
        ("memory.write_scope", "not_allowed"),
        ("memory.write_scope", "harness_capability_unsupported"),
    }


def test_a_durable_thread_needs_a_harness_that_keeps_one() -> None:
    forgetful = snapshot(capabilities={})
    assert found(blueprint(), forgetful) == {("thread.persistence", "harness_capability_unsupported")}
    assert found(blueprint(thread={"persistence": "THREAD_PERSISTENCE_EPHEMERAL"}), forgetful) == set()


def test_an_open_schema_still_admits_no_secret_or_command() -> None:
    document = blueprint(harness={"id": "toy", "options": {"api_key": "x", "command": "y", "fine": 1}})
    assert found(document, OPEN) == {
        ("harness.options.api_key", "forbidden_option"),
        ("harness.options.command", "forbidden_option"),
    }


# --- bad input ---


def deep(levels: int) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    at = struct
    for _ in range(levels):
        at = at.fields["x"].struct_value
    at.fields["end"].bool_value = True
    return struct


def with_options(struct: struct_pb2.Struct) -> AgentBlueprint:
    draft = message(blueprint())
    draft.harness.options.CopyFrom(struct)
    return draft


def number(value: float) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.fields["max_turns"].number_value = value
    return struct


def unset() -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.fields["max_turns"].SetInParent()
    return struct


def many(count: int) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct["tag"] = list(range(count))
    return struct


@pytest.mark.parametrize(
    ("draft", "path", "code"),
    [
        (with_options(number(float("nan"))), "harness.options.max_turns", "invalid_value"),
        (with_options(number(float("-inf"))), "harness.options.max_turns", "invalid_value"),
        (with_options(number(1e308)), "harness.options.max_turns", "out_of_range"),
        (with_options(unset()), "harness.options.max_turns", "invalid_value"),
        (with_options(deep(40)), None, "invalid_value"),
        (with_options(many(5_000)), None, "invalid_value"),
        (message(blueprint(harness={"id": "toy", "options": {"tone": "x" * 70_000}})), "harness.options", "too_large"),
        (message(blueprint(prompt={"variables": {f"v{n}": "x" * 2_000 for n in range(200)}})), "", "too_large"),
        (message(blueprint(description="x" * 2_000_000)), "", "too_large"),
        (message(blueprint(name="a\0b")), "name", "invalid_character"),
        (message(blueprint(prompt={"system": "a\0b"})), "prompt.system", "invalid_character"),
        (message(blueprint(harness={"id": "toy", "options": {"tag": "a\0b"}})), "harness.options", "invalid_character"),
        (message(blueprint(agent_id="../etc/passwd")), "id", "string.pattern"),
        (message(blueprint(agent_id="a\n")), "id", "string.pattern"),
        (message(blueprint(harness={"id": "Robert'); DROP TABLE"})), "harness.id", "string.pattern"),
        (message(blueprint(harness={"id": "toy", "profile_id": "x" * 300})), "harness.profile_id", "string.pattern"),
        (AgentBlueprint(), "harness", "required"),
    ],
    ids=range(17),
)
def test_bad_input_is_an_issue_and_no_failure(draft: AgentBlueprint, path: str | None, code: str) -> None:
    issues = found(draft)
    assert code in {code for _, code in issues}
    assert path is None or (path, code) in issues


def test_an_undefined_enum_value_is_an_issue() -> None:
    draft = message(blueprint())
    draft.thread.persistence = 99  # pyright: ignore[reportAttributeAccessIssue] - what another release might send
    assert ("thread.persistence", "enum.defined_only") in found(draft)


def test_issues_are_bounded_and_say_so() -> None:
    document = blueprint(prompt={"variables": {f"v{number}": "" for number in range(200)}})
    issues = verdict(document).issues
    assert len(issues) == 100
    assert issues[-1].code == "too_many_issues"
    assert "101" in issues[-1].message


# --- over gRPC, with the adapter ---


async def test_the_adapter_is_asked_and_what_it_finds_is_an_issue(host: Host, start: Start) -> None:
    adapter = await host(
        evaluate={
            "issues": [
                {"path": "harness.options.tone", "code": "tone_taken", "message": "Choose another tone."},
                {"path": "x", "code": "BAD CODE", "message": "see https://canary.test"},
            ],
            "normalized_options": {"tone": "dry"},
            "capabilities": {
                "stream.text": {"level": "CAPABILITY_LEVEL_UNSUPPORTED", "explanation": "Not for you."},
                "tool.mcp": {"level": NATIVE},
            },
        }
    )
    client = await start()
    await until(client.harness, lambda harness: harness.availability == AVAILABLE)
    report = await client.validate(blueprint())
    assert not report.valid
    assert [(issue.path, issue.code) for issue in report.issues] == [
        ("harness.options.tone", "tone_taken"),
        ("x", "refused_by_harness"),
    ]
    assert "canary" not in str(report)
    assert report.capabilities["stream.text"].level == 3
    assert report.capabilities["tool.mcp"].level == 4  # it may take back a claim, not add one
    (asked,) = adapter.evaluated
    assert asked.blueprint == report.normalized_blueprint
    assert asked.placement == 1
    assert asked.profile_settings["region"] == "canary-setting-77"
    # I17: whether the adapter is up, and what it answers, changes no fingerprint.
    assert report.config_fingerprint == verdict(blueprint()).fingerprint
    adapter.says["evaluate"] = {"capabilities": {"session.multi_turn": {"level": "CAPABILITY_LEVEL_UNAVAILABLE"}}}
    assert await client.issues(blueprint()) == {("thread.persistence", "harness_capability_unsupported")}


async def test_an_adapter_that_cannot_evaluate_leaves_the_verdict_to_the_descriptor(host: Host, start: Start) -> None:
    adapter = await host(hang=["Evaluate"])
    client = await start(adapter_timeout_seconds=0.5)
    await until(client.harness, lambda harness: harness.availability == AVAILABLE)
    assert (await client.validate(blueprint())).valid
    adapter.says["hang"] = []
    adapter.says["fail"] = {"Evaluate": ["INTERNAL", "canary"]}
    assert (await client.validate(blueprint())).valid
    adapter.released.set()


async def test_a_stale_catalog_is_an_issue_and_an_empty_draft_none_of_ours(client: Client) -> None:
    current = (await client.list()).catalog_revision
    assert (await client.validate(blueprint(), current)).valid
    report = await client.validate(blueprint(), "cat_old")
    assert [(issue.path, issue.code) for issue in report.issues] == [("", "harness_validation_stale")]
    assert report.catalog_revision == current
    assert len(report.capabilities) == 38
    assert not (await client.validate(AgentBlueprint())).valid


async def test_the_catalog_revision_follows_profiles_and_settings_only(host: Host, start: Start) -> None:
    await host()

    async def revision(name: str, config: dict[str, Any]) -> str:
        client = await start(config, name)
        await until(client.harness, lambda harness: harness.availability == AVAILABLE)
        seen = (await client.list()).catalog_revision
        await client.catalog.stop()
        return seen

    first = await revision("a", operator())
    assert await revision("b", operator()) == first
    entry = toy_entry()
    entry["profiles"][0]["settings"]["region"] = "elsewhere"
    changed = await revision("c", operator(entry))
    assert changed != first
    assert await revision("d", operator(retention_profiles=["standard", "short"])) not in (first, changed)
