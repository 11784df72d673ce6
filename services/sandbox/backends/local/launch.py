"""Starting a keeper, and waiting for its worker's own signal."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from services.common.sandbox_cause import SandboxCause, caused
from services.sandbox.backends.local.identity import boot_id, start_time

_MAX_READY_BYTES = 65_536
_KEEPER = Path(__file__).with_name("keeper.py")


class Launch:
    """One keeper from its start to the worker's signal. Close it in any case."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready_read, self.ready_fd = os.pipe2(os.O_CLOEXEC)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, order: dict[str, Any], held: list[int]) -> dict[str, Any]:
        """Starts the keeper with its order; it inherits the `held` descriptors. What it is recognised by."""
        keep = [self.ready_fd, *held, *([order["lifeline_fd"]] if order["lifeline_fd"] is not None else [])]
        with (self._folder / "keeper.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_KEEPER)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=keep,
                cwd="/",
                # The keeper needs nothing of ours, so nothing of ours can be found in it.
                env={"PATH": "/usr/bin:/bin"},
                # Not of our session: a Ctrl-C at the terminal is for the mesh to handle.
                start_new_session=True,
            )
        self.process = process
        os.close(self.ready_fd)
        self.ready_fd = -1
        assert process.stdin is not None  # noqa: S101 - PIPE was asked for
        process.stdin.write(json.dumps(order).encode())
        process.stdin.close()
        return {"pid": process.pid, "start_time": start_time(process.pid), "boot_id": boot_id()}

    async def wait_ready(self, seconds: float) -> None:
        """Returns when the worker signalled; `HarnessError` SANDBOX_NOT_READY when it ended, or the time did, before that."""
        loop = asyncio.get_running_loop()
        os.set_blocking(self._ready_read, False)
        signalled: asyncio.Future[None] = loop.create_future()
        data = bytearray()

        def readable() -> None:
            part = os.read(self._ready_read, 4096)
            data.extend(part)
            if (not part or b"\n" in data or len(data) > _MAX_READY_BYTES) and not signalled.done():
                loop.remove_reader(self._ready_read)
                signalled.set_result(None)

        loop.add_reader(self._ready_read, readable)
        try:
            async with asyncio.timeout(seconds):
                await signalled
        except TimeoutError:
            raise caused(
                SandboxCause.TOO_SLOW, f"The worker did not signal readiness within {seconds:g} seconds."
            ) from None
        finally:
            loop.remove_reader(self._ready_read)
        if b"\n" not in data:
            raise caused(SandboxCause.NOT_STARTED, "The worker ended before it was ready.")

    def close(self) -> None:
        for descriptor in (self._ready_read, self.ready_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._ready_read = self.ready_fd = -1
