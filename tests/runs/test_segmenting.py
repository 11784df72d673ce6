"""Offsets to sequences: dense, split where they may be, resumed where they ended (I7, I19)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import orjson
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.sdk.lifecycle import DEFAULT_LIMITS, ProtocolViolation
from harness.common.v1 import error_pb2
from harness.event.v1 import event_pb2, payload_pb2
from harness.run.v1 import run_service_pb2
from services.runs.log.port import MAX_HEADER_BYTES, SegmentHeader
from services.runs.segmenting import MAX_OFFSET_BYTES, TARGET_SEGMENT_BYTES, Packed, Packer, Stop, Tail

TIME = Timestamp(seconds=1)


def content(text: str, message_id: str = "m1") -> event_pb2.EventDraft:
    delta = payload_pb2.ContentDelta(message_id=message_id, text=text)
    return event_pb2.EventDraft(payload=payload_pb2.EventPayload(content_delta=delta))


def metadata() -> event_pb2.EventDraft:
    return event_pb2.EventDraft(
        payload=payload_pb2.EventPayload(provider_metadata=payload_pb2.ProviderMetadata(provider="p"))
    )


def tool(call_id: str) -> event_pb2.EventDraft:
    return event_pb2.EventDraft(
        payload=payload_pb2.EventPayload(tool_started=payload_pb2.ToolStarted(tool_call_id=call_id, tool_name="t"))
    )


def tool_done(call_id: str) -> event_pb2.EventDraft:
    completed = payload_pb2.ToolCompleted(tool_call_id=call_id, outcome=payload_pb2.TOOL_OUTCOME_SUCCESS)
    return event_pb2.EventDraft(payload=payload_pb2.EventPayload(tool_completed=completed))


def subagent(namespace: Sequence[str], agent_id: str) -> event_pb2.EventDraft:
    opened = payload_pb2.SubagentStarted(agent_id=agent_id, parent_tool_call_id="p")
    return event_pb2.EventDraft(namespace=namespace, payload=payload_pb2.EventPayload(subagent_started=opened))


def tool_in(namespace: Sequence[str], call_id: str) -> event_pb2.EventDraft:
    draft = tool(call_id)
    draft.namespace.extend(namespace)
    return draft


def arguments(namespace: Sequence[str], call_id: str, fragment: str) -> event_pb2.EventDraft:
    delta = payload_pb2.ToolArgumentsDelta(tool_call_id=call_id, delta=fragment)
    return event_pb2.EventDraft(namespace=namespace, payload=payload_pb2.EventPayload(tool_arguments_delta=delta))


def completed() -> event_pb2.EventDraft:
    return event_pb2.EventDraft(payload=payload_pb2.EventPayload(run_completed=payload_pb2.RunCompleted()))


def batch(first_offset: int, *drafts: event_pb2.EventDraft) -> event_pb2.EventBatch:
    return event_pb2.EventBatch(first_offset=first_offset, drafts=drafts)


def started(packer: Packer) -> Packer:
    packer.start(payload_pb2.RunStarted(harness_id="reference", agent_version=1, binding_id="b"), TIME)
    return packer


def taken(packer: Packer) -> list[Packed]:
    found: list[Packed] = []
    while (packed := packer.take()) is not None:
        found.append(packed)
    return found


def events(segments: Sequence[Packed]) -> list[event_pb2.Event]:
    return [event for packed in segments for event in run_service_pb2.WatchRunResponse.FromString(packed.packed).events]


def stored(packed: Packed) -> SegmentHeader:
    return SegmentHeader(
        run_id="r",
        index=packed.tail.index,
        first_sequence=packed.first_sequence,
        last_sequence=packed.tail.last_sequence,
        run_generation=1,
        nonce="n",
        state=packed.tail.state("i"),
    )


def test_i7_sequences_start_at_one_and_are_dense() -> None:
    packer = started(Packer("r", Tail()))
    assert packer.pack(batch(1, content("a"), metadata(), content("b")), TIME) is None
    packer.end(completed(), "completed", TIME)
    segments = taken(packer)
    assert [event.sequence for event in events(segments)] == [1, 2, 3, 4]
    assert [packed.tail.index for packed in segments] == [1, 2]
    assert segments[-1].tail.terminal_status == "completed"
    assert {event.run_id for event in events(segments)} == {"r"}
    assert segments[0].tail.through_offset == 3


def test_drafts_that_are_durable_already_are_skipped_and_a_gap_is_refused() -> None:
    packer = started(Packer("r", Tail()))
    packer.pack(batch(1, content("a"), content("b")), TIME)
    assert packer.pack(batch(1, content("a"), content("b"), content("c")), TIME) is None
    assert [event.payload.content_delta.text for event in events(taken(packer))[1:]] == ["a", "b", "c"]
    with pytest.raises(ProtocolViolation):
        packer.pack(batch(5, content("x")), TIME)


def test_i19_nothing_of_a_bad_draft_is_packed_and_what_came_before_is() -> None:
    packer = started(Packer("r", Tail()))
    bad = event_pb2.EventDraft(
        payload=payload_pb2.EventPayload(run_started=payload_pb2.RunStarted(harness_id="reference"))
    )
    with pytest.raises(ProtocolViolation):
        packer.pack(batch(1, content("a"), bad, content("b")), TIME)
    assert [event.payload.WhichOneof("kind") for event in events(taken(packer))] == ["run_started", "content_delta"]
    assert packer.offset == 1


def test_packing_stops_before_what_the_executor_must_see_to() -> None:
    packer = started(Packer("r", Tail()))
    session = event_pb2.EventDraft(
        payload=payload_pb2.EventPayload(session_updated=payload_pb2.SessionUpdated()), native_session_id="native-1"
    )
    drafts = batch(1, content("a"), session, content("b"), completed())
    assert packer.pack(drafts, TIME) is Stop.SESSION
    assert packer.draft_after_offset(drafts).native_session_id == "native-1"
    packer.session_updated(7, TIME)
    assert packer.pack(drafts, TIME) is Stop.TERMINAL
    assert packer.draft_after_offset(drafts).payload.HasField("run_completed")
    found = events(taken(packer))
    assert [event.payload.WhichOneof("kind") for event in found] == [
        "run_started",
        "content_delta",
        "session_updated",
        "content_delta",
    ]
    assert found[2].payload.session_updated.session_revision == 7
    assert b"native-1" not in b"".join(event.SerializeToString() for event in found)


def test_i9_what_is_open_is_closed_in_the_terminal_segment_and_nothing_follows() -> None:
    packer = started(Packer("r", Tail()))
    packer.pack(batch(1, tool("t1")), TIME)
    packer.check_terminal(completed())
    packer.end(completed(), "completed", TIME)
    last = taken(packer)[-1]
    kinds = [event.payload.WhichOneof("kind") for event in events([last])]
    assert kinds == ["tool_completed", "run_completed"]
    assert events([last])[0].payload.tool_completed.outcome == payload_pb2.TOOL_OUTCOME_CANCELLED
    with pytest.raises(ProtocolViolation):
        packer.pack(batch(2, content("late")), TIME)


def test_i22_what_is_for_operators_is_not_in_the_log() -> None:
    packer = started(Packer("r", Tail()))
    failed = payload_pb2.RunFailed(
        code="provider_overloaded",
        category=error_pb2.ERROR_CATEGORY_CAPACITY,
        message="Busy.",
        side_effect_status=error_pb2.SIDE_EFFECT_STATUS_NONE,
        provider_code="canary-code",
        diagnostic="canary-diagnostic",
    )
    packer.end(event_pb2.EventDraft(payload=payload_pb2.EventPayload(run_failed=failed)), "failed", TIME)
    packed = b"".join(segment.packed for segment in taken(packer))
    assert b"provider_overloaded" in packed
    assert b"canary" not in packed


def test_a_successful_tool_call_is_a_known_effect_and_survives_a_takeover() -> None:
    packer = started(Packer("r", Tail()))
    packer.pack(batch(1, tool("t1"), tool_done("t1")), TIME)
    assert packer.effects_known
    tail = Tail.of(stored(taken(packer)[-1]))
    assert Packer("r", tail).effects_known


def test_i35_one_draft_beyond_its_bound_is_a_violation() -> None:
    packer = started(Packer("r", Tail()))
    with pytest.raises(ProtocolViolation) as refused:
        packer.pack(batch(1, content("x" * (MAX_OFFSET_BYTES + 1))), TIME)
    assert refused.value.code == "too_large"


def test_a_long_delta_is_split_and_stands_in_one_segment() -> None:
    packer = started(Packer("r", Tail()))
    text = "é" * 100_000
    packer.pack(batch(1, *(content("x" * 60_000) for _ in range(16)), content(text)), TIME)
    segments = taken(packer)
    assert len(segments) == 2
    assert all(len(packed.packed) <= TARGET_SEGMENT_BYTES for packed in segments)
    assert [packed.tail.through_offset for packed in segments] == [16, 17]
    assert "".join(event.payload.content_delta.text for event in events(segments[1:])) == text


def test_i7_a_full_segment_says_what_was_open_before_the_draft_that_did_not_fit() -> None:
    packer = started(Packer("r", Tail()))
    text = "x" * 60_000
    drafts = [content(text) for _ in range(TARGET_SEGMENT_BYTES // 60_000)]
    filler = content("y" * (TARGET_SEGMENT_BYTES - 60_096 * len(drafts) - 2_000))
    large = tool("t1")
    large.payload.tool_started.arguments.update({"text": text})
    packer.pack(batch(1, *drafts, filler, large, tool_done("t1"), content("z", "m2")), TIME)
    first, *_ = taken(packer)
    assert first.tail.through_offset == len(drafts) + 1
    assert not first.tail.opened.calls
    assert not first.tail.effects_known
    # What the next executor is sent again is taken as if for the first time.
    follower = Packer("r", Tail.of(stored(first)))
    assert follower.pack(batch(first.tail.through_offset + 1, large, tool_done("t1")), TIME) is None


def test_i35_all_that_may_be_open_in_a_run_fits_into_a_header() -> None:
    limits = DEFAULT_LIMITS
    packer = started(Packer("r", Tail()))
    name = "n" * 120
    path = [f"{name}{depth}" for depth in range(limits.namespace_depth)]
    drafts = [subagent(path[:depth], path[depth]) for depth in range(limits.namespace_depth)]
    drafts += [tool_in(path, f"{name}c{number}") for number in range(limits.open_calls)]
    # Nothing takes more room as JSON than what has to be escaped.
    quotes = '"' * limits.delta_bytes
    fragments = limits.open_arguments_bytes // limits.delta_bytes
    drafts += [arguments(path, f"{name}c{number}", quotes) for number in range(fragments)]
    packer.pack(batch(1, *drafts), TIME)
    state = taken(packer)[-1].tail.state("i")
    assert sum(len(call[2]) for call in state["open"]["calls"]) == limits.open_arguments_bytes
    assert len(orjson.dumps(state)) < MAX_HEADER_BYTES


def test_metadata_alone_never_fills_the_reader_up() -> None:
    packer = started(Packer("r", Tail()))
    taken(packer)
    for number in range(1, 200):
        packer.pack(batch(number, metadata()), TIME)
        assert packer.take() is None
    assert packer.pending_bytes == 0


_steps = st.lists(
    st.one_of(
        st.text(max_size=50).map(content),
        st.just(metadata()),
        st.integers(0, 60_000).map(lambda size: content("y" * size)),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(_steps, st.lists(st.integers(0, 40), max_size=6), st.data())
def test_i7_any_batching_and_any_takeover_give_the_same_events(
    drafts: list[event_pb2.EventDraft], cuts: list[int], data: st.DataObject
) -> None:
    whole = started(Packer("r", Tail()))
    whole.pack(batch(1, *drafts), TIME)
    expected = events(taken(whole))

    packer = started(Packer("r", Tail()))
    found: list[Packed] = []
    bounds = sorted({0, len(drafts), *(cut for cut in cuts if cut < len(drafts))})
    for begin, end in pairwise(bounds):
        overlap = data.draw(st.integers(0, begin))
        packer.pack(batch(overlap + 1, *drafts[overlap:end]), TIME)
        if data.draw(st.booleans()):
            found += taken(packer)
        if found and data.draw(st.booleans()):
            # The executor dies: what was taken is durable, the rest comes again after the last durable offset.
            packer = Packer("r", Tail.of(stored(found[-1])))
            durable = found[-1].tail.through_offset
            packer.pack(batch(durable + 1, *drafts[durable:end]), TIME) if durable < end else None
    found += taken(packer)
    assert events(found) == expected
    assert [event.sequence for event in events(found)] == list(range(1, len(expected) + 1))
    assert [packed.tail.index for packed in found] == list(range(1, len(found) + 1))


def asked() -> event_pb2.EventDraft:
    field = payload_pb2.FormField(name="city", type=payload_pb2.FORM_FIELD_TYPE_STRING)
    requested = payload_pb2.InterruptRequested(
        interrupt_id="i1", revision=1, interrupt_type=payload_pb2.INTERRUPT_TYPE_FORM_INPUT, fields=[field]
    )
    return event_pb2.EventDraft(payload=payload_pb2.EventPayload(interrupt_requested=requested))


def waits() -> event_pb2.EventDraft:
    interrupted = payload_pb2.RunInterrupted(interrupt_id="i1", reason="It waits.")
    return event_pb2.EventDraft(payload=payload_pb2.EventPayload(run_interrupted=interrupted))


def shown(packed: Sequence[Packed]) -> list[str]:
    """The kinds of all events of the segments."""
    events = [event for one in packed for event in run_service_pb2.WatchRunResponse.FromString(one.packed).events]
    return [event.payload.WhichOneof("kind") or "" for event in events]


def test_i24_an_interrupt_is_packed_with_the_terminal_and_never_before_it() -> None:
    packer = started(Packer("r", Tail()))
    drafts = [tool("c"), content("x"), asked(), metadata(), tool_done("c"), waits()]
    assert packer.pack(batch(1, *drafts), TIME) is Stop.TERMINAL
    before = taken(packer)
    # Nothing of it is durable, so another executor asks the runtime for it again.
    assert shown(before) == ["run_started", "tool_started", "content_delta"]
    assert [packed.tail.through_offset for packed in before] == [2]
    assert packer.asked is not None
    assert packer.draft_after_offset(batch(1, *drafts)) == waits()
    packer.check_terminal(waits())
    packer.end(waits(), "interrupted", TIME)
    (last,) = taken(packer)
    assert shown([last]) == ["interrupt_requested", "tool_completed", "run_interrupted"]
    assert (last.tail.terminal_status, last.tail.through_offset, last.tail.effects_known) == ("interrupted", 5, True)


def test_i24_the_next_executor_gets_what_was_held_back_again() -> None:
    packer = started(Packer("r", Tail()))
    assert packer.pack(batch(1, content("x"), asked()), TIME) is None
    (packed,) = taken(packer)
    # Also where the stream breaks: the same batch again is not taken twice.
    assert packer.pack(batch(2, asked(), waits()), TIME) is Stop.TERMINAL
    after = Packer("r", packed.tail)
    assert after.asked is None
    assert after.pack(batch(2, asked(), waits()), TIME) is Stop.TERMINAL
    assert after.asked is not None


def test_i24_a_run_that_ends_otherwise_never_tells_what_it_asked() -> None:
    packer = started(Packer("r", Tail()))
    packer.pack(batch(1, tool("c"), asked(), tool_done("c")), TIME)
    cancelled = payload_pb2.RunCancelled(
        reason=payload_pb2.CANCEL_REASON_CLIENT_REQUEST, side_effect_status=error_pb2.SIDE_EFFECT_STATUS_NONE
    )
    packer.end(event_pb2.EventDraft(payload=payload_pb2.EventPayload(run_cancelled=cancelled)), "cancelled", TIME)
    assert shown(taken(packer)) == ["run_started", "tool_started", "tool_completed", "run_cancelled"]


def test_i24_what_the_head_says_is_told_without_an_offset() -> None:
    packer = started(Packer("r", Tail()))
    packer.hold(asked())
    packer.end(waits(), "interrupted", TIME)
    packed = taken(packer)
    assert shown(packed) == ["run_started", "interrupt_requested", "run_interrupted"]
    assert packed[-1].tail.through_offset == 0


def test_i35_what_is_held_back_is_bounded() -> None:
    packer = started(Packer("r", Tail()))
    calls = [tool(f"c{number}") for number in range(10)]
    packer.pack(batch(1, *calls, asked()), TIME)
    large = []
    for number in range(10):
        done = tool_done(f"c{number}")
        done.payload.tool_completed.result.string_value = "x" * (250 * 1024)
        large.append(done)
    with pytest.raises(ProtocolViolation, match="over"):
        packer.pack(batch(12, *large), TIME)


@pytest.mark.parametrize("after", [content("x"), asked(), tool("d")])
def test_rule_4_nothing_but_what_closes_follows_an_interrupt(after: event_pb2.EventDraft) -> None:
    packer = started(Packer("r", Tail()))
    with pytest.raises(ProtocolViolation):
        packer.pack(batch(1, asked(), after), TIME)


def test_rule_4_a_run_that_asked_does_not_complete() -> None:
    packer = started(Packer("r", Tail()))
    assert packer.pack(batch(1, asked(), completed()), TIME) is Stop.TERMINAL
    with pytest.raises(ProtocolViolation):
        packer.check_terminal(completed())
