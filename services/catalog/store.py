"""What the catalog keeps: agents, their versions, and each adapter's last descriptor."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CoroutineType
from typing import Any, Final, ParamSpec, TypeVar

from services.common.errors import HarnessError, Reason
from services.common.store import (
    BY_KEY,
    Collection,
    Document,
    DuplicateKey,
    Index,
    Range,
    RecordStore,
    StoreFull,
    StoreUnavailable,
)

P = ParamSpec("P")
T = TypeVar("T")

BY_AGENT: Final = Index("by_agent", ("agent_id", "version"), unique=True)
AGENTS: Final = Collection("agents")
VERSIONS: Final = Collection("agent_versions", indexes=(BY_AGENT,))
DESCRIPTORS: Final = Collection("descriptors")
COLLECTIONS: Final = (AGENTS, VERSIONS, DESCRIPTORS)


def _classified(call: Callable[P, CoroutineType[Any, Any, T]]) -> Callable[P, CoroutineType[Any, Any, T]]:
    """A store that is away or full is a clear, retryable error (I34); any other failure of it is a defect."""

    @functools.wraps(call)
    async def classified(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await call(*args, **kwargs)
        except StoreUnavailable:
            raise HarnessError(Reason.STORE_UNAVAILABLE, "The store cannot answer now: try again.") from None
        except StoreFull:
            raise HarnessError(Reason.STORE_UNAVAILABLE, "The store has no room left: tell the operator.") from None

    return classified


def _version_key(agent_id: str, version: int) -> str:
    return f"{agent_id}/{version}"


class CatalogStore:
    """Documents as they are kept; their `rev` is the store's. Every call may raise `store_unavailable` (I34)."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    @_classified
    async def agent(self, agent_id: str) -> Document | None:
        """The pointer of an agent."""
        record = await self._records.get(AGENTS, agent_id)
        return None if record is None else record.document

    @_classified
    async def insert_agent(self, agent: Document) -> bool:
        """Stores the first pointer of an agent. False: there is one."""
        try:
            await self._records.insert(AGENTS, agent["agent_id"], agent)
        except DuplicateKey:
            return False
        return True

    @_classified
    async def replace_agent(self, agent: Document, expected_rev: int) -> bool:
        """Replaces the pointer if nobody changed it since. False: somebody did."""
        return await self._records.compare_and_set(AGENTS, agent["agent_id"], expected_rev, agent)

    @_classified
    async def agents(self, after: str | None, limit: int) -> list[Document]:
        """Pointers by agent id."""
        page = await self._records.query(AGENTS, BY_KEY, within=Range(above=after), limit=limit)
        return [record.document for record in page.records]

    @_classified
    async def version(self, agent_id: str, version: int) -> Document | None:
        """What is in a version's slot, published or not."""
        record = await self._records.get(VERSIONS, _version_key(agent_id, version))
        return None if record is None else record.document

    @_classified
    async def insert_version(self, version: Document) -> bool:
        """Stores a version in its slot. False: the slot is taken."""
        try:
            await self._records.insert(VERSIONS, _version_key(version["agent_id"], version["version"]), version)
        except DuplicateKey:
            return False
        return True

    @_classified
    async def replace_version(self, version: Document, expected_rev: int) -> bool:
        """Takes over the slot of a version that can no longer be published. False: somebody else did."""
        key = _version_key(version["agent_id"], version["version"])
        return await self._records.compare_and_set(VERSIONS, key, expected_rev, version)

    @_classified
    async def versions(self, agent_id: str, newest: int, limit: int) -> list[Document]:
        """Versions from `newest` down."""
        within = Range(at_least=1, at_most=newest)
        page = await self._records.query(VERSIONS, BY_AGENT, (agent_id,), within, descending=True, limit=limit)
        return [record.document for record in page.records]

    @_classified
    async def descriptor(self, harness_id: str) -> Document | None:
        """The last descriptor an adapter was seen with."""
        record = await self._records.get(DESCRIPTORS, harness_id)
        return None if record is None else record.document

    @_classified
    async def keep_descriptor(self, harness_id: str, document: Document) -> None:
        """Keeps an adapter's descriptor. Of several replicas that see the same change, any one's write counts."""
        try:
            await self._records.insert(DESCRIPTORS, harness_id, document)
        except DuplicateKey:
            record = await self._records.get(DESCRIPTORS, harness_id)
            if record is not None:
                await self._records.compare_and_set(DESCRIPTORS, harness_id, record.rev, document)

    @_classified
    async def check(self) -> None:
        """Returns if the store answers."""
        await self._records.check()
