"""Idle limit, lifetime and capacity of time, with a clock the test turns; real workers, real store."""

import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.common.errors import HarnessError, Reason
from services.common.store import open_record_store
from services.sandbox.backends.local.backend import LocalBackend, LocalOptions
from services.sandbox.clients import WorkerClient
from services.sandbox.lease import Fence, State
from services.sandbox.leasing import Leasing, Request
from services.sandbox.profile import NONE, Profile, checked_profile
from services.sandbox.store import LEASES, LeaseStore
from tests.sandbox.mesh import all_gone, context, descendants, fence
from tests.sandbox.probe_worker import HARNESS_ID

WEEK = 7 * 24 * 3600


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


class OneProfile:
    async def sandbox_profile(self, harness_id: str, profile_id: str) -> Profile:
        return checked_profile("tests.sandbox.probe_worker", NONE, 0, idle_seconds=60, lifetime_seconds=100)


def request(binding: str, generation: int = 1) -> Request:
    return Request(fence(binding, generation), HARNESS_ID, "none", context(), False)


@asynccontextmanager
async def leasing(clock: Clock) -> AsyncGenerator[tuple[Leasing, Path]]:
    with tempfile.TemporaryDirectory(prefix="hs-") as name:
        folder = Path(name)
        records = await open_record_store(f"sqlite://{folder}/sandbox.db", [LEASES])
        backend = await LocalBackend.open(LocalOptions(root=folder / "sb", bwrap="/nonexistent"))
        leases = Leasing(
            LeaseStore(records), backend, OneProfile(), WorkerClient(), clock, max_sandboxes=10, start_seconds=20
        )
        try:
            yield leases, folder / "sb"
        finally:
            await leases.close()
            for sandbox_id in await backend.list_all():
                await backend.destroy(sandbox_id)
            await backend.close()
            await records.close()


async def test_i29_an_idle_sandbox_ends_and_a_used_one_lives_to_its_lifetime() -> None:
    clock = Clock()
    async with leasing(clock) as (leases, folder):
        idle, _ = await leases.acquire(request("bnd_idle"))
        await leases.acquire(request("bnd_used"))
        pidfds = [os.pidfd_open(pid) for pid in descendants(int(idle.handle["pid"]))]
        clock.now += 40
        renewed = await leases.renew(Fence("bnd_used", 1, 1))
        assert renewed.expires_at == round((clock.now + 60) * 1000)
        clock.now += 20
        await leases.expire_due()
        await all_gone(pidfds)
        assert (await leases.get("bnd_idle")).reason == "idle"
        assert (await leases.get("bnd_used")).state is State.BOUND
        clock.now += 30
        await leases.acquire(request("bnd_used"))  # a use, at 90 of 100 seconds
        clock.now += 10
        await leases.expire_due()
        ended = await leases.get("bnd_used")
        assert (ended.state, ended.reason) == (State.RELEASED, "SANDBOX_LIMIT: lifetime")
        assert not list(folder.glob("lse_*"))


async def test_an_ended_lease_fences_for_a_week_and_is_forgotten_then() -> None:
    clock = Clock()
    async with leasing(clock) as (leases, _):
        await leases.acquire(request("bnd_a"))
        await leases.release(Fence("bnd_a", 1, 1))
        clock.now += WEEK - 1
        await leases.expire_due()
        with pytest.raises(HarnessError) as ended:
            await leases.acquire(request("bnd_a"))
        assert ended.value.reason == Reason.SANDBOX_EVICTED
        clock.now += 1
        await leases.expire_due()
        with pytest.raises(HarnessError) as gone:
            await leases.get("bnd_a")
        assert gone.value.reason == Reason.NOT_FOUND


async def test_i29_a_sweep_destroys_what_no_lease_names_and_spares_the_rest() -> None:
    async with leasing(Clock()) as (leases, folder):
        kept, _ = await leases.acquire(request("bnd_a"))
        (folder / "lse_stray").mkdir()
        (folder / "something-else").mkdir()
        await leases.sweep()
        assert {entry.name for entry in folder.iterdir()} == {".lock", "something-else", kept.lease_id}
        assert not (await leases.acquire(request("bnd_a")))[1]
