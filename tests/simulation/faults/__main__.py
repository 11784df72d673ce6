"""`python -m tests.simulation.faults [--fault ID] [--search N] [--jobs N] [--json]`: plant faults and look for a schedule that catches them.

One fault runs in this interpreter; several, each in one of its own. `--search N` plays up to N schedules from seed 1 on instead of what the
fault's hint says, and `--level` and `--set NAME=JSON` try another bias.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from tests.simulation.faults import Fault, all_faults
from tests.simulation.faults.planting import Outdated, plant


@dataclass(slots=True)
class Found:
    """What came of looking. `caught`: a schedule broke one of the invariants that the fault says."""

    fault: str
    caught: bool
    seed: int | None
    schedules: int
    violation: str
    seconds: float

    def __str__(self) -> str:
        how = f"seed {self.seed} after {self.schedules} schedules: {self.violation}" if self.seed is not None else ""
        missed = f"NOT CAUGHT in {self.schedules} schedules {self.violation}"
        return f"{self.fault:<44} {how if self.caught else f'{missed} {how}'} ({self.seconds:.1f} s)"


def main() -> int:
    """0 if every fault was caught."""
    arguments = _arguments()
    faults = all_faults()
    if arguments.list:
        for fault in faults.values():
            _say(f"{fault.id:<44} {', '.join(fault.breaks):<12} {fault.rule}")
        return 0
    chosen = arguments.fault or [fault for fault in faults if fault.startswith(arguments.section)]
    unknown = [name for name in chosen if name not in faults]
    if unknown:
        _say(f"no fault is called {', '.join(unknown)}: --list names them")
        return 2
    if len(chosen) == 1:
        return _report([_look_for(faults[chosen[0]], arguments)], arguments)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        return _report(list(pool.map(lambda name: _elsewhere(name, arguments), chosen)), arguments)


def _look_for(fault: Fault, arguments: argparse.Namespace) -> Found:
    began = time.perf_counter()
    try:
        plant(fault)
        # Only now: the product is loaded with the fault in it.
        from tests.simulation.world import play
    except Outdated as error:
        return Found(fault.id, False, None, 0, f"outdated: {error}", time.perf_counter() - began)
    level = arguments.level or fault.level
    settings = fault.settings | dict(arguments.set or ())
    seeds = range(1, arguments.search + 1) if arguments.search else range(fault.seed, fault.seed + fault.within)
    played, other = 0, ""
    for seed in seeds:
        violation = play(seed, level, settings).violation
        played += 1
        if violation is None:
            continue
        if violation.invariant in fault.breaks:
            return Found(fault.id, True, seed, played, str(violation), time.perf_counter() - began)
        other = f"(seed {seed} broke something else: {violation})"
    return Found(fault.id, False, None, played, other, time.perf_counter() - began)


def _elsewhere(name: str, arguments: argparse.Namespace) -> Found:
    command = [sys.executable, "-m", "tests.simulation.faults", "--fault", name, "--json"]
    if arguments.search:
        command += ["--search", str(arguments.search)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        return Found(name, False, None, 0, f"ended with {done.returncode}: {done.stderr[-2000:]}", 0.0)
    found = Found(**json.loads(done.stdout)[0])
    if not arguments.json:
        _say(str(found))
    return found


def _report(found: list[Found], arguments: argparse.Namespace) -> int:
    if arguments.json:
        _say(json.dumps([asdict(one) for one in found]))
    elif len(found) == 1:
        _say(str(found[0]))
    else:
        _say(f"{sum(one.caught for one in found)} of {len(found)} faults were caught")
    return 0 if all(one.caught for one in found) else 1


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.faults", description=__doc__)
    parser.add_argument("--fault", action="append", metavar="ID")
    parser.add_argument("--section", default="", help="only faults whose id begins so")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--search", type=int, default=0, metavar="N")
    parser.add_argument("--level")
    parser.add_argument("--set", type=_setting, action="append", metavar="NAME=JSON")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, json.loads(value)


if __name__ == "__main__":
    raise SystemExit(main())
