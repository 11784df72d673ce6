"""`python -m tests.simulation --seeds 1..1000 --jobs 2 [--level storm] [--set name=value] [--json]`, and `--trace SEED` for one of them."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from tests.simulation.explore import Summary, explore_on, timed, trace
from tests.simulation.weather import LEVELS
from tests.simulation.world import play

PROGRESS_EVERY = 500


def main() -> int:
    """0: no violation; 1: at least one, with how to replay it."""
    arguments = _arguments()
    settings = dict(arguments.set or ())
    if arguments.trace is not None:
        outcome = play(arguments.trace, arguments.level, settings)
        _say("\n".join(trace(outcome)))
        return 0 if outcome.violation is None else 1
    elapsed = timed()
    summary = explore_on(
        arguments.jobs,
        arguments.seeds,
        level=arguments.level,
        settings=settings,
        stop_at=arguments.stop_at,
        progress=_progress(arguments.seeds),
    )
    took = elapsed()
    if arguments.json:
        _say(json.dumps(_as_json(summary, took), indent=1))
    else:
        _say("\n".join(summary.lines(took)))
        for seed, what in sorted(summary.failures.items()):
            _say(f"\nseed {seed}: {what}\nreplay: {_replay(arguments, seed)}")
        if summary.failures:
            first = min(summary.failures)
            _say("\n" + "\n".join(trace(play(first, arguments.level, settings))))
    return 1 if summary.failures else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=range(1, 1001), help="A..B, both included, or one seed")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--level", choices=sorted(LEVELS))
    parser.add_argument("--set", type=_setting, action="append", metavar="NAME=JSON", help="a field of the scenario")
    parser.add_argument("--stop-at", type=int, default=1, help="violations after which to stop")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trace", type=int, metavar="SEED")
    return parser.parse_args()


def _seeds(text: str) -> range:
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, json.loads(value)


def _replay(arguments: argparse.Namespace, seed: int) -> str:
    level = f" --level {arguments.level}" if arguments.level else ""
    settings = "".join(f" --set '{name}={json.dumps(value)}'" for name, value in arguments.set or ())
    return f"python -m tests.simulation --trace {seed}{level}{settings}"


def _progress(seeds: range) -> Any:
    said = 0

    def say(summary: Summary) -> None:
        nonlocal said
        if summary.schedules - said >= PROGRESS_EVERY:
            said = summary.schedules
            sys.stderr.write(f"{said} of {len(seeds)}, {len(summary.failures)} violations\n")

    return say


def _as_json(summary: Summary, took: float) -> dict[str, Any]:
    return {
        "schedules": summary.schedules,
        "steps": summary.steps,
        "simulated_seconds": round(summary.seconds, 1),
        "seconds": round(took, 2),
        "counts": dict(sorted(summary.counts.items())),
        "violations": {str(seed): what for seed, what in sorted(summary.failures.items())},
    }


if __name__ == "__main__":
    raise SystemExit(main())
