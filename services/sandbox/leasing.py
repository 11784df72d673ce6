"""Acquire, renew, release, expire, lose, recover: the lease rules applied to the store, a backend and the workers (I26, I27, I29)."""

import asyncio
from dataclasses import dataclass

from harness.common.v1 import fence_pb2
from harness.runtime.v1 import runtime_pb2
from services.common.clock import Clock
from services.common.errors import HarnessError, Reason, not_found
from services.common.ids import new_holder_id, new_lease_id
from services.common.logs import get_logger, log_incident
from services.common.store import StoreFull, StoreUnavailable
from services.sandbox import lease as rules
from services.sandbox import metrics
from services.sandbox.backend import Backend, End, Sandbox, SandboxSpec
from services.sandbox.facades import facade_addresses, seen_from_inside
from services.sandbox.lease import Fence, Lease, Make, State, Terms, Wait
from services.sandbox.profile import NONE, Profile
from services.sandbox.store import Kept, LeasePage, LeaseStore
from services.sandbox.worker import Profiles, Workers, check_fit

_log = get_logger(__name__)
SHUTDOWN_SECONDS = 1.0
# A mesh that stops waits little longer for this service.
END_SECONDS = 1.0
CAPACITY_RETRY_SECONDS = 1.0
# While another process makes the sandbox: nothing signals across processes, so its record is looked at.
_LOOK_SECONDS = 0.05
_MAX_ATTEMPTS = 100
_REASONS = {
    End.EXIT: "SANDBOX_EVICTED: the worker ended",
    End.MEMORY: "SANDBOX_LIMIT: memory",
    End.MESH: "SANDBOX_EVICTED: the mesh ended",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What an acquire asks for."""

    fence: fence_pb2.Fence
    harness_id: str
    profile_id: str
    context: runtime_pb2.RuntimeContext
    reuse_only: bool

    @property
    def key(self) -> Fence:
        return Fence(self.fence.binding_id, self.fence.epoch, self.fence.runtime_generation)


class Leasing:
    """All that happens to leases. Any number of tasks may call it; other processes may share the store."""

    def __init__(
        self,
        store: LeaseStore,
        backend: Backend,
        profiles: Profiles,
        workers: Workers,
        clock: Clock,
        *,
        max_sandboxes: int,
        start_seconds: float,
    ) -> None:
        self._store = store
        self._backend = backend
        self._profiles = profiles
        self._workers = workers
        self._clock = clock
        self._max_sandboxes = max_sandboxes
        # The worker's start, and the calls around it.
        self._start_ms = round((start_seconds + 10) * 1000)
        self._owner = new_holder_id()
        self._making: dict[str, asyncio.Task[Lease]] = {}
        self._losing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._admission = asyncio.Lock()
        backend.on_ended(self._on_ended)

    # --- what callers ask ---

    async def acquire(self, request: Request) -> tuple[Lease, bool]:
        """The binding's bound sandbox of exactly this generation, and whether this call made it."""
        try:
            return await self._acquire(request)
        except HarnessError as error:
            # Not to be had with `reuse_only`, or asked for by somebody who is late: that is how things go.
            if error.reason not in (Reason.NOT_FOUND, Reason.STALE_LEASE):
                metrics.REFUSED.labels(error.reason.value).inc()
                named = {"binding_id": request.key.binding_id, "harness_id": request.harness_id}
                _log.warning("sandbox_refused", reason=error.reason.value, why=error.message, **named)
            raise

    async def _acquire(self, request: Request) -> tuple[Lease, bool]:
        attempts = 0
        while attempts < _MAX_ATTEMPTS:
            kept = await self._store.get(request.key.binding_id)
            decision = rules.decide_acquire(
                kept.lease if kept else None, request.key, reuse_only=request.reuse_only, now=self._now()
            )
            if isinstance(decision, Wait):
                # No attempt: the pending lease's own time bounds it.
                await self._wait_for(decision.lease)
                continue
            attempts += 1
            if isinstance(decision, Make) and kept is not None and kept.lease.live:
                await self._cut_off(kept)
            elif isinstance(decision, Make):
                reserved = await self._reserve(request, kept)
                if reserved is not None:
                    return await self._make(request, *reserved), True
            elif kept is not None:
                reused = await self._reuse(kept)
                if reused is not None:
                    return reused, False
        raise HarnessError(Reason.SANDBOX_NOT_READY, "The binding's sandbox keeps changing; try again.")

    async def renew(self, fence: Fence) -> Lease:
        """The lease with its idle time starting anew."""
        for _ in range(_MAX_ATTEMPTS):
            kept = await self._store.get(fence.binding_id)
            lease = rules.decide_renew(kept.lease if kept else None, fence, self._now())
            assert kept is not None  # noqa: S101 - decide_renew refused otherwise
            touched = rules.touched(lease, self._now()) if lease.state is State.BOUND else None
            if touched is None or await self._store.put(touched, kept.rev):
                return touched or lease
        raise HarnessError(Reason.SANDBOX_NOT_READY, "The binding's sandbox keeps changing; try again.")

    async def release(self, fence: Fence) -> bool:
        """Ends the lease and destroys the sandbox; whether there was one of this generation or lower."""
        for _ in range(_MAX_ATTEMPTS):
            kept = await self._store.get(fence.binding_id)
            released = rules.decide_release(kept.lease if kept else None, fence, self._now())
            if released is None:
                return False
            assert kept is not None  # noqa: S101 - something was released
            if await self._store.put(released, kept.rev):
                await self._shut_down(kept.lease)
                await self._destroy(kept.lease.lease_id)
                return True
        raise HarnessError(Reason.SANDBOX_NOT_READY, "The binding's sandbox keeps changing; try again.")

    async def get(self, binding_id: str) -> Lease:
        kept = await self._store.get(binding_id)
        if kept is None:
            raise not_found("sandbox")
        return kept.lease

    async def live_page(self, limit: int, after: str | None) -> LeasePage:
        return await self._store.live_page(limit, after)

    async def ended_page(self, limit: int, after: str | None) -> LeasePage:
        """Those that ended and are still on record, the last ended first."""
        return await self._store.ended_page(limit, after)

    @property
    def missing(self) -> tuple[str, ...]:
        """What a strict sandbox needs and this process's place does not have."""
        return tuple(self._backend.missing)

    # --- what time and accidents do ---

    async def expire_due(self) -> None:
        """Ends leases whose time is over, and forgets those that ended long ago (I29)."""
        now = self._now()
        # All at once: each may take its second to shut down. A page of them is the bound.
        await asyncio.gather(*(self._expire(kept, now) for kept in await self._store.due(now)))
        await self._store.forget_ended(now)

    async def _expire(self, kept: Kept, now: int) -> None:
        ended = rules.decide_expire(kept.lease, now)
        if ended is not None and await self._store.put(ended, kept.rev):
            _log.info("lease_expired", lease_id=ended.lease_id, reason=ended.reason)
            await self._shut_down(kept.lease)
            await self._destroy(ended.lease_id)

    async def recover(self) -> None:
        """After a start: takes over what a former process of this service left alive, destroys the rest, and says of every lease what became of it."""
        async for kept in self._store.all_live():
            lease = kept.lease
            if lease.place != self._backend.place:
                continue
            if lease.state is State.PENDING:
                # Whoever was making it is dead: there is one process per place, and this is it.
                await self._store.put(
                    rules.ended(lease, State.LOST, "SANDBOX_NOT_READY: its maker died", self._now()), kept.rev
                )
            elif not await self._readopt(lease):
                await self._lose(lease.lease_id)
        await self.sweep()

    async def sweep(self) -> None:
        """Destroys what no live lease names, as orphans and what another process of the service replaced (I27, I29); notices sandboxes that died unseen."""
        there = set(await self._backend.list_all())
        # Asked after the sandboxes were seen: a lease is written before its sandbox is made, so none is missed.
        named: set[str] = set()
        async for kept in self._store.all_live():
            lease = kept.lease
            named.add(lease.lease_id)
            here = lease.place == self._backend.place
            if here and lease.state is State.BOUND and not self._backend.is_alive(lease.lease_id, lease.handle):
                await self._lose(lease.lease_id)
        for sandbox_id in sorted(there - named - set(self._making)):
            _log.warning("orphan_destroyed", lease_id=sandbox_id)
            await self._destroy(sandbox_id)

    async def close(self) -> None:
        """Gives up sandboxes that are being made, and waits until nothing of them is left. Bound ones stay for the next process of the service,
        unless they end with this one: then they are removed, within `END_SECONDS`; what is not in that time, the next start removes (I29).
        """
        self._closed = True
        tasks = [*self._making.values(), *self._losing]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._backend.all_end():
            try:
                async with asyncio.timeout(END_SECONDS):
                    await self._end_all()
            except TimeoutError:
                _log.warning("sandboxes_left_to_the_next_start", seconds=END_SECONDS)
            except (StoreUnavailable, StoreFull, OSError) as error:
                log_incident(_log, "sandboxes_left_to_the_next_start", error)

    # --- parts ---

    async def _end_all(self) -> None:
        # What is there goes first: it is what a lease that cannot be written would leave for good until the next start.
        await asyncio.gather(*(self._destroy(sandbox_id) for sandbox_id in await self._backend.list_all()))
        async for kept in self._store.all_live():
            if kept.lease.place == self._backend.place:
                await self._store.put(rules.ended(kept.lease, State.LOST, _REASONS[End.MESH], self._now()), kept.rev)

    async def _reuse(self, kept: Kept) -> Lease | None:
        """The lease, touched; None when it changed meanwhile or its sandbox turned out dead."""
        lease = kept.lease
        if lease.place == self._backend.place:
            # The worker itself is asked: of its death the backend may hear a moment after whoever asks for it again.
            alive = self._backend.is_alive(lease.lease_id, lease.handle)
            if not alive or not await self._is_bound_worker(lease):
                await self._lose(lease.lease_id)
                return None
        touched = rules.touched(kept.lease, self._now())
        if touched is None:
            return kept.lease
        return touched if await self._store.put(touched, kept.rev) else None

    async def _cut_off(self, kept: Kept) -> None:
        """Ends a sandbox that another is to replace. Before anything else is done for the new one, so that nothing can hold it up (I27)."""
        if await self._store.put(rules.replaced(kept.lease, self._now()), kept.rev):
            await self._backend.destroy(kept.lease.lease_id)

    async def _reserve(self, request: Request, ended: Kept | None) -> tuple[Kept, Profile] | None:
        """Writes the pending lease over the ended one; None when somebody else was first."""
        profile = await self._profiles.sandbox_profile(request.harness_id, request.profile_id)
        terms = Terms(
            request.harness_id,
            request.profile_id,
            profile.isolation,
            profile.idle_seconds * 1000,
            profile.lifetime_seconds * 1000,
        )
        lease = rules.pending(
            request.key,
            terms,
            lease_id=new_lease_id(),
            owner=self._owner,
            place=self._backend.place,
            now=self._now(),
            start_ms=self._start_ms,
        )
        async with self._admission:
            # I35: counted and written under one lock, so the bound is exact for the one process there is per folder.
            if await self._store.count_live(self._max_sandboxes) >= self._max_sandboxes:
                raise HarnessError(
                    Reason.SANDBOX_CAPACITY,
                    f"All {self._max_sandboxes} sandboxes are in use; try again.",
                    retry_after=CAPACITY_RETRY_SECONDS,
                )
            # I26: of all that race for the binding, on any replica, one gets past this compare-and-set.
            if not await self._store.put(lease, ended.rev if ended else None):
                return None
        return Kept(lease, ended.rev + 1 if ended else 1), profile

    async def _make(self, request: Request, kept: Kept, profile: Profile) -> Lease:
        """Makes the sandbox and binds its worker. Goes on when the caller leaves, for others may be waiting."""
        task = asyncio.create_task(self._make_bound(request, kept, profile))
        self._making[kept.lease.lease_id] = task

        def done(task: asyncio.Task[Lease]) -> None:
            del self._making[kept.lease.lease_id]
            if not task.cancelled() and task.exception() is not None:
                _log.info("sandbox_not_made", lease_id=kept.lease.lease_id)

        task.add_done_callback(done)
        return await asyncio.shield(task)

    async def _make_bound(self, request: Request, kept: Kept, profile: Profile) -> Lease:
        pending = kept.lease
        try:
            sandbox, incarnation = await self._start_worker(request, pending, profile)
            lease = rules.bound(
                pending, address=sandbox.address, incarnation=incarnation, handle=sandbox.handle, now=self._now()
            )
            if not await self._store.put(lease, kept.rev):
                raise HarnessError(Reason.STALE_LEASE, "The binding's sandbox was replaced while it was made.")
        except BaseException as error:
            # For the operator, who reads it in the list of ended sandboxes.
            why = str(error) if isinstance(error, HarnessError) else f"{Reason.SANDBOX_NOT_READY}: it did not come up"
            # The lease names the sandbox until nothing is left of it; if this write fails, the lease's time ends it.
            await self._destroy(pending.lease_id)
            await self._store.put(rules.ended(pending, State.LOST, why, self._now()), kept.rev)
            raise
        if not self._backend.is_alive(lease.lease_id, lease.handle):
            # It died before its lease said `bound`, so nobody was told.
            await self._lose(lease.lease_id)
            raise HarnessError(Reason.SANDBOX_EVICTED, "The worker ended right after it was bound.")
        _log.info("sandbox_bound", lease_id=lease.lease_id, isolation=profile.isolation)
        return lease

    async def _start_worker(self, request: Request, pending: Lease, profile: Profile) -> tuple[Sandbox, str]:
        if profile.isolation == NONE:
            _log.warning(
                "sandbox_without_isolation",
                lease_id=pending.lease_id,
                profile_id=request.profile_id,
                consequence="the agent's code can do whatever this service may do; for development only",
            )
        facades = facade_addresses(request.context)
        sandbox = await self._backend.create(SandboxSpec(pending.lease_id, profile, facades))
        context = seen_from_inside(request.context, sandbox.facades)
        try:
            readiness = await self._workers.readiness(sandbox.address)
            check_fit(readiness, request.harness_id, request.fence.protocol_version)
            incarnation = await self._workers.bind(sandbox.address, request.fence, request.harness_id, context)
        except HarnessError as error:
            if error.reason not in (Reason.UNAVAILABLE, Reason.DEADLINE_EXCEEDED):
                raise
            raise HarnessError(
                Reason.SANDBOX_NOT_READY, f"The worker signalled readiness and then did not answer ({error.reason})."
            ) from None
        if incarnation != readiness.incarnation:
            raise HarnessError(Reason.WORKER_MISMATCH, "Another process answered than the one that was ready.")
        return sandbox, incarnation

    async def _wait_for(self, pending: Lease) -> None:
        """Until whoever makes this sandbox is done, or its time is over."""
        task = self._making.get(pending.lease_id)
        left = max(0.0, (pending.pending_until - self._now()) / 1000)
        if task is None:
            await asyncio.sleep(min(_LOOK_SECONDS, left))
        else:
            await asyncio.wait([task], timeout=left)
            if task.done() and not task.cancelled() and isinstance(error := task.exception(), HarnessError):
                raise error  # one flight, one answer: all who wait would fail the same way one after the other

    async def _readopt(self, lease: Lease) -> bool:
        """Whether the worker of the lease lives, is the one that was bound, and is watched again."""
        return await self._backend.adopt(lease.lease_id, lease.handle) and await self._is_bound_worker(lease)

    async def _is_bound_worker(self, lease: Lease) -> bool:
        """Whether the worker answers and is the one that was bound. One that hangs past the call's bound counts as dead."""
        try:
            readiness = await self._workers.readiness(lease.address)
        except HarnessError as error:
            _log.warning("worker_does_not_answer", lease_id=lease.lease_id, reason=error.reason.value)
            return False
        return readiness.bound and readiness.incarnation == lease.incarnation

    def _on_ended(self, sandbox_id: str) -> None:
        if self._closed:
            return  # the next process finds it dead
        task = asyncio.create_task(self._lose(sandbox_id))
        self._losing.add(task)
        task.add_done_callback(self._lost)

    def _lost(self, task: asyncio.Task[None]) -> None:
        self._losing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # As when the store is away; the next sweep sees it again.
            log_incident(_log, "loss_not_recorded", error)

    async def _lose(self, lease_id: str) -> None:
        """Records that a sandbox ended by itself, and removes what is left of it."""
        reason = _REASONS[self._backend.how_it_ended(lease_id)]
        for _ in range(_MAX_ATTEMPTS):
            kept = await self._store.by_lease_id(lease_id)
            if kept is None or kept.lease.state is not State.BOUND:
                break  # a pending one is its maker's to end; an ended one is ended
            if await self._store.put(rules.ended(kept.lease, State.LOST, reason, self._now()), kept.rev):
                _log.warning("sandbox_lost", lease_id=lease_id, reason=reason)
                await self._destroy(lease_id)
                break

    async def _shut_down(self, lease: Lease) -> None:
        """Gives the worker a moment to stop by itself; whatever it says is left, the sandbox is destroyed afterwards (I29)."""
        if lease.state is not State.BOUND:
            return
        fence = fence_pb2.Fence(
            protocol_version=1,
            binding_id=lease.fence.binding_id,
            epoch=lease.fence.epoch,
            runtime_generation=lease.fence.runtime_generation,
        )
        named = {"lease_id": lease.lease_id, "binding_id": lease.fence.binding_id}
        try:
            left = await self._workers.shutdown(lease.address, fence, SHUTDOWN_SECONDS)
        except HarnessError as error:
            metrics.SHUT_DOWN.labels("no_answer").inc()
            _log.info("worker_did_not_shut_down", reason=error.reason.value, **named)
            return
        metrics.SHUT_DOWN.labels("incomplete" if left else "full").inc()
        if left:
            _log.warning("worker_left_something", left=left, generation=lease.fence.runtime_generation, **named)

    async def _destroy(self, sandbox_id: str) -> None:
        """Destroys; a failure is logged, and the sweep tries again, since no live lease names the sandbox any more (I29)."""
        try:
            await self._backend.destroy(sandbox_id)
        except Exception as error:  # noqa: BLE001 - see above
            log_incident(_log, "sandbox_not_destroyed", error, lease_id=sandbox_id)

    def _now(self) -> int:
        return round(self._clock.wall() * 1000)
