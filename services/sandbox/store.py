"""What the sandbox service keeps: one lease record per binding, changed by compare-and-set alone (I26)."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from services.common.store import BY_KEY, Collection, DuplicateKey, Index, Range, RecordStore
from services.sandbox.lease import KEEP_ENDED_MS, Fence, Lease, State, Terms

# `live` is 1 or 0; `due_at` is when a live lease ends by itself, and when an ended one did.
BY_DUE: Final = Index("due", ("live", "due_at"))
BY_LEASE: Final = Index("lease", ("lease_id",), unique=True)
BY_LIVE_BINDING: Final = Index("live_binding", ("live", "binding_id"))
LEASES: Final = Collection(
    "sandbox_leases", indexes=(BY_DUE, BY_LEASE, BY_LIVE_BINDING), expires="forget_at", expires_by_itself=True
)
PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class Kept:
    """A lease and the revision it was read at."""

    lease: Lease
    rev: int


@dataclass(frozen=True, slots=True)
class LeasePage:
    """A page of leases; `next` is None after the last one."""

    leases: list[Kept]
    next: str | None


class LeaseStore:
    """Leases by binding id."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    async def get(self, binding_id: str) -> Kept | None:
        record = await self._records.get(LEASES, binding_id)
        return None if record is None else Kept(_from_document(record.document), record.rev)

    async def by_lease_id(self, lease_id: str) -> Kept | None:
        record = await self._records.find(LEASES, BY_LEASE, (lease_id,))
        return None if record is None else Kept(_from_document(record.document), record.rev)

    async def put(self, lease: Lease, rev: int | None) -> bool:
        """Writes the lease if the record still is at `rev` (None: is not there). False: somebody else was first."""
        key = lease.fence.binding_id
        if rev is not None:
            return await self._records.compare_and_set(LEASES, key, rev, _to_document(lease))
        try:
            await self._records.insert(LEASES, key, _to_document(lease))
        except DuplicateKey as error:
            if error.index != BY_KEY.name:
                raise
            return False
        return True

    async def count_live(self, at_most: int) -> int:
        return await self._records.count(LEASES, BY_DUE, (1,), at_most=at_most)

    async def due(self, now: int) -> list[Kept]:
        """Live leases whose time is over, the longest over first; a page of them."""
        page = await self._records.query(LEASES, BY_DUE, (1,), Range(at_most=now), limit=PAGE)
        return [Kept(_from_document(record.document), record.rev) for record in page.records]

    async def live_page(self, limit: int, after: str | None) -> LeasePage:
        page = await self._records.query(LEASES, BY_LIVE_BINDING, (1,), limit=limit, after=after)
        return LeasePage([Kept(_from_document(record.document), record.rev) for record in page.records], page.next)

    async def ended_page(self, limit: int, after: str | None) -> LeasePage:
        """Ended leases, the last ended first."""
        page = await self._records.query(LEASES, BY_DUE, (0,), descending=True, limit=limit, after=after)
        return LeasePage([Kept(_from_document(record.document), record.rev) for record in page.records], page.next)

    async def all_live(self) -> AsyncIterator[Kept]:
        after: str | None = None
        while True:
            page = await self.live_page(PAGE, after)
            for kept in page.leases:
                yield kept
            if page.next is None:
                return
            after = page.next

    async def forget_ended(self, now: int) -> int:
        return await self._records.delete_expired(LEASES, now)


def _to_document(lease: Lease) -> dict[str, Any]:
    return {
        "binding_id": lease.fence.binding_id,
        "epoch": lease.fence.epoch,
        "runtime_generation": lease.fence.runtime_generation,
        "lease_id": lease.lease_id,
        "state": lease.state.value,
        "harness_id": lease.terms.harness_id,
        "profile_id": lease.terms.profile_id,
        "isolation": lease.terms.isolation,
        "idle_ms": lease.terms.idle_ms,
        "lifetime_ms": lease.terms.lifetime_ms,
        "owner": lease.owner,
        "place": lease.place,
        "created_at": lease.created_at,
        "pending_until": lease.pending_until,
        "idle_at": lease.idle_at,
        "ends_at": lease.ends_at,
        "address": lease.address,
        "incarnation": lease.incarnation,
        "handle": dict(lease.handle),
        "was_bound": lease.was_bound,
        "reason": lease.reason,
        "ended_at": lease.ended_at,
        "live": 1 if lease.live else 0,
        "due_at": lease.expires_at if lease.live else lease.ended_at,
        "forget_at": None if lease.live else lease.ended_at + KEEP_ENDED_MS,
    }


def _from_document(document: dict[str, Any]) -> Lease:
    return Lease(
        fence=Fence(document["binding_id"], document["epoch"], document["runtime_generation"]),
        lease_id=document["lease_id"],
        state=State(document["state"]),
        terms=Terms(
            document["harness_id"],
            document["profile_id"],
            document["isolation"],
            document["idle_ms"],
            document["lifetime_ms"],
        ),
        owner=document["owner"],
        place=document["place"],
        created_at=document["created_at"],
        pending_until=document["pending_until"],
        idle_at=document["idle_at"],
        ends_at=document["ends_at"],
        address=document["address"],
        incarnation=document["incarnation"],
        handle=document["handle"],
        was_bound=document["was_bound"],
        reason=document["reason"],
        ended_at=document["ended_at"],
    )
