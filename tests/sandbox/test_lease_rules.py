"""The lease rules by themselves."""

from dataclasses import replace

import pytest

from services.common.errors import HarnessError, Reason
from services.sandbox import lease as rules
from services.sandbox.lease import Fence, Lease, Make, Reuse, State, Terms, Wait

TERMS = Terms("probe", "default", "none", idle_ms=10_000, lifetime_ms=60_000)


def fence(generation: int = 2, epoch: int = 1) -> Fence:
    return Fence("bnd_a", epoch, generation)


def pending(generation: int = 2) -> Lease:
    return rules.pending(
        fence(generation), TERMS, lease_id="lse_1", owner="hld_1", place="here", now=1_000, start_ms=5_000
    )


def bound() -> Lease:
    return rules.bound(pending(), address="unix:/w", incarnation="inc_1", handle={"pid": 1}, now=2_000)


def lost(was_bound: bool) -> Lease:
    return rules.ended(bound() if was_bound else pending(), State.LOST, "exit", 3_000)


def reason_of(error: pytest.ExceptionInfo[HarnessError]) -> Reason:
    return error.value.reason


def test_i26_acquire_reuses_waits_or_makes() -> None:
    assert rules.decide_acquire(None, fence(), reuse_only=False, now=0) == Make(None)
    assert rules.decide_acquire(bound(), fence(), reuse_only=False, now=3_000) == Reuse(bound())
    assert rules.decide_acquire(bound(), fence(), reuse_only=True, now=3_000) == Reuse(bound())
    assert rules.decide_acquire(pending(), fence(), reuse_only=False, now=5_999) == Wait(pending())
    assert rules.decide_acquire(pending(), fence(), reuse_only=False, now=6_000) == Make(pending())


@pytest.mark.parametrize("newer", [fence(3), fence(1, epoch=2)])
def test_i27_newer_replaces_and_older_is_stale(newer: Fence) -> None:
    for current in (bound(), pending(), lost(was_bound=True)):
        assert rules.decide_acquire(current, newer, reuse_only=False, now=3_000) == Make(current)
        with pytest.raises(HarnessError) as nothing:
            rules.decide_acquire(current, newer, reuse_only=True, now=3_000)
        assert reason_of(nothing) == Reason.NOT_FOUND
        with pytest.raises(HarnessError) as stale:
            rules.decide_acquire(replace(current, fence=newer), fence(2), reuse_only=False, now=3_000)
        assert reason_of(stale) == Reason.STALE_LEASE


def test_i27_a_generation_that_had_a_worker_gets_no_second_one() -> None:
    released = rules.ended(pending(), State.RELEASED, "released", 3_000)
    expired = bound()
    for current, now in ((lost(was_bound=True), 4_000), (released, 4_000), (expired, expired.expires_at)):
        with pytest.raises(HarnessError) as ended:
            rules.decide_acquire(current, fence(), reuse_only=False, now=now)
        assert reason_of(ended) == Reason.SANDBOX_EVICTED
        with pytest.raises(HarnessError) as nothing:
            rules.decide_acquire(current, fence(), reuse_only=True, now=now)
        assert reason_of(nothing) == Reason.NOT_FOUND
    never_bound = lost(was_bound=False)
    assert rules.decide_acquire(never_bound, fence(), reuse_only=False, now=4_000) == Make(never_bound)


def test_idle_and_lifetime_end_a_lease_whichever_comes_first() -> None:
    lease = bound()
    assert lease.expires_at == 12_000
    assert rules.decide_expire(lease, 11_999) is None
    idle = rules.decide_expire(lease, 12_000)
    assert idle is not None
    assert (idle.state, idle.reason) == (State.RELEASED, "idle")
    used = rules.touched(lease, 58_000)
    assert used is not None
    assert used.expires_at == 61_000  # made at 1,000
    old = rules.decide_expire(used, 61_000)
    assert old is not None
    assert old.reason == "SANDBOX_LIMIT: lifetime"
    assert rules.decide_expire(old, 99_000) is None
    late = rules.decide_expire(pending(), 6_000)
    assert late is not None
    assert late.state is State.LOST


def test_a_touch_that_moves_little_is_not_written() -> None:
    assert rules.touched(bound(), 2_400) is None
    assert rules.touched(bound(), 2_500) is not None


def test_renew_needs_exactly_the_current_generation_alive() -> None:
    assert rules.decide_renew(bound(), fence(), 3_000) == bound()
    for current, asked, now, reason in (
        (None, fence(), 0, Reason.NOT_FOUND),
        (bound(), fence(1), 3_000, Reason.STALE_LEASE),
        (bound(), fence(3), 3_000, Reason.STALE_LEASE),
        (bound(), fence(), 12_000, Reason.SANDBOX_EVICTED),
        (lost(was_bound=True), fence(), 3_000, Reason.SANDBOX_EVICTED),
    ):
        with pytest.raises(HarnessError) as refused:
            rules.decide_renew(current, asked, now)
        assert reason_of(refused) == reason


def test_release_ends_its_generation_and_lower_ones_and_is_idempotent() -> None:
    assert rules.decide_release(None, fence(), 0) is None
    assert rules.decide_release(bound(), fence(1), 3_000) is None
    for asked in (fence(2), fence(3)):
        released = rules.decide_release(bound(), asked, 3_000)
        assert released is not None
        assert released.state is State.RELEASED
        assert rules.decide_release(released, asked, 3_000) is None


def test_a_replaced_lease_was_released_and_one_never_bound_may_be_tried_again() -> None:
    assert rules.replaced(bound(), 3_000).state is State.RELEASED
    again = rules.replaced(pending(), 9_000)
    assert rules.decide_acquire(again, fence(), reuse_only=False, now=9_000) == Make(again)
