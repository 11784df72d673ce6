"""`python -m bench`: measures a mesh and the ceiling in turns, prints the table, writes the figures to build/bench/."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.cpu_share import LEAST, cpu_shares
from bench.load.client import Target
from bench.load.sampling import ProcessTree
from bench.measure import DEFAULT_MODES, MODES, QUICK, Results, Sizes, measure, warm_up
from bench.report import busy_text, plain, problems, rows, table_text
from bench.servers import ceiling, fresh_mesh, mesh_state, running_mesh

OUTPUT = Path("build/bench")
WITHOUT_CEILING = ("stuck", "history")
"""What the ceiling has no answer to: it keeps everything and frees nothing."""


async def bench(options: argparse.Namespace) -> int:
    """Measures; the exit code: 0, or 1 if what was measured was wrong."""
    sizes = _sizes(options)
    ours: Results = {}
    several: Results = {}
    limit: Results = {}
    async with AsyncExitStack() as stack:
        shares = None if options.cpu_share is None else stack.enter_context(cpu_shares(options.cpu_share))
        meshes = [(await stack.enter_async_context(_mesh(options)), ours)]
        if options.replicas is not None:
            meshes.append((await stack.enter_async_context(fresh_mesh(options.profile, options.replicas)), several))
        if shares is not None:
            for (_, data_dir), _ in meshes:
                shares.give(_replicated(options, data_dir))
        against = await stack.enter_async_context(ceiling()) if options.ceiling else None
        for server in [target for (target, _), _ in meshes] + ([] if against is None else [against]):
            await warm_up(server, 40 if not options.quick else 4)
        tree = ProcessTree(meshes[0][0][0].pid)
        before = [_restarts(data_dir) for (_, data_dir), _ in meshes]
        memory = {"start_mib": tree.memory_mib()}
        # In turns, within the same minute: the machine may be another one in the next.
        rounds, each = (1, sizes) if len(meshes) == 1 else (sizes.repeat, replace(sizes, repeat=1))
        for mode in options.modes:
            for _ in range(rounds):
                for (target, _), results in meshes:
                    results.setdefault(mode, []).extend(await _told(target, mode, each))
            memory[f"after_{mode}_mib"] = tree.memory_mib()
            if against is not None and mode not in WITHOUT_CEILING:
                limit[mode] = await _told(against, mode, sizes)
        restarts = sum(_restarts(data_dir) for (_, data_dir), _ in meshes) - sum(before)
    table = rows(ours, limit, several)
    wrong = problems(ours) + [f"with replicas, {problem}" for problem in problems(several)]
    wrong += [f"{restarts} processes of the mesh were restarted meanwhile"] if restarts else []
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()},
        "profile": options.profile,
        "replicas": options.replicas,
        "cpu_share": options.cpu_share,
        "sizes": plain(sizes),
        "rows": [{**plain(row), "ratio": row.ratio, "gain": row.gain} for row in table],
        "problems": wrong,
        "memory": memory,
        "mesh": plain(ours),
        "replicated_mesh": plain(several),
        "ceiling": plain(limit),
    }
    path = _write(options.output, document)
    print(table_text(table))
    for name, figures in (("one process of each", ours), ("replicas", several)):
        if busy := busy_text(figures, options.cpu_share):
            print(f"at 32 lanes, {name}:\n{busy}")
    for problem in wrong:
        print(f"WRONG: {problem}")
    print(f"figures: {path}")
    return 1 if wrong else 0


def _replicated(options: argparse.Namespace, data_dir: Path) -> list[int]:
    """The processes of the services that `--replicas` names, be there one of each or several."""
    services = {part.partition("=")[0].strip() for part in options.replicas.split(",")}
    return [process.pid for process in mesh_state(data_dir).processes if process.service in services]


@asynccontextmanager
async def _mesh(options: argparse.Namespace) -> AsyncGenerator[tuple[Target, Path]]:
    if options.data_dir is not None:
        yield running_mesh(options.data_dir, options.profile), options.data_dir
        return
    async with fresh_mesh(options.profile) as started:
        yield started


async def _told(target: Target, mode: str, sizes: Sizes) -> list[Any]:
    print(f"bench: {mode} at the {target.name}", file=sys.stderr)
    return await measure(target, mode, sizes)


def _restarts(data_dir: Path) -> int:
    return sum(process.restarts for process in mesh_state(data_dir).processes)


def _sizes(options: argparse.Namespace) -> Sizes:
    given = {
        "repeat": options.repeat,
        "runs": options.runs,
        "big": options.big,
        "subscribers": options.subs,
        "rate": options.rate,
        "fanout_seconds": options.secs,
        "fanout_processes": options.procs,
        "cores": options.cpu_share,
        "history": options.history,
    }
    return replace(QUICK if options.quick else Sizes(), **{name: value for name, value in given.items() if value})


def _write(folder: Path, document: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    name = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path


def _modes(text: str) -> tuple[str, ...]:
    modes = tuple(part.strip() for part in text.split(",") if part.strip())
    if unknown := sorted(set(modes) - set(MODES)):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: unknown; there are {', '.join(MODES)}")
    if not modes:
        raise argparse.ArgumentTypeError(f"name at least one of {', '.join(MODES)}")
    return modes


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not LEAST <= number <= 64:
        raise argparse.ArgumentTypeError(f"must be {LEAST:g} to 64 cores")
    return number


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_count(part) for part in text.split(","))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add("--modes", type=_modes, default=DEFAULT_MODES, help=f"comma list of {', '.join(MODES)}")
    add("--quick", action="store_true", help="little of everything: shows that it works, not how fast")
    add("--repeat", type=_count, help="repetitions of post, runs, big and replay (3)")
    add("--runs", type=_count, help="runs in the 32 lanes (960)")
    add("--big", type=_count, help="events of the long run (20000)")
    add("--subs", type=_counts, help="comma list of subscriber counts (100,500)")
    add("--rate", type=_count, help="events a second of the fan-out (100)")
    add("--secs", type=_count, help="seconds of the fan-out (10)")
    add("--procs", type=_count, help="processes the subscribers are spread over (1)")
    add("--history", type=_count, help="runs of the mode history (10000)")
    add("--profile", default="default", help="operator profile the runs use")
    add("--data-dir", type=Path, help="measure the mesh that runs on this data folder, and leave it running")
    add("--replicas", help="measure beside it a mesh with replicas, as in `harness up --replicas runs=2,gateway=2`")
    add(
        "--cpu-share",
        type=_share,
        metavar="CORES",
        help="with --replicas: every process of the services it names, in both meshes, gets so many cores and no more (0.1), as if on a machine "
        "of its own; bus, adapter, sandboxes and the load are not bounded. Without it, replicas on one machine share the cores that one process "
        "of each has too, and show what they cost, not what they bring. Needs root and control groups",
    )
    add("--no-ceiling", dest="ceiling", action="store_false", help="measure the mesh alone")
    add("--output", type=Path, default=OUTPUT, help=f"folder of the JSON files ({OUTPUT})")
    given = parser.parse_args(arguments)
    if given.cpu_share is not None and (given.replicas is None or given.data_dir is not None):
        parser.error("--cpu-share is for --replicas, and for meshes of the bench's own: not with --data-dir")
    return given


async def _bench_until_told(options: argparse.Namespace) -> int:
    """SIGTERM ends what was started, like Ctrl-C does."""
    task = asyncio.ensure_future(bench(options))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(_bench_until_told(parse(sys.argv[1:]))))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
