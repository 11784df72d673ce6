"""The rules of a lease: who gets a binding's sandbox, and when it ends (I26, I27, I29). Pure; times are wall-clock milliseconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NoReturn

from services.common.errors import HarnessError, Reason, not_found

MAX_REASON_CHARACTERS = 500
# How long an ended lease can still be looked up and still fences off its generation.
KEEP_ENDED_MS = 7 * 24 * 3600 * 1000


class State(StrEnum):
    """Where a lease stands; the names are those of `harness.sandbox.v1.LeaseState`."""

    PENDING = "pending"
    BOUND = "bound"
    LOST = "lost"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Fence:
    """Whom a call acts for. Of one binding, a higher (epoch, runtime generation) is newer."""

    binding_id: str
    epoch: int
    runtime_generation: int

    @property
    def age(self) -> tuple[int, int]:
        return (self.epoch, self.runtime_generation)


@dataclass(frozen=True, slots=True)
class Terms:
    """What the lease was taken for, and for how long at most."""

    harness_id: str
    profile_id: str
    isolation: str
    idle_ms: int
    lifetime_ms: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The exclusive right of one binding to one sandbox. There is one record per binding, so there is one lease (I26)."""

    fence: Fence
    lease_id: str
    state: State
    terms: Terms
    owner: str
    """The process that makes the sandbox; counts while pending."""
    place: str
    """Where the sandbox is: only the process that serves that place can look after it."""
    created_at: int
    pending_until: int
    """When a pending lease may be taken from its owner, which must have died or hung."""
    idle_at: int = 0
    """When it ends unless it is used."""
    ends_at: int = 0
    """When it ends in any case."""
    address: str = ""
    incarnation: str = ""
    handle: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the backend recognises its sandbox by, beyond doubt (I29)."""
    was_bound: bool = False
    reason: str = ""
    ended_at: int = 0

    @property
    def live(self) -> bool:
        return self.state in (State.PENDING, State.BOUND)

    @property
    def expires_at(self) -> int:
        return self.pending_until if self.state is State.PENDING else min(self.idle_at, self.ends_at)


@dataclass(frozen=True, slots=True)
class Reuse:
    """The bound sandbox is the one asked for."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody is making it."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Make:
    """A sandbox has to be made; the one of `replaces`, if it lives, ended before."""

    replaces: Lease | None


def decide_acquire(current: Lease | None, fence: Fence, *, reuse_only: bool, now: int) -> Reuse | Wait | Make:
    """What an acquire does with the binding's lease as it stands. `HarnessError` STALE_LEASE, SANDBOX_EVICTED or not_found."""
    if current is None:
        return _nothing_there() if reuse_only else Make(None)
    if fence.age < current.fence.age:
        raise _stale()
    if fence.age > current.fence.age:
        # I27: the caller committed this generation on the binding, so whatever is older has no right to be there.
        return _nothing_there() if reuse_only else Make(current)
    if current.live and now < current.expires_at:
        return Reuse(current) if current.state is State.BOUND else Wait(current)
    if reuse_only:
        _nothing_there()
    if current.was_bound or current.state is State.RELEASED:
        # I27: a generation has one worker in all its life; the next worker needs the next generation.
        raise _ended(current)
    return Make(current)


def pending(fence: Fence, terms: Terms, *, lease_id: str, owner: str, place: str, now: int, start_ms: int) -> Lease:
    """The lease while its sandbox is made: written before anything of the sandbox exists, so that nothing exists without a lease (I29)."""
    return Lease(fence, lease_id, State.PENDING, terms, owner, place, created_at=now, pending_until=now + start_ms)


def replaced(lease: Lease, now: int) -> Lease:
    """The lease that has to go before another is made. One that was never bound is lost, so its generation may be tried again."""
    if lease.state is State.PENDING:
        return ended(lease, State.LOST, "SANDBOX_NOT_READY: the sandbox was not made in time", now)
    return ended(lease, State.RELEASED, "replaced by a newer generation", now)


def bound(lease: Lease, *, address: str, incarnation: str, handle: Mapping[str, Any], now: int) -> Lease:
    """The lease of a sandbox that takes runs."""
    return replace(
        lease,
        state=State.BOUND,
        was_bound=True,
        address=address,
        incarnation=incarnation,
        handle=dict(handle),
        idle_at=now + lease.terms.idle_ms,
        ends_at=lease.created_at + lease.terms.lifetime_ms,
    )


def touched(lease: Lease, now: int) -> Lease | None:
    """The lease after a use; None when its end moves too little (a twentieth of the idle time) to be worth a write."""
    idle_at = now + lease.terms.idle_ms
    if idle_at - lease.idle_at < max(1, lease.terms.idle_ms // 20):
        return None
    return replace(lease, idle_at=idle_at)


def decide_renew(current: Lease | None, fence: Fence, now: int) -> Lease:
    """The lease to touch. `HarnessError` STALE_LEASE when it is not the current one, SANDBOX_EVICTED when it ended."""
    if current is None:
        raise not_found("sandbox")
    if fence.age != current.fence.age:
        raise _stale()
    if not current.live or now >= current.expires_at:
        raise _ended(current)
    return current


def decide_release(current: Lease | None, fence: Fence, now: int) -> Lease | None:
    """The lease as released; None when nothing of this generation or lower lives."""
    if current is None or not current.live or fence.age < current.fence.age:
        return None
    return ended(current, State.RELEASED, "released", now)


def decide_expire(lease: Lease, now: int) -> Lease | None:
    """The lease as ended by time, or None while it has some left (I29)."""
    if not lease.live or now < lease.expires_at:
        return None
    if lease.state is State.PENDING:
        return ended(lease, State.LOST, "SANDBOX_NOT_READY: the sandbox was not made in time", now)
    if now >= lease.ends_at:
        return ended(lease, State.RELEASED, "SANDBOX_LIMIT: lifetime", now)
    return ended(lease, State.RELEASED, "idle", now)


def ended(lease: Lease, state: State, reason: str, now: int) -> Lease:
    """The lease after its end. It stays on record, so that nobody makes its generation a second time."""
    return replace(lease, state=state, reason=reason[:MAX_REASON_CHARACTERS], ended_at=now)


def _stale() -> HarnessError:
    return HarnessError(Reason.STALE_LEASE, "The runtime generation is not the binding's current one.")


def _ended(lease: Lease) -> HarnessError:
    return HarnessError(
        Reason.SANDBOX_EVICTED,
        f"The sandbox of this runtime generation ended ({lease.reason or 'expired'}): commit the next generation and acquire that.",
    )


def _nothing_there() -> NoReturn:
    raise not_found("sandbox")
