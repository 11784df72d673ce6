"""The event log contract, kept by MongoDB beside the records of the same service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator

import pytest

from services.common.store import Collection, StoreOptions, StoreUnavailable, open_record_store
from services.common.store.mongo_records import MongoRecordStore
from services.runs.log import BrokenLog, DuplicateSegment, SegmentLog, open_segment_log
from services.runs.log.mongo import MongoSegmentLog
from tests.runs.log.contract import OpenLog, SegmentLogContract, fill, header
from tests.support import mongodb
from tests.support.mongo_wire import Wire, wire

RUNS = Collection("runs")


class TestMongoSegmentLog(SegmentLogContract):
    @pytest.fixture
    def open_log(self) -> Generator[OpenLog]:
        with mongodb.database() as url:

            async def open_() -> tuple[SegmentLog, Callable[[], Awaitable[None]]]:
                store = await open_record_store(url, [RUNS], StoreOptions("runs", timeout_seconds=60))
                return await open_segment_log(store), store.close

            yield open_


@pytest.fixture(scope="module")
def server() -> Generator[mongodb.Server]:
    server = mongodb.own_server()
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def line(server: mongodb.Server) -> AsyncIterator[Wire]:
    async with wire(server.address) as line:
        yield line


class Moments:
    """A clock that is moved by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def log(line: Wire, request: pytest.FixtureRequest) -> AsyncIterator[tuple[MongoSegmentLog, Moments]]:
    url = f"mongodb://{line.address}/{request.node.name[:30]}?directConnection=true"
    store = await open_record_store(url, [RUNS], StoreOptions("runs", timeout_seconds=60))
    assert isinstance(store, MongoRecordStore)
    moments = Moments()
    await MongoSegmentLog.open(store.engine)
    line.commands.clear()
    yield MongoSegmentLog(store.engine, moments), moments
    line.on_answer = None
    await store.close()


async def test_an_append_is_one_question_while_the_one_before_is_fresh(
    log: tuple[MongoSegmentLog, Moments], line: Wire
) -> None:
    segments, moments = log
    for index in range(1, 5):
        await segments.append(header(index, index, index), b"e")
        moments.now += 0.9
    assert line.commands == ["insert"] * 4
    moments.now += 1
    await segments.append(header(5, 5, 5), b"e")
    assert line.commands[4:] == ["find", "insert"]


async def test_appends_of_many_runs_travel_together(log: tuple[MongoSegmentLog, Moments], line: Wire) -> None:
    segments, _ = log
    await asyncio.gather(*(segments.append(header(1, 1, 1, f"r{number}"), b"e") for number in range(100)))
    assert set(line.commands) == {"insert"}
    assert len(line.commands) <= 3


async def test_reading_is_one_question(log: tuple[MongoSegmentLog, Moments], line: Wire) -> None:
    segments, _ = log
    await fill(segments)
    line.commands.clear()
    assert len(await segments.read("r", 0)) == 6
    assert len(await segments.headers("r")) == 6
    assert await segments.tail("r") is not None
    assert line.commands == ["find"] * 3


async def test_i7_a_writer_that_slept_learns_that_the_log_is_gone(
    log: tuple[MongoSegmentLog, Moments], server: mongodb.Server, request: pytest.FixtureRequest
) -> None:
    segments, moments = log
    await segments.append(header(1, 1, 10), b"e")
    await deleted_elsewhere(server, request.node.name[:30])
    moments.now += 1
    with pytest.raises(BrokenLog):
        await segments.append(header(2, 11, 20), b"e")
    assert await segments.headers("r") == []


async def test_i7_an_append_that_took_long_leaves_nothing_in_a_log_that_went_meanwhile(
    log: tuple[MongoSegmentLog, Moments], line: Wire, server: mongodb.Server, request: pytest.FixtureRequest
) -> None:
    segments, moments = log
    await segments.append(header(1, 1, 10), b"e")
    await deleted_elsewhere(server, request.node.name[:30])

    def late(command: str, answer: dict[str, object]) -> dict[str, object]:
        if command == "insert":
            moments.now += 2
        return answer

    line.on_answer = late
    with pytest.raises(BrokenLog):
        await segments.append(header(2, 11, 20), b"e")
    assert await segments.headers("r") == []


async def test_i34_an_append_whose_answer_was_lost_meets_its_own_nonce(
    server: mongodb.Server, line: Wire, request: pytest.FixtureRequest
) -> None:
    url = f"mongodb://{line.address}/{request.node.name[:30]}?directConnection=true"
    store = await open_record_store(url, [RUNS], StoreOptions("runs", timeout_seconds=1))
    segments = await open_segment_log(store)
    line.on_answer = lambda command, answer: None if command == "insert" else answer
    with pytest.raises(StoreUnavailable):
        await segments.append(header(1, 1, 10, nonce="mine"), b"e")
    line.on_answer = None
    again = await segments.append(header(1, 1, 10, nonce="mine"), b"e")
    assert again == DuplicateSegment(header(1, 1, 10, nonce="mine"))
    await store.close()


async def deleted_elsewhere(server: mongodb.Server, database: str) -> None:
    """What retention does in another replica."""
    store = await open_record_store(
        f"mongodb://{server.address}/{database}?directConnection=true", [RUNS], StoreOptions("runs", timeout_seconds=60)
    )
    assert await (await open_segment_log(store)).delete("r") == 1
    await store.close()
