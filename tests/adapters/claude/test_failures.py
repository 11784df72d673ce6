"""What goes wrong at the provider, in the program and around it: one class each, told truthfully, and never asked twice."""

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from claude_agent_sdk import MirrorErrorMessage, ResultMessage, StreamEvent, SystemMessage

from adapters.claude_agent_sdk.errors import ended_badly
from adapters.claude_agent_sdk.translation import Translation
from adapters.sdk.errors import PersistenceError, UnavailableError
from conformance.plane.run import kinds, text_of
from harness.common.v1 import error_pb2
from tests.adapters.claude.model import HANGS, Refused, portable, text, waits
from tests.adapters.claude.rig import Rig, until

NONE, POSSIBLE = error_pb2.SIDE_EFFECT_STATUS_NONE, error_pb2.SIDE_EFFECT_STATUS_POSSIBLE
# What the provider answers, the category and code of the run's failure, how often it is asked, and its hint, from and to.
REFUSALS = [
    (Refused(401), "AUTHENTICATION", "provider_authentication", 1, None),
    (Refused(403), "AUTHORIZATION", "provider_permission", 1, None),
    (Refused(404), "CONFIGURATION", "model_unknown", 3, None),
    (Refused(400), "CONFIGURATION", "provider_invalid_request", 3, None),
    (Refused(413), "CONFIGURATION", "request_too_large", 1, None),
    (Refused(429, {"retry-after": "40"}), "THROTTLED", "rate_limited", 1, (40, 50)),
    (Refused(529, {"retry-after": "1"}), "UNAVAILABLE", "provider_overloaded", 2, (1, 3)),
    (Refused(500), "UNAVAILABLE", "provider_failed", 2, None),
]


async def test_i22_refusals_of_the_provider_are_classified_and_bounded(rig: Rig):
    conversation = rig.conversation(max_retries=1)
    await conversation.create()
    for answer, category, code, most, hint in REFUSALS:
        rig.model.script(answer)
        before = len(rig.model.requests)
        drafts = await conversation.say("hi")
        failed = drafts[-1].payload.run_failed
        assert kinds(drafts) == ["run_failed"], "what the program makes up is no answer"
        assert (failed.code, error_pb2.ErrorCategory.Name(failed.category)) == (code, f"ERROR_CATEGORY_{category}")
        assert failed.side_effect_status == (POSSIBLE if category == "UNAVAILABLE" else NONE)
        assert 1 <= len(rig.model.requests) - before <= most
        assert failed.HasField("retry_after_seconds") == (hint is not None)
        assert hint is None or hint[0] <= failed.retry_after_seconds <= hint[1]
        assert answer.message not in str(drafts)
    rig.model.script([text("well again")])
    assert text_of(await conversation.say("hi")) == "well again"


async def test_i11_an_answer_that_broke_after_it_was_shown_is_never_asked_for_again(rig: Rig):
    # Long enough for any machine: this answer breaks off, it does not stop.
    conversation = rig.conversation(max_retries=2, idle_seconds=60)
    await conversation.create()
    shown = asyncio.Event()
    rig.model.script([text("half of"), waits(shown, then="cut")], [text("another answer")])
    run = conversation.run("hi")
    stream = run.start()
    await until(stream, "content_delta")
    shown.set()
    await run.follow(stream)
    assert text_of(run.drafts) == "half of"
    failed = run.last.payload.run_failed
    assert (failed.code, failed.side_effect_status) == ("stream_broken", POSSIBLE)
    assert len(rig.model.requests) == 1

    # The same where nothing more comes.
    conversation = rig.conversation(max_retries=2, idle_seconds=8)
    await conversation.create()
    rig.model.script([text("half of"), waits(asyncio.Event())], [text("another answer")])
    drafts = await conversation.say("hi")
    failed = drafts[-1].payload.run_failed
    assert (text_of(drafts), failed.code, failed.side_effect_status) == ("half of", "stream_idle", POSSIBLE)
    assert len(rig.model.requests) == 2


async def test_a_program_that_dies_a_deadline_and_too_many_turns(rig: Rig):
    conversation = rig.conversation(max_turns=2, idle_seconds=60)
    await conversation.create()
    rig.model.script([text("half"), waits(asyncio.Event())])
    run = conversation.run("hi")
    stream = run.start()
    await until(stream, "content_delta")
    (pid,) = (rig.folder / "first").glob("*/turn-*/pid")
    os.kill(int(pid.read_text()), signal.SIGKILL)
    await run.follow(stream)
    failed = run.last.payload.run_failed
    assert (failed.code, failed.side_effect_status, failed.retryable) == ("program_died", POSSIBLE, True)

    rig.model.script(HANGS)
    drafts = await conversation.say("hi", seconds=2.0)
    assert kinds(drafts) == ["run_cancelled"]

    rig.model.script(*([portable("kit_echo", f"call_{n}", text="again")] for n in range(5)))
    drafts = await conversation.say("go on and on")
    failed = drafts[-1].payload.run_failed
    assert (failed.code, failed.retryable) == ("max_turns_reached", False)
    assert conversation.tools.done == ["call_0", "call_1"] or conversation.tools.done == ["call_0"]


async def test_what_is_missing_for_a_turn_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY_FILE", raising=False)
    cases: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"credential_file": str(rig.folder / "nowhere")}, "credential_missing", "credential_file"),
        ({"credential_file": None, "credential_env": "NOT_SET_HERE"}, "credential_missing", "credential_env"),
        ({"credential_file": None}, "credential_missing", "ANTHROPIC_API_KEY_FILE"),
    )
    for settings, code, named in cases:
        conversation = rig.conversation(**settings)
        await conversation.create()
        failed = (await conversation.say("hi"))[-1].payload.run_failed
        assert (failed.code, failed.side_effect_status) == (code, NONE)
        assert named in failed.message
        assert str(rig.folder) not in failed.message
    assert rig.model.requests == []


def test_kinds_that_mean_nothing_here_are_left_out_and_what_was_not_kept_is_told():
    translation = Translation(tools=None, session_id="")  # pyright: ignore[reportArgumentType] - nothing here has a call
    assert list(translation.take(SystemMessage(subtype="of_a_later_version", data={"text": "canary"}))) == []
    assert list(translation.take(object())) == []  # pyright: ignore[reportArgumentType] - a message of a later version
    with pytest.raises(PersistenceError):
        list(translation.take(MirrorErrorMessage(subtype="mirror_error", data={}, error="canary")))


def test_i11_an_answer_the_program_closes_by_itself_is_broken():
    """It makes up the end of an answer that broke off; the model's own end says why it stopped."""

    def stream(*kinds: dict[str, Any]) -> None:
        translation = Translation(tools=None, session_id="")  # pyright: ignore[reportArgumentType] - nothing here has a call
        for event in kinds:
            list(translation.take(StreamEvent(uuid="u", session_id="s", event=event)))

    begun = {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}
    done, stopped = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}
    stream({"type": "message_start"}, begun, done, stopped, {"type": "message_start"}, begun)
    for broken in ((begun, stopped), (begun, {"type": "message_start"}), (begun, {"type": "error"})):
        with pytest.raises(UnavailableError, match="broke off"):
            stream(*broken)


def test_results_that_are_errors_have_a_class_each():
    def result(**given: Any) -> ResultMessage:
        said: dict[str, Any] = {
            "subtype": "success",
            "duration_ms": 1,
            "duration_api_ms": 1,
            "is_error": True,
            "num_turns": 1,
            "session_id": "s",
        }
        return ResultMessage(**{**said, **given})

    for given, code in (
        ({"subtype": "error_max_budget_usd"}, "max_budget_reached"),
        ({"terminal_reason": "tool_deferred_unavailable"}, "tool_unavailable_at_resume"),
        ({"terminal_reason": "api_error"}, "provider_unreachable"),
        ({"subtype": "error_during_execution", "errors": ["canary"]}, "program_error"),
    ):
        error = ended_badly(result(**given), None)
        assert error.code == code
        assert "canary" not in error.message + error.diagnostic


def test_nothing_of_the_sdk_is_needed_to_say_that_it_is_missing():
    """The adapter starts without its SDK, and says what is missing."""
    script = """
import asyncio, os, sys
sys.modules["claude_agent_sdk"] = None
import adapters.claude_agent_sdk
assert "grpc" not in sys.modules and os.environ["GRPC_ENABLE_FORK_SUPPORT"] == "false"
import adapters.claude_agent_sdk.__main__
from adapters.claude_agent_sdk.adapter import ClaudeAdapter
from adapters.sdk.errors import UnavailableError
try:
    asyncio.run(ClaudeAdapter().create_runtime(None))
except UnavailableError as error:
    print(error.message)
"""
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=90, check=True)
    assert "install the extra `claude`" in made.stdout
