"""The custom encoding: its eight frames and their data."""

from typing import Any

from hypothesis import given

from adapters.sdk import events as drafts
from adapters.sdk.lifecycle import TERMINAL_KINDS
from harness.event.v1 import event_pb2
from tests.gateway.test_encodings import CUSTOM, encode, log_of, logs, made, parse

NAMES = {"content", "thinking", "tool_start", "tool_end", "warning", "input_required", "error", "done"}


def shown(*told: event_pb2.EventDraft) -> list[tuple[str | None, Any]]:
    return [(name, data) for _, name, data in parse(b"".join(encode(CUSTOM, log_of(*told))))]


@given(log=logs())
def test_only_its_own_frames_and_done_is_the_last(log: list[event_pb2.Event]) -> None:
    names = [name for _, name, _ in parse(b"".join(encode(CUSTOM, log)))]
    assert set(names) <= NAMES
    ended = log[-1].payload.WhichOneof("kind") in TERMINAL_KINDS
    assert [index for index, name in enumerate(names) if name == "done"] == ([len(names) - 1] if ended else [])


@given(log=logs())
def test_its_text_is_the_text_of_the_root(log: list[event_pb2.Event]) -> None:
    frames = parse(b"".join(encode(CUSTOM, log)))
    deltas = [event.payload.content_delta for event in log if not event.namespace]
    assert "".join(data["text"] for _, name, data in frames if name == "content") == "".join(d.text for d in deltas)


def test_a_turn() -> None:
    assert shown(
        drafts.reasoning("hm", message_id="r1"),
        drafts.text("Hi", message_id="m1"),
        drafts.tool_started("c1", "search", {"q": "x"}),
        drafts.subagent_started("s1", "c1"),
        drafts.text("inner", message_id="m2", namespace=("s1",)),
        drafts.tool_started("c2", "look", namespace=("s1",)),
        drafts.tool_arguments("c2", "{}", namespace=("s1",)),
        drafts.tool_failed("c2", "gone", "Gone.", namespace=("s1",)),
        drafts.warning("slow", "Slow.", namespace=("s1",)),
        drafts.subagent_completed("s1", "c1"),
        drafts.tool_succeeded("c1", [1, 2]),
        drafts.usage(input_tokens=3, final=True),
        drafts.completed(),
    ) == [
        ("thinking", {"message_id": "r1", "text": "hm"}),
        ("content", {"message_id": "m1", "text": "Hi"}),
        ("tool_start", {"tool_call_id": "c1", "tool_name": "search", "arguments": {"q": "x"}}),
        ("tool_start", {"tool_call_id": "c2", "tool_name": "look", "namespace": ["s1"]}),
        (
            "tool_end",
            {
                "tool_call_id": "c2",
                "tool_name": "look",
                "outcome": "error",
                "error": {"code": "gone", "message": "Gone.", "retryable": False},
                "namespace": ["s1"],
            },
        ),
        ("warning", {"code": "slow", "message": "Slow.", "namespace": ["s1"]}),
        ("tool_end", {"tool_call_id": "c1", "tool_name": "search", "outcome": "success", "result": [1, 2]}),
        ("done", {"status": "completed", "stop_reason": "end_turn", "usage": {"input_tokens": 3, "final": True}}),
    ]


def test_other_ends() -> None:
    call = {"tool_call_id": "c1", "tool_name": "rm", "allowed": [1, 2]}
    asked = made(
        "interrupt_requested", interrupt_id="i1", revision=1, interrupt_type=2, prompt="May I?", tool_approvals=[call]
    )
    waits = made("run_interrupted", interrupt_id="i1", reason="Waits.")
    assert shown(asked, waits) == [
        (
            "input_required",
            {
                "interrupt_id": "i1",
                "revision": 1,
                "interrupt_type": "tool_approval",
                "prompt": "May I?",
                "tool_approvals": [{"tool_call_id": "c1", "tool_name": "rm", "allowed": ["approve", "reject"]}],
            },
        ),
        ("done", {"status": "interrupted", "interrupt_id": "i1", "reason": "Waits."}),
    ]
    cancelled = made("run_cancelled", reason=1, side_effect_status=1)
    assert shown(cancelled) == [
        ("done", {"status": "cancelled", "reason": "client_request", "side_effect_status": "none"})
    ]
    failed = made(
        "run_failed",
        code="provider_overloaded",
        category=4,
        message="Later.",
        retryable=True,
        side_effect_status=1,
        retry_after_seconds=0,
    )
    assert shown(failed) == [
        (
            "error",
            {
                "code": "provider_overloaded",
                "category": "capacity",
                "message": "Later.",
                "retryable": True,
                "side_effect_status": "none",
                "retry_after_seconds": 0,
            },
        ),
        ("done", {"status": "failed"}),
    ]
