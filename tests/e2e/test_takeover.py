"""An executor dies or sleeps and another replica takes its runs by attaching: subscribers notice a pause and no more (I7–I11)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio

from tests.chaos.judge import violations_of
from tests.chaos.recorded import Recorded
from tests.chaos.stored import StoredMesh
from tests.e2e.turns import (
    assert_whole,
    conversation,
    counted,
    counting,
    save_agent,
    start_when_possible,
    text_of,
)
from tests.e2e.watching import SUBJECT, Pair, Subscriber, audience, cancelled, pair_on, stopped_outside_of_a_write
from tests.support.mesh import poll_until, running_mesh
from tests.support.processes import ProcessHandle

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]
SANDBOXED = pytest.param(
    "sandboxed",
    marks=pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("bwrap") is None,
        reason="needs root and bubblewrap to make a strict sandbox; tests/sandbox shows the refusal without them",
    ),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    with running_mesh(tmp_path_factory.mktemp("takeover")) as mesh:
        async with pair_on(mesh) as pair:
            yield pair


@pytest_asyncio.fixture(loop_scope="module")
async def stored(pair: Pair) -> AsyncIterator[StoredMesh]:
    """The stores, in which nothing may be left undone or broken by the end of a test."""
    stored = StoredMesh(pair.mesh.data_dir)
    yield stored
    await until(lambda: not stored.unsettled(), "everything to come to its end")
    assert violations_of(stored, Recorded({})) == []


async def until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(poll_until, condition, what)


async def started(pair: Pair, message: Any, talk: str = "", profile: str = "default", agent: str = "") -> str:
    """A run that the mesh's own runs service executes."""

    def begin() -> str:
        with pair.mesh.client(SUBJECT) as client:
            of = agent or save_agent(client, profile=profile)
            return start_when_possible(client, of, message, talk or conversation())

    return await asyncio.to_thread(begin)


async def killed(pair: Pair, service: str) -> float:
    """kill -9 of the mesh's process of a service; when, monotonic seconds. It is started again by the mesh."""

    def kill() -> float:
        handle = ProcessHandle(pair.mesh.pid(service))
        handle.kill()
        at = time.monotonic()
        assert handle.wait_gone()
        handle.close()
        return at

    at = await asyncio.to_thread(kill)
    await asyncio.to_thread(pair.mesh.wait_said, f"{service} is back")
    return at


def same_bytes(subscribers: list[Subscriber]) -> list[bytes]:
    """I8: what they were sent, which is the same from wherever each began."""
    whole = max((subscriber.raw for subscriber in subscribers), key=len)
    for subscriber in subscribers:
        assert subscriber.raw == whole[subscriber.after :]
    return whole


def taken(stored: StoredMesh, run_id: str, generation: int) -> bool:
    """Whether an executor of this generation, or a later one, has written events of the run."""
    return any(segment.run_generation >= generation and segment.events for segment in stored.segments(run_id))


def pause_after(subscriber: Subscriber, at: float) -> float:
    """Seconds from a death until the subscriber's next event that had not been under way."""
    return max((after - before for before, after in pairwise(subscriber.arrived) if after > at), default=0.0)


@pytest.mark.parametrize("profile", ["default", SANDBOXED])
async def test_i7_i9_a_killed_executors_run_goes_on_at_the_other_replica(
    pair: Pair, stored: StoredMesh, profile: str
) -> None:
    run_id = await started(pair, counting(10), profile=profile)
    async with audience() as (_, watching):
        here = [watching.add(run_id, pair.urls[:1]) for _ in range(3)]
        there = [watching.add(run_id, pair.urls[1:], after) for after in (0, 7)]
        for subscriber in (*here, *there, watching.add(run_id, pair.urls)):
            await subscriber.has(20)
        at = await killed(pair, "runs")
        for url in pair.urls:
            for after in (0, 15):
                watching.add(run_id, [url], after)
        await until(lambda: taken(stored, run_id, 2), "a takeover")
        await here[0].has(here[0].last + 20)
        # It ends when it is told to, so it was going on when its executor died, however slow all this is.
        await cancelled(run_id, pair.urls[1])
        subscribers = await watching.all_ended()
        assert_whole(here[0].frames)
        # The provider was called once and its answer is whole: the runtime kept what nobody took.
        assert [frame.event_type for frame in here[0].frames] == [
            "run.started", *(["content.delta"] * len(counted(here[0].frames))), "run.cancelled"
        ]  # fmt: skip
        whole = same_bytes(subscribers)
        replays = [watching.add(run_id, [url]) for url in pair.urls]
        await watching.all_ended()
        assert [replay.raw for replay in replays] == [whole, whole]
    print(f"{profile}: {pause_after(there[0], at):.2f} s without an event after kill -9")  # noqa: T201 - shown with -s


MOMENTS: dict[str, tuple[dict[str, Any], int, str]] = {
    # What the run does, after which event its executor is killed, and what its answer is.
    "before the first event": ({"script": [{"sleep": 8}, {"text": "late"}]}, 1, "late"),
    "in a silence": ({"script": [{"text": "a"}, {"sleep": 8}, {"text": "b"}]}, 2, "ab"),
    "in a flood": ({"n": 20_000, "size": 200}, 500, "x" * 4_000_000),
    "at its last delta": ({"n": 10, "rate": 20}, 11, "x" * 160),
}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_i7_i11_an_executor_killed_at_a_chosen_moment(pair: Pair, stored: StoredMesh, moment: str) -> None:
    message, sequence, answer = MOMENTS[moment]
    run_id = await started(pair, message)
    async with audience() as (_, watching):
        subscribers = [watching.add(run_id, [url]) for url in pair.urls]
        await subscribers[0].has(sequence)
        await killed(pair, "runs")
        same_bytes(await watching.all_ended())
    assert_whole(subscribers[0].frames)
    assert subscribers[0].frames[-1].event_type == "run.completed"
    assert text_of(subscribers[0].frames) == answer


async def test_i10_executors_that_sleep_beyond_their_leases_write_nothing_when_they_wake(
    pair: Pair, stored: StoredMesh
) -> None:
    run_id = await started(pair, counting(10))
    async with audience() as (_, watching):
        subscribers = [watching.add(run_id, [url]) for url in pair.urls]
        await subscribers[1].has(10)
        # There and back: the second sleeper is whoever took the run from the first.
        for turn, find in enumerate((lambda: pair.mesh.pid("runs"), lambda: pair.second("runs"))):
            generation = turn + 2
            sleeper = await asyncio.to_thread(stopped_outside_of_a_write, pair.mesh.data_dir, find())
            try:
                await until(lambda generation=generation: taken(stored, run_id, generation), "a takeover")
            finally:
                os.kill(sleeper, signal.SIGCONT)
        await subscribers[1].has(subscribers[1].last + 20)
        await cancelled(run_id, pair.urls[0])
        same_bytes(await watching.all_ended())
    assert_whole(subscribers[0].frames)
    assert counted(subscribers[1].frames)
    assert subscribers[1].frames[-1].event_type == "run.cancelled"


async def test_i11_a_run_whose_executor_and_host_died_ends_truthfully_and_is_not_begun_again(
    pair: Pair, stored: StoredMesh
) -> None:
    talk, agent = conversation(), ""
    with pair.mesh.client(SUBJECT) as client:
        agent = save_agent(client)
    run_id = await started(pair, {"n": 100_000, "rate": 20}, talk, agent=agent)
    async with audience() as (_, watching):
        subscribers = [watching.add(run_id, [url]) for url in pair.urls]
        for subscriber in subscribers:
            await subscriber.has(10)
        await killed(pair, "adapter-reference")
        await killed(pair, "runs")
        same_bytes(await watching.all_ended())
        last = subscribers[0].frames[-1]
        assert_whole(subscribers[0].frames)
        assert (last.event_type, last.data["side_effect_status"], last.data["retryable"]) == (
            "run.failed", "possible", False
        )  # fmt: skip
        after = watching.add(await started(pair, "and now?", talk, agent=agent), pair.urls)
        await watching.all_ended()
        assert after.frames[-1].event_type == "run.completed"


async def test_i9_thirty_runs_of_a_killed_executor_all_go_on(pair: Pair, stored: StoredMesh) -> None:
    with pair.mesh.client(SUBJECT) as client:
        agent = save_agent(client)
    run_ids = await asyncio.gather(*(started(pair, {"n": 80, "rate": 8}, agent=agent) for _ in range(30)))
    async with audience() as (_, watching):
        subscribers = [watching.add(run_id, [url]) for run_id in run_ids for url in pair.urls]
        for subscriber in subscribers:
            await subscriber.has(3)
        at = await killed(pair, "runs")
        await watching.all_ended()
        for here, there in zip(subscribers[::2], subscribers[1::2], strict=True):
            assert len(same_bytes([here, there])) == 82
            assert_whole(here.frames)
            assert here.frames[-1].event_type == "run.completed"
        pauses = sorted(pause_after(subscriber, at) for subscriber in subscribers)
        print(f"30 runs: {pauses[0]:.2f} to {pauses[-1]:.2f} s without an event after kill -9")  # noqa: T201 - shown with -s


async def test_i7_a_runtime_that_nobody_reads_waits_at_its_bound_and_hands_over_all_of_it(
    pair: Pair, stored: StoredMesh
) -> None:
    """Both replicas sleep beyond the lease while the provider goes on: 24 MB, where a runtime keeps 16 MiB."""
    run_id = await started(pair, {"n": 12_000, "size": 2_000})
    async with audience() as (_, watching):
        subscribers = [watching.add(run_id, [url]) for url in pair.urls]
        await subscribers[0].has(50)
        sleepers = [
            await asyncio.to_thread(stopped_outside_of_a_write, pair.mesh.data_dir, pid)
            for pid in (pair.mesh.pid("runs"), pair.second("runs"))
        ]
        await asyncio.sleep(7)  # the time itself is what is tried here: longer than the lease
        for pid in sleepers:
            os.kill(pid, signal.SIGCONT)
        same_bytes(await watching.all_ended())
    assert_whole(subscribers[1].frames)
    assert len(text_of(subscribers[1].frames)) == 24_000_000
