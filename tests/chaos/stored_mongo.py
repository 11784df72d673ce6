"""The stores of a mesh whose records are in MongoDB, read beside its processes."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from pymongo import MongoClient
from pymongo.errors import ConnectionFailure

from services.common.store.mongo_order import entries, entry
from services.common.store.mongo_shape import Shape
from services.common.store.port import EVERYTHING
from services.runs.store import BY_STATUS, RUNS
from services.sessions.store import BINDINGS, BY_BINDING_ID
from tests.chaos.stored import OPEN, StoredSegment, segment_of

Document = dict[str, Any]
T = TypeVar("T")

PATIENCE_SECONDS: Final = 90.0
"""A server that is down or stopped is waited for: reading is no part of the faults."""


class MongoStores:
    """The stores in one database. Each question is for keys or one range: the compatible server reads a whole collection for any other."""

    look_seconds = 0.15

    def __init__(self, url: str) -> None:
        self._database = _client(url).get_default_database()
        self._known: dict[str, int] = {}
        self._status = Shape(RUNS).field(BY_STATUS)
        self._binding = Shape(BINDINGS).field(BY_BINDING_ID)

    @contextmanager
    def kept_open(self) -> Generator[None]:
        """See `Stores.kept_open`: the driver keeps its connections anyway."""
        yield

    def documents(self, service: str, collection: str) -> list[Document]:
        """See `Stores.documents`."""
        return self._find(service, collection, {})

    def open_runs(self) -> list[Document]:
        """See `Stores.open_runs`."""
        # Queued ones first: one that begins meanwhile is found twice, and never not at all.
        ranges = [entries(entry([status]), EVERYTHING) for status in OPEN]
        return [
            found
            for low, high in ranges
            for found in self._find("runs", "runs", {self._status: {"$gte": low, "$lt": high}})
        ]

    def run(self, run_id: str) -> Document | None:
        """See `Stores.run`."""
        found = self._find("runs", "runs", {"_id": run_id})
        return found[0] if found else None

    def binding(self, binding_id: str) -> Document | None:
        """See `Stores.binding`."""
        low, high = entries(entry([binding_id]), EVERYTHING)
        found = self._find("sessions", "bindings", {self._binding: {"$gte": low, "$lt": high}})
        return found[0] if found else None

    def segments(self, run_id: str) -> list[StoredSegment]:
        """See `Stores.segments`."""
        return sorted(self._segments({"run_id": run_id}), key=lambda segment: segment.index)

    def all_segments(self) -> list[StoredSegment]:
        """See `Stores.all_segments`."""
        return sorted(self._segments({}), key=lambda segment: (segment.run_id, segment.index))

    def new_segments(self, runs: Iterable[str]) -> list[StoredSegment]:
        """See `Stores.new_segments`. The server counts no appends, so every run is asked for its next segment."""
        found: list[StoredSegment] = []
        for run_id in runs:
            while (segment := self._segment(run_id, self._known.get(run_id, 0) + 1)) is not None:
                found.append(segment)
                self._known[run_id] = segment.index
        return found

    def _segment(self, run_id: str, index: int) -> StoredSegment | None:
        found = self._segments({"_id": f"{run_id}/{index}"})
        return found[0] if found else None

    def _find(self, service: str, collection: str, wanted: Document) -> list[Document]:
        stored = self._database[f"{service}_{collection}"]
        return _patiently(lambda: [json.loads(each["json"]) for each in stored.find(wanted, {"json": 1})])

    def _segments(self, wanted: Document) -> list[StoredSegment]:
        return _patiently(lambda: list(self._segments_now(wanted)))

    def _segments_now(self, wanted: Document) -> Iterator[StoredSegment]:
        for each in self._database["runs_segments"].find(wanted):
            yield segment_of(
                each["run_id"],
                each["index"],
                each["first_sequence"],
                each["last_sequence"],
                each["run_generation"],
                each["state"],
                bytes(each["events"]),
            )


@functools.cache
def _client(url: str) -> MongoClient[Document]:
    return MongoClient(url, serverSelectionTimeoutMS=1000, socketTimeoutMS=10_000)


def _patiently(ask: Callable[[], T]) -> T:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except ConnectionFailure:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)
