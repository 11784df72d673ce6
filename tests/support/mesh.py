"""A whole mesh, started by the real command in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import httpx

from tests.support.processes import ProcessHandle

HARNESS = Path(sys.executable).with_name("harness")
TOKEN = "local-development-only"
PATIENCE_SECONDS = 90.0


class RunningMesh:
    """What a test does with a mesh."""

    def __init__(self, process: subprocess.Popen[str], data_dir: Path, lines: Queue[str | None]) -> None:
        self.process = process
        self.data_dir = data_dir
        self._lines = lines
        self.said: list[str] = []

    def wait_said(self, text: str) -> str:
        """The first line, from the last one seen on, that holds the text."""
        while True:
            try:
                line = self._lines.get(timeout=PATIENCE_SECONDS)
            except Empty:
                raise AssertionError(f"{text!r} was not said; said: {self.said}") from None
            if line is None:
                raise AssertionError(f"the mesh ended before it said {text!r}; said: {self.said}; logs: {self.logs()}")
            self.said.append(line)
            if text in line:
                return line

    @property
    def state(self) -> dict[str, Any]:
        """What the mesh says of its processes."""
        state: dict[str, Any] = json.loads((self.data_dir / "mesh.json").read_text("utf-8"))
        return state

    @property
    def url(self) -> str:
        """Where its gateway is."""
        url: str = self.state["url"]
        return url

    @property
    def urls(self) -> list[str]:
        """Where its gateways are."""
        return [str(entry["url"]) for entry in self.state["processes"] if entry["url"]]

    def pid(self, name: str) -> int:
        """The process of a service, or of a replica (`runs-2`); 0 while there is none."""
        return next(int(entry["pid"]) for entry in self.state["processes"] if entry["name"] == name)

    def address(self, name: str) -> str:
        """Where a service, or a replica of it, listens."""
        return next(str(entry["address"]) for entry in self.state["processes"] if entry["name"] == name)

    def handles(self) -> list[ProcessHandle]:
        """Handles of all its processes."""
        return [ProcessHandle(entry["pid"]) for entry in self.state["processes"] if entry["pid"]]

    def kill(self, name: str) -> None:
        """kill -9 of a service or replica; returns once it is back and the mesh is ready again."""
        handle = ProcessHandle(self.pid(name))
        handle.kill()
        assert handle.wait_gone()
        handle.close()
        self.wait_said(f"{name} is back")

    def restart(self, name: str) -> int:
        """A graceful restart, as for an update: SIGTERM; returns once it is back, with the exit code that the supervisor saw."""
        handle = ProcessHandle(self.pid(name))
        handle.kill(signal.SIGTERM)
        assert handle.wait_gone()
        handle.close()
        ended = self.wait_said(f"{name} ended with exit code")
        self.wait_said(f"{name} is back")
        return int(ended.partition("exit code ")[2].partition(";")[0])

    def client(self, subject: str = "someone", url: str = "") -> httpx.Client:
        """A client as the BFF has one, of the first gateway if none is named."""
        return httpx.Client(
            base_url=url or self.url,
            headers={"Authorization": f"Bearer {TOKEN}", "X-Harness-Engine-Subject": subject},
            timeout=60,
            trust_env=False,
        )

    def logs(self, lines: int = 15) -> str:
        """The ends of its logs, for a failing test to show."""
        return "\n".join(
            f"--- {path.name}\n" + "\n".join(path.read_text("utf-8", "replace").splitlines()[-lines:])
            for path in sorted((self.data_dir / "logs").glob("*.log"))
        )

    def stop(self) -> int:
        """Ctrl-C; its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_SECONDS)


@contextmanager
def running_mesh(
    data_dir: Path, arguments: Sequence[str] = (), environment: dict[str, str] | None = None
) -> Generator[RunningMesh]:
    """A mesh that is ready; stopped at the end, or killed if it would not stop."""
    process = subprocess.Popen(
        [str(HARNESS), "up", "--port", "0", "--data-dir", str(data_dir), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "400", **(environment or {})},
    )
    mesh = RunningMesh(process, data_dir, _lines_of(process))
    try:
        mesh.wait_said("ready in")
        yield mesh
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            finally:
                process.kill()
        process.wait()


def _lines_of(process: subprocess.Popen[str]) -> Queue[str | None]:
    lines: Queue[str | None] = Queue()

    def copy() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line.rstrip("\n"))
        lines.put(None)

    threading.Thread(target=copy, daemon=True).start()
    return lines


def poll_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Waits for what nothing signals, bounded."""
    pause = threading.Event()
    waited = 0.0
    while not condition():
        assert waited < seconds, f"waited {seconds:g} s for {what}"
        pause.wait(0.05)
        waited += 0.05
