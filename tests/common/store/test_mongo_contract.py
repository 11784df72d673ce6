"""The record store contract, kept by MongoDB."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pytest

from services.common.store import Collection, RecordStore, StoreOptions, open_record_store
from tests.common.store.contract import OpenStore, RecordStoreContract
from tests.support import mongodb


class TestMongoRecordStore(RecordStoreContract):
    @pytest.fixture
    def open_store(self) -> Generator[OpenStore]:
        with mongodb.database() as url:

            async def open_(collections: Sequence[Collection]) -> RecordStore:
                return await open_record_store(url, collections, StoreOptions(timeout_seconds=60))

            yield open_
