"""What a service keeps: the record store port and how one is opened (architecture, Stores)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from services.common.store.errors import (
    DocumentTooLarge,
    DuplicateKey,
    InvalidDocument,
    InvalidQuery,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from services.common.store.options import StoreOptions
from services.common.store.port import (
    BY_KEY,
    EVERYTHING,
    MAX_BLOB_BYTES,
    MAX_DOCUMENT_BYTES,
    MAX_KEY_BYTES,
    MAX_PAGE,
    Collection,
    Document,
    Index,
    Page,
    Range,
    Record,
    RecordStore,
    Scalar,
)
from services.common.store.sqlite_records import SqliteRecordStore

__all__ = [
    "BY_KEY",
    "EVERYTHING",
    "MAX_BLOB_BYTES",
    "MAX_DOCUMENT_BYTES",
    "MAX_KEY_BYTES",
    "MAX_PAGE",
    "Collection",
    "Document",
    "DocumentTooLarge",
    "DuplicateKey",
    "Index",
    "InvalidDocument",
    "InvalidQuery",
    "Page",
    "Range",
    "Record",
    "RecordStore",
    "Scalar",
    "StoreError",
    "StoreFull",
    "StoreOptions",
    "StoreRefused",
    "StoreUnavailable",
    "open_record_store",
]


async def open_record_store(
    url: str, collections: Sequence[Collection], options: StoreOptions | None = None
) -> RecordStore:
    """Open the store a service is configured with.

    `sqlite:///absolute/path`: a file, one per service. `mongodb://…/database`: a database that all services of an
    environment share. Errors: `StoreRefused` with what to change (I32), `StoreUnavailable`, `StoreFull`.
    """
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        path = Path(unquote(parts.path))
        if parts.netloc or parts.query or parts.fragment or not path.is_absolute() or path == Path("/"):
            raise StoreRefused("store address sqlite:…: write sqlite:///absolute/path/of/the/file")
        return await SqliteRecordStore.open(path, collections)
    if parts.scheme in ("mongodb", "mongodb+srv"):
        return await _open_mongo(url, collections, options or StoreOptions())
    raise StoreRefused(
        f"store address of unknown kind {parts.scheme!r}: write sqlite:///absolute/path or mongodb://host/database"
    )


async def _open_mongo(url: str, collections: Sequence[Collection], options: StoreOptions) -> RecordStore:
    # The driver is loaded by those alone who use it.
    from services.common.store.mongo_address import read_address
    from services.common.store.mongo_records import MongoRecordStore

    return await MongoRecordStore.open(read_address(url), collections, options)
