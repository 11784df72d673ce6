"""The record store contract, kept by SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from services.common.store import Collection, RecordStore, open_record_store
from tests.common.store.contract import OpenStore, RecordStoreContract


class TestSqliteRecordStore(RecordStoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        async def open_(collections: Sequence[Collection]) -> RecordStore:
            return await open_record_store(f"sqlite://{tmp_path}/records.db", collections)

        return open_
