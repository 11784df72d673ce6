"""What any store checks of a question, and how it says where a page ended."""

from __future__ import annotations

from typing import cast

import orjson

from services.common.store.documents import check_scalar
from services.common.store.errors import InvalidQuery
from services.common.store.port import BY_KEY, MAX_PAGE, Collection, Index, Range, Scalar


def check_index(collection: Collection, index: Index) -> None:
    """Errors: `InvalidQuery` for an index the collection does not declare."""
    if index != BY_KEY and index not in collection.indexes:
        raise InvalidQuery(f"collection {collection.name} declares no such index as {index.name}")


def check_unique_values(collection: Collection, index: Index, values: tuple[Scalar, ...]) -> None:
    """Errors: `InvalidQuery` unless the values are all those of a unique index."""
    check_index(collection, index)
    if not index.unique or len(values) != len(index.fields):
        raise InvalidQuery(f"{_where(collection, index)}: find needs all values of a unique index")
    check_values(collection, index, values)


def check_range(collection: Collection, index: Index, equals: int, within: Range) -> None:
    """Errors: `InvalidQuery` for a range after the last field, or one that no index can hold."""
    bounds = [value for value in (within.at_least, within.above, within.at_most, within.below) if value is not None]
    if bounds and equals == len(index.fields):
        raise InvalidQuery(f"{_where(collection, index)}: no field is left for a range")
    for value in bounds:
        _check_value(collection, index, equals, value)


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
