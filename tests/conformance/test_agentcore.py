"""AgentCore against its stand-in: what the driver has words for, and the adapter held to every rule (certification)."""

import json

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from adapters.sdk.testing import connected, kinds
from conformance.certification import Options, certify
from conformance.drivers import driver_named
from conformance.drivers.agentcore import ENDPOINT_VARIABLE, HARNESS_ARN, REGION
from conformance.failure import Broken, CannotExpressError
from conformance.scenario import (
    AskApproval,
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
    TellDecision,
    Think,
)
from tests.adapters.processes import AdapterProcess
from tests.conformance.conftest import ROOT
from tests.standins.agentcore import AgentCore

# What the service cannot be made to show, and what is not claimed.
UNLOOKED = {
    "not_verified": set[str](),
    "not_applicable": {
        "R1.15/bind",
        "R1.16/shutdown",
        "R5.2/everywhere",
        "R5.2/pending-head",
        "R5.3/state-calls",
        "R5.3/strangers",
        "R5.4/committed-only",
        "R5.10/not-loaded",
        "R5.10/not-written",
        "R6.4/outlives",
        "R10.1/everywhere",
        "R10.1/namespace",
        "R10.1/nested",
        "R10.2/interrupt",
        "R12.2/trace",
        "R12.3/facades",
    },
}
# What the service has no words for: failures in the kit's, and events of the contract.
REHEARSED = {"R2.3/late-events", "R3.11/own-error", "R11.1/categories", "R11.2/retryable", "R11.5/oversized"}
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
    # With which code it failed the service cannot say, so the adapter plays it.
    failed = OwnTool("o2", "look", {}, error=("no_index", "None."))
    assert "rehearse" in json.loads(driver.message((failed,)))
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


@pytest.mark.parametrize(
    "category", ["configuration", "authentication", "authorization", "capacity", "throttled", "unavailable"]
)
def test_failures_that_the_service_has(say, category):
    with pytest.raises(ClientError) as caught:
        say(driver.message((FailWith(category, retry_after=7),)))
    assert caught.value.response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "7"


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (FailWith("timeout"), {"stop": "timeout_exceeded"}),
        (FailWith("cancelled"), {"stop": "interrupted"}),
        (FailWith("protocol"), {"stop": "malformed_model_output"}),
        (FailWith("unavailable"), {"exception": "internalServerException"}),
        (FailWith("configuration"), {"exception": "validationException"}),
        (Crash("boom"), {"exception": "unheardOf", "message": "boom"}),
    ],
)
def test_failures_that_the_service_has_in_a_stream(step, said):
    assert json.loads(driver.message((Say("begun"), step)))["script"][-1] == said


def test_events_that_are_out_of_order_or_malformed(say):
    for event, call_id in (
        (Emit("tool.completed", {"tool_call_id": "never-started"}), "never-started"),
        (Emit("tool.started", {"tool_call_id": "no spaces!", "tool_name": "x"}), "no spaces!"),
    ):
        assert call_id in json.dumps([data for _, data in say(driver.message((event,)))])


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (FailWith("persistence"), {"fail": {"category": "persistence", "message": "The provider failed."}}),
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
        (Emit("warning", {"code": "large"}), {"emit": {"type": "warning", "data": {"code": "large"}}}),
    ],
)
def test_what_the_service_cannot_say_the_adapter_plays(step, said):
    assert json.loads(driver.message((Say("begun"), step))) == {"rehearse": [{"text": "begun"}, said]}


def test_a_form_is_a_call_and_its_values_are_the_result():
    message = json.loads(driver.message((AskForm((FormField("city"),), "Where?"),), (TellDecision(),)))
    (call,) = message["script"][0]["tools"]
    field = {"name": "city", "type": "string", "required": False, "label": "city"}
    assert (call["name"], call["arguments"]) == ("ask_person", {"prompt": "Where?", "fields": [field]})
    assert message["script"][1] == {"results": True}
    told = [{"toolUseId": "ask-1", "content": [{"json": {"values": {"city": "x"}}}]}]
    assert driver.decision_in(json.dumps(told)) == {"form": {"city": "x"}}
    with pytest.raises(Broken):
        driver.decision_in("no JSON")


@pytest.mark.parametrize("step", [AskApproval(()), Delegate("helper", (Say("x"),))])
def test_approvals_of_the_provider_and_subagents_have_no_words(step):
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


async def test_the_adapter_is_certified(folder, standin, monkeypatch):
    monkeypatch.setenv(ENDPOINT_VARIABLE, standin.url)
    # Dummies: the stand-in checks none. Nothing else of the machine's settings for AWS is seen.
    environment = {
        "AWS_ACCESS_KEY_ID": "AKIDDUMMY",
        "AWS_SECRET_ACCESS_KEY": "dummy",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    }
    host = await AdapterProcess(folder, module="adapters.agentcore", environment=environment).start()
    try:
        made = await certify(Options(host.address, driver="agentcore", pid=host.pid), lambda _: None)
        allowed = driver.profile_settings("note")
        async with connected(host.address, harness_id="agentcore") as client:
            client.profile_settings = {name: value for name, value in allowed.items() if name != "allow_faults"}
            ordinary = await client.turn(json.dumps({"rehearse": [{"raise": "boom"}]}))
    finally:
        await host.stop()
    # Under any other profile a rehearsal is a message like others, and the service's to answer.
    assert kinds(ordinary)[-1] == "run.completed"
    document = made.document
    # Beside the reports of the other adapters.
    report = ROOT / "build" / "certification" / "agentcore"
    report.mkdir(parents=True, exist_ok=True)
    (report / "certification.json").write_text(json.dumps(document, indent=1))
    assert {each["id"]: each["reason"] for each in document["cases"] if each["result"] == "failed"} == {}
    results = {name: {each["id"] for each in document["cases"] if each["result"] == name} for name in UNLOOKED}
    # Files and skills are not claimed.
    results["not_applicable"] = {each for each in results["not_applicable"] if not each.startswith(("R8.", "R9."))}
    assert results == UNLOOKED
    assert {each["id"] for each in document["cases"] if each["rehearsed"]} == REHEARSED
    own = next(each for each in document["cases"] if each["id"] == "R11.1/own")
    assert own["figures"]["categories"].count(",") == 8
    assert document["verdict"] == "certified"
    claims = document["capabilities"]
    unverified = {key for key, claim in claims.items() if claim["result"] == "not_verified"}
    assert unverified == {"observability.redaction"}
