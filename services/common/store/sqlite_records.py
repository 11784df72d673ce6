"""The record store port on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from services.common.store import sqlite_schema as schema
from services.common.store.documents import (
    check_blob,
    check_key,
    decode,
    encode,
    indexed_fields,
    indexed_value,
    required_fields,
)
from services.common.store.errors import DuplicateKey, InvalidQuery
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
    check_unique_values,
    check_values,
    write_position,
)
from services.common.store.sqlite_engine import SqliteEngine
from services.common.store.sqlite_query import conditions, select_page

_ROW_OVERHEAD: Final = 256
"""Bytes a queued write costs beside its document, for the bound of the queue."""


class SqliteRecordStore:
    """Implements `RecordStore`. `engine` is for what else the same service keeps in the same file."""

    def __init__(self, engine: SqliteEngine, collections: Iterable[Collection]) -> None:
        """Use `open`."""
        self.engine = engine
        self._statements = {collection.name: _Statements(collection) for collection in collections}

    @classmethod
    async def open(cls, path: Path, collections: Sequence[Collection]) -> SqliteRecordStore:
        """Open or create the file and bring its tables and indexes to what `collections` declare.

        Errors: `StoreRefused`, `StoreUnavailable`, `StoreFull`.
        """
        names = [collection.name for collection in collections]
        if len(set(names)) != len(names):
            raise ValueError(f"two collections of one name among {', '.join(names)}")
        engine = await SqliteEngine.open(path, lambda connection: schema.prepare(connection, collections))
        return cls(engine, collections)

    async def insert(self, collection: Collection, key: str, document: Document, blob: bytes | None = None) -> None:
        """See `RecordStore.insert`."""
        statements = self._of(collection)
        check_key(collection, key)
        data = encode(collection, document)
        row = (key, data, *statements.indexed(document))
        size = len(data) + _ROW_OVERHEAD
        if blob is None:
            await self.engine.write(lambda connection: statements.insert_into(connection, row), size=size)
            return
        check_blob(collection, blob)

        def write(connection: sqlite3.Connection) -> None:
            cursor = statements.insert_into(connection, row)
            connection.execute(statements.insert_blob, (cursor.lastrowid, blob))

        await self.engine.write(write, size=size + len(blob), atomic=True)

    async def compare_and_set(self, collection: Collection, key: str, expected_rev: int, document: Document) -> bool:
        """See `RecordStore.compare_and_set`."""
        statements = self._of(collection)
        data = encode(collection, document)
        row = (data, *statements.indexed(document), key, expected_rev)
        return await self.engine.write(
            lambda connection: statements.run(connection, statements.update, row).rowcount == 1,
            size=len(data) + _ROW_OVERHEAD,
        )

    async def delete(self, collection: Collection, key: str, expected_rev: int | None = None) -> bool:
        """See `RecordStore.delete`."""
        statements = self._of(collection)
        sql, row = (statements.delete, (key,)) if expected_rev is None else (statements.delete_rev, (key, expected_rev))
        return await self.engine.write(lambda connection: connection.execute(sql, row).rowcount == 1)

    async def delete_expired(self, collection: Collection, now: int, limit: int = MAX_PAGE) -> int:
        """See `RecordStore.delete_expired`."""
        statements = self._of(collection)
        check_limit(limit)
        if statements.delete_expired is None:
            raise InvalidQuery(f"{collection.name}: declares no expiry")
        sql = statements.delete_expired
        return await self.engine.write(lambda connection: connection.execute(sql, (now, limit)).rowcount)

    async def get(self, collection: Collection, key: str) -> Record | None:
        """See `RecordStore.get`."""
        sql = self._of(collection).get
        return await self.engine.read(lambda connection: _record(connection.execute(sql, (key,)).fetchone()))

    async def get_blob(self, collection: Collection, key: str) -> bytes | None:
        """See `RecordStore.get_blob`."""
        sql = self._of(collection).get_blob
        if sql is None:
            raise InvalidQuery(f"{collection.name}: declared without blobs")

        def read(connection: sqlite3.Connection) -> bytes | None:
            row = connection.execute(sql, (key,)).fetchone()
            return None if row is None else row[0]

        return await self.engine.read(read)

    async def find(self, collection: Collection, index: Index, values: tuple[Scalar, ...]) -> Record | None:
        """See `RecordStore.find`."""
        self._of(collection)
        check_unique_values(collection, index, values)
        select = select_page(collection, index, values, EVERYTHING, False, None)
        return await self.engine.read(
            lambda connection: _record(connection.execute(select.sql, (*select.values, 1)).fetchone())
        )

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
        self._of(collection)
        check_index(collection, index)
        check_limit(limit)
        select = select_page(collection, index, equals, within, descending, after)
        values = (*select.values, limit + 1)
        return await self.engine.read(lambda connection: _page(connection.execute(select.sql, values), limit))

    async def count(
        self, collection: Collection, index: Index, equals: tuple[Scalar, ...] = (), *, at_most: int = MAX_PAGE
    ) -> int:
        """See `RecordStore.count`."""
        self._of(collection)
        check_index(collection, index)
        check_limit(at_most)
        check_values(collection, index, equals)
        terms = conditions(index, len(equals))
        sql = (
            f"SELECT COUNT(*) FROM (SELECT 1 FROM {schema.table(collection)} "
            f"INDEXED BY {schema.index_name(collection, index.name)} "
            f"{'WHERE ' + ' AND '.join(terms) if terms else ''} LIMIT ?)"
        )

        def read(connection: sqlite3.Connection) -> int:
            (number,) = connection.execute(sql, (*equals, at_most)).fetchone()
            return number

        return await self.engine.read(read)

    async def check(self) -> None:
        """See `RecordStore.check`."""
        await self.engine.read(lambda connection: connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone())

    async def close(self) -> None:
        """See `RecordStore.close`."""
        await self.engine.close()

    def _of(self, collection: Collection) -> _Statements:
        statements = self._statements.get(collection.name)
        if statements is None or (statements.collection is not collection and statements.collection != collection):
            raise InvalidQuery(f"collection {collection.name} is not one this store was opened with")
        return statements


class _Statements:
    """The fixed SQL of one collection, and how a document becomes a row of it."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        required = required_fields(collection)
        self._fields = [(name, name in required) for name in indexed_fields(collection)]
        columns = [schema.column(name) for name, _ in self._fields]
        table = schema.table(collection)
        named = ", ".join(["key", "rev", "document", *columns])
        self.insert = f"INSERT INTO {table} ({named}) VALUES (?, 1, ?{', ?' * len(columns)})"
        changes = "".join(f", {name} = ?" for name in columns)
        self.update = f"UPDATE {table} SET rev = rev + 1, document = ?{changes} WHERE key = ? AND rev = ?"
        self.delete = f"DELETE FROM {table} WHERE key = ?"
        self.delete_rev = f"DELETE FROM {table} WHERE key = ? AND rev = ?"
        self.get = f"SELECT key, rev, document FROM {table} WHERE key = ?"
        self.delete_expired: str | None = None
        if collection.expires is not None:
            field = schema.column(collection.expires)
            self.delete_expired = (
                f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} "
                f"INDEXED BY {schema.index_name(collection, '.' + schema.EXPIRES)} "
                f"WHERE {field} IS NOT NULL AND {field} <= ? ORDER BY {field} LIMIT ?)"
            )
        self.insert_blob, self.get_blob = "", None
        if collection.blobs:
            blobs = schema.blob_table(collection)
            self.insert_blob = f"INSERT INTO {blobs} (id, blob) VALUES (?, ?)"
            self.get_blob = f"SELECT blob FROM {blobs} WHERE id = (SELECT id FROM {table} WHERE key = ?)"
        self._violations = {
            "UNIQUE constraint failed: " + ", ".join(f"{table}.{name}".replace('"', "") for name in names): index.name
            for index in (BY_KEY, *collection.indexes)
            if index.unique
            for names in [schema.order_columns(index, 0)]
        }

    def indexed(self, document: Document) -> list[Scalar | None]:
        """The values of the indexed columns. Errors: `InvalidDocument`, `DocumentTooLarge`."""
        return [indexed_value(self.collection, name, document.get(name), required) for name, required in self._fields]

    def insert_into(self, connection: sqlite3.Connection, row: tuple[Any, ...]) -> sqlite3.Cursor:
        """Insert the row. Errors: `DuplicateKey`; a key that is taken is named before any other index."""
        try:
            return self.run(connection, self.insert, row)
        except DuplicateKey:
            if connection.execute(self.get, row[:1]).fetchone() is None:
                raise
            raise DuplicateKey(self.collection.name, BY_KEY.name) from None

    def run(self, connection: sqlite3.Connection, sql: str, row: tuple[Any, ...]) -> sqlite3.Cursor:
        """Execute a write. Errors: `DuplicateKey` with the name of the index."""
        try:
            return connection.execute(sql, row)
        except sqlite3.IntegrityError as error:
            index = self._violations.get(str(error))
            if index is None:
                raise
            raise DuplicateKey(self.collection.name, index) from None


def _record(row: tuple[Any, ...] | None) -> Record | None:
    return None if row is None else Record(row[0], decode(row[2], row[1]))


def _page(rows: sqlite3.Cursor, limit: int) -> Page:
    records: list[Record] = []
    position: tuple[Scalar, ...] = ()
    size = 0
    for key, rev, data, *place in rows:
        size += len(data)
        if records and (len(records) == limit or size > MAX_PAGE_BYTES):
            return Page(records, write_position(position))
        records.append(Record(key, decode(data, rev)))
        position = tuple(place)
    return Page(records, None)
