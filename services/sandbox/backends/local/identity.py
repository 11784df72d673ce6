"""Which process is meant: a pid counts only with the boot and the start time it was recorded with (I29)."""

import fcntl
import os
import select
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def boot_id() -> str:
    """Changes with every boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of the process; None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[19])


def open_process(handle: Mapping[str, Any]) -> int | None:
    """A pidfd of exactly the recorded process; None when it ended. The caller closes it."""
    if handle.get("boot_id") != boot_id():
        return None
    try:
        descriptor = os.pidfd_open(int(handle["pid"]))
    except ProcessLookupError:
        return None
    # I29: compared after the pidfd is open, for from then on the number cannot be given to another process unnoticed.
    if start_time(int(handle["pid"])) != handle["start_time"] or has_ended(descriptor):
        os.close(descriptor)
        return None
    return descriptor


def has_ended(pidfd: int) -> bool:
    """Whether the process ended, collected by its parent or not."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of this file: a keeper, from before it starts to its end."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
