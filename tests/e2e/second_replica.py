"""A second process each of sessions, runs and gateway beside those of a mesh, wired to each other: who starts where is executed there."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.mesh import RunningMesh


@dataclass(slots=True)
class Target:
    """A process that faults may meet; `find` is its pid now, 0 while there is none."""

    name: str
    find: Callable[[], int]


@asynccontextmanager
async def second_replica(mesh: RunningMesh) -> AsyncGenerator[tuple[str, list[Target]]]:
    """Another process each of sessions, runs and gateway on the stores of the mesh; restarted when it ends. Yields the gateway's URL."""
    async with AsyncExitStack() as stack:
        sockets = mesh.data_dir / "run"
        sessions, runs = f"unix:{sockets / 'sessions-b.sock'}", f"unix:{sockets / 'runs-b.sock'}"
        facade, tools = f"unix:{sockets / 'facade' / 'state-b.sock'}", f"unix:{sockets / 'tools' / 'tool-b.sock'}"
        plans: list[tuple[str, dict[str, str]]] = [
            ("sessions", {"HARNESS_LISTEN": sessions, "HARNESS_FACADE_LISTEN": facade}),
            (
                "runs",
                {
                    "HARNESS_LISTEN": runs,
                    "HARNESS_SESSIONS_ADDRESS": sessions,
                    "HARNESS_STATE_FACADE_ADDRESS": facade,
                    "HARNESS_TOOL_FACADE_LISTEN": tools,
                    "HARNESS_TOOL_FACADE_ADDRESS": tools,
                },
            ),
            ("gateway", {"HARNESS_LISTEN": "127.0.0.1:0", "HARNESS_RUNS_ADDRESS": runs}),
        ]
        replicas: list[_Replica] = []
        for service, changed in plans:
            replica = _Replica(mesh, service, changed)
            await replica.start()
            keeping = asyncio.create_task(replica.keep())
            stack.push_async_callback(replica.stop, keeping)
            replicas.append(replica)
        targets = [Target(f"{replica.service}-b", replica.pid) for replica in replicas]
        yield f"http://{replicas[-1].address}", targets


class _Replica:
    """A second process of a service, with the environment of the first."""

    def __init__(self, mesh: RunningMesh, service: str, changed: dict[str, str]) -> None:
        self.service = service
        self.address = ""
        raw = Path(f"/proc/{mesh.pid(service)}/environ").read_bytes().split(b"\0")
        environment = dict(entry.decode().split("=", 1) for entry in raw if b"=" in entry)
        for name in ("HARNESS_READY_FD", "HARNESS_LIFELINE_FD"):
            environment.pop(name, None)
        self._environment = {**environment, **changed, "HARNESS_DIE_WITH_PARENT": str(os.getpid())}
        self._log = mesh.data_dir / "logs" / f"{service}-b.log"
        self._process: asyncio.subprocess.Process | None = None

    def pid(self) -> int:
        """Its pid, 0 while it does not run."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else 0

    async def start(self) -> None:
        """Returns once it serves."""
        reader, writer = os.pipe()
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                f"services.{self.service}",
                env={**self._environment, "HARNESS_READY_FD": str(writer)},
                stdout=log,
                stderr=log,
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=[writer],
            )
        os.close(writer)
        with os.fdopen(reader, "rb") as announced:
            line = await asyncio.to_thread(announced.readline)
        if line:
            self.address = json.loads(line).get("address", "")
            if self.service == "gateway":  # a free port is kept over a restart
                self._environment["HARNESS_LISTEN"] = self.address

    async def keep(self) -> None:
        """Starts it again whenever it ends."""
        while self._process is not None:
            await self._process.wait()
            await asyncio.sleep(0.2)
            await self.start()

    async def stop(self, keeping: asyncio.Task[None]) -> None:
        """Ends it for good."""
        keeping.cancel()
        await asyncio.wait({keeping})
        process = self._process
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            await process.wait()
