"""What a document must be like before any store takes it: JSON-safe, bounded, its indexed fields in place."""

from __future__ import annotations

from typing import Any, Final, cast

import orjson

from services.common.store.errors import DocumentTooLarge, InvalidDocument, InvalidQuery
from services.common.store.port import (
    MAX_BLOB_BYTES,
    MAX_DOCUMENT_BYTES,
    MAX_INDEXED_BYTES,
    MAX_KEY_BYTES,
    Collection,
    Document,
    Scalar,
)

_STRICT: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_INT_LIMIT: Final = 1 << 63


def encode(collection: Collection, document: Document) -> bytes:
    """The document as JSON, without its `rev`. Errors: `InvalidDocument`, `DocumentTooLarge`."""
    if "rev" in document:
        document = {name: value for name, value in document.items() if name != "rev"}
    try:
        data = orjson.dumps(document, option=_STRICT)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidDocument(f"{collection.name}: the document is not JSON-safe: {error}") from error
    if len(data) > MAX_DOCUMENT_BYTES:
        raise DocumentTooLarge(f"{collection.name}: the document", len(data), MAX_DOCUMENT_BYTES)
    return data


def decode(data: bytes | str, rev: int) -> Document:
    """The document as stored, with its `rev`."""
    document: Document = orjson.loads(data)
    document["rev"] = rev
    return document


def check_key(collection: Collection, key: str) -> None:
    """Errors: `InvalidDocument` for a key that is empty or not UTF-8, `DocumentTooLarge` for one beyond the bound."""
    size = _utf8_size(key)
    if size < 1:
        raise InvalidDocument(f"{collection.name}: a key is a non-empty string of valid Unicode")
    if size > MAX_KEY_BYTES:
        raise DocumentTooLarge(f"{collection.name}: the key", size, MAX_KEY_BYTES)


def check_blob(collection: Collection, blob: bytes) -> None:
    """Errors: `InvalidDocument` if the collection keeps no blobs, `DocumentTooLarge`."""
    if not collection.blobs:
        raise InvalidDocument(f"{collection.name}: declared without blobs")
    if len(blob) > MAX_BLOB_BYTES:
        raise DocumentTooLarge(f"{collection.name}: the blob", len(blob), MAX_BLOB_BYTES)


def indexed_fields(collection: Collection) -> tuple[str, ...]:
    """Every field some index or the expiry needs, each once, in the order of declaration."""
    fields = [name for index in collection.indexes for name in index.fields]
    if collection.expires is not None:
        fields.append(collection.expires)
    return tuple(dict.fromkeys(fields))


def required_fields(collection: Collection) -> frozenset[str]:
    """The fields without which a document is refused: those of an index that is not sparse."""
    return frozenset(name for index in collection.indexes if not index.sparse for name in index.fields)


def indexed_value(collection: Collection, name: str, value: Any, required: bool) -> Scalar | None:
    """The value to index; None if it is missing and may be. Errors: `InvalidDocument`, `DocumentTooLarge`."""
    if value is None and not required:
        return None
    if name == collection.expires and not isinstance(value, int):
        raise InvalidDocument(f"{collection.name}: expiry field {name!r} has to be an integer")
    problem = scalar_problem(value)
    if problem is None:
        return cast(Scalar, value)
    if isinstance(value, str) and _utf8_size(value) > MAX_INDEXED_BYTES:
        raise DocumentTooLarge(f"{collection.name}: indexed field {name!r}", _utf8_size(value), MAX_INDEXED_BYTES)
    raise InvalidDocument(f"{collection.name}: indexed field {name!r} {problem}")


def check_scalar(what: str, value: Any) -> None:
    """Errors: `InvalidQuery` for what no index can hold."""
    problem = scalar_problem(value)
    if problem is not None:
        raise InvalidQuery(f"{what} {problem}")


def scalar_problem(value: Any) -> str | None:
    """Why no index can hold this value, None if one can."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return f"has to be a string or an integer, not {type(value).__name__}"
    if isinstance(value, int):
        return None if -_INT_LIMIT <= value < _INT_LIMIT else "has to be a 64-bit integer"
    size = _utf8_size(value)
    if size < 0:
        return "has to be valid Unicode"
    return None if size <= MAX_INDEXED_BYTES else f"has more than {MAX_INDEXED_BYTES} bytes"


def _utf8_size(text: str) -> int:
    """Bytes as UTF-8; -1 if the text has none (lone surrogates)."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return -1
