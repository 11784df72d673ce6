"""One running process of the mesh: started, known to be ready, heard of when it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import logging.handlers
import os
import signal
from collections import deque
from pathlib import Path

from cli.mesh.plan import Component

LOG_BYTES = 10 << 20
LOG_FILES = 3
LINE_BYTES = 1 << 20
TAIL_LINES = 20


class ChildEnded(Exception):
    """The process ended before it was ready."""

    def __init__(self, component: Component, code: int, tail: list[str]) -> None:
        super().__init__(f"{component.name} ended with exit code {code} before it was ready")
        self.component = component
        self.code = code
        self.tail = tail


class Child:
    """A started component. Its output goes to a bounded log."""

    def __init__(self, component: Component, process: asyncio.subprocess.Process, ready_fd: int, log: Path) -> None:
        self.component = component
        self.pid = process.pid
        self.address = component.address
        self._process = process
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._said_ready = asyncio.Event()
        self._log = _log_file(component.name, log)
        self._output = asyncio.create_task(self._copy_output())
        self._announcement = asyncio.create_task(_read_announcement(ready_fd))

    @classmethod
    async def start(cls, component: Component, log: Path, lifeline_fd: int) -> Child:
        """Starts the process; it dies with this one, however this one dies."""
        read_fd, write_fd = os.pipe()
        environment = {**component.environment, "HARNESS_DIE_WITH_PARENT": str(os.getpid())}
        inherited = [write_fd]
        if not component.ready_text:
            environment["HARNESS_READY_FD"] = str(write_fd)
        if component.lifeline:
            environment["HARNESS_LIFELINE_FD"] = str(lifeline_fd)
            inherited.append(lifeline_fd)
        try:
            process = await asyncio.create_subprocess_exec(
                *component.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                pass_fds=inherited,
                # Ctrl-C on the terminal is for this process alone, which stops the others in order.
                start_new_session=True,
                limit=LINE_BYTES,
            )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        return cls(component, process, read_fd, log)

    async def ready(self, seconds: float) -> None:
        """Returns once the process serves. Raises ChildEnded, or TimeoutError."""
        said = asyncio.create_task(self._wait_ready())
        ended = asyncio.create_task(self._process.wait())
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait([said, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            if not said.done():
                said.cancel()
        if not said.done() or said.cancelled() or not said.result():
            code = await self._process.wait()
            await self._output
            raise ChildEnded(self.component, code, self.tail)

    async def _wait_ready(self) -> bool:
        if self.component.ready_text:
            await self._said_ready.wait()
            return True
        announcement = await self._announcement
        if announcement is None:
            return False
        address = announcement.get("address", "")
        if isinstance(address, str) and address:
            self.address = address
        return True

    @property
    def tail(self) -> list[str]:
        """The last lines it printed."""
        return list(self._tail)

    @property
    def running(self) -> bool:
        """Whether it has not been seen to end."""
        return self._process.returncode is None

    async def ended(self) -> int:
        """Returns its exit code once it ended."""
        code = await self._process.wait()
        await self._output
        self._announcement.cancel()
        return code

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, by the process's own handle; nothing if it ended."""
        if self.running:
            self._process.send_signal(number)

    async def _copy_output(self) -> None:
        stream = self._process.stdout
        if stream is None:
            return
        try:
            while True:
                try:
                    line = await stream.readline()
                except ValueError:  # a line over LINE_BYTES: what was read of it is dropped
                    continue
                if not line:
                    return
                text = line.decode("utf-8", "replace").rstrip("\n")
                self._tail.append(text)
                self._log.info("%s", text)
                if self.component.ready_text and self.component.ready_text in text:
                    self._said_ready.set()
        finally:
            for handler in list(self._log.handlers):
                self._log.removeHandler(handler)
                handler.close()


def _log_file(name: str, path: Path) -> logging.Logger:
    logger = logging.getLogger(f"harness.mesh.{name}")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = logging.handlers.RotatingFileHandler(
        path, maxBytes=LOG_BYTES, backupCount=LOG_FILES - 1, encoding="utf-8"
    )
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.addHandler(handler)
    return logger


async def _read_announcement(descriptor: int) -> dict[str, object] | None:
    """The one line of a process that serves, or None if it closed the pipe without."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    try:
        line = await reader.readline()
    finally:
        transport.close()
    if not line.endswith(b"\n"):
        return None
    announcement = json.loads(line)
    return announcement if isinstance(announcement, dict) else None
