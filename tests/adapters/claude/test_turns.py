"""Text, reasoning, usage, sessions and state of turns on the real SDK and its program."""

from typing import Any, cast

import orjson
import pytest

from adapters.claude_agent_sdk.transcript import Transcript, TurnStore
from adapters.sdk.errors import PersistenceError
from adapters.sdk.thread_state import MAX_HEAD_BYTES
from conformance.plane.run import kind, kinds, text_of
from tests.adapters.claude.model import Refused, text, thinking
from tests.adapters.claude.rig import KEY, Rig, usage


async def test_a_turn_is_shown_once_and_asked_as_it_was_said(rig: Rig):
    conversation = rig.conversation(model="claude-sonnet-4-5")
    rig.model.script([thinking("Let me see."), text("Hello, ", "you.")])
    prompt = "p" * 300_000
    said = "/cost of @/etc/hostname\nand @nothing"
    await conversation.create()
    run = conversation.run(said)
    run.input.system_prompt = prompt
    drafts = await run.play()

    shown = [(kind(one), one.payload.content_delta.text or one.payload.reasoning_delta.text) for one in drafts]
    assert shown == [
        ("reasoning_delta", "Let me see."),
        ("content_delta", "Hello, "),
        ("content_delta", "you."),
        ("usage_updated", ""),
        ("session_updated", ""),
        ("run_completed", ""),
    ]
    used = usage(drafts)
    assert (used.input_tokens, used.output_tokens, used.cached_input_tokens, used.final) == (15, 7, 3, True)
    assert used.cost > 0
    assert used.currency == "USD"
    asked = rig.model.requests[0]
    assert len(rig.model.requests) == 1
    assert asked["model"] == "claude-sonnet-4-5"
    assert rig.model.said == [("user", said)]
    assert asked["system"][-1]["text"] == prompt
    assert [tool["name"] for tool in asked["tools"]] == [f"mcp__harness__kit_{name}" for name in ("echo", "pay", "sum")]
    assert rig.model.headers[0]["x-api-key"] == KEY


async def test_i30_a_turn_goes_on_elsewhere_from_the_committed_head_alone(rig: Rig):
    conversation = rig.conversation()
    rig.model.script([text("first answer")])
    await conversation.create()
    run = conversation.run("first question")
    run.input.system_prompt = "first prompt"
    assert usage(await run.play()).HasField("cost") is False, "the price of this model is not known"
    session, revision = conversation.native_session_id, conversation.thread.revision
    rig.model.script(Refused(400))
    await conversation.say("what fails leaves nothing")
    assert conversation.thread.revision == revision

    # Another host, another home, another working directory.
    await conversation.cleanup()
    conversation.setting.profile_settings["workspace_root"] = str(rig.folder / "second")
    await conversation.replace(await rig.another_host())
    rig.model.script([text("second answer")])
    run = conversation.run("second question")
    run.input.system_prompt = "second prompt"
    drafts = await run.play()
    assert text_of(drafts) == "second answer"
    assert "session_updated" not in kinds(drafts)
    assert conversation.native_session_id == session
    said = orjson.dumps(rig.model.requests[-1]["messages"]).decode()
    assert all(part in said for part in ("first question", "first answer", "second question"))
    assert "what fails" not in said
    assert str(rig.folder / "first") not in said
    assert "Environment update" not in said
    # Each turn has a prompt of its own, also where the program would keep the first one.
    assert rig.model.requests[-1]["system"][-1]["text"] == "second prompt"
    assert len(rig.model.requests[-1]["messages"]) == 4
    assert rig.left_behind() == []


async def test_a_turn_that_was_killed_at_first_leaves_a_conversation_that_begins_anew(rig: Rig):
    conversation = rig.conversation()
    # As after a first turn whose program died: the session has a name, and nothing behind it.
    conversation.native_session_id = "5b1c1c2e-93ce-4be7-9c43-0d0a8f7a1c11"
    await conversation.create()
    rig.model.script([text("hello")])
    drafts = await conversation.say("hi")
    assert text_of(drafts) == "hello"
    assert kinds(drafts)[-1] == "run_completed"
    assert conversation.native_session_id != "5b1c1c2e-93ce-4be7-9c43-0d0a8f7a1c11"


@pytest.mark.parametrize(
    ("codec", "content", "code"),
    [("other.v1", b'{"of": ""}\n', "state_codec"), ("claude-transcript.v1", b'{"of": ""', "state_damaged")],
)
async def test_a_head_that_is_damaged_or_foreign_is_refused(rig: Rig, codec: str, content: bytes, code: str):
    conversation = rig.conversation()
    await conversation.create()
    conversation.thread.head = [conversation.thread.write("run", "key", codec, content)]
    conversation.thread.revision = 1
    failed = (await conversation.say("hi"))[-1].payload.run_failed
    assert failed.code == code
    assert rig.model.requests == []


async def test_a_turn_whose_state_cannot_be_kept_fails_behind_its_output(rig: Rig):
    conversation = rig.conversation()
    await conversation.create()
    conversation.thread.fail_writes = True
    drafts = await conversation.say("hi")
    assert text_of(drafts) == "ok"
    failed = drafts[-1].payload.run_failed
    assert failed.code == "thread_durability_uncertain"
    assert failed.side_effect_status == 2


async def test_i35_a_turn_that_makes_the_state_too_large_to_be_loaded_again_is_not_kept():
    head = Transcript(parts=(bytes(MAX_HEAD_BYTES - 64),))
    # It comes to no turn: nothing is written.
    store = TurnStore(cast("Any", None), head, "/workspace")
    await store.append({}, [{"type": "user", "message": {"content": "x" * 64}}])
    with pytest.raises(PersistenceError, match="clear it") as caught:
        await store.write()
    assert caught.value.code == "state_too_large"


async def test_i35_a_head_of_many_parts_is_put_together_into_few(rig: Rig):
    """As after hundreds of turns; parts may end anywhere, also within a line or a character."""
    conversation = rig.conversation()
    await conversation.create()
    rig.model.script([text("größer")])
    await conversation.say("one")
    thread = conversation.thread
    content = b"".join(thread.parts[ref].content for ref in thread.head)
    size = len(content) // 600
    pieces = [content[start : start + size] for start in range(0, len(content), size)]
    thread.head = [thread.write("run", f"k{n}", "claude-transcript.v1", piece) for n, piece in enumerate(pieces)]
    assert len(thread.head) >= 600
    await conversation.say("two")
    assert len(thread.head) == 1
    await conversation.say("three")
    assert len(thread.head) == 2
    assert [said for _, said in rig.model.said] == ["one", "größer", "two", "größer", "three"]


async def test_an_ephemeral_conversation_keeps_nothing(rig: Rig):
    conversation = rig.conversation(change=_ephemeral)
    await conversation.create()
    await conversation.say("one")
    await conversation.say("two")
    assert rig.model.said == [("user", "two")]
    assert conversation.thread.parts == {}


def _ephemeral(blueprint):
    blueprint.thread.persistence = 2
