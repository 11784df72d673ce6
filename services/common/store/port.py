"""The record store port: what any service may ask of what it keeps (architecture, Stores).

Every invariant of the product holds by single-document compare-and-set plus unique indexes, so the port has
nothing else: no transactions over several records, no change streams, no query without an index.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

Document: TypeAlias = dict[str, Any]
"""JSON-safe (str keys; str, 64-bit int, finite float, bool, None, list, dict). Bytes go into the record's blob."""

Scalar: TypeAlias = str | int
"""What an index compares: integers before strings, integers by value, strings by their UTF-8 bytes. Never bool."""

MAX_KEY_BYTES: Final = 512
MAX_INDEXED_BYTES: Final = 1024
"""Bound of one indexed string, UTF-8 encoded."""
MAX_DOCUMENT_BYTES: Final = 1 << 20
"""Bound of a document as JSON."""
MAX_BLOB_BYTES: Final = 8 << 20
MAX_PAGE: Final = 1000
"""Most records of one page; also the most one `delete_expired` deletes and the most `count` counts to."""
MAX_PAGE_BYTES: Final = 8 << 20
"""A page ends early, with `next` set, once its documents have this many bytes as JSON; it has one record at least."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}\Z")


def _check_name(what: str, name: str) -> None:
    if not _NAME.match(name):
        raise ValueError(f"{what} {name!r}: use 1 to 48 of a-z, 0-9 and _, a letter first")


@dataclass(frozen=True, slots=True)
class Index:
    """An ordered index over top-level fields of the document.

    Each field must be there as a string or an integer, or the write is refused (`InvalidDocument`). With
    `sparse`, a field that is missing or None leaves the record out of this index instead, out of its
    uniqueness and of its queries alike.
    """

    name: str
    fields: tuple[str, ...]
    unique: bool = False
    sparse: bool = False

    def __post_init__(self) -> None:
        if self.fields == ("_key",):
            return
        _check_name("index", self.name)
        for name in self.fields:
            _check_name(f"field of index {self.name}", name)
        if not self.fields or len(set(self.fields)) != len(self.fields) or "rev" in self.fields:
            raise ValueError(f"index {self.name}: needs one or more different fields, none of them rev")


BY_KEY: Final = Index("key", ("_key",), unique=True)
"""The order of the records' keys. Every collection has it, undeclared."""


@dataclass(frozen=True, slots=True)
class Collection:
    """A set of records of one kind, declared once, as a constant, by the service that owns it.

    `expires` names the field that holds the integer time after which `delete_expired` may delete the record, in
    the unit the caller passes as `now`. A record where it is missing or None does not expire. `blobs` says whether
    its records may carry a blob. With `expires_by_itself` the expiry is in Unix milliseconds, and a store that can may delete the
    record by itself any time after it; only for records that nothing else hangs on.
    """

    name: str
    indexes: tuple[Index, ...] = field(default=())
    expires: str | None = None
    blobs: bool = False
    expires_by_itself: bool = False

    def __post_init__(self) -> None:
        _check_name("collection", self.name)
        names = [BY_KEY.name, *(index.name for index in self.indexes)]
        if len(set(names)) != len(names):
            raise ValueError(f"collection {self.name}: two indexes of one name (every collection has {BY_KEY.name!r})")
        unique = [index.fields for index in self.indexes if index.unique]
        if len(set(unique)) != len(unique):
            raise ValueError(f"collection {self.name}: two unique indexes over the same fields")
        if self.expires is not None:
            _check_name(f"collection {self.name}: expires", self.expires)
        elif self.expires_by_itself:
            raise ValueError(f"collection {self.name}: nothing says when a record expires by itself")


@dataclass(frozen=True, slots=True)
class Record:
    """One stored document. `document` is the caller's own copy; it holds `rev` too."""

    key: str
    document: Document

    @property
    def rev(self) -> int:
        """1 when inserted, one more with every compare-and-set."""
        rev: int = self.document["rev"]
        return rev


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of the field that follows the equal ones. None leaves a side open."""

    at_least: Scalar | None = None
    above: Scalar | None = None
    at_most: Scalar | None = None
    below: Scalar | None = None


EVERYTHING: Final = Range()


@dataclass(frozen=True, slots=True)
class Page:
    """Records in the order of the index. `next` is where the following page starts, None after the last one."""

    records: list[Record]
    next: str | None


class RecordStore(Protocol):
    """Documents by key, with compare-and-set and declared indexes. Safe for any number of tasks of one event loop.

    Durable before answered. A write by one caller is seen by every read that starts after it was answered, in any
    process. Cancelling a call that writes leaves open whether the write happened; nothing else is affected.

    A `rev` inside a document passed in is ignored: the store alone numbers revisions. Values of an index are given
    in the order of its fields.

    Every call raises `StoreUnavailable` when the store cannot answer now (the caller's own timeout bounds the wait
    further), writes raise `StoreFull` when there is no room, and every call raises `InvalidQuery` for a collection
    or index the store was not opened with.
    """

    async def insert(self, collection: Collection, key: str, document: Document, blob: bytes | None = None) -> None:
        """Store a new record with rev 1. The blob is fixed for the life of the record.

        Errors: `DuplicateKey`, `DocumentTooLarge`, `InvalidDocument`.
        """
        ...

    async def compare_and_set(self, collection: Collection, key: str, expected_rev: int, document: Document) -> bool:
        """Replace the document if its revision still is `expected_rev`; it becomes one higher.

        False: the record has another revision, or does not exist. The blob stays.
        Errors: `DuplicateKey`, `DocumentTooLarge`, `InvalidDocument`; then nothing was changed.
        """
        ...

    async def delete(self, collection: Collection, key: str, expected_rev: int | None = None) -> bool:
        """Delete a record with its blob. False: not there, or there with another revision than expected."""
        ...

    async def delete_expired(self, collection: Collection, now: int, limit: int = MAX_PAGE) -> int:
        """Delete up to `limit` records whose expiry is at or before `now`, the oldest first; how many were deleted.

        Fewer than `limit` means that none is left. Errors: `InvalidQuery` for a collection that declares no expiry.
        """
        ...

    async def get(self, collection: Collection, key: str) -> Record | None:
        """The record with this key."""
        ...

    async def get_blob(self, collection: Collection, key: str) -> bytes | None:
        """The blob of the record with this key. None: no such record, or it has no blob."""
        ...

    async def find(self, collection: Collection, index: Index, values: tuple[Scalar, ...]) -> Record | None:
        """The one record with these values in a unique index; every field has to be given."""
        ...

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
        """One page of the records whose first index fields equal `equals` and whose next field is `within`.

        Ordered by the index, then by key. `after` is a former page's `next`, asked again with the same index, `equals`,
        `within` and direction; records changed in between appear where they are when the page is read. 1 <= limit <=
        MAX_PAGE. The position is not secret and not signed: it holds values of the index.
        """
        ...

    async def count(
        self, collection: Collection, index: Index, equals: tuple[Scalar, ...] = (), *, at_most: int = MAX_PAGE
    ) -> int:
        """How many records have these first values, counted up to `at_most` (1 to MAX_PAGE): a limit check, no statistic."""
        ...

    async def check(self) -> None:
        """Return if the store answers now, for readiness."""
        ...

    async def close(self) -> None:
        """Finish what was accepted, then let go of the store. Calls after it raise `StoreUnavailable`. Idempotent."""
        ...
