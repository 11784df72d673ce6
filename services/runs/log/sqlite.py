"""The event log port on SQLite, in the file and in the group commits of the runs service's records."""

from __future__ import annotations

import sqlite3
from typing import Any, Final

import orjson

from services.common.store.sqlite_engine import SqliteEngine
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

_HEADER: Final = "run_id, number, first_sequence, last_sequence, run_generation, nonce, state"
# The events are last: SQLite reads headers without touching the pages the events spill to.
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS segments (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    first_sequence INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL,
    run_generation INTEGER NOT NULL,
    nonce TEXT NOT NULL,
    state BLOB NOT NULL,
    events BLOB NOT NULL
)"""
_BY_NUMBER: Final = "CREATE UNIQUE INDEX IF NOT EXISTS segments_by_number ON segments (run_id, number)"
_BY_SEQUENCE: Final = "CREATE INDEX IF NOT EXISTS segments_by_sequence ON segments (run_id, last_sequence, number)"
_APPEND: Final = f"""
INSERT INTO segments ({_HEADER}, events)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
WHERE ?2 = 1 OR EXISTS (
    SELECT 1 FROM segments WHERE run_id = ?1 AND number = ?2 - 1 AND last_sequence = ?3 - 1
)"""
_ONE: Final = f"SELECT {_HEADER} FROM segments WHERE run_id = ? AND number = ?"
_TAIL: Final = f"SELECT {_HEADER} FROM segments WHERE run_id = ? ORDER BY number DESC LIMIT 1"
_HEADERS: Final = f"SELECT {_HEADER} FROM segments WHERE run_id = ? AND number >= ? ORDER BY number LIMIT ?"
_READ: Final = (
    f"SELECT {_HEADER}, events FROM segments INDEXED BY segments_by_sequence "
    f"WHERE run_id = ? AND last_sequence > ? ORDER BY last_sequence, number LIMIT ?"
)
_DELETE: Final = "DELETE FROM segments WHERE id IN (SELECT id FROM segments WHERE run_id = ? ORDER BY number LIMIT ?)"


class SqliteSegmentLog:
    """Implements `SegmentLog`. The engine belongs to the record store, which also closes it."""

    def __init__(self, engine: SqliteEngine) -> None:
        """Use `open`."""
        self._engine = engine

    @classmethod
    async def open(cls, engine: SqliteEngine) -> SqliteSegmentLog:
        """Make the log's table if it is missing."""

        def prepare(connection: sqlite3.Connection) -> None:
            for statement in (_TABLE, _BY_NUMBER, _BY_SEQUENCE):
                connection.execute(statement)

        await engine.write(prepare, atomic=True)
        return cls(engine)

    async def append(self, header: SegmentHeader, events: bytes) -> Appended | DuplicateSegment:
        """See `SegmentLog.append`."""
        state = checked_state(header, events)
        row = (
            header.run_id,
            header.index,
            header.first_sequence,
            header.last_sequence,
            header.run_generation,
            header.nonce,
            state,
            events,
        )
        return await self._engine.write(
            lambda connection: _append(connection, row), size=len(state) + len(events) + 256
        )

    async def tail(self, run_id: str) -> SegmentHeader | None:
        """See `SegmentLog.tail`."""

        def read(connection: sqlite3.Connection) -> SegmentHeader | None:
            row = connection.execute(_TAIL, (run_id,)).fetchone()
            return None if row is None else _header(row)

        return await self._engine.read(read)

    async def headers(self, run_id: str, from_index: int = 1, limit: int = MAX_HEADERS) -> list[SegmentHeader]:
        """See `SegmentLog.headers`."""
        check_bound("limit", limit, 1, MAX_HEADERS)
        values = (run_id, from_index, limit)
        return await self._engine.read(
            lambda connection: [_header(row) for row in connection.execute(_HEADERS, values)]
        )

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
        values = (run_id, after_sequence, limit)
        return await self._engine.read(lambda connection: _segments(connection.execute(_READ, values), max_bytes))

    async def delete(self, run_id: str, limit: int = MAX_DELETE) -> int:
        """See `SegmentLog.delete`."""
        check_bound("limit", limit, 1, MAX_DELETE)
        return await self._engine.write(lambda connection: connection.execute(_DELETE, (run_id, limit)).rowcount)


def _append(connection: sqlite3.Connection, row: tuple[Any, ...]) -> Appended | DuplicateSegment:
    try:
        written = connection.execute(_APPEND, row).rowcount == 1
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_UNIQUE:
            raise
        written = False
    if written:
        return Appended()
    run_id, index, first = row[:3]
    existing = connection.execute(_ONE, (run_id, index)).fetchone()
    if existing is not None:
        return DuplicateSegment(_header(existing))
    raise does_not_follow(run_id, index, first)


def _header(row: tuple[Any, ...]) -> SegmentHeader:
    run_id, index, first, last, generation, nonce, state = row[:7]
    return SegmentHeader(run_id, index, first, last, generation, nonce, orjson.loads(state))


def _segments(rows: sqlite3.Cursor, max_bytes: int) -> list[Segment]:
    found: list[Segment] = []
    size = 0
    for row in rows:
        size += len(row[7])
        if found and size > max_bytes:
            break
        found.append(Segment(_header(row), row[7]))
    return found
