"""The durable event log of runs."""

from __future__ import annotations

from services.common.store import RecordStore, StoreRefused
from services.common.store.sqlite_records import SqliteRecordStore
from services.runs.log.port import (
    Appended,
    BrokenLog,
    DuplicateSegment,
    Segment,
    SegmentHeader,
    SegmentLog,
)
from services.runs.log.sqlite import SqliteSegmentLog

__all__ = [
    "Appended",
    "BrokenLog",
    "DuplicateSegment",
    "Segment",
    "SegmentHeader",
    "SegmentLog",
    "open_segment_log",
]


async def open_segment_log(store: RecordStore) -> SegmentLog:
    """The log beside these records: in the same database, sharing its commits, closed with it."""
    if isinstance(store, SqliteRecordStore):
        return await SqliteSegmentLog.open(store.engine)
    # The driver is loaded by those alone who use it.
    from services.common.store.mongo_records import MongoRecordStore
    from services.runs.log.mongo import MongoSegmentLog

    if isinstance(store, MongoRecordStore):
        return await MongoSegmentLog.open(store.engine)
    raise StoreRefused(f"no event log for a {type(store).__name__}")
