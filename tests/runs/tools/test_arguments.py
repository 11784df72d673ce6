"""Arguments: never wider than the tool's schema, never beyond their bounds (I25, I35)."""

from __future__ import annotations

import math
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import json_format, struct_pb2

from harness.tool.v1 import tool_broker_service_pb2, tool_broker_service_pb2_grpc
from services.common.errors import HarnessError, Reason
from services.common.status import from_rpc_error
from services.runs.tools import arguments
from tests.runs.tools.stand import PATIENCE, Stand, fence_of

CLOSED = {"type": "object", "properties": {"n": {"type": "number", "minimum": 1}}, "additionalProperties": False}


def struct(document: dict[str, Any]) -> struct_pb2.Struct:
    return json_format.ParseDict(document, struct_pb2.Struct())


def codes(schema: dict[str, Any], document: dict[str, Any]) -> set[tuple[str, str]]:
    return {(issue.path, issue.code) for issue in arguments.issues_of(schema, struct(document))}


@pytest.mark.parametrize(
    ("schema", "given", "expected"),
    [
        (CLOSED, {"n": 1}, set()),
        (CLOSED, {"n": 0}, {("arguments.n", "out_of_schema")}),
        (CLOSED, {"n": "1"}, {("arguments.n", "wrong_type")}),
        (CLOSED, {"n": 1, "more": 1}, {("arguments", "unknown_field")}),
        ({"required": ["a"]}, {}, {("arguments", "required")}),
        ({"properties": {"a": {"items": {"type": "string"}}}}, {"a": ["x", 1]}, {("arguments.a[1]", "wrong_type")}),
        ({"properties": {"a": {"pattern": "^x+$"}}}, {"a": "x" * 5_000}, {("arguments.a", "out_of_schema")}),
        ({"properties": {"a": {"$ref": "https://elsewhere.example/x"}}}, {"a": 1}, {("arguments", "schema_unusable")}),
        ({}, {"deep": {"a": {"b": {"c": {"d": {"e": {"f": {"g": {}}}}}}}}}, {("arguments", "too_deep")}),
        ({}, {"long": "x" * 140_000}, {("arguments", "too_large")}),
        ({}, {f"k{number}": 1 for number in range(300)}, {("arguments", "too_many_keys")}),
    ],
)
def test_i25_arguments_are_held_to_schema_and_bounds(
    schema: dict[str, Any], given: dict[str, Any], expected: set[tuple[str, str]]
) -> None:
    assert codes(schema, given) == expected


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([1, True, "1", None, 1.5], True),
        ([1, 1.0], False),
        ([{"a": 1, "b": [2]}, {"b": [2], "a": 1}], False),
        ([{"a": 1}, {"a": True}], True),
        ([[1], [1]], False),
        (["a", 1, "a"], False),
    ],
)
def test_items_are_unique_as_json_schema_means_it(items: list[Any], unique: bool) -> None:
    schema = {"properties": {"items": {"uniqueItems": True}}}
    assert codes(schema, {"items": items}) == (set() if unique else {("arguments.items", "out_of_schema")})


def test_a_number_that_json_does_not_have_is_refused() -> None:
    given = struct_pb2.Struct()
    given.fields["n"].number_value = math.nan
    assert [issue.code for issue in arguments.issues_of({}, given)] == ["not_a_number"]


def test_the_same_arguments_have_the_same_digest_and_others_another() -> None:
    plain = arguments.plain(struct({"a": 1.0, "b": [True, None]}))
    assert arguments.digest_of("t", plain) == arguments.digest_of("t", {"b": [True, None], "a": 1})
    assert arguments.digest_of("t", plain) != arguments.digest_of("u", plain)
    assert arguments.digest_of("t", plain) != arguments.digest_of("t", {**plain, "a": "1"})


@pytest.mark.parametrize(
    ("schema", "given"),
    [
        ({"additionalProperties": {"enum": ["é" * 100] * 50}}, {f"k{number}": 1 for number in range(250)}),
        ({"required": [f"name{number}" * 8 for number in range(800)]}, {}),
    ],
)
async def test_i35_a_refusal_with_many_problems_reaches_a_runtime_that_reads_short_headers(
    stand: Stand, schema: dict[str, Any], given: dict[str, Any]
) -> None:
    run = await stand.run()
    stand.grant(run, schema=schema)
    request = tool_broker_service_pb2.InvokeToolRequest(
        fence=fence_of(run), tool_call_id="call-1", tool_id="echo", arguments=struct(given)
    )
    options = [("grpc.max_metadata_size", 8_192), ("grpc.absolute_max_metadata_size", 8_192)]
    async with grpc.aio.insecure_channel(f"unix:{stand.folder}/b1.sock", options=options) as channel:
        call = tool_broker_service_pb2_grpc.ToolBrokerServiceStub(channel).InvokeTool
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(request, timeout=PATIENCE, metadata=[("authorization", f"Bearer {stand.token(run)}")])
    error = from_rpc_error(refused.value)
    assert error.reason is Reason.INVALID_REQUEST
    assert error.details
    if len(given) > len(error.details):
        assert error.details[-1].message == f"{100 - len(error.details) + 1} more problems are not shown."


async def test_i25_what_does_not_fit_reaches_nobody_and_says_where(stand: Stand) -> None:
    run = await stand.run()
    stand.grant(run)
    with pytest.raises(HarnessError) as refused:
        await stand.invoke(run, arguments={"text": "0123456789", "more": 1})
    assert refused.value.reason is Reason.INVALID_REQUEST
    assert {issue.path for issue in refused.value.details} == {"arguments", "arguments.text"}
    assert not stand.provider.calls
    assert (await stand.again(run)).tool_calls == ()
    await stand.invoke(run, arguments={"text": "short"})  # the id was not used up
