"""The stand-in of AgentCore, seen through real boto3: what it answers, how it fails, and what it remembers."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
import urllib3
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError, ReadTimeoutError, ResponseStreamingError

from tests.standins.agentcore import ACCOUNT, REGION, AgentCore, Fault

ROOT = Path(__file__).parents[2]
HARNESS = f"arn:aws:bedrock-agentcore:{REGION}:{ACCOUNT}:harness/agent-0123456789"
RUNTIME = f"arn:aws:bedrock-agentcore:{REGION}:{ACCOUNT}:runtime/agent-0123456789"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/agents"
SESSION = "s" * 33


@pytest.fixture(scope="module")
def served():
    with AgentCore() as standin:
        yield standin


@pytest.fixture
def standin(served):
    served.forget()
    return served


def _client(standin, service="bedrock-agentcore", read_timeout=60):
    return boto3.client(
        service,
        region_name=REGION,
        endpoint_url=standin.url,
        aws_access_key_id="AKIDDUMMY",
        aws_secret_access_key="dummy",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=read_timeout),
    )


@pytest.fixture
def client(standin):
    made = _client(standin)
    yield made
    made.close()


@pytest.fixture
def made_harnesses():
    # A state of its own: harnesses that were made decide which may be invoked.
    with AgentCore() as standin:
        yield standin


@pytest.fixture
def control(made_harnesses):
    made = _client(made_harnesses, "bedrock-agentcore-control")
    yield made
    made.close()


def _user(*blocks):
    return [{"role": "user", "content": [{"text": block} if isinstance(block, str) else block for block in blocks]}]


def _script(*steps):
    return json.dumps({"script": list(steps)})


def _invoke(client, *blocks, session=SESSION, **more):
    return client.invoke_harness(harnessArn=HARNESS, runtimeSessionId=session, messages=_user(*blocks), **more)


def _events(client, *blocks, **more):
    return [next(iter(event.items())) for event in _invoke(client, *blocks, **more)["stream"]]


def _text(events):
    return "".join(data["delta"].get("text", "") for kind, data in events if kind == "contentBlockDelta")


def _stops(events):
    return [data["stopReason"] for kind, data in events if kind == "messageStop"]


def test_a_turn_has_messages_of_blocks_reasoning_calls_of_its_own_and_usage(client):
    own = {"id": "o1", "name": "search", "arguments": {"q": "x"}, "result": "found"}
    script = _script(
        {"reasoning": "thinking"},
        {"chunks": ["a", "", "ü"]},
        {"own_tool": own},
        {"hook": "after_invocation"},
        {"text": "done"},
        {"usage": {"inputTokens": 3, "cacheReadInputTokens": 2}},
    )
    events = _events(client, script)
    assert _text(events) == "aüdone"
    assert _stops(events) == ["tool_use", "tool_result", "end_turn"]
    assert [data["delta"]["reasoningContent"] for _, data in events if "reasoningContent" in str(data)] == [
        {"text": "thinking"},
        {"signature": "c2lnbmVk"},
    ]
    starts = [data["start"] for kind, data in events if kind == "contentBlockStart"]
    assert starts[0]["toolUse"] == {"toolUseId": "o1", "name": "search", "type": "server_tool_use"}
    assert starts[1]["toolResult"] == {"toolUseId": "o1", "status": "success"}
    (usage,) = [data["usage"] for kind, data in events if kind == "metadata"]
    assert usage == {"inputTokens": 3, "outputTokens": 5, "totalTokens": 8, "cacheReadInputTokens": 2}
    assert [kind for kind, _ in events].count("hookEvent") == 1


def test_conversation_is_kept_by_session(client):
    assert _text(_events(client, "first")) == "You said: first"
    assert _text(_events(client, "second")) == "You said: second Before that you said: first"
    assert _text(_events(client, "third", session="t" * 33)) == "You said: third"


def test_inline_functions_go_on_with_their_results_and_with_nothing_else(client):
    calls = [{"id": "c1", "name": "echo", "arguments": {"text": "hello"}}, {"id": "c2", "name": "sum"}]
    events = _events(client, _script({"tools": calls, "pieces": 3}, {"results": True}))
    assert _stops(events) == ["tool_use"]
    deltas = [data["delta"] for kind, data in events if kind == "contentBlockDelta" and data["contentBlockIndex"] == 0]
    assert len(deltas) == 3
    assert json.loads("".join(delta["toolUse"]["input"] for delta in deltas)) == {"text": "hello"}
    results = [
        {"toolResult": {"toolUseId": each, "content": [{"json": {"said": each}}], "status": "success"}}
        for each in ("c1", "c2")
    ]
    with pytest.raises(ClientError, match="does not match"):
        _invoke(client, results[0])
    after = _events(client, *results)
    assert json.loads(_text(after)) == [each["toolResult"] for each in results]
    with pytest.raises(ClientError, match="does not match"):
        _invoke(client, *results)


def test_words_beside_results_begin_anew(client):
    _events(client, _script({"tools": [{"id": "c1", "name": "echo"}]}, {"text": "never"}))
    result = {"toolResult": {"toolUseId": "c1", "content": [{"text": "dismissed"}], "status": "error"}}
    assert _text(_events(client, result, _script({"text": "else"}))) == "else"


def test_a_call_has_the_name_under_which_its_tool_is_offered(client):
    function = {"inlineFunction": {"description": "Echoes.", "inputSchema": {"type": "object"}}}
    tools = [{"type": "inline_function", "name": "kit-echo_1f", "config": function}]
    script = _script({"tools": [{"id": "c1", "name": "kit.echo"}]})
    starts = [data["start"] for kind, data in _events(client, script, tools=tools) if kind == "contentBlockStart"]
    assert [start["toolUse"]["name"] for start in starts] == ["kit-echo_1f"]


def test_overrides_are_told_and_requests_recorded(client, standin):
    overrides = {"maxTokens": 77, "systemPrompt": [{"text": "Be brief."}], "allowedTools": ["echo"]}
    assert json.loads(_text(_events(client, _script({"told": True}), **overrides))) == overrides
    (recorded,) = standin.of("InvokeHarness")
    assert recorded.document["systemPrompt"] == [{"text": "Be brief."}]
    assert recorded.request.query["harnessArn"] == [HARNESS]


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("ThrottlingException", 429),
        ("ValidationException", 400),
        ("ServiceQuotaExceededException", 402),
        ("AccessDeniedException", 403),
        ("ResourceNotFoundException", 404),
        ("ConflictException", 409),
        ("RetryableConflictException", 409),
        ("RuntimeClientError", 424),
        ("InternalServerException", 500),
    ],
)
def test_errors_before_the_stream_have_the_services_type_and_status(client, standin, kind, status):
    refusal = {"refuse": kind, "message": "said so", "retry_after": 7}
    for call in (
        lambda: _invoke(client, _script(refusal)),
        lambda: client.invoke_agent_runtime(agentRuntimeArn=RUNTIME, payload=_script(refusal)),
    ):
        with pytest.raises(ClientError) as caught:
            call()
        said = caught.value.response
        assert (said["Error"]["Code"], said["ResponseMetadata"]["HTTPStatusCode"]) == (kind, status)
        assert said["Error"]["Message"] == "said so"
        assert said["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "7"
    # Tried once each.
    assert len(standin.requests) == 2


@pytest.mark.parametrize("kind", ["internalServerException", "validationException", "runtimeClientError"])
def test_exceptions_in_the_stream_are_raised_with_their_code(client, kind):
    stream = iter(_invoke(client, _script({"text": "a"}, {"exception": kind, "message": "broke"}))["stream"])
    with pytest.raises(EventStreamError) as caught:
        list(stream)
    assert caught.value.response["Error"]["Code"] == kind


def test_an_unmodelled_exception_has_no_code(client):
    with pytest.raises(EventStreamError) as caught:
        _events(client, _script({"text": "a"}, {"exception": "throttlingException"}))
    assert caught.value.response["Error"]["Code"] == ""


@pytest.mark.parametrize("how", ["clean", "half"])
def test_an_end_without_message_stop_raises_nothing(client, how):
    events = _events(client, _script({"text": "a"}, {"end": how}))
    assert (_text(events), _stops(events)) == ("a", [])


def test_a_cut_socket_is_an_error_of_urllib3(client):
    with pytest.raises(urllib3.exceptions.HTTPError):
        _events(client, _script({"text": "a"}, {"end": "cut"}))


@pytest.mark.parametrize("where", ["headers", "stream"])
def test_a_hang_ends_with_the_session(standin, where):
    client = _client(standin, read_timeout=1)
    with pytest.raises((ReadTimeoutError, urllib3.exceptions.ReadTimeoutError)):
        _events(client, _script({"hang": where}))
    # A disconnect does not stop the agent: StopRuntimeSession does.
    client.close()
    session = standin.data.sessions.known[HARNESS, SESSION]
    assert session.working == 1
    answer = client.stop_runtime_session(agentRuntimeArn=RUNTIME, runtimeSessionId=SESSION)
    assert (answer["statusCode"], session.working, session.stops) == (200, 0, 1)
    with pytest.raises(ClientError, match="ResourceNotFound"):
        client.stop_runtime_session(agentRuntimeArn=RUNTIME, runtimeSessionId="u" * 33)
    client.close()


def test_a_stream_ends_when_its_session_is_stopped(client, standin):
    stream = iter(_invoke(client, _script({"text": "a"}, {"hang": "stream"}))["stream"])
    assert next(stream) == {"messageStart": {"role": "assistant"}}
    other = _client(standin)
    other.stop_runtime_session(agentRuntimeArn=RUNTIME, runtimeSessionId=SESSION)
    other.close()
    assert "messageStop" not in [next(iter(event)) for event in stream]


def test_a_session_id_that_only_the_service_refuses(client):
    with pytest.raises(ClientError, match="ValidationException"):
        _invoke(client, "x", session="-" + "a" * 40)


def test_runtimes_answer_as_they_like(client):
    def whole(*steps):
        answer = client.invoke_agent_runtime(agentRuntimeArn=RUNTIME, payload=json.dumps({"prompt": _script(*steps)}))
        return answer["contentType"], answer["response"].read().decode()

    assert whole({"body": {"result": "x"}}) == ("application/json", '{"result": "x"}')
    assert whole({"body": "plain"}) == ("text/plain", "plain")
    kind, said = whole({"line": {"text": "a"}}, {"line": ": keep-alive\n\n"}, {"text": "b"})
    assert (kind, said) == ("text/event-stream", 'data: {"text": "a"}\n\n: keep-alive\n\ndata: {"text": "b"}\n\n')
    failure = {"error": "boom", "error_type": "ValueError", "message": "it broke"}
    assert json.loads(whole({"fail": failure})[1].removeprefix("data: ")) == failure
    assert whole({"end": "half"})[1] == 'data: {"text": "never wh'
    with pytest.raises(ResponseStreamingError):
        whole({"text": "a"}, {"end": "cut"})


def test_queued_scripts_come_first(client, standin):
    standin.queue([{"text": "one"}], [{"text": "two"}])
    assert [_text(_events(client, "hello")) for _ in range(3)] == ["one", "two", "You said: hello"]


def test_harnesses_are_made_found_changed_and_removed(control):
    made = control.create_harness(harnessName="h1", executionRoleArn=ROLE, tags={"deployment": "d"})["harness"]
    assert (made["status"], made["harnessVersion"]) == ("CREATING", "1")
    with pytest.raises(ClientError, match="ConflictException"):
        control.create_harness(harnessName="h1", executionRoleArn=ROLE)
    with pytest.raises(ClientError, match="ConflictException"):
        control.update_harness(harnessId=made["harnessId"], maxTokens=5)
    assert [control.get_harness(harnessId=made["harnessId"])["harness"]["status"] for _ in range(2)] == [
        "CREATING",
        "READY",
    ]
    assert control.list_tags_for_resource(resourceArn=made["arn"])["tags"] == {"deployment": "d"}
    control.tag_resource(resourceArn=made["arn"], tags={"agent": "a"})
    control.untag_resource(resourceArn=made["arn"], tagKeys=["deployment"])
    assert control.list_tags_for_resource(resourceArn=made["arn"])["tags"] == {"agent": "a"}
    changed = control.update_harness(harnessId=made["harnessId"], maxTokens=5)["harness"]
    assert (changed["status"], changed["harnessVersion"], changed["maxTokens"]) == ("UPDATING", "2", 5)
    for _ in range(2):
        control.get_harness(harnessId=made["harnessId"])
    endpoint = control.create_harness_endpoint(harnessId=made["harnessId"], endpointName="live")["endpoint"]
    assert (endpoint["status"], endpoint["targetVersion"]) == ("READY", "2")
    control.update_harness_endpoint(harnessId=made["harnessId"], endpointName="live", targetVersion="1")
    assert control.list_harness_endpoints(harnessId=made["harnessId"])["endpoints"][0]["liveVersion"] == "1"
    control.delete_harness_endpoint(harnessId=made["harnessId"], endpointName="live")
    assert control.delete_harness(harnessId=made["harnessId"])["harness"]["status"] == "DELETING"
    control.get_harness(harnessId=made["harnessId"])
    with pytest.raises(ClientError, match="ResourceNotFound"):
        control.get_harness(harnessId=made["harnessId"])
    assert control.list_harnesses()["harnesses"] == []


def test_listings_have_pages_and_tokens_make_one_request_of_two(control):
    token = "t" * 33
    for name in ("h1", "h2", "h3"):
        control.create_harness(harnessName=name, executionRoleArn=ROLE, clientToken=f"{name}{token}")
    control.create_harness(harnessName="h3", executionRoleArn=ROLE, clientToken=f"h3{token}")
    pages = [control.list_harnesses(maxResults=2)]
    pages.append(control.list_harnesses(maxResults=2, nextToken=pages[0]["nextToken"]))
    assert [[each["harnessName"] for each in page["harnesses"]] for page in pages] == [["h1", "h2"], ["h3"]]
    assert "nextToken" not in pages[1]


def test_an_answer_may_be_lost_after_the_request_took_effect(control, made_harnesses):
    made_harnesses.control.faults.extend([Fault("CreateHarness", "ThrottlingException"), Fault("CreateHarness")])
    with pytest.raises(ClientError, match="ThrottlingException"):
        control.create_harness(harnessName="h1", executionRoleArn=ROLE)
    with pytest.raises(Exception, match="Connection"):
        control.create_harness(harnessName="h1", executionRoleArn=ROLE)
    assert [each["harnessName"] for each in control.list_harnesses()["harnesses"]] == ["h1"]


def test_a_harness_that_was_made_is_invoked_once_it_is_ready(control, made_harnesses):
    made = control.create_harness(harnessName="h1", executionRoleArn=ROLE)["harness"]
    client = _client(made_harnesses)
    with pytest.raises(ClientError, match="ResourceNotFound"):
        client.invoke_harness(harnessArn=made["arn"], runtimeSessionId=SESSION, messages=_user("hi"))
    for _ in range(2):
        control.get_harness(harnessId=made["harnessId"])
    stream = client.invoke_harness(harnessArn=made["arn"], runtimeSessionId=SESSION, messages=_user("hi"))["stream"]
    assert _stops([next(iter(event.items())) for event in stream]) == ["end_turn"]
    client.close()


def test_it_runs_as_a_program():
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.standins.agentcore"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        host, port = process.stdout.readline().strip().removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 30):
            pass
    finally:
        process.terminate()
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
