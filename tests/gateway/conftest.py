"""A gateway process in front of a toy mesh, per test module or per test."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio

from tests.gateway.toy_mesh import TOKEN, ToyMesh

API_TOKEN = "first-api-token-0123456789"
SECOND_API_TOKEN = "second-api-token-0123456789"
ROOT = Path(__file__).parents[2]


def headers(subject: str = "alice", token: str = API_TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", "X-Harness-Engine-Subject": subject}


@dataclass
class Running:
    """A gateway process and what is behind it."""

    process: asyncio.subprocess.Process
    mesh: ToyMesh
    address: str
    log: Path

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def client(self, subject: str = "alice", **more: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers=headers(subject), timeout=30, **more)

    def memory_mib(self, of: str = "VmRSS") -> float:
        """What it has in memory now, or with `VmHWM` had at most."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{of}:")[1].split()[0]) / 1024


def environment(**settings: str) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HARNESS_")}
    return {**inherited, **settings}


@asynccontextmanager
async def run_gateway(mesh: ToyMesh, **settings: str) -> AsyncGenerator[Running]:
    """A gateway in front of `mesh`, ended by its pid at the end."""
    read_end, write_end = os.pipe()
    with tempfile.TemporaryDirectory(prefix="gw") as folder:
        log = Path(folder) / "log"
        variables = {
            "HARNESS_LISTEN": "127.0.0.1:0",
            "HARNESS_API_TOKENS": f"{API_TOKEN},{SECOND_API_TOKEN}",
            "HARNESS_SERVICE_TOKENS": TOKEN,
            "HARNESS_CATALOG_ADDRESS": mesh.address,
            "HARNESS_RUNS_ADDRESS": mesh.address,
            "HARNESS_SESSIONS_ADDRESS": mesh.address,
            "HARNESS_READY_FD": str(write_end),
            "HARNESS_DIE_WITH_PARENT": "1",
            "HARNESS_SHUTDOWN_GRACE_SECONDS": "3",
            **settings,
        }
        with log.open("wb") as log_file:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "services.gateway",
                cwd=ROOT,
                env=environment(**variables),
                pass_fds=[write_end],
                stderr=log_file,
            )
        os.close(write_end)
        try:
            ready = await asyncio.to_thread(_read_line, read_end)
            if not ready:
                raise AssertionError(f"the gateway did not start:\n{log.read_text()}")
            yield Running(process, mesh, json.loads(ready)["address"], log)
        finally:
            os.close(read_end)
            if process.returncode is None:
                process.terminate()
            await process.wait()


def _read_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(descriptor, 4096)
        if not data:
            return b""
        line += data
    return line


@asynccontextmanager
async def toy_mesh() -> AsyncGenerator[ToyMesh]:
    # A folder of its own with a short path: socket names have a small limit.
    with tempfile.TemporaryDirectory(prefix="gw") as folder:
        mesh = ToyMesh(f"unix:{folder}/s")
        await mesh.start()
        try:
            yield mesh
        finally:
            await mesh.stop()


# One event loop a module, so that a module may share one gateway among its tests where a start for each would only cost time.


@pytest_asyncio.fixture(loop_scope="module")
async def mesh() -> AsyncIterator[ToyMesh]:
    async with toy_mesh() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(mesh: ToyMesh) -> AsyncIterator[Running]:
    async with run_gateway(mesh) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def start_gateway(mesh: ToyMesh) -> AsyncIterator[Callable[..., Any]]:
    """Starts a gateway with settings of the test's choice."""
    async with AsyncExitStack() as stack:

        async def start(**settings: str) -> Running:
            return await stack.enter_async_context(run_gateway(mesh, **settings))

        yield start


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_gateway() -> AsyncIterator[Running]:
    """One gateway for all tests of a module; `gateway` of such a module empties its mesh before each."""
    async with toy_mesh() as mesh, run_gateway(mesh) as running:
        yield running
