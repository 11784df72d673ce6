"""Cutting the connections of a living process: its own sockets are shut down under it, as a network between would do."""

from __future__ import annotations

import ctypes
import os
import random
import socket
from typing import Final

_PIDFD_GETFD: Final = 438
"""The same number on every architecture that has it (Linux 5.6 and later)."""
_libc = ctypes.CDLL(None, use_errno=True)


def cut_connections(pid: int, share: float, dice: random.Random) -> int:
    """Shut down about this share of the process's connections, one at least if there is any; how many. Errors: `OSError`, as when it ended."""
    cut = 0
    with _Handle(pid) as handle:
        found = [number for number in handle.socket_numbers() if handle.is_connection(number)]
        dice.shuffle(found)
        for number in found[: max(1, round(share * len(found)))]:
            cut += handle.shut_down(number)
    return cut


def can_cut() -> str:
    """Why it cannot be done here; empty if it can. Tried on a connection of this process's own."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            with _Handle(os.getpid()) as handle:
                handle.shut_down(ours.fileno())
        except OSError as error:
            return f"the kernel does not hand out another process's socket: {error.strerror}"
        return "" if theirs.recv(1) == b"" else "a socket that was shut down stayed open"


class _Handle:
    """Another process, by a handle that cannot come to mean another one."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._fd = os.pidfd_open(pid)

    def __enter__(self) -> _Handle:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def socket_numbers(self) -> list[int]:
        folder = f"/proc/{self._pid}/fd"
        return [int(name) for name in os.listdir(folder) if _link(f"{folder}/{name}").startswith("socket:")]

    def is_connection(self, number: int) -> bool:
        """Whether it leads to another process: no listener, and no pair a process made to wake itself."""
        borrowed = self._borrow(number)
        if borrowed is None:
            return False
        with borrowed:
            if borrowed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return False
            try:
                return bool(borrowed.getpeername() or borrowed.getsockname())
            except OSError:  # it is not connected, or not any more
                return False

    def shut_down(self, number: int) -> bool:
        borrowed = self._borrow(number)
        if borrowed is None:
            return False
        with borrowed:
            try:
                borrowed.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other side was faster
                return False
        return True

    def _borrow(self, number: int) -> socket.socket | None:
        fd = _libc.syscall(_PIDFD_GETFD, self._fd, number, 0)
        if fd < 0:
            code = ctypes.get_errno()
            if code == 9:  # EBADF: it was closed meanwhile
                return None
            raise OSError(code, os.strerror(code))
        return socket.socket(fileno=fd)


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""
