"""Starts what is measured, as own processes, and ends it."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.load.client import Target
from cli.mesh.layout import layout_of
from cli.mesh.state_file import MeshState, read_state

DEVELOPMENT_TOKEN = "local-development-only"  # noqa: S105 - public on purpose, and good on loopback only
READY_SECONDS = 90.0
STOP_SECONDS = 10.0


@asynccontextmanager
async def fresh_mesh(profile: str, replicas: str | None = None) -> AsyncGenerator[tuple[Target, Path]]:
    """A mesh of its own on free ports and an empty data folder, which goes with it. `replicas` as `harness up` takes it."""
    folder = Path(tempfile.mkdtemp(prefix="harness-bench-"))
    command = ["-m", "cli.main", "up", "--port", "0", "--data-dir", str(folder)]
    if replicas is not None:
        command += ["--replicas", replicas]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    try:
        told = asyncio.create_task(_lines(process, "ready in "))
        await asyncio.wait_for(told, READY_SECONDS)
        rest = asyncio.create_task(_lines(process, None))
        try:
            yield running_mesh(folder, profile), folder
        finally:
            await _end(process)
            await rest
    finally:
        await _end(process)
        shutil.rmtree(folder, ignore_errors=True)


def running_mesh(data_dir: Path, profile: str) -> Target:
    """The mesh that runs on a data folder. Raises SystemExit if there is none."""
    state = mesh_state(data_dir)
    token = os.environ.get("HARNESS_TOKEN") or DEVELOPMENT_TOKEN
    others = tuple(process.url for process in state.processes if process.url not in ("", state.url))
    processes = tuple((process.name, process.pid) for process in state.processes)
    name = "replicated mesh" if others else "mesh"
    return Target(name, state.url, state.pid, token, profile=profile, more_urls=others, processes=processes)


def mesh_state(data_dir: Path) -> MeshState:
    """What the mesh says of itself. Raises SystemExit if none runs there."""
    state = read_state(layout_of(data_dir).state_file)
    if state is None:
        raise SystemExit(f"bench: no mesh runs on {data_dir}: start one with `harness up --data-dir {data_dir}`.")
    return state


@asynccontextmanager
async def ceiling() -> AsyncGenerator[Target]:
    """The ceiling on a free port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.ceiling", stdout=asyncio.subprocess.PIPE
    )
    try:
        url = await asyncio.wait_for(_lines(process, "http"), READY_SECONDS)
        yield Target("ceiling", url.strip(), process.pid, "none")
    finally:
        await _end(process)


async def _lines(process: asyncio.subprocess.Process, until: str | None) -> str:
    """Reads what a process says, on to the terminal, up to a line that begins with `until`; with None to its end."""
    assert process.stdout is not None
    while line := (await process.stdout.readline()).decode(errors="replace"):
        if until is not None and line.startswith(until):
            return line
        sys.stderr.write(line)
    if until is not None:
        raise SystemExit("bench: what is to be measured did not start; what it said is above.")
    return ""


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
