"""What can go wrong between a service and what it keeps (architecture, Stores; I34, I35).

A caller tells three things apart: try the same call again later (`StoreUnavailable`), somebody has to make
room first (`StoreFull`), and the call itself was answered (`DuplicateKey`) or wrong (the rest).
"""

from __future__ import annotations


class StoreError(Exception):
    """Any failure of a store. `retryable` says whether the same call can succeed later unchanged."""

    retryable = False


class StoreUnavailable(StoreError):
    """The store cannot answer now: locked, away, closed, or its queue stayed full.

    A write that ends like this may have happened; repeat it only in a way that allows for that (a unique key,
    a compare-and-set). The store recovers by itself, no restart is needed (I34).
    """

    retryable = True


class StoreFull(StoreError):
    """No room left on the store's disk. The write did not happen; reads go on. Works again once there is room."""

    retryable = True


class StoreRefused(StoreError):
    """The store cannot be opened as configured. The message names the address, the reason and the remedy (I32)."""


class DuplicateKey(StoreError):
    """A unique index already holds these values; nothing was written.

    `index` is the name of the violated index, `BY_KEY.name` for the key of the record. An insert
    whose key is taken names the key, whatever else it violates; of other indexes violated at once, any one is named.
    """

    def __init__(self, collection: str, index: str) -> None:
        super().__init__(f"{collection}: another record has the same values in unique index {index!r}")
        self.collection = collection
        self.index = index


class DocumentTooLarge(StoreError):
    """A document, blob or key beyond its bound (I35); nothing was written. `limit` and `size` are in bytes."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"{what} has {size} bytes, the store keeps at most {limit}")
        self.what = what
        self.size = size
        self.limit = limit


class InvalidDocument(StoreError):
    """A document that is not JSON-safe, or whose indexed field is missing or neither a string nor an integer."""


class InvalidQuery(StoreError):
    """A question the store does not answer: undeclared collection or index, a bound out of range, values that do
    not fit the index, or a position that no page of this query gave out."""
