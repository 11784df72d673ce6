"""Turns of a custom runtime: an opaque answer, decoded as it comes."""

import json

import pytest

from adapters.agentcore.opaque import MAX_LINE_BYTES, Document, Lines, PlainText, Texts, decoder_for
from adapters.sdk.errors import HarnessError
from conformance.plane.run import kinds
from harness.common.v1 import error_pb2
from tests.adapters.agentcore.rig import RUNTIME, script


async def custom(rig, **settings):
    return await rig.conversation(mode="runtime", runtime_arn=RUNTIME, **settings)


def text_of(drafts):
    return "".join(draft.payload.content_delta.text for draft in drafts)


async def test_server_sent_events_come_one_by_one(rig):
    conversation = await custom(rig, read_timeout_seconds=3600)
    run = conversation.run(script({"text": "ä"}, {"line": ": keep-alive\n\n"}, {"text": "b"}, {"hang": "stream"}))
    stream = run.start()
    # Without hold-back: both are here while the answer goes on.
    while text_of(stream.drafts) != "äb":
        assert await stream.read() is not None
    await run.cancel()


async def test_the_payload_has_the_operators_shape(rig):
    conversation = await custom(rig, payload={"in": ["$message", "$session_id"], "n": 1}, qualifier="live")
    drafts = await conversation.say("hello")
    assert kinds(drafts)[-1] == "run_completed"
    (asked,) = rig.standin.of("InvokeAgentRuntime")
    message, session_id = asked.document["in"]
    assert message == "hello"
    assert len(session_id) == 43
    assert asked.document["n"] == 1


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([{"body": {"result": "x"}}], "x"),
        ([{"body": "plain ü"}], "plain ü"),
        ([{"line": {"data": "a"}}, {"line": {"data": "b"}}, {"line": {"message": "ab"}}], "ab"),
        ([{"line": "data: [DONE]\n\n"}, {"line": 'event: x\ndata: "y"\n\n'}], "y"),
    ],
)
async def test_answers_of_every_shape(rig, steps, said):
    conversation = await custom(rig)
    drafts = await conversation.say(script(*steps))
    assert (text_of(drafts), kinds(drafts)[-1]) == (said, "run_completed")


@pytest.mark.parametrize(
    ("step", "category", "code"),
    [
        ({"fail": {"error": "canary", "error_type": "Canary", "message": "canary"}}, "UNAVAILABLE", "agent_failed"),
        ({"line": "data: {broken\n\n"}, "PROTOCOL", "stream_malformed"),
        ({"end": "half"}, "PROTOCOL", "stream_malformed"),
        ({"end": "cut"}, "UNAVAILABLE", "stream_broken"),
    ],
)
async def test_i22_errors_in_an_answer_that_is_otherwise_well(rig, step, category, code):
    conversation = await custom(rig)
    run = conversation.run(script({"text": "a"}, step))
    await run.play()
    failed = run.last.payload.run_failed
    assert text_of(run.drafts) == "a"
    assert (failed.category, failed.code) == (getattr(error_pb2, f"ERROR_CATEGORY_{category}"), code)
    assert "canary" not in str(failed).lower()
    assert failed.side_effect_status == error_pb2.SIDE_EFFECT_STATUS_POSSIBLE
    assert len(rig.standin.of("InvokeAgentRuntime")) == 1


def test_decoders_are_chosen_by_type():
    assert isinstance(decoder_for("text/event-stream; charset=utf-8"), Lines)
    assert isinstance(decoder_for("application/problem+json"), Document)
    assert isinstance(decoder_for(""), PlainText)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_lines_and_characters_may_come_in_any_pieces(size):
    said = 'data: {"text": "hällo"}\r\n\r\ndata: {"text": " wörld"}\n\n'.encode()
    lines, plain = Lines(Texts()), PlainText()
    pieces = [said[at : at + size] for at in range(0, len(said), size)]
    assert "".join(t for piece in pieces for t in lines.feed(piece)) + "".join(lines.end()) == "hällo wörld"
    assert "".join(t for piece in pieces for t in plain.feed(piece)) + "".join(plain.end()) == said.decode()


def test_i35_lines_and_documents_are_bounded():
    for decoder in (Lines(Texts()), Document(Texts())):
        list(decoder.feed(b"x" * MAX_LINE_BYTES))
        with pytest.raises(HarnessError):
            list(decoder.feed(b"x"))


def test_a_path_names_the_text():
    texts = Texts("event.contentBlockDelta.delta.text")
    deltas = [{"event": {"contentBlockDelta": {"delta": {"text": "a"}}}}, {"data": "b"}, {"event": "c"}]
    assert [texts.of(json.loads(json.dumps(one))) for one in deltas] == ["a", "", ""]
