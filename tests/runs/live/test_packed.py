"""Packed events are cut at events, byte for byte as the protobuf library would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.run.v1 import run_service_pb2
from services.runs.live.packed import drop_first, take_first

# Lengths around where the varint of a length grows.
TEXTS = st.lists(
    st.one_of(st.text(max_size=5), st.integers(100, 140).map("x".__mul__), st.just("y" * 17_000)), max_size=8
)


def response(texts: list[str]) -> run_service_pb2.WatchRunResponse:
    made = run_service_pb2.WatchRunResponse()
    for number, text in enumerate(texts):
        event = made.events.add(sequence=number)
        if text:
            event.payload.content_delta.text = text
    return made


@given(texts=TEXTS, data=st.data())
def test_i8_a_cut_is_what_the_library_writes(texts: list[str], data: st.DataObject) -> None:
    whole = response(texts)
    packed = whole.SerializeToString()
    at = data.draw(st.integers(0, len(texts)))
    expected = run_service_pb2.WatchRunResponse(events=whole.events[at:]).SerializeToString()
    assert drop_first(packed, at) == expected
    beginning = run_service_pb2.WatchRunResponse(events=whole.events[:at]).SerializeToString()
    assert take_first(packed, at, len(packed)) == (beginning, at)
    assert beginning + expected == packed


@given(texts=TEXTS, max_bytes=st.integers(0, 40_000))
def test_a_beginning_is_as_long_as_may_be(texts: list[str], max_bytes: int) -> None:
    packed = response(texts).SerializeToString()
    taken, count = take_first(packed, 100, max_bytes)
    assert count == len(run_service_pb2.WatchRunResponse.FromString(taken).events)
    assert len(taken) <= max_bytes or count == 1
    if count < len(texts):
        longer, _ = take_first(packed, count + 1, len(packed))
        assert len(longer) > max_bytes


@pytest.mark.parametrize("packed", [b"", b"\x12\x00", b"\x0a\x05abc", b"\x0a\x00"])
def test_what_holds_no_such_events_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="packed event"):
        drop_first(packed, 2)
