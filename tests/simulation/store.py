"""Simulated stores: documents by key with compare-and-set and unique indexes, and the log; every replica of a service reads and writes the same.

A call takes time before and after the moment at which it takes effect. Between the two the caller may crash or stall, and the answer may get
lost: then a write has happened and its writer is told that the store is unavailable. At times a store answers nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import orjson

from services.common.store import (
    BY_KEY,
    Collection,
    Document,
    DuplicateKey,
    Index,
    InvalidQuery,
    Page,
    Range,
    Record,
    StoreUnavailable,
)
from services.common.store.port import EVERYTHING, MAX_PAGE, Scalar
from services.runs.log import Appended, BrokenLog, DuplicateSegment, Segment, SegmentHeader
from tests.simulation.loop import LIFE, Life, SimulatedLoop

T = TypeVar("T")
CALL: Final[ContextVar[Any]] = ContextVar("simulated_call", default=None)
"""The call in whose service a write is made, for the checker: its method and request."""


class Database:
    """What is on the disks of one service. `observe` hears of every write, in the order in which they took effect."""

    def __init__(self) -> None:
        self.collections: dict[str, dict[str, Row]] = {}
        self.uniques: dict[tuple[str, str], dict[tuple[Any, ...], str]] = {}
        self.logs: dict[str, list[Segment]] = {}
        self.away_until = 0.0

    def rows(self, collection: Collection) -> dict[str, Row]:
        """The records of a collection, by key."""
        return self.collections.setdefault(collection.name, {})

    def document(self, collection_name: str, key: str) -> Document | None:
        """What is stored now, for the checker."""
        row = self.collections.get(collection_name, {}).get(key)
        return None if row is None else row.parsed


class Row:
    """One record."""

    __slots__ = ("blob", "data", "parsed", "rev")

    def __init__(self, data: bytes, rev: int, blob: bytes | None) -> None:
        self.data = data
        self.rev = rev
        self.blob = blob
        self.parsed: Document = orjson.loads(data)

    def document(self) -> Document:
        """A copy of its document."""
        document: Document = orjson.loads(self.data)
        document["rev"] = self.rev
        return document


Observe = Callable[[Life | None, str, Any, Any, Any], None]
"""Who wrote, what kind of write, before, after, in whose service."""


class Store:
    """The way of one process to a database. Implements `RecordStore` and `SegmentLog`."""

    def __init__(self, loop: SimulatedLoop, database: Database, network: Any, observe: Observe) -> None:
        self._loop = loop
        self._database = database
        self._weather = network
        self._observe = observe

    async def _do(self, work: Callable[[Life | None, Any], T], *, writes: bool) -> T:
        loop, weather = self._loop, self._weather
        answer = loop.create_future()
        life, call = LIFE.get(), CALL.get()

        def take_effect() -> None:
            if self._database.away_until > loop.now:
                _fail(answer, StoreUnavailable("the store is away"))
                return
            # What a process had sent when it died may still arrive, or not.
            if life is not None and life.dead and weather.chance(0.5):
                return
            if weather.is_lost("store_lost"):
                _fail(answer, StoreUnavailable("the store did not answer"))
                return
            try:
                result = work(life, call)
            except Exception as error:  # noqa: BLE001 - it is the caller's
                _fail(answer, error)
                return
            if writes and weather.is_lost("write_unknown"):
                weather.count("write_unknown")
                _fail(answer, StoreUnavailable("the store's answer got lost"))
                return
            back = weather.way_back()
            if back:
                loop.later(back, _answer, answer, result)
            else:
                _answer(answer, result)

        loop.later(weather.store_delay(), take_effect)
        return await answer

    # --- RecordStore ---

    async def insert(self, collection: Collection, key: str, document: Document, blob: bytes | None = None) -> None:
        data = orjson.dumps({name: value for name, value in document.items() if name != "rev"})

        def work(life: Life | None, call: Any) -> None:
            rows = self._database.rows(collection)
            if key in rows:
                raise DuplicateKey(collection.name, BY_KEY.name)
            row = Row(data, 1, blob)
            self._claim_unique(collection, key, row.parsed, None)
            rows[key] = row
            self._observe(life, collection.name, None, row.parsed, call)

        await self._do(work, writes=True)

    async def compare_and_set(self, collection: Collection, key: str, expected_rev: int, document: Document) -> bool:
        data = orjson.dumps({name: value for name, value in document.items() if name != "rev"})

        def work(life: Life | None, call: Any) -> bool:
            rows = self._database.rows(collection)
            before = rows.get(key)
            if before is None or before.rev != expected_rev:
                return False
            row = Row(data, expected_rev + 1, before.blob)
            self._claim_unique(collection, key, row.parsed, before.parsed)
            rows[key] = row
            self._observe(life, collection.name, before.parsed, row.parsed, call)
            return True

        asked = self._loop.now
        done = await self._do(work, writes=True)
        if not done and collection.name == "runs":
            self._loop.world.check("refused", LIFE.get(), asyncio.current_task(), document, asked)
        return done

    async def delete(self, collection: Collection, key: str, expected_rev: int | None = None) -> bool:
        def work(life: Life | None, call: Any) -> bool:
            rows = self._database.rows(collection)
            row = rows.get(key)
            if row is None or (expected_rev is not None and row.rev != expected_rev):
                return False
            self._release_unique(collection, key, row.parsed)
            del rows[key]
            self._observe(life, collection.name, row.parsed, None, call)
            return True

        return await self._do(work, writes=True)

    async def delete_expired(self, collection: Collection, now: int, limit: int = MAX_PAGE) -> int:
        def work(_: Life | None, __: Any) -> int:
            if collection.expires is None:
                raise InvalidQuery(f"collection {collection.name} declares no expiry")
            rows = self._database.rows(collection)
            due = [
                (row.parsed[collection.expires], key) for key, row in rows.items() if collection.expires in row.parsed
            ]
            for _, key in (gone := sorted(one for one in due if one[0] <= now)[:limit]):
                self._release_unique(collection, key, rows[key].parsed)
                del rows[key]
            return len(gone)

        return await self._do(work, writes=True)

    async def get(self, collection: Collection, key: str) -> Record | None:
        def work(life: Life | None, call: Any) -> Record | None:
            row = self._database.rows(collection).get(key)
            return None if row is None else Record(key, row.document())

        found = await self._do(work, writes=False)
        if found is not None and collection.name == "runs":
            self._loop.world.check("read", asyncio.current_task(), found.document)
        return found

    async def get_blob(self, collection: Collection, key: str) -> bytes | None:
        def work(life: Life | None, call: Any) -> bytes | None:
            row = self._database.rows(collection).get(key)
            return None if row is None else row.blob

        return await self._do(work, writes=False)

    async def find(self, collection: Collection, index: Index, values: tuple[Scalar, ...]) -> Record | None:
        def work(life: Life | None, call: Any) -> Record | None:
            key = self._database.uniques.get((collection.name, index.name), {}).get(values)
            return None if key is None else Record(key, self._database.rows(collection)[key].document())

        return await self._do(work, writes=False)

    async def query(
        self,
        collection: Collection,
        index: Index,
        equals: tuple[Scalar, ...] = (),
        within: Range = EVERYTHING,
        *,
        descending: bool = False,
        limit: int = 100,
        after: str | None = None,
    ) -> Page:
        def work(life: Life | None, call: Any) -> Page:
            found = self._matching(collection, index, equals, within)
            found.sort(key=lambda one: one[0], reverse=descending)
            start = 0 if after is None else int(after)
            chosen = found[start : start + limit]
            following = str(start + limit) if len(found) > start + limit else None
            return Page([Record(row_key, row.document()) for (_, row_key), row in chosen], following)

        return await self._do(work, writes=False)

    async def count(
        self, collection: Collection, index: Index, equals: tuple[Scalar, ...] = (), *, at_most: int = MAX_PAGE
    ) -> int:
        def work(life: Life | None, call: Any) -> int:
            return min(at_most, len(self._matching(collection, index, equals, EVERYTHING)))

        return await self._do(work, writes=False)

    async def check(self) -> None:
        await self._do(lambda life, call: None, writes=False)

    async def close(self) -> None:
        return

    def _matching(
        self, collection: Collection, index: Index, equals: tuple[Scalar, ...], within: Range
    ) -> list[tuple[tuple[tuple[Any, ...], str], Row]]:
        found: list[tuple[tuple[tuple[Any, ...], str], Row]] = []
        count = len(equals)
        for key, row in self._database.rows(collection).items():
            document = row.parsed
            values = tuple(key if name == "_key" else document.get(name) for name in index.fields)
            if None in values or values[:count] != equals:
                continue
            if count < len(values) and not _is_within(values[count], within):
                continue
            found.append(((values, key), row))
        return found

    def _claim_unique(self, collection: Collection, key: str, after: Document, before: Document | None) -> None:
        for index in collection.indexes:
            if not index.unique:
                continue
            values = tuple(after.get(name) for name in index.fields)
            taken = self._database.uniques.setdefault((collection.name, index.name), {})
            if None not in values and taken.get(values, key) != key:
                raise DuplicateKey(collection.name, index.name)
        if before is not None:
            self._release_unique(collection, key, before)
        for index in collection.indexes:
            values = tuple(after.get(name) for name in index.fields)
            if index.unique and None not in values:
                self._database.uniques[(collection.name, index.name)][values] = key

    def _release_unique(self, collection: Collection, key: str, document: Document) -> None:
        for index in collection.indexes:
            if index.unique:
                values = tuple(document.get(name) for name in index.fields)
                self._database.uniques.get((collection.name, index.name), {}).pop(values, None)

    # --- SegmentLog ---

    async def append(self, header: SegmentHeader, events: bytes) -> Appended | DuplicateSegment:
        state = orjson.dumps(header.state)
        if not header.is_seal:
            self._loop.world.check("sends", LIFE.get(), "a segment", header.run_id, header.run_generation)

        def work(life: Life | None, call: Any) -> Appended | DuplicateSegment:
            segments = self._database.logs.setdefault(header.run_id, [])
            if header.index <= len(segments):
                return DuplicateSegment(segments[header.index - 1].header)
            last = segments[-1].header.last_sequence if segments else 0
            if header.index != len(segments) + 1 or header.first_sequence != last + 1:
                self._loop.world.check("left_a_gap", header)
                raise BrokenLog(f"run {header.run_id}: segment {header.index} does not follow on")
            kept = SegmentHeader(
                header.run_id,
                header.index,
                header.first_sequence,
                header.last_sequence,
                header.run_generation,
                header.nonce,
                orjson.loads(state),
            )
            segments.append(Segment(kept, events))
            self._observe(life, "segments", None, segments[-1], call)
            return Appended()

        return await self._do(work, writes=True)

    async def tail(self, run_id: str) -> SegmentHeader | None:
        def work(life: Life | None, call: Any) -> SegmentHeader | None:
            segments = self._database.logs.get(run_id)
            return segments[-1].header if segments else None

        return await self._do(work, writes=False)

    async def headers(self, run_id: str, from_index: int = 1, limit: int = 1000) -> list[SegmentHeader]:
        def work(life: Life | None, call: Any) -> list[SegmentHeader]:
            segments = self._database.logs.get(run_id, [])
            return [segment.header for segment in segments[from_index - 1 : from_index - 1 + limit]]

        return await self._do(work, writes=False)

    async def read(
        self, run_id: str, after_sequence: int, *, max_bytes: int = 1 << 24, limit: int = 1000
    ) -> list[Segment]:
        def work(life: Life | None, call: Any) -> list[Segment]:
            found: list[Segment] = []
            size = 0
            for segment in self._database.logs.get(run_id, []):
                if segment.header.last_sequence <= after_sequence:
                    continue
                size += len(segment.events)
                if found and size > max_bytes:
                    break
                found.append(segment)
            return found[:limit]

        return await self._do(work, writes=False)


def _is_within(value: Any, within: Range) -> bool:
    return (
        (within.at_least is None or value >= within.at_least)
        and (within.above is None or value > within.above)
        and (within.at_most is None or value <= within.at_most)
        and (within.below is None or value < within.below)
    )


def _answer(answer: Any, result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: Any, error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
