"""What sessions keeps: bindings, archived epochs, parts of native state (architecture, Stores)."""

from collections.abc import Awaitable
from typing import Any, Final, TypeVar, cast

from services.common.errors import HarnessError, Reason
from services.common.store import (
    MAX_PAGE,
    Collection,
    Document,
    DuplicateKey,
    Index,
    InvalidQuery,
    Range,
    RecordStore,
    StoreFull,
    StoreUnavailable,
)
from services.sessions.binding import BindingDocument
from services.sessions.parts import PartDocument

BY_BINDING_ID: Final = Index("by_binding_id", ("binding_id",), unique=True)
BY_UNSETTLED: Final = Index("by_unsettled", ("unsettled_changed_at",), sparse=True)
BY_AGENT: Final = Index("by_agent", ("agent_id",))
BINDINGS: Final = Collection("bindings", (BY_BINDING_ID, BY_UNSETTLED, BY_AGENT))
"""The open epoch of every conversation, by its key."""

ARCHIVE: Final = Collection("archived_bindings")
"""Closed epochs, by binding id; inserted once, never changed."""

BY_RUN: Final = Index("by_run", ("binding_id", "run_id", "ordinal"), unique=True)
BY_CHECK: Final = Index("by_check", ("check_at",))
PARTS: Final = Collection("parts", (BY_RUN, BY_CHECK), blobs=True)
"""Parts, by reference: content as blob, who wrote it as document."""

COLLECTIONS: Final = (BINDINGS, ARCHIVE, PARTS)

T = TypeVar("T")


class SessionStore:
    """Typed access to the three collections. Trouble of the store is raised as a retryable `HarnessError` (I34)."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    async def binding(self, key: str) -> tuple[str, BindingDocument] | None:
        """The open epoch of a conversation, with its key."""
        record = await answered(self._records.get(BINDINGS, key))
        return None if record is None else (record.key, cast(BindingDocument, record.document))

    async def binding_by_id(self, binding_id: str) -> tuple[str, BindingDocument] | None:
        """The binding with this id if its epoch is open, with the conversation's key."""
        record = await answered(self._records.find(BINDINGS, BY_BINDING_ID, (binding_id,)))
        return None if record is None else (record.key, cast(BindingDocument, record.document))

    async def bindings_of_agent(self, agent_id: str, limit: int) -> list[BindingDocument]:
        """The first open epochs of an agent's conversations, at most `limit`."""
        found: list[BindingDocument] = []
        after: str | None = None
        while len(found) < limit:
            size = min(limit - len(found), MAX_PAGE)
            page = await answered(self._records.query(BINDINGS, BY_AGENT, (agent_id,), limit=size, after=after))
            found += [cast(BindingDocument, record.document) for record in page.records]
            after = page.next
            if after is None:
                break
        return found

    async def insert_binding(self, key: str, document: BindingDocument) -> BindingDocument | None:
        """The document as it is kept; None: somebody else was first (I3)."""
        inserted = await self._inserted(BINDINGS, key, document)
        return _at(document, 1) if inserted else None

    async def replace_binding(
        self, key: str, before: BindingDocument, after: BindingDocument
    ) -> BindingDocument | None:
        """Compare-and-set against the document that was kept; the one that is now, None: it has changed since."""
        rev: int = cast(Document, before)["rev"]
        done = await answered(self._records.compare_and_set(BINDINGS, key, rev, cast(Document, after)))
        return _at(after, rev + 1) if done else None

    async def archived(self, binding_id: str) -> BindingDocument | None:
        """A closed epoch."""
        record = await answered(self._records.get(ARCHIVE, binding_id))
        return None if record is None else cast(BindingDocument, record.document)

    async def archive(self, document: BindingDocument) -> bool:
        """Keeps a closed epoch for ever; False: it is kept already."""
        return await self._inserted(ARCHIVE, document["binding_id"], document)

    async def unsettled(self, before: int, limit: int, after: str | None) -> tuple[list[BindingDocument], str | None]:
        """One page of bindings unsettled and unchanged since before a time, the oldest change first."""
        try:
            page = await answered(
                self._records.query(BINDINGS, BY_UNSETTLED, within=Range(below=before), limit=limit, after=after)
            )
        except InvalidQuery:
            raise HarnessError(Reason.INVALID_REQUEST, "page_token is not one of a page before.") from None
        return [cast(BindingDocument, record.document) for record in page.records], page.next

    async def part(self, part_ref: str) -> PartDocument | None:
        """Who wrote a part."""
        record = await answered(self._records.get(PARTS, part_ref))
        return None if record is None else cast(PartDocument, record.document)

    async def part_content(self, part_ref: str) -> bytes | None:
        """The content of a part."""
        return await answered(self._records.get_blob(PARTS, part_ref))

    async def codecs_of_run(self, binding_id: str, run_id: str, limit: int) -> dict[str, str]:
        """The first parts a run wrote: codec by reference."""
        page = await answered(self._records.query(PARTS, BY_RUN, (binding_id, run_id), limit=limit))
        return {record.key: record.document["codec"] for record in page.records}

    async def count_parts(self, binding_id: str, run_id: str, at_most: int) -> int:
        """How many parts a run wrote, counted up to `at_most`."""
        return await answered(self._records.count(PARTS, BY_RUN, (binding_id, run_id), at_most=at_most))

    async def insert_part(self, part_ref: str, document: PartDocument, content: bytes) -> bool:
        """False: the reference or the ordinal is taken."""
        return await self._inserted(PARTS, part_ref, document, content)

    async def parts_to_check(self, now: int, limit: int) -> list[tuple[str, PartDocument, int]]:
        """Parts whose time to be looked at has come, each with its reference and revision."""
        page = await answered(self._records.query(PARTS, BY_CHECK, within=Range(at_most=now), limit=limit))
        return [(record.key, cast(PartDocument, record.document), record.rev) for record in page.records]

    async def check_part_later(self, part_ref: str, document: PartDocument, rev: int, check_at: int) -> None:
        """Leaves a part until another look; a part that is gone needs none."""
        later = cast(Document, {**document, "check_at": check_at})
        await answered(self._records.compare_and_set(PARTS, part_ref, rev, later))

    async def parts_of_binding(self, binding_id: str, limit: int) -> list[str]:
        """References of the first parts of a binding."""
        page = await answered(self._records.query(PARTS, BY_RUN, (binding_id,), limit=limit))
        return [record.key for record in page.records]

    async def delete_part(self, part_ref: str) -> None:
        """Deletes a part; one that is gone is no error."""
        await answered(self._records.delete(PARTS, part_ref))

    async def check(self) -> None:
        """Returns if the store answers now."""
        await answered(self._records.check())

    async def _inserted(self, collection: Collection, key: str, document: Any, blob: bytes | None = None) -> bool:
        try:
            await answered(self._records.insert(collection, key, document, blob))
        except DuplicateKey:
            return False
        return True


def _at(document: BindingDocument, rev: int) -> BindingDocument:
    return cast(BindingDocument, {**document, "rev": rev})


async def answered(call: Awaitable[T]) -> T:
    """What the store answers; its trouble as a retryable `HarnessError` (I34)."""
    try:
        return await call
    except StoreUnavailable:
        raise HarnessError(
            Reason.STORE_UNAVAILABLE, "The session store cannot answer now; try again.", retry_after=0.5
        ) from None
    except StoreFull:
        raise HarnessError(
            Reason.STORE_UNAVAILABLE, "The session store has no room left; try again once there is.", retry_after=5.0
        ) from None
