"""The simulation as a test: a share of fresh schedules, the seeds that once failed, and that a seed is one schedule.

`HARNESS_SIMULATION_SCHEDULES` says how many schedules are explored (default 2,000).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.explore import explore
from tests.simulation.weather import LEVELS
from tests.simulation.world import play

SCHEDULES = int(os.environ.get("HARNESS_SIMULATION_SCHEDULES", "2000"))
CHUNKS = 16
FIRST_SEED = 1
ASKED = {
    ".crashes": 2.0, ".stops": 1.0, ".slow": 0.2, "max_active": 1, "conversations": 3, "clients": 3, "operations": 6,
    "scripts": {"ask": 50.0}, "weights": {"resume": 40.0, "cancel": 20.0},
}  # fmt: skip
"""Runs that ask, people who decide, and hardly room for the runs that go on: an interrupt that is given back is rare elsewhere."""
STOPPED = {".stops": 1.0, "conversations": 3, "clients": 3, "operations": 6, "scripts": {"hang": 30.0}}
"""Runs that outlast the stop of their executor: one that is handed over is rare elsewhere."""
CALLING = {
    ".crashes": 2.0, ".pauses": 1.0, "agents": ("tools",), "conversations": 2, "clients": 2, "operations": 5,
    "scripts": {"call": 40.0, "approve": 40.0}, "weights": {"resume": 30.0},
}  # fmt: skip
"""Runs that call tools while their brokers die: elsewhere one conversation in five has an agent with tools."""
REGRESSIONS = Path(__file__).with_name("regressions.txt")


def _regressions() -> list[tuple[int, str | None, str]]:
    found: list[tuple[int, str | None, str]] = []
    for line in REGRESSIONS.read_text(encoding="utf-8").splitlines():
        words, _, why = line.partition("#")
        if words.split():
            seed, *level = words.split()
            found.append((int(seed), level[0] if level else None, why.strip()))
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_schedule_breaks_an_invariant(chunk: int) -> None:
    seeds = range(FIRST_SEED + chunk, FIRST_SEED + SCHEDULES, CHUNKS)
    summary = explore(seeds)
    assert not summary.failures, "\n".join(
        f"{what}\nreplay: python -m tests.simulation --trace {seed}" for seed, what in summary.failures.items()
    )


def test_schedules_that_once_failed_hold() -> None:
    for seed, level, why in _regressions():
        outcome = play(seed, level)
        assert outcome.violation is None, f"again: {why}\nreplay: python -m tests.simulation --trace {seed}"


@pytest.mark.parametrize("level", sorted(LEVELS))
def test_a_seed_is_one_schedule_in_every_process(level: str) -> None:
    code = (
        "from tests.simulation.world import play\n"
        f"play(3, {level!r})\n"  # what was played before makes no difference
        f"print(play(4, {level!r}).history.digest(), end='')"
    )
    there = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert there == [play(4, level).history.digest()] * 2


def test_everything_that_can_go_wrong_does() -> None:
    """Not vacuous: in few schedules of the hardest level everything that the checker judges occurs."""
    counts: Counter[str] = Counter()
    for seed in range(1, 60):
        counts += play(seed, "storm").history.counts
    for seed in range(1, 121):
        counts += play(seed, "crash", ASKED).history.counts
    for seed in range(1, 6):
        counts += play(seed, "crash", STOPPED).history.counts
    for seed in range(1, 121):
        counts += play(seed, "crash", CALLING).history.counts
    wanted = (
        "takeover", "forced", "seal", "slot_claimed", "tombstone", "clear", "intent_superseded", "intent_deadline", "intent_session_cleared",
        "intent_client_request", "waited_enqueue", "waited_interrupt", "withdrawn", "head", "run_completed", "run_failed", "run_cancelled",
        "runs_crashed", "sessions_crashed", "host_crashed", "paused", "asked_to_stop", "stream_cut", "message_lost", "message_doubled",
        "message_late", "notice_lost", "store_lost", "write_unknown", "store_away", "bus_away", "watch_again", "conflict",
        "interrupt_stored", "interrupt_consumed", "interrupt_dismissed", "interrupt_given_back", "resumed", "handed_over",
        "call_accepted", "call_effect", "call_waiting", "call_started", "call_done", "call_lost", "call_possible", "call_refused",
    )  # fmt: skip
    assert {name for name in wanted if not counts[name]} == set()
