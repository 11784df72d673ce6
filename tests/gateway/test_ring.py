"""The ring of encoded frames: whatever was put in comes out whole, from any cursor that is kept, within its bound."""

from hypothesis import given
from hypothesis import strategies as st

from harness.event.v1 import event_pb2, payload_pb2
from services.gateway.encodings.canonical import frame
from services.gateway.sse.ring import CHUNK_BYTES, Ring


def events(first: int, sizes: list[int]) -> list[event_pb2.Event]:
    return [
        event_pb2.Event(
            run_id="r",
            sequence=first + index,
            payload=payload_pb2.EventPayload(content_delta=payload_pb2.ContentDelta(message_id="m", text="x" * size)),
        )
        for index, size in enumerate(sizes)
    ]


_BATCHES = st.lists(st.lists(st.integers(1, 3_000) | st.just(50_000), min_size=1, max_size=40), min_size=1, max_size=12)


@given(
    start=st.integers(0, 5),
    batches=_BATCHES,
    bound=st.sampled_from([1, 70_000, 200_000, 10_000_000]),
    write=st.sampled_from([1, 10_000, 10_000_000]),
)
def test_every_kept_cursor_reads_exactly_the_rest(start: int, batches: list[list[int]], bound: int, write: int) -> None:
    ring = Ring(start, bound, frame)
    frames: dict[int, bytes] = {}
    for sizes in batches:
        batch = events(ring.head + 1, sizes)
        frames.update((event.sequence, frame(event)) for event in batch)
        assert ring.put(batch) == len(batch)
    assert ring.head == start + len(frames)
    kept = sum(len(frames[sequence]) for sequence in range(ring.kept_after + 1, ring.head + 1))
    # Never more than the bound, but for the newest chunk, which is kept whatever its size.
    assert kept <= max(bound, CHUNK_BYTES + 60_000)
    for cursor in range(start, ring.head + 2):
        expected = b"".join(frames[sequence] for sequence in range(cursor + 1, ring.head + 1))
        if cursor < ring.kept_after:
            assert ring.read(cursor, write) is None
            assert ring.unread(cursor) == kept
            continue
        assert ring.unread(cursor) == len(expected)
        got, at = b"", cursor
        while at < ring.head:
            part = ring.read(at, write)
            assert part is not None
            assert part.body
            assert part.cursor > at
            got, at = got + part.body, part.cursor
        assert got == expected
        end = ring.read(at, write)
        assert end is not None
        assert end.body == b""


def test_a_new_ring_reads_from_its_start() -> None:
    ring = Ring(7, 100, frame)
    part = ring.read(7, 1)
    assert part is not None
    assert (part.body, part.cursor) == (b"", 7)
    assert ring.read(6, 1) is None
