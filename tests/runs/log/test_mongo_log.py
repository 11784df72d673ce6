"""The event log contract, kept by MongoDB beside the records of the same service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator

import pytest

from services.common.store import Collection, StoreOptions, open_record_store
from services.runs.log import SegmentLog, open_segment_log
from tests.runs.log.contract import OpenLog, SegmentLogContract
from tests.support import mongodb

RUNS = Collection("runs")


class TestMongoSegmentLog(SegmentLogContract):
    @pytest.fixture
    def open_log(self) -> Generator[OpenLog]:
        with mongodb.database() as url:

            async def open_() -> tuple[SegmentLog, Callable[[], Awaitable[None]]]:
                store = await open_record_store(url, [RUNS], StoreOptions("runs", timeout_seconds=60))
                return await open_segment_log(store), store.close

            yield open_
