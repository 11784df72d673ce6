"""What every event log has to do, whatever is behind it. A test module derives from the class and gives `open_log`:
opens the log of this test, the same one each time, and says how to close it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from services.common.store import DocumentTooLarge, InvalidDocument, InvalidQuery, StoreUnavailable
from services.runs.log.port import (
    MAX_HEADER_BYTES,
    MAX_READ_BYTES,
    MAX_SEGMENT_BYTES,
    Appended,
    BrokenLog,
    DuplicateSegment,
    SegmentHeader,
    SegmentLog,
)

OpenLog = Callable[[], Awaitable[tuple[SegmentLog, Callable[[], Awaitable[None]]]]]


def header(
    index: int, first: int, last: int, run_id: str = "r", generation: int = 1, nonce: str = "n"
) -> SegmentHeader:
    return SegmentHeader(run_id, index, first, last, generation, nonce, {"through_offset": last, "open": ["ä"]})


async def fill(log: SegmentLog, run_id: str = "r") -> None:
    """1: 1-10, 2: 11-20, 3: a seal, 4: 21, 5: 22-30, 6: a seal."""
    for segment in (
        header(1, 1, 10, run_id),
        header(2, 11, 20, run_id),
        header(3, 21, 20, run_id, 2),
        header(4, 21, 21, run_id, 2),
        header(5, 22, 30, run_id, 2),
        header(6, 31, 30, run_id, 3),
    ):
        assert await log.append(segment, b"" if segment.is_seal else bytes([segment.index]) * 100) == Appended()


class SegmentLogContract:
    @pytest.fixture
    async def log(self, open_log: OpenLog) -> AsyncIterator[SegmentLog]:
        log, close = await open_log()
        yield log
        await close()

    async def test_a_run_without_segments(self, log: SegmentLog) -> None:
        assert await log.tail("r") is None
        assert await log.headers("r") == []
        assert await log.read("r", 0) == []
        assert await log.delete("r") == 0

    async def test_a_segment_comes_back_byte_for_byte(self, log: SegmentLog) -> None:
        events = bytes(range(256)) * 100
        assert await log.append(header(1, 1, 10), events) == Appended()
        (segment,) = await log.read("r", 0)
        assert segment.header == header(1, 1, 10)
        assert segment.events == events
        assert await log.tail("r") == header(1, 1, 10)

    async def test_an_index_taken_tells_by_whom(self, log: SegmentLog) -> None:
        await log.append(header(1, 1, 10, nonce="mine"), b"mine")
        for nonce in ("mine", "other"):
            result = await log.append(header(1, 1, 5, nonce=nonce), b"again")
            assert result == DuplicateSegment(header(1, 1, 10, nonce="mine"))
        (segment,) = await log.read("r", 0)
        assert segment.events == b"mine"

    async def test_i10_of_raced_appends_one_wins_and_the_others_meet_it(self, log: SegmentLog) -> None:
        await log.append(header(1, 1, 10), b"e")
        rivals = [header(2, 11, 11 + number, generation=number, nonce=f"n{number}") for number in range(10)]
        results = await asyncio.gather(*(log.append(rival, b"e") for rival in rivals))
        winner = rivals[results.index(Appended())]
        assert results.count(Appended()) == 1
        assert results.count(DuplicateSegment(winner)) == 9
        assert await log.tail("r") == winner

    async def test_i10_a_seal_shuts_the_older_generation_out(self, log: SegmentLog) -> None:
        await log.append(header(1, 1, 10), b"e")
        seal = header(2, 11, 10, generation=2, nonce="new")
        assert await log.append(seal, b"") == Appended()
        assert await log.append(header(2, 11, 15, nonce="old"), b"late") == DuplicateSegment(seal)
        assert await log.append(header(3, 11, 15, generation=2, nonce="new"), b"e") == Appended()

    @pytest.mark.parametrize(
        "broken",
        [
            header(3, 11, 20),  # a gap in the index
            header(2, 12, 20),  # a gap in the sequence
            header(2, 10, 20),  # a sequence twice
            header(2, 11, 9),  # ends before it starts
            header(0, 11, 20),
            header(2, 0, -1),
            header(1, 2, 3, "new"),  # starts late
            header(2, 1, 3, "new"),  # starts with the second
            header(2, 11, 10),  # a seal with events
        ],
    )
    async def test_i7_a_segment_that_does_not_follow_on_is_refused(
        self, log: SegmentLog, broken: SegmentHeader
    ) -> None:
        await log.append(header(1, 1, 10), b"e")
        with pytest.raises(BrokenLog, match=f"run {broken.run_id}: segment {broken.index}"):
            await log.append(broken, b"e")
        assert await log.tail("r") == header(1, 1, 10)
        assert await log.tail("new") is None

    @pytest.mark.parametrize(
        ("after", "indexes"),
        [
            (0, [1, 2, 3, 4, 5, 6]),
            (1, [1, 2, 3, 4, 5, 6]),
            (9, [1, 2, 3, 4, 5, 6]),
            (10, [2, 3, 4, 5, 6]),
            (19, [2, 3, 4, 5, 6]),
            (20, [4, 5, 6]),
            (21, [5, 6]),
            (29, [5, 6]),
            (30, []),
            (1000, []),
        ],
    )
    async def test_read_begins_with_the_segment_of_the_next_sequence(
        self, log: SegmentLog, after: int, indexes: list[int]
    ) -> None:
        await fill(log)
        await fill(log, "q")
        await fill(log, "s")
        segments = await log.read("r", after)
        assert [segment.header.index for segment in segments] == indexes
        assert {segment.header.run_id for segment in segments} <= {"r"}
        for segment in segments:
            assert segment.events == (b"" if segment.header.is_seal else bytes([segment.header.index]) * 100)

    async def test_i35_read_stops_at_its_bounds_but_gives_one(self, log: SegmentLog) -> None:
        await fill(log)
        for max_bytes, count in ((1, 1), (199, 1), (200, 3), (300, 4), (400, 6)):
            assert len(await log.read("r", 0, max_bytes=max_bytes)) == count
        assert [segment.header.index for segment in await log.read("r", 10, limit=2)] == [2, 3]

    async def test_headers_come_in_order_with_seals(self, log: SegmentLog) -> None:
        await fill(log)
        assert [found.index for found in await log.headers("r")] == [1, 2, 3, 4, 5, 6]
        found = await log.headers("r", 3, limit=2)
        assert [(one.index, one.is_seal) for one in found] == [(3, True), (4, False)]
        assert await log.tail("r") == header(6, 31, 30, generation=3)

    async def test_delete_goes_from_the_front_and_leaves_other_runs(self, log: SegmentLog) -> None:
        await fill(log)
        await fill(log, "other")
        assert await log.delete("r", limit=4) == 4
        assert [found.index for found in await log.headers("r")] == [5, 6]
        assert await log.delete("r") == 2
        assert await log.delete("r") == 0
        assert len(await log.headers("other")) == 6
        with pytest.raises(BrokenLog):  # a writer that does not know of it
            await log.append(header(7, 31, 40), b"e")

    async def test_i35_bounds_are_kept_and_said(self, log: SegmentLog) -> None:
        assert await log.append(header(1, 1, 1), bytes(MAX_SEGMENT_BYTES)) == Appended()
        with pytest.raises(DocumentTooLarge):
            await log.append(header(2, 2, 2), bytes(MAX_SEGMENT_BYTES + 1))
        with pytest.raises(DocumentTooLarge):
            await log.append(replace(header(2, 2, 2), state={"x": "y" * MAX_HEADER_BYTES}), b"")
        with pytest.raises(InvalidDocument):
            await log.append(replace(header(2, 2, 2), state={"x": b"bytes"}), b"")
        for wrong in (
            log.read("r", -1),
            log.read("r", 0, limit=0),
            log.read("r", 0, limit=1001),
            log.read("r", 0, max_bytes=0),
            log.read("r", 0, max_bytes=MAX_READ_BYTES + 1),
            log.headers("r", limit=1001),
            log.delete("r", limit=0),
        ):
            with pytest.raises(InvalidQuery):
                await wrong

    async def test_many_runs_append_at_once(self, log: SegmentLog) -> None:
        async def write(run_id: str) -> None:
            for index in range(1, 11):
                await log.append(header(index, index * 2 - 1, index * 2, run_id), run_id.encode())

        await asyncio.gather(*(write(f"run{number}") for number in range(30)))
        for number in range(30):
            segments = await log.read(f"run{number}", 0)
            assert [segment.header.index for segment in segments] == list(range(1, 11))
            assert {segment.events for segment in segments} == {f"run{number}".encode()}

    async def test_everything_is_there_after_a_reopen(self, open_log: OpenLog) -> None:
        log, close = await open_log()
        await fill(log)
        await close()
        with pytest.raises(StoreUnavailable):
            await log.tail("r")
        log, close = await open_log()
        assert len(await log.read("r", 0)) == 6
        await close()
