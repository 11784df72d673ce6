"""AG-UI: frames are what the `ag-ui-protocol` package defines, in an order its clients accept."""

from typing import Any

from ag_ui.core import Event
from hypothesis import given
from pydantic import BaseModel, TypeAdapter

from adapters.sdk import events as drafts
from adapters.sdk.lifecycle import RunLifecycle
from harness.event.v1 import event_pb2
from services.gateway.encodings.agui import AguiEncoder
from tests.gateway.test_encodings import AGUI, encode, log_of, logs, made, parse

_EVENT: TypeAdapter[Any] = TypeAdapter(Event)
_FIELDS = [
    {"name": "age", "type": 2, "required": True, "label": "Age", "description": "In years"},
    {"name": "mood", "type": 4, "options": ["good", "bad"]},
]
_WAITS = made("run_interrupted", interrupt_id="i1", reason="Waits for a person.")


def shown(*told: event_pb2.EventDraft) -> list[dict[str, Any]]:
    """The AG-UI events of a run, without what every one has."""
    items = [frame[2] for frame in parse(b"".join(encode(AGUI, log_of(*told))))]
    for item in items:
        del item["timestamp"]
    return items


def types(items: list[dict[str, Any]]) -> list[str]:
    return [item["type"] for item in items]


def _no_extras(model: Any) -> None:
    if isinstance(model, BaseModel):
        assert not model.model_extra, f"{type(model).__name__} has no {set(model.model_extra or ())}"
        for name in model.model_fields_set:
            _no_extras(getattr(model, name))
    elif isinstance(model, list):
        for item in model:
            _no_extras(item)


@given(log=logs())
def test_every_frame_is_an_event_of_the_package(log: list[event_pb2.Event]) -> None:
    for _, name, item in parse(b"".join(encode(AGUI, log))):
        assert name is None
        event = _EVENT.validate_python(item)
        _no_extras(event)
        assert event.model_dump(mode="json", by_alias=True, exclude_unset=True) == item


@given(log=logs())
def test_what_is_opened_is_closed_and_nothing_twice(log: list[event_pb2.Event]) -> None:
    """The order that a client insists on: one message at a time, arguments within a call, nothing after the end."""
    open_now: dict[str, set[str]] = {
        "TEXT_MESSAGE": set(),
        "REASONING_MESSAGE": set(),
        "REASONING": set(),
        "TOOL_CALL": set(),
    }
    started: set[str] = set()
    ended = False
    for _, _, item in parse(b"".join(encode(AGUI, log))):
        assert not ended
        kind, _, step = item["type"].rpartition("_")
        name = item.get("messageId") or item.get("toolCallId") or ""
        if step == "START":
            assert name not in open_now[kind]
            if kind != "TOOL_CALL":
                assert not open_now["TEXT_MESSAGE"]
                assert not open_now["REASONING_MESSAGE"]
            else:
                assert name not in started
                started.add(name)
            open_now[kind].add(name)
        elif step in ("CONTENT", "ARGS"):
            assert name in open_now[kind]
        elif step == "END":
            open_now[kind].remove(name)
        elif step == "RESULT":
            assert item["toolCallId"] in started
            assert item["toolCallId"] not in open_now["TOOL_CALL"]
        elif item["type"] in ("RUN_FINISHED", "RUN_ERROR"):
            assert not any(open_now.values())
            ended = True


@given(log=logs())
def test_its_state_is_what_the_lifecycle_says_is_open(log: list[event_pb2.Event]) -> None:
    machine, encoder = RunLifecycle(at_log=True), AguiEncoder("t")
    encoder.encode(log[0])
    for event in log[1:]:
        draft = event_pb2.EventDraft(namespace=event.namespace, payload=event.payload)
        if event.payload.WhichOneof("kind") == "session_updated":
            draft.native_session_id = "native-1"
        machine.accept(draft)
        encoder.encode(event)
        state = machine.open_state()
        message = next((one for one in state.messages if not one.namespace), None)
        expected = None if message is None else (f"{message.kind}_delta", message.message_id)
        assert encoder.state.message == expected
        calls = [call.tool_call_id for call in state.calls if not call.namespace and call.arguments is not None]
        assert list(encoder.state.calls) == calls


def test_a_turn() -> None:
    items = shown(
        drafts.reasoning("hm", message_id="r1"),
        drafts.text("Hel", message_id="m1"),
        drafts.text("lo", message_id="m1"),
        drafts.tool_started("c1", "search", parent_message_id="m1"),
        drafts.tool_arguments("c1", '{"q":'),
        drafts.tool_arguments("c1", '"x"}'),
        drafts.tool_succeeded("c1", {"hits": 2}),
        drafts.tool_started("c2", "add", {"b": 1, "a": 2.5}),
        drafts.tool_failed("c2", "overflow", "Too much."),
        drafts.text("Done.", message_id="m2"),
        drafts.usage(input_tokens=5, output_tokens=7, cost=0.5, currency="EUR"),
        drafts.completed(),
    )
    assert items == [
        {
            "type": "RUN_STARTED",
            "threadId": "conversation-1",
            "runId": "run_1",
            "protocolVersion": "1.0",
            "metadata": {"harness_id": "toy", "agent_version": 3, "binding_id": "bnd_1"},
        },
        {"type": "REASONING_START", "messageId": "r1"},
        {"type": "REASONING_MESSAGE_START", "messageId": "r1", "role": "reasoning"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "r1", "delta": "hm"},
        {"type": "REASONING_MESSAGE_END", "messageId": "r1"},
        {"type": "REASONING_END", "messageId": "r1"},
        {"type": "TEXT_MESSAGE_START", "messageId": "m1", "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": "Hel"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": "lo"},
        {"type": "TEXT_MESSAGE_END", "messageId": "m1"},
        {"type": "TOOL_CALL_START", "toolCallId": "c1", "toolCallName": "search", "parentMessageId": "m1"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": '{"q":'},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": '"x"}'},
        {"type": "TOOL_CALL_END", "toolCallId": "c1"},
        {
            "type": "TOOL_CALL_RESULT",
            "messageId": "c1:result",
            "toolCallId": "c1",
            "content": '{"hits":2}',
            "role": "tool",
            "metadata": {"outcome": "success"},
        },
        {"type": "TOOL_CALL_START", "toolCallId": "c2", "toolCallName": "add"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c2", "delta": '{"a":2.5,"b":1}'},
        {"type": "TOOL_CALL_END", "toolCallId": "c2"},
        {
            "type": "TOOL_CALL_RESULT",
            "messageId": "c2:result",
            "toolCallId": "c2",
            "content": "Too much.",
            "role": "tool",
            "metadata": {
                "outcome": "error",
                "error": {"code": "overflow", "message": "Too much.", "retryable": False},
            },
        },
        {"type": "TEXT_MESSAGE_START", "messageId": "m2", "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m2", "delta": "Done."},
        {
            "type": "CUSTOM",
            "name": "usage.updated",
            "value": {"input_tokens": 5, "output_tokens": 7, "cost": 0.5, "currency": "EUR", "final": False},
        },
        {"type": "TEXT_MESSAGE_END", "messageId": "m2"},
        {
            "type": "RUN_FINISHED",
            "threadId": "conversation-1",
            "runId": "run_1",
            "outcome": {"type": "success"},
            "metadata": {"stop_reason": "end_turn"},
            "usage": [{"inputTokens": 5, "outputTokens": 7}],
        },
    ]


def test_subagents_and_warnings_are_custom() -> None:
    items = shown(
        drafts.text("a"),
        drafts.subagent_started("s1", "c1", "Scout"),
        drafts.text("inner", namespace=("s1",)),
        drafts.tool_started("c2", "t", {}, namespace=("s1",)),
        drafts.tool_succeeded("c2", "ok", namespace=("s1",)),
        drafts.usage(input_tokens=9, namespace=("s1",)),
        drafts.subagent_completed("s1", "c1"),
        drafts.warning("slow", "It is slow.", {"s": 3}),
        drafts.text("b"),
        drafts.completed(),
    )
    assert types(items) == [
        "RUN_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        *["CUSTOM"] * 7,
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]
    custom = [item for item in items if item["type"] == "CUSTOM"]
    assert [item["name"] for item in custom] == [
        "subagent.started",
        *["subagent.event"] * 4,
        "subagent.completed",
        "warning",
    ]
    assert custom[0]["value"] == {"agent_id": "s1", "parent_tool_call_id": "c1", "agent_name": "Scout"}
    assert custom[1]["value"] == {
        "namespace": ["s1"],
        "event_type": "content.delta",
        "data": {"message_id": "m1", "text": "inner"},
    }
    assert custom[-1]["value"] == {"code": "slow", "message": "It is slow.", "details": {"s": 3}}
    assert "usage" not in items[-1]


def test_a_form_ends_the_run_with_the_interrupt() -> None:
    asked = made(
        "interrupt_requested", interrupt_id="i1", revision=2, interrupt_type=1, prompt="How old?", fields=_FIELDS
    )
    items = shown(drafts.text("a"), asked, _WAITS)
    assert types(items)[-2:] == ["TEXT_MESSAGE_END", "RUN_FINISHED"]
    assert items[-1]["outcome"] == {
        "type": "interrupt",
        "interrupts": [
            {
                "id": "i1",
                "reason": "form_input",
                "message": "How old?",
                "responseSchema": {
                    "type": "object",
                    "properties": {
                        "age": {"type": "number", "title": "Age", "description": "In years"},
                        "mood": {"type": "string", "enum": ["good", "bad"]},
                    },
                    "required": ["age"],
                    "additionalProperties": False,
                },
                "metadata": {
                    "revision": 2,
                    "interrupt_type": "form_input",
                    "fields": [
                        {**_FIELDS[0], "type": "number"},
                        {**_FIELDS[1], "type": "choice", "required": False},
                    ],
                },
            }
        ],
    }


def test_one_interrupt_for_all_approvals() -> None:
    def interrupt(*names: str) -> dict[str, Any]:
        calls = [{"tool_call_id": name, "tool_name": "rm", "allowed": [1, 2]} for name in names]
        asked = made("interrupt_requested", interrupt_id="i1", revision=1, interrupt_type=2, tool_approvals=calls)
        [found] = shown(asked, _WAITS)[-1]["outcome"]["interrupts"]
        return found

    one, two = interrupt("c1"), interrupt("c1", "c2")
    assert (one["id"], one["reason"], one["message"], one["toolCallId"]) == (
        "i1",
        "tool_approval",
        "Waits for a person.",
        "c1",
    )
    assert "toolCallId" not in two
    assert [call["tool_call_id"] for call in two["metadata"]["tool_approvals"]] == ["c1", "c2"]


def test_cancelled_and_failed_runs() -> None:
    cancelled = made("run_cancelled", reason=4, side_effect_status=2)
    items = shown(drafts.tool_started("c1", "t"), cancelled)
    assert types(items)[-3:] == ["TOOL_CALL_END", "TOOL_CALL_RESULT", "RUN_FINISHED"]
    assert items[-2]["metadata"] == {"outcome": "cancelled"}
    assert items[-1]["outcome"] == {"type": "cancelled"}
    assert items[-1]["metadata"] == {"reason": "deadline", "side_effect_status": "possible"}
    failed = made(
        "run_failed", code="provider_overloaded", category=4, message="Later.", retryable=True, side_effect_status=1
    )
    items = shown(drafts.text("a"), drafts.usage(output_tokens=1), failed)
    assert items[-1] == {
        "type": "RUN_ERROR",
        "message": "Later.",
        "code": "provider_overloaded",
        "metadata": {"category": "capacity", "retryable": True, "side_effect_status": "none"},
        "usage": [{"outputTokens": 1}],
    }
