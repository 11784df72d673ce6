"""What the tool broker keeps: one record for each call, in the store of the runs. Each change is one compare-and-set."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from services.common.store import Collection, DuplicateKey, Index, RecordStore
from services.runs.tools.record import CallRecord, from_document, to_document

BY_RUN: Final = Index("by_run", ("run_id",))
TOOL_CALLS: Final = Collection("tool_calls", indexes=(BY_RUN,))
PAGE: Final = 200
FORGET_PAGES: Final = 10
"""Pages of one run's calls that one sweep deletes."""


class CallStore:
    """Calls by binding, epoch and id. Raises what the record store raises."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    async def insert(self, record: CallRecord) -> CallRecord | None:
        """Store a new call; None when its place is taken: one record for each call, whoever races (I11)."""
        try:
            await self._records.insert(TOOL_CALLS, record.key, to_document(record))
        except DuplicateKey:
            return None
        return replace(record, rev=1)

    async def get(self, key: str) -> CallRecord | None:
        """The call with this key."""
        record = await self._records.get(TOOL_CALLS, key)
        return None if record is None else from_document(record.document)

    async def put(self, before: CallRecord, after: CallRecord) -> CallRecord | None:
        """One compare-and-set on what was read; None when it has changed since."""
        done = await self._records.compare_and_set(TOOL_CALLS, before.key, before.rev, to_document(after))
        return replace(after, rev=before.rev + 1) if done else None

    async def forget(self, run_id: str) -> bool:
        """Delete the calls of a run whose retention is over, at most 2,000 of them (I35). False: some are left, or changed meanwhile."""
        for _ in range(FORGET_PAGES):
            page = await self._records.query(TOOL_CALLS, BY_RUN, (run_id,), limit=PAGE)
            if not page.records:
                return True
            for record in page.records:
                await self._records.delete(TOOL_CALLS, record.key, record.rev)
        return False
