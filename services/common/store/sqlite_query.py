"""One page of an index as SQL: equal first fields, a range on the next, keyset position, always by the index."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import orjson

from services.common.store.documents import check_scalar
from services.common.store.errors import InvalidQuery
from services.common.store.port import MAX_PAGE, Collection, Index, Range, Scalar
from services.common.store.sqlite_schema import column, index_name, order_columns, present, table


@dataclass(frozen=True, slots=True)
class Select:
    """A statement, its values without the limit (its last parameter), and how many columns make up a position."""

    sql: str
    values: list[Scalar]
    position_columns: int


def select_page(
    collection: Collection, index: Index, equals: tuple[Scalar, ...], within: Range, descending: bool, after: str | None
) -> Select:
    """Columns: key, rev, document, then the position of the row. Errors: `InvalidQuery`."""
    check_values(collection, index, equals)
    bounds = [(sign, value) for sign, value in _bounds(within) if value is not None]
    if bounds and len(equals) == len(index.fields):
        raise InvalidQuery(f"{_where(collection, index)}: no field is left for a range")
    for _, value in bounds:
        _check_value(collection, index, len(equals), value)
    ordered = len(order_columns(index, len(equals)))
    values = [*equals, *(value for _, value in bounds)]
    if after is not None:
        values += read_position(after, ordered)
    signs = tuple(sign for sign, _ in bounds)
    return Select(_page_sql(collection, index, len(equals), signs, descending, after is not None), values, ordered)


def check_values(collection: Collection, index: Index, equals: tuple[Scalar, ...]) -> None:
    """Errors: `InvalidQuery` if there are more values than fields, or one that no index can hold."""
    if len(equals) > len(index.fields):
        raise InvalidQuery(f"{_where(collection, index)}: {len(equals)} values for {len(index.fields)} fields")
    for number, value in enumerate(equals):
        _check_value(collection, index, number, value)


def check_limit(limit: int, most: int = MAX_PAGE) -> None:
    """Errors: `InvalidQuery` outside 1 to `most` (I35)."""
    if not 1 <= limit <= most:
        raise InvalidQuery(f"limit {limit} is not within 1 to {most}")


def write_position(values: tuple[Scalar, ...]) -> str:
    """The place right after a row in the order of its index."""
    return orjson.dumps(values).decode()


def read_position(text: str, length: int) -> list[Scalar]:
    """Errors: `InvalidQuery` for anything that no page of this kind of query can have given out."""
    try:
        loaded = orjson.loads(text)
    except ValueError as error:
        raise InvalidQuery(f"position is not one that a page gave out: {error}") from error
    values = cast(list[Scalar], loaded)
    if not isinstance(loaded, list) or len(values) != length or not length:
        raise InvalidQuery("position belongs to another query")
    for value in values:
        check_scalar("position", value)
    return values


def _check_value(collection: Collection, index: Index, number: int, value: Scalar) -> None:
    what = f"{_where(collection, index)}: field {index.fields[number]!r}"
    check_scalar(what, value)
    if index.fields[number] == "_key" and not isinstance(value, str):
        raise InvalidQuery(f"{what} has to be a string")


def _where(collection: Collection, index: Index) -> str:
    return f"{collection.name}, index {index.name}"


def _bounds(within: Range) -> list[tuple[str, Scalar | None]]:
    return [(">=", within.at_least), (">", within.above), ("<=", within.at_most), ("<", within.below)]


def conditions(index: Index, equals: int) -> list[str]:
    """Equality on the first fields, and for a sparse index what lets SQLite use it."""
    found = [f"{column(field)} = ?" for field in index.fields[:equals]]
    return [*found, present(index)] if index.sparse else found


@lru_cache(maxsize=1024)
def _page_sql(
    collection: Collection, index: Index, equals: int, signs: tuple[str, ...], descending: bool, resumed: bool
) -> str:
    ordered = order_columns(index, equals)
    terms = conditions(index, equals)
    terms += [f"{column(index.fields[equals])} {sign} ?" for sign in signs]
    if resumed:
        places = ", ".join("?" for _ in ordered)
        terms.append(f"({', '.join(ordered)}) {'<' if descending else '>'} ({places})")
    where = f"WHERE {' AND '.join(terms)} " if terms else ""
    direction = " DESC" if descending else ""
    order = f"ORDER BY {', '.join(name + direction for name in ordered)} " if ordered else ""
    columns = ", ".join(["key", "rev", "document", *ordered])
    # INDEXED BY: a query its index cannot serve is an error, never a scan.
    return f"SELECT {columns} FROM {table(collection)} INDEXED BY {index_name(collection, index.name)} {where}{order}LIMIT ?"
