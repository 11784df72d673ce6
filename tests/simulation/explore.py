"""Playing many seeds, on several cores, and saying what occurred in them."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.simulation.world import Outcome, play

SEEDS_OF_A_JOB: Final = 25
SHOWN: Final = (
    "run_stored",
    "turn_began",
    "takeover",
    "forced",
    "seal",
    "handed_over",
    "runs_crashed",
    "sessions_crashed",
    "host_crashed",
    "paused",
    "asked_to_stop",
    "tombstone",
    "intent_client_request",
    "intent_superseded",
    "intent_session_cleared",
    "intent_deadline",
    "clear",
    "waited_enqueue",
    "waited_interrupt",
    "withdrawn",
    "head",
    "interrupt_stored",
    "interrupt_consumed",
    "interrupt_given_back",
    "interrupt_dismissed",
    "resumed",
    "conflict",
    "call_accepted",
    "call_effect",
    "call_waiting",
    "call_started",
    "call_done",
    "call_lost",
    "call_possible",
    "call_refused",
    "stream_cut",
    "message_lost",
    "message_doubled",
    "message_late",
    "notice_lost",
    "write_unknown",
    "store_away",
    "bus_away",
    "watch_again",
)
"""What the summary says, whether it occurred or not: a zero here means that something is not simulated."""


@dataclass(slots=True)
class Summary:
    """What many schedules came to. Seconds are those of the world."""

    schedules: int = 0
    steps: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter[str])
    failures: dict[int, str] = field(default_factory=dict[int, str])

    def add(self, other: Summary) -> None:
        """Take in what another part came to."""
        self.schedules += other.schedules
        self.steps += other.steps
        self.seconds += other.seconds
        self.counts += other.counts
        self.failures |= other.failures

    def lines(self, took: float) -> Iterator[str]:
        """For people."""
        yield (
            f"{self.schedules} schedules, {self.steps} steps, {self.seconds:.0f} simulated seconds in {took:.1f} s "
            f"({1000 * took / max(1, self.schedules):.1f} ms each): {len(self.failures)} violations"
        )
        yield ", ".join(f"{name} {self.counts[name]}" for name in SHOWN)


def explore(
    seeds: Iterable[int],
    *,
    level: str | None = None,
    settings: dict[str, Any] | None = None,
    stop_at: int = 1,
) -> Summary:
    """Play the seeds one after the other; stops after `stop_at` violations."""
    summary = Summary()
    for seed in seeds:
        outcome = play(seed, level, settings)
        _take(summary, outcome)
        if len(summary.failures) >= stop_at:
            break
    gc.collect()
    return summary


def explore_on(
    jobs: int,
    seeds: range,
    *,
    level: str | None = None,
    settings: dict[str, Any] | None = None,
    stop_at: int = 1,
    progress: Callable[[Summary], None] = lambda summary: None,
) -> Summary:
    """The same on several cores."""
    parts = [seeds[first : first + SEEDS_OF_A_JOB] for first in range(0, len(seeds), SEEDS_OF_A_JOB)]
    total = Summary()
    if jobs <= 1:
        for part in parts:
            total.add(explore(part, level=level, settings=settings, stop_at=stop_at))
            progress(total)
            if len(total.failures) >= stop_at:
                break
        return total
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        work = ((part, level, settings, stop_at) for part in parts)
        for summary in pool.imap_unordered(_explore_part, work):
            total.add(summary)
            progress(total)
            if len(total.failures) >= stop_at:
                break
    return total


def trace(outcome: Outcome) -> Iterator[str]:
    """A schedule for people: its scenario, everything in order, how it ended."""
    yield f"seed {outcome.seed}: {outcome.scenario}"
    for entry in outcome.history.entries:
        yield str(entry)
    yield f"{outcome.steps} steps, {outcome.seconds:.1f} simulated seconds, {outcome.violation or 'no violation'}"


def timed() -> Callable[[], float]:
    """Seconds since now."""
    began = time.perf_counter()
    return lambda: time.perf_counter() - began


def _explore_part(work: tuple[range, str | None, dict[str, Any] | None, int]) -> Summary:
    seeds, level, settings, stop_at = work
    return explore(seeds, level=level, settings=settings, stop_at=stop_at)


def _take(summary: Summary, outcome: Outcome) -> None:
    summary.schedules += 1
    summary.steps += outcome.steps
    summary.seconds += outcome.seconds
    summary.counts += outcome.history.counts
    if outcome.violation is not None:
        summary.failures[outcome.seed] = str(outcome.violation)
