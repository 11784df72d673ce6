"""A record store whose answers can get lost: the write is applied, and whoever wrote is told that the store is away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from services.common.store import Collection, Document, Record, RecordStore, StoreUnavailable

Wanted = Callable[[str, Document], bool]


class LossyStore:
    """Everything else is the store's own."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records
        self._wanted: Wanted | None = None
        # Set once an answer was lost.
        self.lost = asyncio.Event()
        self.looks: Counter[str] = Counter()
        self._looked = asyncio.Condition()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    def lose(self, wanted: Wanted) -> None:
        """Lose the answer to the next write of a document like that; `wanted` is told the operation and the document."""
        self._wanted = wanted
        self.lost.clear()

    async def looked(self, key: str, times: int) -> None:
        """Returns once the record was read so often in all."""
        async with self._looked:
            await self._looked.wait_for(lambda: self.looks[key] >= times)

    async def get(self, collection: Collection, key: str) -> Record | None:
        found = await self._records.get(collection, key)
        self.looks[key] += 1
        async with self._looked:
            self._looked.notify_all()
        return found

    async def insert(self, collection: Collection, key: str, document: Document, blob: bytes | None = None) -> None:
        await self._records.insert(collection, key, document, blob)
        self._maybe_lose("insert", document)

    async def compare_and_set(self, collection: Collection, key: str, expected_rev: int, document: Document) -> bool:
        done = await self._records.compare_and_set(collection, key, expected_rev, document)
        if done:
            self._maybe_lose("change", document)
        return done

    def _maybe_lose(self, operation: str, document: Document) -> None:
        if self._wanted is not None and self._wanted(operation, document):
            self._wanted = None
            self.lost.set()
            raise StoreUnavailable("the answer got lost")
