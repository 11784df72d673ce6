"""What is kept of recent segments is bounded, in whatever order runs come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.runs.live.recent import CHUNK_BYTES, SEGMENT_OVERHEAD, RecentMemory, RecentSegments
from services.runs.segment import Segment

EMPTY_EVENT = b"\n\x00"


def segment(first: int, count: int) -> Segment:
    return Segment("r", first, first, first + count - 1, False, EMPTY_EVENT * count)


@given(steps=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 900), st.booleans()), max_size=60))
def test_i35_bytes_stay_within_both_bounds(steps: list[tuple[int, int, bool]]) -> None:
    memory = RecentMemory(run_bytes=3_000, total_bytes=8_000)
    runs = [RecentSegments() for _ in range(5)]
    ends = [0] * 5
    for number, count, leaves in steps:
        run = runs[number]
        if leaves:
            memory.clear(run)
        else:
            memory.add(run, segment(ends[number] + 1, count + 1))
            ends[number] += count + 1
        held = [sum(len(one.packed) + SEGMENT_OVERHEAD for one in other.segments) for other in runs]
        assert held == [other.size for other in runs]
        assert memory.size == sum(held) <= 8_000
        assert max(held) <= 3_000


def test_the_run_that_was_quiet_the_longest_gives_way_first() -> None:
    memory = RecentMemory(run_bytes=10_000, total_bytes=2 * (SEGMENT_OVERHEAD + 2))
    quiet, busy = RecentSegments(), RecentSegments()
    memory.add(quiet, segment(1, 1))
    memory.add(busy, segment(1, 1))
    memory.add(busy, segment(2, 1))
    assert not quiet.segments
    assert len(busy.segments) == 2


@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=12), data=st.data())
def test_i7_a_chunk_begins_right_behind_the_cursor(counts: list[int], data: st.DataObject) -> None:
    memory, run = RecentMemory(), RecentSegments()
    start = end = data.draw(st.integers(0, 10))
    for count in counts:
        memory.add(run, segment(end + 1, count))
        end += count
    for cursor in range(end + 3):
        chunk = run.after(cursor)
        if start <= cursor < end:
            assert chunk is not None
            assert chunk.last_sequence == end
            assert chunk.packed == EMPTY_EVENT * (end - cursor)
        else:
            assert chunk is None


def test_a_chunk_of_many_segments_is_bounded_and_a_single_one_is_shared() -> None:
    memory, run = RecentMemory(run_bytes=16 << 20), RecentSegments()
    half = CHUNK_BYTES // 4
    for number in range(5):
        memory.add(run, segment(number * half + 1, half))
    chunk = run.after(0)
    assert chunk is not None
    assert len(chunk.packed) == CHUNK_BYTES
    last = run.after(4 * half)
    assert last is not None
    assert last.packed is run.segments[-1].packed  # no copy, however many watchers
