"""A lease covers a run from its claim to its end, and its holder stops before others believe it dead (run protocol, Take 1)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from harness.run.v1 import run_pb2
from services.common.store import RecordStore, StoreUnavailable, open_record_store
from services.common.tasks import BackgroundTasks
from services.runs.lease import RENEW_SHARE, STOP_SHARE, HeldLease
from services.runs.renewing import Renewal, Renewals
from services.runs.run import Run
from services.runs.store import RUNS, RunStore
from tests.runs.mesh import KILL, Client, Mesh, Part, kind

TTL = 5.0
HANG = {"script": [{"text": "begun"}, {"hang": True}]}
Clients = Callable[..., Client]


class HandClock:
    """A clock that goes on when it is told to."""

    now = 100.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


class Held:
    """A lease and what its holder does with it: renewing waits until `answer` is given."""

    def __init__(self, renewals: Renewals, clock: HandClock, run_id: str = "r") -> None:
        self._clock = clock
        self.lease = HeldLease(TTL, clock.now)
        self.sent = 0
        self.lost = False
        self.answers: asyncio.Queue[Exception | None] = asyncio.Queue()
        self.renewal: Renewal = renewals.hold(run_id, self.lease, self.renew, self.lose)

    async def renew(self) -> None:
        self.sent += 1
        sent_at = self._clock.now
        error = await self.answers.get()
        if error is not None:
            raise error
        self.lease.sent_at = sent_at

    def lose(self) -> None:
        self.lost = True

    async def answered(self, error: Exception | None = None) -> None:
        self.answers.put_nowait(error)
        while self.renewal.under_way and not self.renewal.again:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
async def renewals(clock: HandClock) -> AsyncIterator[Renewals]:
    tasks = BackgroundTasks()
    yield Renewals(clock, tasks)
    await tasks.close()


async def turn(renewals: Renewals) -> None:
    renewals.turn()
    await asyncio.sleep(0)  # what was begun asks
    await asyncio.sleep(0)


async def test_a_lease_is_renewed_when_it_is_due_and_no_earlier(renewals: Renewals, clock: HandClock) -> None:
    held = Held(renewals, clock)
    await turn(renewals)
    assert held.sent == 0
    clock.now += TTL * RENEW_SHARE
    await turn(renewals)
    await turn(renewals)
    assert held.sent == 1
    await held.answered()
    await turn(renewals)
    assert (held.sent, held.lost) == (1, False)


async def test_a_holder_stops_when_its_renewal_is_not_answered_in_time(renewals: Renewals, clock: HandClock) -> None:
    held, other = Held(renewals, clock), Held(renewals, clock, "other")
    clock.now += TTL * RENEW_SHARE
    await turn(renewals)
    await other.answered()  # one that is slow holds up no other
    clock.now += TTL * (STOP_SHARE - RENEW_SHARE) - 0.01
    await turn(renewals)
    assert (held.lost, other.lost) == (False, False)
    clock.now += 0.02  # counted from what was sent successfully, not from what was sent last
    await turn(renewals)
    assert (held.lost, other.lost) == (True, False)
    renewals.let_go(held.renewal)
    held.answers.put_nowait(None)


async def test_a_holder_stops_when_its_renewals_fail_for_too_long(renewals: Renewals, clock: HandClock) -> None:
    held = Held(renewals, clock)
    clock.now += TTL * RENEW_SHARE
    await turn(renewals)
    await held.answered(StoreUnavailable("away"))
    assert not held.lost
    clock.now += TTL * (STOP_SHARE - RENEW_SHARE) + 0.01
    await turn(renewals)
    assert not held.lost  # it stood still: what it could not renew is tried once more first
    await held.answered(StoreUnavailable("away"))
    assert held.lost


async def test_i12_a_signal_renews_at_once_and_again_when_a_renewal_was_under_way(
    renewals: Renewals, clock: HandClock
) -> None:
    held = Held(renewals, clock)
    renewals.renew_now("somebody else's")
    renewals.renew_now("r")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert held.sent == 1
    # It may have read the record before the intent was there.
    renewals.renew_now("r")
    await held.answered()
    while held.sent < 2:  # noqa: ASYNC110 - nothing signals it
        await asyncio.sleep(0)
    await held.answered()
    await turn(renewals)
    assert held.sent == 2


async def test_a_signal_to_a_process_that_stops_begins_nothing(clock: HandClock) -> None:
    tasks = BackgroundTasks()
    renewals = Renewals(clock, tasks)
    held = Held(renewals, clock)
    await tasks.close()
    renewals.renew_now("r")
    assert (held.sent, held.renewal.under_way) == (0, False)


# In real processes.


@pytest.fixture
async def store(rough_mesh: Mesh) -> AsyncIterator[RunStore]:
    records: RecordStore = await open_record_store(f"sqlite://{Path(rough_mesh.folder) / 'runs.sqlite3'}", [RUNS])
    yield RunStore(records)
    await records.close()


async def renewed(store: RunStore, run_id: str, generation: int, least: int) -> Run:
    """The run once its holder of this generation has renewed so often: for longer than a lease lasts."""
    async with asyncio.timeout(90):
        while True:
            run = await store.get(run_id)
            if run is not None and run.run_generation == generation and run.renewals >= least:
                return run
            assert run is None or run.run_generation <= generation, "somebody else took it"
            await asyncio.sleep(0.02)


def send(part: Part, number: int) -> None:
    assert part.process is not None
    os.kill(part.process.pid, number)


async def test_i9_a_run_whose_runtime_is_being_made_is_renewed(
    rough_mesh: Mesh, clients: Clients, store: RunStore
) -> None:
    patient = rough_mesh.runs_part("patient", HARNESS_REATTACH_SECONDS="60")
    patient.start()
    try:
        client = clients(rough_mesh, None, "patient")
        agent = await client.agent()
        send(rough_mesh.reference, signal.SIGSTOP)
        try:
            run = await client.start(agent, "hello", "c")
            assert run.status == run_pb2.RUN_STATUS_RUNNING
            # The TTL is two seconds, and 0.3 of it lies between two renewals at least.
            await renewed(store, run.run_id, 1, 5)
        finally:
            send(rough_mesh.reference, signal.SIGCONT)
        assert kind((await client.events(run.run_id))[-1]) == "run_completed"
    finally:
        patient.end(KILL)


async def test_i9_a_run_that_is_being_taken_over_is_renewed(
    rough_mesh: Mesh, clients: Clients, store: RunStore
) -> None:
    client = clients(rough_mesh)
    run = await client.start(await client.agent(), HANG, "c")
    await client.seen(run.run_id, "content_delta")
    rough_mesh.runs.end(KILL)
    # Whoever takes it cannot claim the slot for now, and takes longer than a lease lasts.
    send(rough_mesh.sessions, signal.SIGSTOP)
    try:
        rough_mesh.runs.start()
        await renewed(store, run.run_id, 2, 5)
    finally:
        send(rough_mesh.sessions, signal.SIGCONT)
    assert (await client.cancel(run.run_id)).status == run_pb2.RUN_STATUS_CANCELLED
    ended = await store.get(run.run_id)
    assert ended is not None
    assert ended.run_generation <= 3  # taken once, and by force at most once more
