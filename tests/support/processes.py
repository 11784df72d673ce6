"""Waiting for the end of processes by their own handles, and ending them."""

from __future__ import annotations

import os
import select
import signal

PATIENCE_MILLISECONDS = 30_000


class ProcessHandle:
    """A process that is not our child, held so that its pid cannot come to mean another."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to exactly this process."""
        signal.pidfd_send_signal(self._fd, number)

    def wait_gone(self, milliseconds: int = PATIENCE_MILLISECONDS) -> bool:
        """Whether it ended within the bound."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(milliseconds))

    def close(self) -> None:
        """Lets go of the handle."""
        os.close(self._fd)
