"""What the runs service keeps: the runs. Each change is one compare-and-set on one run (run protocol, Three documents)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from services.common.store import (
    BY_KEY,
    Collection,
    DuplicateKey,
    Index,
    Range,
    RecordStore,
    StoreUnavailable,
)
from services.runs.run import Run, Status, from_document, to_document

BY_REQUEST: Final = Index(
    "by_request", ("owner", "agent_id", "conversation_id", "request_key"), unique=True, sparse=True
)
BY_OWNER: Final = Index("by_owner", ("owner", "created_at"), sparse=True)
BY_AGENT: Final = Index("by_agent", ("owner", "agent_id", "created_at"), sparse=True)
BY_CONVERSATION: Final = Index("by_conversation", ("owner", "agent_id", "conversation_id", "created_at"), sparse=True)
BY_STATUS: Final = Index("by_status", ("status", "updated_at"))
BY_EXPIRY: Final = Index("by_expiry", ("expires_at",), sparse=True)
RUNS: Final = Collection(
    "runs",
    indexes=(BY_REQUEST, BY_OWNER, BY_AGENT, BY_CONVERSATION, BY_STATUS, BY_EXPIRY),
    blobs=True,  # the turn's input, so that lists and renewals never carry it
)
MAX_ATTEMPTS: Final = 50
"""Compare-and-sets of one change, at most; past it the run is contended beyond reason (I35)."""

Decide = Callable[[Run], "Run | None"]


@dataclass(frozen=True, slots=True)
class Taken:
    """An insert found its place taken. `by_key`: by the same run id, else by an older run with the same request key."""

    by_key: bool


class RunStore:
    """Runs by id, by request key, by owner, by status. Raises what the record store raises."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    async def insert(self, run: Run, turn_input: bytes | None) -> Run | Taken:
        """Store a new run with its input (I6: unique run id, unique request key)."""
        try:
            await self._records.insert(RUNS, run.run_id, to_document(run), turn_input)
        except DuplicateKey as duplicate:
            return Taken(by_key=duplicate.index == BY_KEY.name)
        return replace(run, rev=1)

    async def get(self, run_id: str) -> Run | None:
        """The run or tombstone with this id, whoever owns it. For the engine alone."""
        record = await self._records.get(RUNS, run_id)
        return None if record is None else from_document(record.document)

    async def has_ended(self, run_id: str) -> bool:
        """Whether the run's status says that it ended, or it is gone."""
        run = await self.get(run_id)
        return run is None or not run.is_open

    async def is_trimmed(self, run_id: str) -> bool:
        """Whether the run's events may be deleted already, or it is gone."""
        run = await self.get(run_id)
        return run is None or run.trimmed

    async def get_owned(self, owner: str, run_id: str) -> Run | None:
        """The caller's run; another subject's does not exist (I2)."""
        run = await self.get(run_id)
        return run if run is not None and run.owner == owner else None  # I2

    async def get_input(self, run_id: str) -> bytes | None:
        """The turn's input as it was stored with the run."""
        return await self._records.get_blob(RUNS, run_id)

    async def find_request(self, owner: str, agent_id: str, conversation_id: str, request_key: str) -> Run | None:
        """The run of a request key (I6)."""
        record = await self._records.find(RUNS, BY_REQUEST, (owner, agent_id, conversation_id, request_key))
        return None if record is None else from_document(record.document)

    async def put(self, before: Run, after: Run) -> Run | None:
        """One compare-and-set on what was read; None when it has changed since."""
        done = await self._records.compare_and_set(RUNS, before.run_id, before.rev, to_document(after))
        return replace(after, rev=before.rev + 1) if done else None

    async def change(self, run: Run, decide: Decide) -> tuple[Run, bool]:
        """Repeat read, decide, compare-and-set until one fits or `decide` answers None. Returns the run as it is and whether it was changed.

        `run` is what the caller knows; it is read again only if that was old. An unknown outcome of a write is settled by reading: `decide`
        must find nothing to do in what it had written itself. Errors: `StoreUnavailable` after 50 lost races, or when the run is gone.
        """
        for _ in range(MAX_ATTEMPTS):
            wanted = decide(run)
            if wanted is None:
                return run, False
            written = await self.put(run, wanted)
            if written is not None:
                return written, True
            current = await self.get(run.run_id)
            if current is None:
                raise StoreUnavailable(f"runs: {run.run_id} is gone")
            run = current
        raise StoreUnavailable(f"runs: {run.run_id} changes too often")

    async def page_of_owner(
        self, owner: str, agent_id: str, conversation_id: str, *, limit: int, after: str | None
    ) -> tuple[list[Run], str | None]:
        """The owner's runs, newest first, of one agent or conversation if named (I2: the owner leads every index)."""
        if conversation_id:
            index, equals = BY_CONVERSATION, (owner, agent_id, conversation_id)
        elif agent_id:
            index, equals = BY_AGENT, (owner, agent_id)
        else:
            index, equals = BY_OWNER, (owner,)
        page = await self._records.query(RUNS, index, equals, descending=True, limit=limit, after=after)
        return [from_document(record.document) for record in page.records], page.next

    async def page_of_status(
        self, status: Status, *, updated_before: int | None = None, limit: int, after: str | None = None
    ) -> tuple[list[Run], str | None]:
        """Runs of a status, longest unchanged first, for the sweep."""
        within = Range(below=updated_before)
        page = await self._records.query(RUNS, BY_STATUS, (status.value,), within, limit=limit, after=after)
        return [from_document(record.document) for record in page.records], page.next

    async def expired(self, now: int, limit: int) -> list[Run]:
        """Runs and tombstones whose retention is over, oldest first."""
        page = await self._records.query(RUNS, BY_EXPIRY, (), Range(at_most=now), limit=limit)
        return [from_document(record.document) for record in page.records]

    async def without_input(self, run: Run) -> None:
        """Keep the run and delete its input, which is what a person wrote. Whoever dies in between leaves nothing of it."""
        await self.delete(run.run_id)
        await self.insert(run, None)

    async def delete(self, run_id: str) -> None:
        """Delete a run with its input; its segments must be gone."""
        await self._records.delete(RUNS, run_id)
