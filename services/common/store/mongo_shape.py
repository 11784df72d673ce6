"""How the records of a collection lie in MongoDB.

A document there has the key as `_id`, `rev`, the record as JSON text in `json`, one field per index with the record's place in it
(`mongo_order`), the time it expires, and its blob. JSON text, because a record comes back exactly as it was: BSON has other ideas of names,
numbers and depth. Blobs are in the same document, because then one write stores both or neither; queries leave them out.

An index's field is named after its definition, not its name alone: two releases that define it differently do not read each other's entries.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from pymongo import ASCENDING, IndexModel

from services.common.store.documents import indexed_value, required_fields
from services.common.store.mongo_engine import Stored
from services.common.store.mongo_order import entry
from services.common.store.port import BY_KEY, Collection, Document, Index, Scalar

EXPIRES: Final = "expires"
"""The field with the expiry; no index's field is called that, since theirs end with a digest."""


class Shape:
    """One collection's fields and indexes."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._required = required_fields(collection)
        self._fields = {index.name: _field(index) for index in collection.indexes}
        self.unique = [(index, self._fields[index.name]) for index in collection.indexes if index.unique]

    def field(self, index: Index) -> str:
        """The field that an index orders; it is the name of the MongoDB index too."""
        return "_id" if index == BY_KEY else self._fields[index.name]

    def fields(self, key: str, document: Document) -> Stored:
        """The indexed fields of a record; None where it is left out of a sparse index or does not expire.

        Errors: `InvalidDocument`, `DocumentTooLarge`.
        """
        found: Stored = {}
        for index in self.collection.indexes:
            values = [self._value(name, document) for name in index.fields]
            found[self._fields[index.name]] = _place(index, values, key)
        if self.collection.expires is not None:
            found[EXPIRES] = self.time(self._value(self.collection.expires, document))
        return found

    def time(self, value: Scalar | None) -> Any:
        """A time of expiry as it is compared with others; MongoDB only deletes by itself what has a date."""
        if value is None:
            return None
        return DatetimeMS(int(value)) if self.collection.expires_by_itself else Int64(value)

    def index_models(self, *, by_itself: bool) -> list[IndexModel]:
        """What has to be there beside the index over `_id`. `by_itself`: the server can delete what expires."""
        models = [
            # Every question bounds the field on both sides, so one that leaves out what has no place serves them all.
            IndexModel([(field, ASCENDING)], name=field, sparse=True, unique=index.unique)
            for index in self.collection.indexes
            for field in [self._fields[index.name]]
        ]
        if self.collection.expires is not None:
            name = self.expiry_index(by_itself=by_itself)
            ttl = {"expireAfterSeconds": 0} if self.collection.expires_by_itself and by_itself else {}
            models.append(IndexModel([(EXPIRES, ASCENDING)], name=name, sparse=True, **ttl))
        return models

    def expiry_index(self, *, by_itself: bool) -> str:
        """The name of the index over the expiry."""
        return f"{EXPIRES}_by_itself" if self.collection.expires_by_itself and by_itself else EXPIRES

    def digest(self) -> str:
        """Changes whenever a record's fields do."""
        definition = (sorted(self._fields.values()), self.collection.expires, self.collection.expires_by_itself)
        return _digest(repr(definition))

    def _value(self, name: str, document: Document) -> Scalar | None:
        return indexed_value(self.collection, name, document.get(name), name in self._required)


def _field(index: Index) -> str:
    return f"{index.name}_{_digest(repr((index.fields, index.unique, index.sparse)))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _place(index: Index, values: list[Scalar | None], key: str) -> str | None:
    present = [value for value in values if value is not None]
    if len(present) < len(values):
        return None
    return entry(present if index.unique else [*present, key])
