"""Many short runs: how long a start takes, how soon the first event is seen, what a run costs."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from bench.load.client import Client, Reading
from bench.load.sampling import ProcessTree, Summary, summary_of

EVENTS_PER_RUN = 20
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Posts:
    """Starts alone: nobody reads the events."""

    lanes: int
    posts_per_second: float
    cpu_ms_per_post: float
    post: Summary


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs from start to last event seen."""

    lanes: int
    runs: int
    runs_per_second: float
    cpu_ms_per_run: float
    cpu_ms_of: dict[str, float]
    """The same, of each process that has a name."""
    post: Summary
    first_event: Summary
    last_event: Summary
    sequence_errors: int
    not_completed: int


@dataclass(frozen=True, slots=True)
class _Timing:
    posted: float
    first: float
    done: float
    reading: Reading


async def measure_posts(client: Client, tree: ProcessTree, lanes: int, total: int) -> Posts:
    """`total` starts, `lanes` at once."""

    async def one() -> float:
        began = time.perf_counter()
        await client.start(n=EVENTS_PER_RUN)
        return time.perf_counter() - began

    cpu = tree.cpu_seconds()
    samples, wall = await _in_lanes(lanes, total, one)
    used = tree.cpu_seconds() - cpu
    return Posts(lanes, round(total / wall, 1), round(used * 1000 / total, 2), summary_of(samples))


async def measure_runs(client: Client, tree: ProcessTree, lanes: int, total: int) -> Runs:
    """`total` runs, `lanes` at once, each followed to its end."""

    async def one() -> _Timing:
        began = time.perf_counter()
        run_id = await client.start(n=EVENTS_PER_RUN)
        posted = time.perf_counter()
        reading = await client.read(run_id)
        return _Timing(posted - began, reading.first_at - began, time.perf_counter() - began, reading)

    cpu, each = tree.cpu_seconds(), tree.cpu_seconds_of()
    timings, wall = await _in_lanes(lanes, total, one)
    used = tree.cpu_seconds() - cpu
    used_by = {name: seconds - each.get(name, 0.0) for name, seconds in tree.cpu_seconds_of().items()}
    return Runs(
        lanes=lanes,
        runs=total,
        runs_per_second=round(total / wall, 1),
        cpu_ms_per_run=round(used * 1000 / total, 2),
        cpu_ms_of={name: round(seconds * 1000 / total, 2) for name, seconds in used_by.items()},
        post=summary_of([timing.posted for timing in timings]),
        first_event=summary_of([timing.first for timing in timings]),
        last_event=summary_of([timing.done for timing in timings]),
        sequence_errors=sum(timing.reading.sequence_errors for timing in timings),
        not_completed=sum(timing.reading.terminal != "completed" for timing in timings),
    )


async def _in_lanes(lanes: int, total: int, work: Callable[[], Awaitable[T]]) -> tuple[list[T], float]:
    """Does the work `total` times, `lanes` at once; the results and the seconds it took."""
    tickets = iter(range(total))
    results: list[T] = []

    async def lane() -> None:
        for _ in tickets:
            results.append(await work())

    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(lanes)))
    return results, time.perf_counter() - began
