"""Tables and indexes of the record collections in SQLite, made and brought up to date when the store is opened.

A record is a row: key, rev, one column per indexed field, the document. Fields are real columns filled by the
writer: it has the document at hand, while a generated column makes SQLite parse the JSON again for every index.
Columns have no type, so that '1' and 1 stay different. Blobs are in a table beside it, so that no query and no
compare-and-set moves them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

from services.common.store.documents import indexed_fields, required_fields
from services.common.store.errors import StoreRefused
from services.common.store.port import BY_KEY, Collection, Index

EXPIRES: Final = "expires"
"""Name of the index behind a collection's expiry; a declared index cannot have it, as it starts with a dot there."""


def table(collection: Collection) -> str:
    """The quoted name of the collection's table."""
    return f'"records_{collection.name}"'


def blob_table(collection: Collection) -> str:
    """The quoted name of the table of its blobs."""
    return f'"blobs_{collection.name}"'


def column(field: str) -> str:
    """The quoted column of an indexed field."""
    return "key" if field == "_key" else f'"f_{field}"'


def index_name(collection: Collection, name: str) -> str:
    """The quoted name of an index; SQLite wants it unique in the file."""
    return f'"records_{collection.name}.{name}"'


def prepare(connection: sqlite3.Connection, collections: Iterable[Collection]) -> None:
    """Make what is missing, change what is declared differently, drop indexes nobody declares. Idempotent.

    Errors: `StoreRefused` if stored records do not fit a new index.
    """
    for collection in collections:
        name = table(collection)
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {name} (id INTEGER PRIMARY KEY, key TEXT NOT NULL, rev INTEGER NOT NULL, "
            f"document BLOB NOT NULL)"
        )
        _add_columns(connection, collection)
        _set_indexes(connection, collection)
        if collection.blobs:
            _add_blobs(connection, collection)


def _add_columns(connection: sqlite3.Connection, collection: Collection) -> None:
    present = {row[1] for row in connection.execute(f"PRAGMA table_info({table(collection)})")}
    for field in indexed_fields(collection):
        if f"f_{field}" in present:
            continue
        connection.execute(f"ALTER TABLE {table(collection)} ADD COLUMN {column(field)}")
        text = "CAST(document AS TEXT)"
        connection.execute(
            f"UPDATE {table(collection)} SET {column(field)} = json_extract({text}, '$.{field}') "
            f"WHERE json_type({text}, '$.{field}') IN ('text', 'integer')"
        )


def _set_indexes(connection: sqlite3.Connection, collection: Collection) -> None:
    wanted = _index_statements(collection)
    rows = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL AND tbl_name = ?",
        (table(collection).strip('"'),),
    ).fetchall()
    for name, statement in rows:
        if wanted.get(f'"{name}"') == statement:
            del wanted[f'"{name}"']
        else:
            connection.execute(f'DROP INDEX "{name}"')
    for name, statement in wanted.items():
        try:
            connection.execute(statement)
        except sqlite3.IntegrityError as error:
            raise StoreRefused(
                f"collection {collection.name}: stored records break unique index {name}; repair them, or open the "
                f"file with the release that wrote it"
            ) from error
    if wanted:  # it may read every record, so not at each start
        _check_required(connection, collection)


def _check_required(connection: sqlite3.Connection, collection: Collection) -> None:
    for field in sorted(required_fields(collection)):
        row = connection.execute(
            f"SELECT key FROM {table(collection)} WHERE {column(field)} IS NULL LIMIT 1"
        ).fetchone()
        if row is not None:
            raise StoreRefused(
                f"collection {collection.name}: record {row[0]!r} lacks field {field!r}, which an index needs; "
                f"declare the index sparse, or repair the record"
            )


def _index_statements(collection: Collection) -> dict[str, str]:
    statements: dict[str, str] = {}
    for index in (BY_KEY, *collection.indexes):
        unique = "UNIQUE " if index.unique else ""
        columns = ", ".join(order_columns(index, 0))
        where = f" WHERE {present(index)}" if index.sparse else ""
        name = index_name(collection, index.name)
        statements[name] = f"CREATE {unique}INDEX {name} ON {table(collection)} ({columns}){where}"
    if collection.expires is not None:
        name, field = index_name(collection, f".{EXPIRES}"), column(collection.expires)
        statements[name] = f"CREATE INDEX {name} ON {table(collection)} ({field}) WHERE {field} IS NOT NULL"
    return statements


def order_columns(index: Index, skip: int) -> list[str]:
    """The columns that order an index after the first `skip`; the key settles what is equal."""
    columns = [column(field) for field in index.fields[skip:]]
    return columns if index.unique else [*columns, "key"]


def present(index: Index) -> str:
    """The condition under which a record is in a sparse index."""
    return " AND ".join(f"{column(field)} IS NOT NULL" for field in index.fields)


def _add_blobs(connection: sqlite3.Connection, collection: Collection) -> None:
    blobs = blob_table(collection)
    connection.execute(f"CREATE TABLE IF NOT EXISTS {blobs} (id INTEGER PRIMARY KEY, blob BLOB NOT NULL)")
    connection.execute(
        f'CREATE TRIGGER IF NOT EXISTS "drop_{blobs.strip(chr(34))}" AFTER DELETE ON {table(collection)} '
        f"BEGIN DELETE FROM {blobs} WHERE id = OLD.id; END"
    )
