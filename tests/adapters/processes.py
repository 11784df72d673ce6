"""Adapter processes for tests: started with a readiness pipe, ended by their pid."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class AdapterProcess:
    """`python -m adapters.reference`, or another module, on a unix socket in `folder` or at `listen`."""

    folder: Path
    module: str = "adapters.reference"
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    name: str = "a"
    # Another address than that socket.
    listen: str = ""
    process: "subprocess.Popen[bytes] | None" = None
    ready: dict = field(default_factory=dict)

    @property
    def address(self) -> str:
        return self.listen or f"unix:{self.folder}/{self.name}.sock"

    @property
    def socket_mode(self) -> int | None:
        """Permission bits of the socket; None if it is not there."""
        path = Path(self.address.removeprefix("unix:"))
        return stat.S_IMODE(path.stat().st_mode) if path.exists() else None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def start(self) -> "AdapterProcess":
        """Returns once the process says that it serves."""
        return await asyncio.to_thread(self._start)

    def _start(self) -> "AdapterProcess":
        reading, writing = os.pipe()
        keep = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
        environment = keep | {
            "HARNESS_READY_FD": str(writing),
            "HARNESS_DIE_WITH_PARENT": str(os.getpid()),
            **self.environment,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, "--listen", self.address, *self.arguments],
                env=environment,
                pass_fds=[writing],
                stdout=log,
                stderr=log,
            )
        os.close(writing)
        with os.fdopen(reading) as pipe:
            line = pipe.readline()
        assert line, f"the adapter did not start:\n{self.log.read_text()}"
        self.ready = json.loads(line)
        return self

    async def wait(self) -> int:
        """The exit code, once the process has ended."""
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, 30)

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends the process if it still runs; its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return await self.wait()


def children_of(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found
