"""The record store port on MongoDB."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import DuplicateKeyError

from services.common.store.documents import check_blob, check_key, decode, encode
from services.common.store.errors import DuplicateKey, InvalidQuery, StoreUnavailable
from services.common.store.mongo_address import MongoAddress
from services.common.store.mongo_engine import MongoEngine, Stored
from services.common.store.mongo_inserts import Inserts
from services.common.store.mongo_order import entries, entry, keys
from services.common.store.mongo_schema import changed, prepare
from services.common.store.mongo_shape import EXPIRES, Shape
from services.common.store.options import StoreOptions
from services.common.store.port import (
    BY_KEY,
    EVERYTHING,
    MAX_PAGE,
    MAX_PAGE_BYTES,
    Collection,
    Document,
    Index,
    Page,
    Range,
    Record,
    Scalar,
)
from services.common.store.questions import (
    check_index,
    check_limit,
    check_range,
    check_unique_values,
    check_values,
    read_position,
    write_position,
)

_WITHOUT_BLOB: Final = {"json": 1, "rev": 1}
_OVERHEAD: Final = 1024
_ATTEMPTS: Final = 3
"""Of a write that hit an index in which nobody is any more when we look who it was."""


class MongoRecordStore:
    """Implements `RecordStore`. `engine` is for what else the same service keeps in the same database."""

    def __init__(self, engine: MongoEngine, shapes: Iterable[Shape]) -> None:
        """Use `open`."""
        self.engine = engine
        self._kept = {shape.collection.name: _Kept(engine, shape) for shape in shapes}

    @classmethod
    async def open(
        cls, address: MongoAddress, collections: Sequence[Collection], options: StoreOptions
    ) -> MongoRecordStore:
        """Connect and bring collections and indexes to what `collections` declare.

        Errors: `StoreRefused`, `StoreUnavailable`, `StoreFull`.
        """
        names = [collection.name for collection in collections]
        if len({*names, "layout"}) != len(names) + 1:
            raise ValueError(f"two collections of one name among {', '.join(names)}, layout")
        shapes = [Shape(collection) for collection in collections]
        engine = await MongoEngine.connect(address, options)
        try:
            await prepare(engine, shapes)
        except BaseException:
            await engine.close()
            raise
        return cls(engine, shapes)

    async def insert(self, collection: Collection, key: str, document: Document, blob: bytes | None = None) -> None:
        """See `RecordStore.insert`."""
        kept = self._of(collection)
        check_key(collection, key)
        data = encode(collection, document)
        fields = kept.shape.fields(key, document)
        size = len(data) + _OVERHEAD
        stored: Stored = {"_id": key, "rev": 1, "json": data.decode()}
        stored |= {name: value for name, value in fields.items() if value is not None}
        if blob is not None:
            check_blob(collection, blob)
            stored["blob"] = blob
            size += len(blob)
        await self.engine.call(lambda: kept.insert(stored, fields, size))

    async def compare_and_set(self, collection: Collection, key: str, expected_rev: int, document: Document) -> bool:
        """See `RecordStore.compare_and_set`."""
        kept = self._of(collection)
        data = encode(collection, document)
        fields = kept.shape.fields(key, document)
        update = changed({"rev": expected_rev + 1, "json": data.decode(), **fields})
        return await self.engine.call(lambda: kept.compare_and_set(key, expected_rev, update, fields))

    async def delete(self, collection: Collection, key: str, expected_rev: int | None = None) -> bool:
        """See `RecordStore.delete`."""
        records = self._of(collection).records
        wanted: Stored = {"_id": key} if expected_rev is None else {"_id": key, "rev": expected_rev}
        deleted = await self.engine.call(lambda: records.delete_one(wanted))
        return deleted.deleted_count == 1

    async def delete_expired(self, collection: Collection, now: int, limit: int = MAX_PAGE) -> int:
        """See `RecordStore.delete_expired`."""
        kept = self._of(collection)
        check_limit(limit)
        if collection.expires is None:
            raise InvalidQuery(f"{collection.name}: declares no expiry")
        return await self.engine.call(lambda: kept.delete_expired(now, limit))

    async def get(self, collection: Collection, key: str) -> Record | None:
        """See `RecordStore.get`."""
        records = self._of(collection).records
        return _record(await self.engine.call(lambda: records.find_one({"_id": key}, _WITHOUT_BLOB)))

    async def get_blob(self, collection: Collection, key: str) -> bytes | None:
        """See `RecordStore.get_blob`."""
        records = self._of(collection).records
        if not collection.blobs:
            raise InvalidQuery(f"{collection.name}: declared without blobs")
        stored = await self.engine.call(lambda: records.find_one({"_id": key}, {"blob": 1}))
        return None if stored is None else stored.get("blob")

    async def find(self, collection: Collection, index: Index, values: tuple[Scalar, ...]) -> Record | None:
        """See `RecordStore.find`."""
        kept = self._of(collection)
        check_unique_values(collection, index, values)
        wanted = {kept.shape.field(index): values[0] if index == BY_KEY else entry(values)}
        return _record(await self.engine.call(lambda: kept.records.find_one(wanted, _WITHOUT_BLOB)))

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
        """See `RecordStore.query`."""
        kept = self._of(collection)
        check_index(collection, index)
        check_limit(limit)
        check_values(collection, index, equals)
        check_range(collection, index, len(equals), within)
        condition = _condition(index, equals, within)
        if after is not None:
            _resume(condition, _position(index, equals, after), descending)
        return await self.engine.call(lambda: kept.page(index, condition, len(equals), limit, descending))

    async def count(
        self, collection: Collection, index: Index, equals: tuple[Scalar, ...] = (), *, at_most: int = MAX_PAGE
    ) -> int:
        """See `RecordStore.count`."""
        kept = self._of(collection)
        check_index(collection, index)
        check_limit(at_most)
        check_values(collection, index, equals)
        field = kept.shape.field(index)
        condition = _condition(index, equals, EVERYTHING)
        return await self.engine.call(
            lambda: kept.records.count_documents(_asked(field, condition), limit=at_most, hint=_hint(field))
        )

    async def check(self) -> None:
        """See `RecordStore.check`."""
        await self.engine.call(lambda: self.engine.collection("layout").find_one({"_id": "nothing"}))

    async def close(self) -> None:
        """See `RecordStore.close`."""
        await self.engine.close()

    def _of(self, collection: Collection) -> _Kept:
        kept = self._kept.get(collection.name)
        if kept is None or (kept.shape.collection is not collection and kept.shape.collection != collection):
            raise InvalidQuery(f"collection {collection.name} is not one this store was opened with")
        return kept


class _Kept:
    """One collection: what is a part of a call."""

    def __init__(self, engine: MongoEngine, shape: Shape) -> None:
        self.shape = shape
        self.records: AsyncCollection[Stored] = engine.collection(shape.collection.name)
        self._inserts = Inserts(engine, self.records)

    async def insert(self, stored: Stored, fields: Stored, size: int) -> None:
        for _ in range(_ATTEMPTS):
            try:
                return await self._inserts.insert(stored, size)
            except DuplicateKeyError:
                hit = await self._hit(stored["_id"], fields, inserting=True)
                if hit is not None:
                    raise DuplicateKey(self.shape.collection.name, hit) from None
        raise self._restless()

    async def compare_and_set(self, key: str, expected_rev: int, update: Stored, fields: Stored) -> bool:
        for _ in range(_ATTEMPTS):
            try:
                # The revision is in the filter: the server decides who is first.
                result = await self.records.update_one({"_id": key, "rev": expected_rev}, update)
                return result.matched_count == 1
            except DuplicateKeyError:
                hit = await self._hit(key, fields, inserting=False)
                if hit is not None:
                    raise DuplicateKey(self.shape.collection.name, hit) from None
        raise self._restless()

    async def delete_expired(self, now: int, limit: int) -> int:
        expired = {EXPIRES: {"$lte": self.shape.time(now)}}
        deleted = 0
        while deleted < limit:
            wanted = limit - deleted
            oldest = self.records.find(expired, {"_id": 1}).sort(EXPIRES, 1).limit(wanted).batch_size(wanted + 1)
            found = [one["_id"] async for one in oldest]
            if found:
                # Asked again: one that was prolonged meanwhile stays.
                result = await self.records.delete_many({"_id": {"$in": found}, **expired})
                deleted += result.deleted_count
            if len(found) < wanted:
                break
        return deleted

    async def page(self, index: Index, condition: Stored, equals: int, limit: int, descending: bool) -> Page:
        field = self.shape.field(index)
        cursor = self.records.find(_asked(field, condition), _WITHOUT_BLOB)
        # The hint: a question its index cannot serve is an error, never a scan. The batch: one answer if it fits.
        cursor = cursor.sort(field, -1 if descending else 1).hint(_hint(field)).limit(limit + 1).batch_size(limit + 2)
        records: list[Record] = []
        size = 0
        async with cursor:
            async for stored in cursor:
                size += len(stored["json"].encode())
                if records and (len(records) == limit or size > MAX_PAGE_BYTES):
                    return Page(records, write_position(_place(index, equals, records[-1])))
                records.append(_decoded(stored))
        return Page(records, None)

    async def _hit(self, key: str, fields: Stored, *, inserting: bool) -> str | None:
        """Who was hit is looked up: what the servers tell of it differs, and the key comes before any other index."""
        if inserting and await self.records.find_one({"_id": key}, {"_id": 1}) is not None:
            return BY_KEY.name
        for index, field in self.shape.unique:
            place = fields[field]
            if place is None:
                continue
            if await self.records.find_one({field: place, "_id": {"$ne": key}}, {"_id": 1}) is not None:
                return index.name
        return None

    def _restless(self) -> StoreUnavailable:
        return StoreUnavailable(f"{self.records.name}: what a write met was gone each time it was looked at")


def _hint(field: str) -> str:
    return "_id_" if field == "_id" else field


def _condition(index: Index, equals: tuple[Scalar, ...], within: Range) -> dict[str, Any]:
    if index == BY_KEY:
        return {"$eq": equals[0]} if equals else keys(within)
    low, high = entries(entry(equals), within)
    if index.unique and len(equals) == len(index.fields):
        return {"$eq": low}
    return {"$gte": low, "$lt": high}


def _asked(field: str, condition: dict[str, Any]) -> Stored:
    return {field: condition} if condition else {}


def _position(index: Index, equals: tuple[Scalar, ...], after: str) -> str:
    """The entry of the last record of the page before."""
    left = len(index.fields) - len(equals)
    values = read_position(after, left if index.unique else left + 1)
    if index.unique or isinstance(values[-1], str):
        return str(values[0]) if index == BY_KEY else entry([*equals, *values])
    raise InvalidQuery("position belongs to another query")


def _resume(condition: dict[str, Any], position: str, descending: bool) -> None:
    if descending:
        condition["$lt"] = min(condition.get("$lt", position), position)
    else:
        condition["$gt"] = max(condition.get("$gt", position), position)


def _place(index: Index, equals: int, last: Record) -> tuple[Scalar, ...]:
    if index == BY_KEY:
        return (last.key,)
    place = tuple(last.document[name] for name in index.fields[equals:])
    return place if index.unique else (*place, last.key)


def _record(stored: Stored | None) -> Record | None:
    return None if stored is None else _decoded(stored)


def _decoded(stored: Stored) -> Record:
    return Record(stored["_id"], decode(stored["json"], stored["rev"]))
