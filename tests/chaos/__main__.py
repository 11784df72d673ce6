"""`make chaos N=1000 [SEED=7] [STORE=mongodb] [REPLICAS=2] [MESHES=2] [TTL=5]`: that many faults, and what they broke.

Several meshes share the points between them and run beside each other. Exit code 1 means a violation; the folder of the run is kept then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.campaign import Asked
from tests.chaos.report import Result
from tests.chaos.session import Means, run_campaign

PER_MESH: Final = {"sqlite": 250, "mongodb": 100}
"""Points before the next mesh. The compatible server makes one change at a time, and everything that was found is sorted by it, so it has to stay small."""
CLIENTS: Final = {"sqlite": 10, "mongodb": 4}


def main() -> int:
    """The command."""
    given = _arguments()
    folder = given.data_dir or Path(tempfile.mkdtemp(prefix="harness-chaos-"))
    numbers = list(range(given.first, given.first + given.points))
    if given.share:
        try:
            result = _share(given, folder, numbers)
        except pytest.skip.Exception as reason:  # there is no server for the store
            _say(str(reason))
            return 2
        return 1 if result.violations else 0
    _say(
        f"{given.points} points from {given.first}, seed {given.seed}, {given.meshes} meshes, lease {given.ttl:g} s; in {folder}"
    )
    began = time.monotonic()
    result = asyncio.run(_all(given, folder))
    result.seconds = time.monotonic() - began
    _say(result.table())
    if given.json:
        given.json.write_text(json.dumps(result.to_document(), indent=1) + "\n", "utf-8")
    if result.violations or len(result.points) != given.points:
        for violation in result.violations:
            _say(f"VIOLATION {violation}")
        _say(_again(given, folder, result))
        return 1
    if given.data_dir is None:
        shutil.rmtree(folder)
    return 0


def _share(given: argparse.Namespace, folder: Path, numbers: list[int]) -> Result:
    """The share of one of several processes: on one mesh after the other, so that none gets old and slow."""
    share, of = (int(part) for part in given.share.split("/"))
    mine, each = numbers[share::of], given.per_mesh or PER_MESH[given.store]
    results, total = list[Result](), Result()
    for first in range(0, len(mine), each):
        asked = Asked(
            given.seed, mine[first : first + each], given.check_every, given.ttl, given.clients or CLIENTS[given.store]
        )
        here = folder / f"points-{asked.numbers[0]}-{asked.numbers[-1]}"
        name = f"[{share}: {first}+]" if len(mine) > each else f"[{share}]"
        means = Means(here, given.ttl, given.replicas, given.store)
        results.append(asyncio.run(run_campaign(asked, means, lambda line, name=name: _say(f"{name} {line}"))))
        if not results[-1].violations:
            shutil.rmtree(here)
        total = Result.together(results)
        total.seconds = sum(result.seconds for result in results)
        # After each mesh: a later one that breaks down leaves what the earlier ones showed.
        (folder / "result.json").write_text(json.dumps(total.to_document()), "utf-8")
    return total


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="number of the first point")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=("sqlite", "mongodb"), default="sqlite")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--meshes", type=int, default=2, help="meshes beside each other, which share the points")
    parser.add_argument("--ttl", type=float, default=5.0, help="seconds of a lease on a run")
    parser.add_argument("--check-every", type=int, default=50, help="points of a mesh between two judgements")
    parser.add_argument("--clients", type=int, default=0, help="of a mesh")
    parser.add_argument("--per-mesh", type=int, default=0, help="points before a mesh is replaced by a new one")
    parser.add_argument("--data-dir", type=Path, default=None, help="kept; a temporary folder without it")
    parser.add_argument("--json", type=Path, default=None, help="where the result is written to")
    parser.add_argument("--share", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


async def _all(given: argparse.Namespace, folder: Path) -> Result:
    """Every mesh in a process of its own."""
    folders = [folder / f"mesh-{number}" for number in range(given.meshes)]
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.chaos", "--share", f"{number}/{given.meshes}", "--data-dir", str(each),
            "--points", str(given.points), "--first", str(given.first), "--seed", str(given.seed), "--ttl", str(given.ttl),
            "--replicas", str(given.replicas), "--store", given.store, "--check-every", str(given.check_every), "--per-mesh", str(given.per_mesh),
            "--clients", str(given.clients),
            env={"GRPC_VERBOSITY": "ERROR", **os.environ},  # lost connections are what this is about
        )
        for number, each in enumerate(folders)
    ]  # fmt: skip
    await asyncio.gather(*(process.wait() for process in processes))
    results = [_result_of(each / "result.json") for each in folders]
    return Result.together(results)


def _result_of(path: Path) -> Result:
    if not path.exists():
        return Result(violations=[f"{path.parent.name} ended without a result; see what it printed"])
    return Result.from_document(json.loads(path.read_text("utf-8")))


def _again(given: argparse.Namespace, folder: Path, result: Result) -> str:
    return (
        f"The folder is kept: {folder}. To have the same points again: make chaos N={given.points} SEED={given.seed} "
        f"FIRST={given.first} STORE={given.store} MESHES={given.meshes} REPLICAS={given.replicas} TTL={given.ttl:g}"
    )


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
