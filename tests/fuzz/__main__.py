"""`python -m tests.fuzz [--seconds 600] [--target NAME [--seed N]]`: plays random examples of every target in turn, and says what became of them.

A finding ends it, with the target and the seed that plays it again.
"""

import argparse
import random
import resource
import sys
import time
from collections import Counter
from typing import Any

import orjson

from tests.fuzz.targets import TARGETS

SLICE_SECONDS = 2.0
WARM_UP_SECONDS = 10.0
"""Caches are full by then: what memory grows after it is growth."""
MAX_GROWTH_MIB = 128


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--target", choices=sorted(TARGETS))
    parser.add_argument("--seed", type=int)
    asked = parser.parse_args()
    names = [asked.target] if asked.target else list(TARGETS)
    if asked.seed is not None:
        sys.stdout.write(f"{ ({name: TARGETS[name](random.Random(asked.seed)) for name in names}) }\n")
        return 0
    return play(names, asked.seconds)


def play(names: list[str], seconds: float) -> int:
    """Plays until the time is over. 1 if there was a finding, or the memory grew."""
    started, seed = time.monotonic(), random.SystemRandom().randrange(1 << 32)
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in names}
    slowest: dict[str, tuple[float, int]] = dict.fromkeys(names, (0.0, 0))
    warm = 0
    while (passed := time.monotonic() - started) < seconds:
        if not warm and passed > WARM_UP_SECONDS:
            warm = _peak_mib()
        for name in names:
            until = time.monotonic() + SLICE_SECONDS
            while (begun := time.monotonic()) < until:
                seed += 1
                try:
                    outcomes[name][TARGETS[name](random.Random(seed))] += 1
                except BaseException:
                    sys.stderr.write(f"finding: python -m tests.fuzz --target {name} --seed {seed}\n")
                    raise
                slowest[name] = max(slowest[name], (time.monotonic() - begun, seed))
    growth = max(0, _peak_mib() - warm) if warm else 0
    figures: dict[str, Any] = {
        name: {"examples": sum(seen.values()), **seen, "slowest_seconds": round(slowest[name][0], 3), "its_seed": slowest[name][1]}
        for name, seen in outcomes.items()
    }  # fmt: skip
    total = sum(sum(seen.values()) for seen in outcomes.values())
    whole = {
        "seconds": round(time.monotonic() - started),
        "examples": total,
        "findings": 0,
        "memory_growth_mib": growth,
    }
    sys.stdout.write(orjson.dumps({**whole, "targets": figures}, option=orjson.OPT_INDENT_2).decode() + "\n")
    if growth > MAX_GROWTH_MIB:
        sys.stderr.write(f"finding: memory grew by {growth} MiB after the first {WARM_UP_SECONDS:g} s\n")
        return 1
    return 0


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main())
