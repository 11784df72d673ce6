"""What an adapter adds to its SDK, a turn and an event: the same turns played both ways, by turns, so that the machine is the same for both.

One way drives the SDK directly. The other is a turn through an adapter host over gRPC, from its start to its terminal event. What follows a turn is not
counted in either. Figures are medians; only differences and ratios of one run mean anything, and on a busy machine not those.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from conformance.plane.binding import Binding, Setting
from conformance.plane.run import kind
from conformance.plane.target import Target


@dataclass(frozen=True, slots=True)
class Measured:
    """One way of playing turns: medians in milliseconds."""

    turn_ms: float
    long_turn_ms: float
    events: int

    @property
    def event_ms(self) -> float:
        """What an event costs: what a long answer takes more than a short one."""
        return (self.long_turn_ms - self.turn_ms) / self.events


Play = Callable[[str], Awaitable[tuple[int, float]]]
"""Plays a turn: the deltas that came, and its seconds."""


def through_host(setting: Setting, target: Target) -> Play:
    """Turns of an adapter host, each the first of a conversation, as those of the SDK alone are."""

    async def play(message: str) -> tuple[int, float]:
        binding = Binding(setting, target)
        await binding.create()
        begun = time.perf_counter()
        drafts = await binding.say(message)
        seconds = time.perf_counter() - begun
        await binding.cleanup()
        if kind(drafts[-1]) != "run_completed":
            raise RuntimeError(f"a turn ended with {kind(drafts[-1])}")
        return sum(kind(draft) == "content_delta" for draft in drafts), seconds

    return play


async def measured(
    ways: Mapping[str, Play], burst: Callable[[int], str], turns: int, events: int
) -> dict[str, Measured]:
    """Every way in turns: so many short answers, and as many of `events` deltas. `burst` is the message that is answered with so many."""
    short, long = burst(1), burst(1 + events)
    times: dict[tuple[str, str], list[float]] = {}
    for number in range(turns + 1):
        for message, wanted in ((short, 1), (long, 1 + events)):
            for name, play in ways.items():
                came, seconds = await play(message)
                if came != wanted:
                    raise RuntimeError(f"{name}: {came} deltas came, not {wanted}")
                # The first round warms up.
                if number:
                    times.setdefault((name, message), []).append(seconds * 1000)
    return {
        name: Measured(statistics.median(times[name, short]), statistics.median(times[name, long]), events)
        for name in ways
    }


def compared(sdk: Measured, adapter: Measured, host_mib: float) -> dict[str, float]:
    """Both ways and the differences."""
    return {
        "sdk_turn_ms": sdk.turn_ms,
        "adapter_turn_ms": adapter.turn_ms,
        "added_turn_ms": adapter.turn_ms - sdk.turn_ms,
        "sdk_event_ms": sdk.event_ms,
        "adapter_event_ms": adapter.event_ms,
        "added_event_ms": adapter.event_ms - sdk.event_ms,
        "host_mib": host_mib,
    }


def main(
    program: str,
    description: str | None,
    bench: Callable[[int, int], Awaitable[dict[str, float]]],
    arguments: Sequence[str],
) -> int:
    """The command line of a bench of `turns` and `events`."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--turns", type=int, default=10, help="turns of each kind and way (10)")
    parser.add_argument("--events", type=int, default=2000, help="deltas of a long answer (2000)")
    given = parser.parse_args(arguments)
    if given.turns < 1 or given.events < 1:
        parser.error("--turns and --events must be 1 or more")

    async def run() -> dict[str, float]:
        return await bench(given.turns, given.events)

    figures = asyncio.run(run())
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=1))
    return 0
