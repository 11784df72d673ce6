"""Turns of a managed harness: real boto3 against the stand-in, behind the real host."""

import contextlib
import json

import pytest

from adapters.agentcore.adapter import AgentCoreAdapter
from adapters.sdk.testing import kinds, served, text_of
from harness.common.v1 import error_pb2
from tests.standins.agentcore import ACCOUNT, REGION

HARNESS = f"arn:aws:bedrock-agentcore:{REGION}:{ACCOUNT}:harness/agent-0123456789"


def settings(standin, **more):
    return {"region": REGION, "endpoint_url": standin.url, "harness_arn": HARNESS, **more}


@contextlib.asynccontextmanager
async def client_of(standin, *, options=None, **more):
    async with served(AgentCoreAdapter, profile_settings=settings(standin, **more), options=options or {}) as client:
        yield client


def script(*steps):
    return json.dumps({"script": list(steps)})


def failure(drafts):
    assert kinds(drafts)[-1] == "run.failed", kinds(drafts)
    return drafts[-1].payload.run_failed


async def test_text_reasoning_usage_and_the_providers_own_calls(standin):
    own = {"id": "o1", "name": "search", "arguments": {"q": "x"}, "result": "found"}
    said = script(
        {"reasoning": "thinking"},
        {"chunks": ["a", "ü"]},
        {"own_tool": own},
        {"hook": "after_invocation"},
        {"event": "somethingNew", "data": {"x": 1}},
        {"text": "done"},
        {"usage": {"inputTokens": 3, "cacheReadInputTokens": 2}},
        {"usage": {"inputTokens": 4}},
    )
    async with client_of(standin) as client:
        drafts = await client.turn(said)
    assert text_of(drafts) == "aüdone"
    assert kinds(drafts)[1:] == [
        "reasoning.delta",
        "content.delta",
        "content.delta",
        "tool.started",
        "tool.arguments.delta",
        "tool.completed",
        "content.delta",
        "usage.updated",
        "usage.updated",
        "usage.updated",
        "run.completed",
    ]
    assert drafts[6].payload.tool_completed.result.string_value == "found"
    last = drafts[-2].payload.usage_updated
    assert (last.input_tokens, last.output_tokens, last.cached_input_tokens, last.final) == (9, 10, 2, True)
    assert drafts[-1].payload.run_completed.stop_reason == "end_turn"


async def test_conversation_is_the_providers_and_the_request_says_what_the_version_says(standin):
    async with client_of(standin, options={"max_tokens": 77}, model="m-1", qualifier="live") as client:
        await client.turn("first", system_prompt="Be brief.")
        assert text_of(await client.turn("second")) == "You said: second Before that you said: first"
    first = standin.of("InvokeHarness")[0]
    assert first.document["systemPrompt"] == [{"text": "Be brief."}]
    assert first.document["model"] == {"bedrockModelConfig": {"modelId": "m-1"}}
    assert first.document["maxTokens"] == 77
    assert first.request.query["qualifier"] == ["live"]


@pytest.mark.parametrize(
    ("kind", "category", "effects"),
    [
        ("ThrottlingException", "THROTTLED", "NONE"),
        ("ValidationException", "CONFIGURATION", "NONE"),
        ("ServiceQuotaExceededException", "CAPACITY", "NONE"),
        ("AccessDeniedException", "AUTHORIZATION", "NONE"),
        ("ResourceNotFoundException", "CONFIGURATION", "NONE"),
        ("ConflictException", "CAPACITY", "NONE"),
        ("RuntimeClientError", "UNAVAILABLE", "POSSIBLE"),
        ("InternalServerException", "UNAVAILABLE", "POSSIBLE"),
    ],
)
async def test_i22_refusals_are_classified_and_their_text_stays(standin, kind, category, effects):
    refusal = {"refuse": kind, "message": "canary-text", "retry_after": 70}
    async with client_of(standin) as client:
        failed = failure(await client.turn(script(refusal)))
    assert failed.category == getattr(error_pb2, f"ERROR_CATEGORY_{category}")
    assert failed.side_effect_status == getattr(error_pb2, f"SIDE_EFFECT_STATUS_{effects}")
    assert "canary" not in str(failed)
    if category == "THROTTLED":
        assert failed.retry_after_seconds == 70
    # A hint that long is the caller's to follow: nothing was sent twice.
    assert len(standin.of("InvokeHarness")) == 1


@pytest.mark.parametrize(
    ("step", "category", "code"),
    [
        ({"exception": "internalServerException"}, "UNAVAILABLE", "provider_failed"),
        ({"exception": "validationException"}, "CONFIGURATION", "request_refused"),
        ({"exception": "runtimeClientError"}, "UNAVAILABLE", "agent_failed"),
        ({"exception": "throttlingException"}, "INTERNAL", "provider_error"),
        ({"end": "clean"}, "PROTOCOL", "stream_incomplete"),
        ({"end": "half"}, "PROTOCOL", "stream_incomplete"),
        ({"end": "cut"}, "UNAVAILABLE", "stream_broken"),
        ({"stop": "timeout_exceeded"}, "TIMEOUT", "provider_timeout"),
        ({"stop": "malformed_tool_use"}, "PROTOCOL", "stream_malformed"),
        ({"stop": "tool_use"}, "PROTOCOL", "stream_incomplete"),
    ],
)
async def test_i11_streams_that_end_badly_are_failures_and_asked_once(standin, step, category, code):
    async with client_of(standin) as client:
        drafts = await client.turn(script({"text": "a"}, step))
    failed = failure(drafts)
    assert text_of(drafts) == "a"
    assert (failed.category, failed.code) == (getattr(error_pb2, f"ERROR_CATEGORY_{category}"), code)
    assert failed.side_effect_status == error_pb2.SIDE_EFFECT_STATUS_POSSIBLE
    assert len(standin.of("InvokeHarness")) == 1


async def test_throttled_before_the_stream_is_asked_again_once(standin):
    standin.queue([{"refuse": "ThrottlingException", "retry_after": 0}], [{"text": "now"}])
    async with client_of(standin) as client:
        drafts = await client.turn("x")
    assert kinds(drafts) == ["session.updated", "warning", "content.delta", "run.completed"]
    assert drafts[1].payload.warning.code == "provider_asked_again"


async def test_nobody_listens(standin):
    async with client_of(standin, endpoint_url="http://127.0.0.1:1", max_retries=0) as client:
        failed = failure(await client.turn("x"))
    assert (failed.code, failed.side_effect_status) == ("unreachable", error_pb2.SIDE_EFFECT_STATUS_NONE)
