"""One page of an index as SQL: equal first fields, a range on the next, keyset position, always by the index."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from services.common.store.port import Collection, Index, Range, Scalar
from services.common.store.questions import check_range, check_values, read_position
from services.common.store.sqlite_schema import column, index_name, order_columns, present, table


@dataclass(frozen=True, slots=True)
class Select:
    """A statement, and its values without the limit, which is its last parameter."""

    sql: str
    values: list[Scalar]


def select_page(
    collection: Collection, index: Index, equals: tuple[Scalar, ...], within: Range, descending: bool, after: str | None
) -> Select:
    """Columns: key, rev, document, then the position of the row. Errors: `InvalidQuery`."""
    check_values(collection, index, equals)
    check_range(collection, index, len(equals), within)
    bounds = [(sign, value) for sign, value in _bounds(within) if value is not None]
    values = [*equals, *(value for _, value in bounds)]
    if after is not None:
        values += read_position(after, len(order_columns(index, len(equals))))
    signs = tuple(sign for sign, _ in bounds)
    return Select(_page_sql(collection, index, len(equals), signs, descending, after is not None), values)


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
