"""Inserts of one collection that travel together: what waits while some are on their way goes with the next ones.

A lone insert never waits for company. It is the same bargain as the group commit of a file: load makes commands bigger, not more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final, cast

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError, DuplicateKeyError, OperationFailure, WriteConcernError

from services.common.store.errors import StoreUnavailable
from services.common.store.mongo_engine import MongoEngine, Stored

FLIGHTS: Final = 2
"""Commands on their way at once: one is written while another one travels."""
BATCH_DOCUMENTS: Final = 256
BATCH_BYTES: Final = 16 << 20
_DUPLICATE: Final = 11000


class _Waiting:
    __slots__ = ("document", "done", "size")

    def __init__(self, document: Stored, size: int) -> None:
        self.document = document
        self.size = size
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Inserts:
    """Inserts into one collection. Bounded by the engine, which lets only so many calls in (I35)."""

    def __init__(self, engine: MongoEngine, collection: AsyncCollection[Stored]) -> None:
        self._engine = engine
        self._collection = collection
        self._waiting: deque[_Waiting] = deque()
        self._flights: set[asyncio.Task[None]] = set()

    async def insert(self, document: Stored, size: int) -> None:
        """Insert a document of about `size` bytes; part of a call of the engine. Errors: `DuplicateKeyError`, `StoreUnavailable`, `StoreFull`."""
        waiting = _Waiting(document, size)
        self._waiting.append(waiting)
        self._start_flight()
        await waiting.done

    def _start_flight(self) -> None:
        if self._waiting and len(self._flights) < FLIGHTS:
            flight = asyncio.create_task(self._fly())
            self._flights.add(flight)

    async def _fly(self) -> None:
        batch = self._board()
        try:
            if batch:
                await self._send(batch)
        except Exception as error:  # noqa: BLE001 - raised again where each insert is awaited
            for one in batch:
                _fail(one, error)
        finally:
            flight = cast("asyncio.Task[None]", asyncio.current_task())
            self._flights.discard(flight)
            self._start_flight()

    def _board(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and len(batch) < BATCH_DOCUMENTS:
            size += self._waiting[0].size
            if batch and size > BATCH_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _send(self, batch: list[_Waiting]) -> None:
        if len(batch) == 1:
            await self._engine.answered(lambda: self._collection.insert_one(batch[0].document))
            batch[0].done.set_result(None)
            return
        try:
            # Unordered: one that is refused leaves the others alone.
            await self._engine.answered(
                lambda: self._collection.insert_many([one.document for one in batch], ordered=False)
            )
        except BulkWriteError as error:
            self._settle(batch, error)
            return
        for one in batch:
            one.done.set_result(None)

    def _settle(self, batch: list[_Waiting], error: BulkWriteError) -> None:
        details = cast("dict[str, Any]", error.details)
        for refused in cast("list[dict[str, Any]]", details["writeErrors"]):
            code, message = int(refused["code"]), str(refused["errmsg"])
            failure: Exception = (
                DuplicateKeyError(message, code)
                if code == _DUPLICATE
                else self._engine.failure(OperationFailure(message, code))
            )
            _fail(batch[int(refused["index"])], failure)
        # I34: written, but perhaps not by a majority. Nobody may take that for durable.
        unsure = [WriteConcernError(str(one)) for one in cast("list[object]", details["writeConcernErrors"])]
        for one in batch:
            if one.done.done():
                continue
            if unsure:
                _fail(one, self._engine.failure(unsure[0]))
            else:
                one.done.set_result(None)


def _fail(waiting: _Waiting, error: Exception) -> None:
    """What a whole batch failed with is one error: each of its callers raises a `StoreUnavailable` of its own; any other is shared by them."""
    if isinstance(error, StoreUnavailable):
        error = StoreUnavailable(*error.args)
    if not waiting.done.done():
        waiting.done.set_exception(error)
