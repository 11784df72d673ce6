"""Rehearsals: never but under a profile that allows faults, and step by step what they are asked for."""

import json
from collections.abc import AsyncIterator

import pytest

from adapters.sdk import events
from adapters.sdk.capabilities import NATIVE, build_descriptor, capability
from adapters.sdk.contract import Turn
from adapters.sdk.rehearsal import MAX_BURST_CHARACTERS, rehearsal_of
from adapters.sdk.simple import SimpleAdapter
from adapters.sdk.testing import kinds, served, text_of

DESCRIPTOR = build_descriptor(
    harness_id="echo",
    display_name="Echo",
    description="Says its message.",
    adapter_version="0.1.0",
    capabilities={"stream.text": capability(NATIVE)},
)


class Echo(SimpleAdapter):
    """Says its message, unless that is a rehearsal."""

    @property
    def descriptor(self):
        return DESCRIPTOR

    async def stream(self, turn: Turn) -> AsyncIterator[events.Draft]:
        rehearsal = rehearsal_of(turn)
        if rehearsal is not None:
            async for draft in rehearsal.drafts():
                yield draft
            return
        yield events.text(turn.message)
        yield events.completed("end_turn")


def rehearse(*steps):
    return json.dumps({"rehearse": list(steps)})


async def played(message, settings=None):
    async with served(Echo) as client:
        client.harness_id = "echo"
        client.profile_settings = {"allow_faults": True} if settings is None else settings
        return await client.turn(message)


@pytest.mark.parametrize("settings", [{}, {"allow_faults": False}, {"allow_faults": "true"}, {"allow_faults": 1}])
async def test_no_other_profile_plays_one(settings):
    message = rehearse({"raise": "boom"})
    drafts = await played(message, settings)
    assert text_of(drafts) == message
    assert kinds(drafts)[-1] == "run.completed"


@pytest.mark.parametrize(
    "message", ["hello", '{"rehearse', '{"script": []}', '["rehearse"]', '{"a": {"rehearse": []}}']
)
async def test_what_is_no_rehearsal_is_a_message(message):
    assert text_of(await played(message)) == message


async def test_a_rehearsal_speaks_in_messages_and_ends():
    drafts = await played(
        rehearse(
            {"text": "one", "chunks": ["o", "ne"]},
            {"reasoning": "hm"},
            {"text": "two"},
            {"usage": {"input_tokens": 3, "final": True}},
            {"burst": {"count": 5, "size": 2}},
        )
    )
    said = {}
    for draft in drafts:
        if draft.payload.HasField("content_delta"):
            delta = draft.payload.content_delta
            said[delta.message_id] = said.get(delta.message_id, "") + delta.text
    assert list(said.values()) == ["one", "two", "x" * 10]
    assert {"reasoning.delta", "usage.updated"} <= set(kinds(drafts))
    assert kinds(drafts)[-1] == "run.completed"


async def test_failures_exceptions_and_events_are_what_they_are_asked_to_be():
    words = {"category": "throttled", "message": "So.", "code": "busy", "retryable": False, "retry_after": 7}
    failed = (await played(rehearse({"fail": words})))[-1].payload.run_failed
    assert (failed.message, failed.code, failed.retryable, failed.retry_after_seconds) == ("So.", "busy", False, 7)
    crashed = (await played(rehearse({"text": "begun"}, {"raise": "secret"})))[-1].payload.run_failed
    assert (crashed.code, "secret" in str(crashed)) == ("adapter_defect", False)
    emitted = {"type": "warning", "data": {"code": "w", "message": "W."}}
    assert "warning" in kinds(await played(rehearse({"emit": emitted})))


@pytest.mark.parametrize(
    "message",
    [
        '{"rehearse": {"raise": "x"}}',
        '{"rehearse": [], "more": 1}',
        rehearse({"dance": True}),
        rehearse("hang"),
        rehearse({"fail": {"category": "sad", "message": "x"}}),
        rehearse({"fail": {"category": "internal", "message": "x", "diagnostic": "y"}}),
        rehearse({"emit": {"type": "no.such", "data": {}}}),
        rehearse({"usage": {"tokens": 1}}),
        rehearse({"burst": {"count": MAX_BURST_CHARACTERS, "size": 2}}),
    ],
)
async def test_what_is_no_step_is_refused_as_such(message):
    failed = (await played(message))[-1].payload.run_failed
    assert (failed.code, failed.retryable) == ("step_invalid", False)
