"""Which descriptors are admitted; what must not be shown never is (I18)."""

import time
from typing import Any

import pytest
from google.protobuf import json_format

from harness.adapter.v1.descriptor_pb2 import Descriptor
from services.catalog.descriptor_policy import DescriptorRefused, KnownDescriptor, admit
from services.catalog.disclosure import key_problem, text_problem
from tests.catalog.toy_adapter import OPTIONS_SCHEMA, descriptor

CANARIES = {
    "credential": "AKIAABCDEFGHIJKLMNOP",
    "key": "sk-canary0123456789abcdef",
    "private key": "-----BEGIN PRIVATE KEY-----",
    "assignment": "set password = canary",
    "bearer": "send Bearer canary012345",
    "arn": "arn:aws:iam::123456789012:role/canary",
    "endpoint": "https://canary.internal.example/v1",
    "socket": "unix:/run/canary.sock",
    "ip": "at 10.1.2.3 now",
    "path": "see /var/lib/canary/state",
    "image": "registry.example.com/team/canary:1.2",
    "html": "<img src=x>",
    "script": "javascript:alert(1)",
    "control": "a\x07b",
}


def said(**changes: Any) -> KnownDescriptor:
    return admit("toy", json_format.ParseDict(descriptor(**changes), Descriptor()))


def options(**properties: Any) -> dict[str, Any]:
    return {"options_schema": {"type": "object", "properties": properties}}


def test_a_good_descriptor_is_kept_without_its_own_evidence() -> None:
    known = said()
    assert known.contract_version == 1
    assert known.descriptor.display_name == "Toy harness"
    # I21: what the adapter says of its evidence and replay safety is not believed.
    assert known.descriptor.evidence_id == ""
    assert not known.descriptor.replay_safe
    assert known.capabilities["stream.text"].level == 1
    assert known.capabilities["stream.text"].evidence_id == ""


@pytest.mark.parametrize("canary", CANARIES.values(), ids=CANARIES.keys())
@pytest.mark.parametrize(
    "place",
    [
        lambda text: {"description": text},
        lambda text: {"sdk_name": text},
        lambda text: {"presentation": {"help": {"tone": [text]}}},
        lambda text: {"presentation": {text: 1}},
        lambda text: {"capabilities": {"stream.text": {"level": 1, "explanation": text}}},
        lambda text: {"capabilities": {"stream.text": {"level": 1, "constraints": {"deep": [{"x": text}]}}}},
        lambda text: options(tone={"type": "string", "description": text}),
        lambda text: options(tone={"enum": ["warm", text]}),
        lambda text: options(tone={"default": {"x": text}}),
        lambda text: options(**{text: {"type": "string"}}),
        lambda text: options(tone={"type": "string", "format": text}),
        lambda text: {"options_schema": {"type": "object", "dependentRequired": {text: ["x"]}}},
        lambda text: {"options_schema": {"type": "object", "dependentRequired": {"x": [text]}}},
    ],
    ids=["description", "sdk", "presentation", "hint key", "explanation", "constraint", "schema text", "enum", "default", "option", "format",
         "dependent key", "dependent name"],
)  # fmt: skip
def test_i18_a_descriptor_with_a_canary_is_refused_and_the_reason_does_not_quote_it(place: Any, canary: str) -> None:
    with pytest.raises(DescriptorRefused) as caught:
        said(**place(canary))
    assert canary not in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("canary", [CANARIES["credential"], "sk-canary0123456789abcdef", "-----BEGIN PRIVATE KEY-----"])
def test_i18_a_pattern_holds_no_credential(canary: str) -> None:
    with pytest.raises(DescriptorRefused) as caught:
        said(**options(tone={"type": "string", "pattern": f"^{canary}"}))
    assert canary not in str(caught.value)
    assert said(**options(tone={"type": "string", "pattern": "^/api/v[0-9]"}))


@pytest.mark.parametrize(
    "key",
    ["api_key", "apiKey", "clientSecret", "password", "github_token", "credentials", "html", "startup_script", "command", "shell", "env",
     "env_vars", "ENV", "docker_image", "image", "role_arn", "endpoint", "base_url", "working_path"],
)  # fmt: skip
def test_i18_keys_that_name_secrets_or_executable_content_are_refused(key: str) -> None:
    assert key_problem(key) is not None
    for changes in (options(**{key: {"type": "string"}}), {"presentation": {"x": {key: "y"}}}):
        with pytest.raises(DescriptorRefused):
            said(**changes)


@pytest.mark.parametrize(
    "key", ["max_tokens", "max_turns", "image_detail", "allow_images", "permission_mode", "tokenizer", "description"]
)
def test_ordinary_keys_are_admitted(key: str) -> None:
    assert key_problem(key) is None


@pytest.mark.parametrize(
    "text", ["Reads and/or writes.", "Up to 5 files (1/2/3).", "Version 1.2.3", "a < b", "Costs tokens: many"]
)
def test_ordinary_texts_are_admitted(text: str) -> None:
    assert text_problem(text) is None or text.startswith("Costs")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"harness_id": "evil"}, "that of another harness"),
        ({"contract_versions": [7, 9]}, "speaks contract versions [7, 9]"),
        ({"options_schema": {"$ref": "https://evil.test/schema"}}, "root must be of type object"),
        (options(x={"$ref": "https://evil.test/schema"}), "reference must be"),
        (options(x={"$ref": "file:///etc/passwd"}), "reference must be"),
        ({"options_schema": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "properties": {"x": {"$ref": "#/$defs/a"}}}}, "refers to itself"),
        ({"options_schema": {"$id": "https://evil.test", "type": "object"}}, "no keyword"),
        ({"options_schema": {"$dynamicRef": "#x"}}, "no keyword"),
        ({"options_schema": {"type": "array"}}, "root must be of type object"),
        ({"options_schema": {"$schema": "http://json-schema.org/draft-07/schema#"}}, "draft 2020-12"),
        (options(x={"type": "strnig"}), "no valid JSON Schema"),
        (options(x={"pattern": "^(a+)+$"}), "must not repeat a group"),
        (options(x={"pattern": "(?=a)"}), "look-around"),
        (options(x={"pattern": "(a)\\1"}), "references back"),
        (options(x={"pattern": "a*b*c*"}), "two repetitions at most"),
        (options(x={"pattern": "^" + "a?" * 30 + "a" * 30}), "of ? and | at most"),
        (options(x={"pattern": "["}), "no regular expression"),
        (options(x={"description": "y" * 3000}), "more than 2000 characters"),
        ({"presentation": {"x": ["y" * 1900] * 40}}, "more than 65536 bytes"),
        ({"description": "z" * 300_000}, "more than 262144 bytes"),
    ],
)  # fmt: skip
def test_what_breaks_a_rule_is_refused_with_the_rule(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(DescriptorRefused) as caught:
        said(**changes)
    assert expected in str(caught.value)


def test_a_number_that_is_not_finite_is_refused() -> None:
    document = json_format.ParseDict(descriptor(), Descriptor())
    document.presentation.fields["x"].number_value = float("nan")
    with pytest.raises(DescriptorRefused, match="not a finite number"):
        admit("toy", document)


def test_a_schema_is_bounded_in_depth_and_in_size_after_references() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(9):
        deep = {"type": "object", "properties": {"x": deep}}
    with pytest.raises(DescriptorRefused, match="nested more than 8 deep"):
        said(options_schema=deep)
    wide: dict[str, Any] = {"$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 20} for n in range(3)}}
    wide["$defs"]["d3"] = {"type": "string"}
    wide["properties"] = {"x": {"$ref": "#/$defs/d0"}}
    with pytest.raises(DescriptorRefused, match=r"more than 2048 schemas|nested"):
        said(options_schema=wide)


def test_options_are_checked_with_unknown_keys_refused_and_defaults_written_out() -> None:
    schema = said(options_schema=OPTIONS_SCHEMA).options
    assert schema.with_defaults({"nested": {}}) == {"max_turns": 20, "nested": {"depth": 2}}
    found = schema.issues(
        {"max_turns": 0, "tone": "loud", "other": 1, "nested": {"depth": "2", "more": 1}, "tag": "A" * 300}, "o"
    )
    assert {(issue.path, issue.code) for issue in found} == {
        ("o.max_turns", "out_of_range"),
        ("o.tone", "not_allowed"),
        ("o.other", "unknown_option"),
        ("o.nested.depth", "wrong_type"),
        ("o.nested.more", "unknown_option"),
        ("o.tag", "wrong_form"),
    }
    assert said(options_schema={}).options.issues({"x": 1}, "o")[0].code == "unknown_option"


def test_a_hostile_text_takes_no_time() -> None:
    started = time.process_time()
    for text in ("<" * 300_000, "a." * 150_000, "eyJ" * 100_000, "/a" * 150_000):
        assert text_problem(text) is not None
    assert time.process_time() - started < 5
