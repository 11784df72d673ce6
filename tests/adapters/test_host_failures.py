"""Bad streams and errors end one run over real gRPC, classified and without a word of theirs (I19, I22)."""

import asyncio

import pytest

from adapters.sdk import errors, events
from adapters.sdk.testing import kinds
from harness.adapter.v1 import adapter_service_pb2 as adapter_pb2
from harness.event.v1 import event_pb2
from harness.runtime.v1 import runtime_service_pb2 as pb2
from tests.adapters.scripted import steered, three
from tests.adapters.status import refused

ILLEGAL = [
    ([events.completed(), events.completed()], ["run.completed"]),
    ([events.tool_arguments("c1", "{}")], ["run.failed"]),
    ([events.text("a"), events.tool_succeeded("c1"), events.text("b")], ["content.delta", "run.failed"]),
    ([events.text("x", message_id="not an id")], ["run.failed"]),
    ([events.text("x", namespace=("nowhere",))], ["run.failed"]),
    ([events.text("only text")], ["content.delta", "run.failed"]),
    ([], ["run.failed"]),
    ([event_pb2.EventDraft()], ["run.failed"]),
]


@pytest.mark.parametrize("case", range(len(ILLEGAL)))
async def test_i19_a_bad_stream_fails_the_run_and_disturbs_no_other(case):
    bad, expected = ILLEGAL[case]

    async def play(turn):
        for event in bad if turn.message == "bad" else [events.completed()]:
            yield event

    adapter, context = steered(play)
    async with context as client:
        drafts = await client.turn("bad")
        assert kinds(drafts) == expected
        if expected[-1] == "run.failed":
            failed = drafts[-1].payload.run_failed
            assert (failed.category, failed.code, failed.retryable) == (8, "protocol_violation", False)
        assert adapter.ended
        assert kinds(await client.turn("good")) == ["run.completed"]
        other = client.another()
        assert kinds(await other.turn("good")) == ["run.completed"]


async def test_i19_the_provider_is_closed_after_a_bad_event():
    async def play(turn):
        while True:
            yield events.tool_succeeded("never-started")

    adapter, context = steered(play)
    async with context as client:
        assert kinds(await client.turn("x")) == ["run.failed"]
        # The second run gets the runtime only once the first one's provider is done with.
        assert kinds(await client.turn("y")) == ["run.failed"]
        assert adapter.ended[:1] == [adapter.turns[0].run_id]


CANARY = "canary-7c1f"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(CANARY), (11, "adapter_defect", False)),
        (SystemExit(CANARY), (11, "adapter_defect", False)),
        (asyncio.CancelledError(CANARY), (11, "adapter_defect", False)),
        (KeyError(CANARY), (11, "adapter_defect", False)),
        (errors.ThrottledError("Slow down.", diagnostic=CANARY, retry_after=2.5), (5, "rate_limited", True)),
        (errors.AuthenticationError("No key.", diagnostic=CANARY), (2, "provider_authentication", False)),
        (errors.UnavailableError("Away.", code=f"Bad {CANARY}", retryable=False), (6, "unavailable", False)),
    ],
)
async def test_i22_errors_cross_classified_and_without_a_canary(error, expected):
    async def play(turn):
        yield events.text("a")
        raise error

    _, context = steered(play)
    async with context as client:
        drafts = await client.turn("x")
        assert kinds(drafts) == ["content.delta", "run.failed"]
        failed = drafts[-1].payload.run_failed
        assert (failed.category, failed.code, failed.retryable) == expected
        assert failed.side_effect_status == errors.POSSIBLE_SIDE_EFFECTS
        assert CANARY.encode() not in drafts[-1].SerializeToString()
        if expected[1] == "rate_limited":
            assert failed.retry_after_seconds == 3


async def test_i22_errors_outside_a_run_cross_classified_and_without_a_canary():
    adapter, context = steered(three)
    async with context as client:
        await client.create()
        for error, code, reason in (
            (ValueError(CANARY), "INTERNAL", "adapter_defect"),
            (errors.AuthenticationError("No key.", diagnostic=CANARY), "UNAUTHENTICATED", "provider_authentication"),
        ):
            adapter.initialize_error = error
            request = pb2.InitializeRequest(fence=client.fence())
            for _ in range(2):
                info = await refused(client.runtime.Initialize(request), code, reason)
                assert CANARY not in str(info)
            await client.runtime.Restart(pb2.RestartRequest(fence=client.fence()))
        adapter.initialize_error = None
        adapter.checks = RuntimeError(CANARY)
        report = (await client.adapter.CheckHealth(adapter_pb2.CheckHealthRequest())).report
        assert report.status == 3
        assert CANARY not in str(report)


async def test_a_refused_provider_had_no_side_effects():
    async def play(turn):
        raise errors.AuthenticationError("No key.")
        yield

    _, context = steered(play)
    async with context as client:
        (failed,) = await client.turn("x")
        assert failed.payload.run_failed.side_effect_status == errors.NO_SIDE_EFFECTS
