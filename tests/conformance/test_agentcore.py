"""What the driver of AgentCore has words for, played by the stand-in to real boto3."""

import json

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from conformance.drivers import driver_named
from conformance.drivers.agentcore import ENDPOINT_VARIABLE, HARNESS_ARN, REGION
from conformance.failure import CannotExpressError
from conformance.scenario import (
    AskForm,
    CallTool,
    CountUsage,
    Crash,
    Delegate,
    Emit,
    FailWith,
    FormField,
    Hang,
    OwnTool,
    Say,
    Think,
)
from tests.standins.agentcore import AgentCore

SESSION = "c" * 40
FUNCTION = {"inlineFunction": {"description": "Echoes.", "inputSchema": {"type": "object"}}}
TOOLS = [{"type": "inline_function", "name": "kit_echo", "config": FUNCTION}]


@pytest.fixture(scope="module")
def standin():
    with AgentCore() as standin:
        yield standin


@pytest.fixture(scope="module")
def say(standin):
    """Says a message, or gives tool results; the events that came, by kind."""
    client = boto3.client(
        "bedrock-agentcore",
        region_name=REGION,
        endpoint_url=standin.url,
        aws_access_key_id="AKIDDUMMY",
        aws_secret_access_key="dummy",
        config=Config(retries={"total_max_attempts": 1}),
    )

    def said(content):
        blocks = [{"text": content}] if isinstance(content, str) else content
        answer = client.invoke_harness(
            harnessArn=HARNESS_ARN,
            runtimeSessionId=SESSION,
            messages=[{"role": "user", "content": blocks}],
            tools=TOOLS,
        )
        return [next(iter(event.items())) for event in answer["stream"]]

    yield said
    client.close()


driver = driver_named("agentcore")


def _texts(events):
    """The text of each message."""
    said: list[str] = []
    for kind, data in events:
        if kind == "messageStart":
            said.append("")
        elif kind == "contentBlockDelta":
            said[-1] += data["delta"].get("text", "")
    return said


def test_words_reasoning_usage_and_tools_of_its_own(say):
    failed = OwnTool("o2", "look", {}, error=("no_index", "None."))
    with pytest.raises(CannotExpressError):
        driver.message((failed,))
    steps = (Think("hm"), Say("one"), Say(pieces=("t", "wo")), OwnTool("o1", "look", {}, 3), CountUsage(17, 4))
    events = say(driver.message(steps))
    assert [text for text in _texts(events) if text] == ["one", "two"]
    assert [data["usage"]["inputTokens"] for kind, data in events if kind == "metadata"] == [17]
    assert '"text": "hm"' in json.dumps([data for _, data in events if "reasoningContent" in str(data)])
    assert len(_texts(say(driver.burst(10, 3)))[0]) == 30


def test_what_a_resume_plays_comes_with_the_results(say):
    events = say(driver.message((CallTool("c1", "kit.echo", {"a": 1}, stream=True),), (Say("after"),)))
    (start,) = [data["start"]["toolUse"] for kind, data in events if kind == "contentBlockStart"]
    assert (start["toolUseId"], start["name"]) == ("c1", "kit_echo")
    result = {"toolResult": {"toolUseId": "c1", "content": [{"text": "x"}], "status": "success"}}
    assert _texts(say([result])) == ["after"]


def test_conversation_repeats_what_was_said(say):
    say(driver.talk("remember this"))
    assert "remember this" in _texts(say(driver.talk("and now")))[0]


@pytest.mark.parametrize("category", ["throttled", "unavailable", "authorization"])
def test_failures_that_the_service_has(say, category):
    with pytest.raises(ClientError) as caught:
        say(driver.message((FailWith(category, retry_after=7),)))
    assert caught.value.response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "7"


def test_events_that_are_out_of_order_or_malformed(say):
    for event, call_id in (
        (Emit("tool.completed", {"tool_call_id": "never-started"}), "never-started"),
        (Emit("tool.started", {"tool_call_id": "no spaces!", "tool_name": "x"}), "no spaces!"),
    ):
        assert call_id in json.dumps([data for _, data in say(driver.message((event,)))])


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (FailWith("protocol"), {"fail": {"category": "protocol", "message": "The provider failed."}}),
        (
            FailWith("throttled", "said so", "busy", retryable=False, retry_after=7),
            {
                "fail": {
                    "category": "throttled",
                    "message": "said so",
                    "code": "busy",
                    "retryable": False,
                    "retry_after": 7,
                }
            },
        ),
        (Crash("boom"), {"raise": "boom"}),
        (Emit("warning", {"code": "large"}), {"emit": {"type": "warning", "data": {"code": "large"}}}),
    ],
)
def test_what_the_service_cannot_say_the_adapter_plays(step, said):
    assert json.loads(driver.message((Say("begun"), step))) == {"rehearse": [{"text": "begun"}, said]}


@pytest.mark.parametrize("step", [AskForm((FormField("city"),)), Delegate("helper", (Say("x"),))])
def test_forms_and_subagents_have_no_words(step):
    with pytest.raises(CannotExpressError):
        driver.message((step,))
    with pytest.raises(CannotExpressError):
        driver.message((step, Crash("x")))


def test_the_stand_in_has_to_be_named(monkeypatch, standin):
    monkeypatch.delenv(ENDPOINT_VARIABLE, raising=False)
    with pytest.raises(CannotExpressError, match=ENDPOINT_VARIABLE):
        driver.profile_settings("canary")
    monkeypatch.setenv(ENDPOINT_VARIABLE, standin.url)
    settings = driver.profile_settings("canary")
    assert settings["endpoint_url"] == standin.url
    assert "canary" in settings.values()
    assert driver.message((Hang(),)) == '{"script": [{"hang": "stream"}]}'
