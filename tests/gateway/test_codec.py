"""The JSON codec against google.protobuf.json_format, but for the differences it documents, and what it refuses."""

import json
import math
from typing import Any

import pytest
from google.protobuf import json_format, message_factory, struct_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from harness.catalog.v1 import agent_pb2, agent_service_pb2, harness_service_pb2
from harness.common.v1 import blueprint_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.run.v1 import run_service_pb2
from services.common.errors import HarnessError
from services.gateway.codec import dump, message_decoder, message_encoder, parse_json
from services.gateway.codec.decode import BAD, Issues
from services.gateway.codec.names import short_names
from services.gateway.encodings.canonical import frame
from services.gateway.event_view import WIRE_NAMES, event_data

_F = FieldDescriptor
_RANGES = {
    _F.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    _F.CPPTYPE_UINT32: (0, 2**32 - 1),
    _F.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    _F.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
_NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53).map(float)
_JSON = st.recursive(
    st.none() | st.booleans() | _TEXT | _NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)


def _scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.cpp_type in _RANGES:
        return st.integers(*_RANGES[field.cpp_type])
    return {
        _F.TYPE_STRING: _TEXT,
        _F.TYPE_BOOL: st.booleans(),
        _F.TYPE_DOUBLE: _NUMBERS,
        _F.TYPE_BYTES: st.binary(max_size=8),
    }[field.type]


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 0) -> Any:
    """Any message of the type, filled at random, in depth too."""
    message: Any = message_factory.GetMessageClass(descriptor)()
    name = descriptor.full_name
    if name == "google.protobuf.Struct":
        message.update(draw(st.dictionaries(_TEXT, _JSON, max_size=3)))
        return message
    if name == "google.protobuf.Value":
        value: Any = draw(_JSON)
        json_format.ParseDict(value, message)
        return message
    if name == "google.protobuf.Timestamp":
        message.seconds = draw(st.integers(-62_135_596_800, 253_402_300_799))
        message.nanos = draw(st.sampled_from([0, 5_000_000, 5_000, 5]))
        return message
    for field in descriptor.fields:
        if depth > 4 or not draw(st.booleans()):
            continue
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            target = getattr(message, field.name)
            for key in draw(st.lists(_TEXT, max_size=3)):
                value = entry.fields_by_name["value"]
                if value.message_type is not None:
                    target[key].CopyFrom(draw(messages(value.message_type, depth + 1)))
                else:
                    target[key] = draw(_scalars(value))
        elif field.is_repeated:
            item = messages(entry, depth + 1) if entry is not None else _scalars(field)
            getattr(message, field.name).extend(draw(st.lists(item, max_size=2)))
        elif entry is not None:
            getattr(message, field.name).CopyFrom(draw(messages(entry, depth + 1)))
            getattr(message, field.name).SetInParent()
        else:
            setattr(message, field.name, draw(_scalars(field)))
    return message


def reference(message: Any) -> Any:
    """json_format's view of a message, with the documented differences applied by descriptor."""
    plain = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return _normalised(plain, message.DESCRIPTOR)


def _normalised(value: Any, descriptor: Descriptor) -> Any:
    if descriptor.full_name.startswith("google.protobuf."):
        return value
    result = {}
    for field in descriptor.fields:
        if field.name not in value:
            result[field.name] = None
            continue
        entry = field.message_type
        given_value = value[field.name]
        if entry is not None and entry.GetOptions().map_entry:
            inner = entry.fields_by_name["value"]
            result[field.name] = {key: _single(item, inner) for key, item in given_value.items()}
        elif field.is_repeated:
            result[field.name] = [_single(item, field) for item in given_value]
        else:
            result[field.name] = _single(given_value, field)
    return result


def _single(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return _normalised(value, field.message_type)
    if field.enum_type is not None:
        return short_names(field.enum_type)[field.enum_type.values_by_name[value].number]
    if field.cpp_type in (_F.CPPTYPE_INT64, _F.CPPTYPE_UINT64):
        return int(value)
    return value


TYPES = [
    agent_service_pb2.SaveAgentRequest.DESCRIPTOR,
    agent_pb2.ValidationReport.DESCRIPTOR,
    harness_service_pb2.ListHarnessesResponse.DESCRIPTOR,
    harness_service_pb2.GetHarnessHealthResponse.DESCRIPTOR,
    run_service_pb2.StartRunRequest.DESCRIPTOR,
    run_service_pb2.ListRunsResponse.DESCRIPTOR,
    run_service_pb2.InvokeResponse.DESCRIPTOR,
    payload_pb2.EventPayload.DESCRIPTOR,
]


@given(st.data())
def test_encoding_equals_json_format(data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(TYPES).flatmap(messages))
    encoded = dump(message_encoder(message.DESCRIPTOR)(message))
    assert json.loads(encoded) == reference(message)


@given(st.data())
def test_decoding_gives_the_encoded_message_back(data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(TYPES).flatmap(messages))
    text = dump(message_encoder(message.DESCRIPTOR)(message))
    issues: Issues = []
    again = message_decoder(message.DESCRIPTOR)(parse_json(text), "", issues)
    # An enum's zero value and an absent one are the same null; inside lists there is no absence, and null is refused.
    if not issues:
        assert reference(again) == reference(message)
    else:
        assert all(issue.code == "wrong_type" and "[" in issue.path for issue in issues)


@given(st.data())
def test_i8_encoding_is_the_same_bytes_for_an_equal_message(data: st.DataObject) -> None:
    message = data.draw(messages(harness_service_pb2.ListHarnessesResponse.DESCRIPTOR))
    other = type(message).FromString(message.SerializeToString(deterministic=True))
    # Maps filled in another order must not show.
    for harness in other.harnesses:
        entries = sorted(harness.capabilities.items(), reverse=True)
        copies = [(key, type(value).FromString(value.SerializeToString())) for key, value in entries]
        harness.capabilities.clear()
        for key, value in copies:
            harness.capabilities[key].CopyFrom(value)
    encode = message_encoder(message.DESCRIPTOR)
    assert dump(encode(message)) == dump(encode(other))


@given(_JSON)
def test_values_go_through_unchanged(value: Any) -> None:
    issues: Issues = []
    message = message_decoder(struct_pb2.Value.DESCRIPTOR)(value, "", issues)
    assert not issues
    assert message_encoder(struct_pb2.Value.DESCRIPTOR)(message) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, b"1"),
        (-0.0, b"0"),
        (2.0**53, b"9007199254740992"),
        (1e300, b"1e+300"),
        (0.1, b"0.1"),
        (math.nan, b"null"),
        (math.inf, b"null"),
    ],
)
def test_doubles_are_plain_numbers(value: float, text: bytes) -> None:
    assert dump(message_encoder(struct_pb2.Value.DESCRIPTOR)(struct_pb2.Value(number_value=value))) == text


def decode(descriptor: Descriptor, text: str | bytes) -> tuple[Any, dict[str, str]]:
    issues: Issues = []
    message = message_decoder(descriptor)(parse_json(text if isinstance(text, bytes) else text.encode()), "", issues)
    return message, {issue.path: issue.code for issue in issues}


def test_all_problems_come_at_once_with_their_paths() -> None:
    _, issues = decode(
        agent_service_pb2.SaveAgentRequest.DESCRIPTOR,
        """{"blueprint": {"id": 5, "nope": 1, "harness": [], "model": {"policy": "MODEL_POLICY_ALIAS"}, "prompt": {"variables": {"a": 1, "b\\u0000": "x"}},
        "tools": {"bindings": [{"tool_id": "t"}, {"tool_id": null, "approval_policy": "sometimes"}, 7]}, "limits": {"max_run_seconds": 1.5}},
        "expected_revision": -1, "catalog_revision": "x", "catalog_revision": "y", "config_fingerprint": true}""",
    )
    assert issues == {
        "blueprint.id": "wrong_type",
        "blueprint.nope": "unknown_field",
        "blueprint.harness": "wrong_type",
        "blueprint.model.policy": "unknown_value",
        'blueprint.prompt.variables["a"]': "wrong_type",
        'blueprint.prompt.variables["b\0"]': "invalid_text",
        "blueprint.tools.bindings[1].approval_policy": "unknown_value",
        "blueprint.tools.bindings[2]": "wrong_type",
        "blueprint.limits.max_run_seconds": "wrong_type",
        "expected_revision": "out_of_range",
        "catalog_revision": "duplicate_key",
        "config_fingerprint": "wrong_type",
    }


@pytest.mark.parametrize(
    ("text", "path", "code"),
    [
        ('{"client_context": {"a": NaN}}', "client_context.a", "not_finite"),
        ('{"client_context": {"a": -Infinity}}', "client_context.a", "not_finite"),
        ('{"client_context": {"a": 1e999}}', "client_context.a", "out_of_range"),
        ('{"client_context": {"a": 9007199254740993}}', "client_context.a", "out_of_range"),
        ('{"client_context": {"a": ' + "9" * 5000 + "}}", "client_context.a", "out_of_range"),
        ('{"client_context": {"a": {"b": 1, "b": 2}}}', "client_context.a.b", "duplicate_key"),
        ('{"client_context": {"a": "\\ud800"}}', "client_context.a", "invalid_text"),
        ('{"client_context": {"a": "\\u0000"}}', "client_context.a", "invalid_text"),
        ('{"message": "\\udc00x"}', "message", "invalid_text"),
        ('{"files": ["a", 1]}', "files[1]", "wrong_type"),
        ('{"files": "a"}', "files", "wrong_type"),
        ('{"on_conflict": "unspecified"}', "on_conflict", "unknown_value"),
        ('{"agentId": "x"}', "agentId", "unknown_field"),
        ("[]", "", "wrong_type"),
    ],
)
def test_refused(text: str, path: str, code: str) -> None:
    _, issues = decode(run_service_pb2.StartRunRequest.DESCRIPTOR, text)
    assert issues == {path: code}


def test_null_is_absence() -> None:
    message, issues = decode(
        run_service_pb2.StartRunRequest.DESCRIPTOR, '{"message": null, "client_context": null, "files": null}'
    )
    assert not issues
    assert message == run_service_pb2.StartRunRequest()


def test_one_member_of_a_oneof() -> None:
    text = '{"content_delta": {"message_id": "a"}, "reasoning_delta": {}}'
    _, issues = decode(payload_pb2.EventPayload.DESCRIPTOR, text)
    assert issues == {"reasoning_delta": "conflicting_fields"}


def test_depth_is_bounded_with_the_path_of_the_level_that_is_too_deep() -> None:
    text = '{"client_context": {"a": ' + "[" * 40 + "]" * 40 + "}}"
    _, issues = decode(run_service_pb2.StartRunRequest.DESCRIPTOR, text)
    assert list(issues.values()) == ["too_deep"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "malformed_json"),
        (b"{", "malformed_json"),
        (b'{"a": "b\x01"}', "malformed_json"),
        (b'{"a": "\xff"}', "invalid_utf8"),
        (b'{"a": "\xed\xa0\x80"}', "invalid_utf8"),
        (b"{'a': 1}", "malformed_json"),
        (b"[" * 100_000, "too_deep"),
        (b'{"a":' * 100_000, "too_deep"),
    ],
)
def test_what_is_no_json_is_refused(body: bytes, code: str) -> None:
    with pytest.raises(HarnessError) as caught:
        parse_json(body)
    assert [issue.code for issue in caught.value.details] == [code]


def test_message_decoder_says_bad_only_for_what_is_no_object() -> None:
    assert decode(blueprint_pb2.AgentBlueprint.DESCRIPTOR, "1")[0] is BAD
    assert decode(blueprint_pb2.AgentBlueprint.DESCRIPTOR, '{"id": 1}')[0] is not BAD


# --- events ---


@given(messages(event_pb2.Event.DESCRIPTOR))
def test_i8_a_frame_is_a_pure_function_of_the_event(event: event_pb2.Event) -> None:
    again = event_pb2.Event.FromString(event.SerializeToString(deterministic=True))
    encoded = frame(event)
    assert encoded == frame(again)
    identity, name, data, *rest = encoded.decode().split("\n")
    assert rest == ["", ""]
    assert identity == f"id: {event.sequence}"
    # The fast path of deltas and the general way say the same.
    assert (name, json.loads(data.removeprefix("data: "))) == (f"event: {event_data(event)[0]}", event_data(event)[1])


def _event(namespace: list[str], **payload: Any) -> event_pb2.Event:
    return event_pb2.Event(run_id="r", sequence=7, namespace=namespace, payload=payload_pb2.EventPayload(**payload))


def test_the_fast_path_writes_what_the_general_way_writes() -> None:
    for kind, message in (("content_delta", payload_pb2.ContentDelta), ("reasoning_delta", payload_pb2.ReasoningDelta)):
        event = _event([], **{kind: message(message_id="m", text='a"b\n€')})
        name, data = event_data(event)
        assert frame(event) == b"id: 7\nevent: %b\ndata: %b\n\n" % (name.encode(), dump(data))


def test_events_of_subagents() -> None:
    delta = payload_pb2.ContentDelta(message_id="m", text="x")
    assert event_data(_event(["a", "b"], content_delta=delta)) == (
        "subagent.event",
        {"namespace": ["a", "b"], "event_type": "content.delta", "data": {"message_id": "m", "text": "x"}},
    )
    started = payload_pb2.SubagentStarted(agent_id="c", parent_tool_call_id="t")
    assert event_data(_event([], subagent_started=started)) == (
        "subagent.started",
        {"agent_id": "c", "parent_tool_call_id": "t"},
    )
    assert event_data(_event(["a"], subagent_started=started)) == (
        "subagent.started",
        {"agent_id": "c", "parent_tool_call_id": "t", "namespace": ["a"]},
    )


def test_absent_is_left_out_and_false_is_not() -> None:
    usage = payload_pb2.UsageUpdated(input_tokens=0)
    assert event_data(_event([], usage_updated=usage)) == ("usage.updated", {"input_tokens": 0, "final": False})
    completed = payload_pb2.ToolCompleted(tool_call_id="t", outcome=payload_pb2.TOOL_OUTCOME_SUCCESS)
    assert event_data(_event([], tool_completed=completed))[1] == {"tool_call_id": "t", "outcome": "success"}
    completed.result.null_value = struct_pb2.NULL_VALUE
    assert event_data(_event([], tool_completed=completed))[1] == {
        "tool_call_id": "t",
        "outcome": "success",
        "result": None,
    }


def test_every_kind_has_its_wire_name() -> None:
    assert WIRE_NAMES["tool_arguments_delta"] == "tool.arguments.delta"
    assert set(WIRE_NAMES.values()) == {
        "run.started", "session.updated", "content.delta", "reasoning.delta", "tool.started", "tool.arguments.delta", "tool.completed",
        "interrupt.requested", "subagent.started", "subagent.completed", "usage.updated", "warning", "provider.metadata", "run.completed",
        "run.interrupted", "run.cancelled", "run.failed",
    }  # fmt: skip
