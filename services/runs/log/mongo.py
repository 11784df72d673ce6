"""The event log port on MongoDB, in the database of the runs service's records.

A segment is a document whose `_id` says run and index, so that the server decides who is first at an index. It cannot be told to insert only
after another document, so the segment before is looked at first, unless this process knows it to be there.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson
from pymongo import ASCENDING, DESCENDING
from pymongo.errors import DuplicateKeyError

from services.common.store.mongo_engine import MongoEngine, Stored
from services.common.store.mongo_inserts import Inserts
from services.runs.log.bounds import check_bound, checked_state, does_not_follow
from services.runs.log.port import (
    MAX_DELETE,
    MAX_HEADERS,
    MAX_READ_BYTES,
    MAX_READ_SEGMENTS,
    Appended,
    DuplicateSegment,
    Segment,
    SegmentHeader,
)

TRUST_SECONDS: Final = 1.0
"""How long a segment is known to be there after it was seen or written. Retention deletes none earlier: its least time is one
second from the run's end, and a run does not end before its last segment."""
MAX_KNOWN_TAILS: Final = 10_000
_ORDER: Final = [("last_sequence", ASCENDING), ("index", ASCENDING)]
_REVERSED: Final = [("last_sequence", DESCENDING), ("index", DESCENDING)]
_BY_SEQUENCE: Final = "by_sequence"
_WITHOUT_EVENTS: Final = {"events": 0}


@dataclass(frozen=True, slots=True)
class _Tail:
    index: int
    last_sequence: int
    seen_at: float


class MongoSegmentLog:
    """Implements `SegmentLog`. The engine belongs to the record store, which also closes it."""

    def __init__(self, engine: MongoEngine, now: Callable[[], float] = time.monotonic) -> None:
        """Use `open`."""
        self._engine = engine
        self._segments = engine.collection("segments")
        self._inserts = Inserts(engine, self._segments)
        self._now = now
        self._tails: OrderedDict[str, _Tail] = OrderedDict()

    @classmethod
    async def open(cls, engine: MongoEngine) -> MongoSegmentLog:
        """Make the log's index if it is missing. Errors: `StoreRefused`, `StoreUnavailable`, `StoreFull`."""
        log = cls(engine)
        await engine.prepare(log._make_index)
        return log

    async def append(self, header: SegmentHeader, events: bytes) -> Appended | DuplicateSegment:
        """See `SegmentLog.append`."""
        state = checked_state(header, events)
        document: Stored = {
            "_id": _id(header.run_id, header.index),
            "run_id": header.run_id,
            "index": header.index,
            "first_sequence": header.first_sequence,
            "last_sequence": header.last_sequence,
            "run_generation": header.run_generation,
            "nonce": header.nonce,
            "state": state.decode(),
            "events": events,
        }
        size = len(state) + len(events) + 512
        return await self._engine.call(lambda: self._append(header, document, size))

    async def tail(self, run_id: str) -> SegmentHeader | None:
        """See `SegmentLog.tail`."""
        stored = await self._engine.call(
            lambda: self._segments.find_one({"run_id": run_id}, _WITHOUT_EVENTS, sort=_REVERSED, hint=_BY_SEQUENCE)
        )
        return None if stored is None else _header(stored)

    async def headers(self, run_id: str, from_index: int = 1, limit: int = MAX_HEADERS) -> list[SegmentHeader]:
        """See `SegmentLog.headers`."""
        check_bound("limit", limit, 1, MAX_HEADERS)
        wanted = {"run_id": run_id, "index": {"$gte": from_index}}

        async def read() -> list[SegmentHeader]:
            # In a log without gaps the order of the sequences is that of the indexes.
            cursor = self._segments.find(wanted, _WITHOUT_EVENTS).sort(_ORDER).hint(_BY_SEQUENCE)
            return [_header(stored) async for stored in cursor.limit(limit).batch_size(limit + 1)]

        return await self._engine.call(read)

    async def read(
        self,
        run_id: str,
        after_sequence: int,
        *,
        max_bytes: int = MAX_READ_BYTES,
        limit: int = MAX_READ_SEGMENTS,
    ) -> list[Segment]:
        """See `SegmentLog.read`."""
        check_bound("after_sequence", after_sequence, 0, (1 << 31) - 1)
        check_bound("max_bytes", max_bytes, 1, MAX_READ_BYTES)
        check_bound("limit", limit, 1, MAX_READ_SEGMENTS)
        return await self._engine.call(lambda: self._read(run_id, after_sequence, max_bytes, limit))

    async def delete(self, run_id: str, limit: int = MAX_DELETE) -> int:
        """See `SegmentLog.delete`."""
        check_bound("limit", limit, 1, MAX_DELETE)
        self._tails.pop(run_id, None)
        return await self._engine.call(lambda: self._delete(run_id, limit))

    async def _make_index(self) -> None:
        if _BY_SEQUENCE not in {index["name"] async for index in await self._segments.list_indexes()}:
            await self._segments.create_index([("run_id", ASCENDING), *_ORDER], name=_BY_SEQUENCE)

    async def _append(self, header: SegmentHeader, document: Stored, size: int) -> Appended | DuplicateSegment:
        known_at = await self._predecessor_seen_at(header)
        if known_at is None:
            return await self._met(header)
        try:
            sent_at = self._now()
            await self._inserts.insert(document, size)
        except DuplicateKeyError:
            return await self._met(header)
        if self._now() - known_at > TRUST_SECONDS and await self._predecessor_is_gone(header):
            # I7: the log was deleted while this waited for the server; nobody has seen the segment yet.
            await self._segments.delete_one({"_id": document["_id"], "nonce": header.nonce})
            raise does_not_follow(header.run_id, header.index, header.first_sequence)
        self._remember(header.run_id, _Tail(header.index, header.last_sequence, sent_at))
        return Appended()

    async def _predecessor_seen_at(self, header: SegmentHeader) -> float | None:
        """When the segment before was there for certain; None if it is not there, or is not what the header follows on from."""
        now = self._now()
        if header.index == 1:
            return now
        wanted = (header.index - 1, header.first_sequence - 1)
        tail = self._tails.get(header.run_id)
        if tail is not None and (tail.index, tail.last_sequence) == wanted and now - tail.seen_at < TRUST_SECONDS:
            return tail.seen_at
        return None if await self._predecessor_is_gone(header) else now

    async def _predecessor_is_gone(self, header: SegmentHeader) -> bool:
        if header.index == 1:
            return False
        before = {"_id": _id(header.run_id, header.index - 1), "last_sequence": header.first_sequence - 1}
        return await self._segments.find_one(before, {"_id": 1}) is None

    async def _met(self, header: SegmentHeader) -> DuplicateSegment:
        """Who is at the index. Errors: `BrokenLog` if nobody is, so that it was not that which kept the segment out."""
        self._tails.pop(header.run_id, None)
        existing = await self._segments.find_one({"_id": _id(header.run_id, header.index)}, _WITHOUT_EVENTS)
        if existing is None:
            raise does_not_follow(header.run_id, header.index, header.first_sequence)
        return DuplicateSegment(_header(existing))

    async def _read(self, run_id: str, after_sequence: int, max_bytes: int, limit: int) -> list[Segment]:
        cursor = self._segments.find({"run_id": run_id, "last_sequence": {"$gt": after_sequence}})
        found: list[Segment] = []
        size = 0
        async with cursor.sort(_ORDER).hint(_BY_SEQUENCE).limit(limit).batch_size(limit + 1) as ordered:
            async for stored in ordered:
                events: bytes = stored["events"]
                size += len(events)
                if found and size > max_bytes:
                    break
                found.append(Segment(_header(stored), events))
        return found

    async def _delete(self, run_id: str, limit: int) -> int:
        cursor = self._segments.find({"run_id": run_id}, {"_id": 1}).sort(_ORDER).hint(_BY_SEQUENCE)
        found = [stored["_id"] async for stored in cursor.limit(limit).batch_size(limit + 1)]
        if not found:
            return 0
        deleted = await self._segments.delete_many({"_id": {"$in": found}})
        # Another replica may have been at it too: 0 has to mean that none is left.
        return max(1, deleted.deleted_count)

    def _remember(self, run_id: str, tail: _Tail) -> None:
        self._tails[run_id] = tail
        self._tails.move_to_end(run_id)
        if len(self._tails) > MAX_KNOWN_TAILS:
            self._tails.popitem(last=False)


def _id(run_id: str, index: int) -> str:
    return f"{run_id}/{index}"


def _header(stored: dict[str, Any]) -> SegmentHeader:
    return SegmentHeader(
        stored["run_id"],
        stored["index"],
        stored["first_sequence"],
        stored["last_sequence"],
        stored["run_generation"],
        stored["nonce"],
        orjson.loads(stored["state"]),
    )
