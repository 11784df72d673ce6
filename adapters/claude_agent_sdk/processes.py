"""The end of a program and of everything it started, for when asking does not help (I20)."""

import os
import signal
from pathlib import Path

_LOOKS = 5


def end_tree(pid: int) -> None:
    """Kills a process and all below it, in whatever session those are. Processes that are gone are no error."""
    for one in reversed([pid, *_below(pid)]):
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue


def end_those_of(folder: Path) -> None:
    """Kills every process that was started with this folder, or a place in it, in its environment: what a program's tool left in a session of its own
    has another parent by now, and outlives the program. Looks again, a few times, for what was just starting another one.
    """
    mark = b"=" + os.fsencode(folder)
    for _ in range(_LOOKS):
        found = [pid for pid in _all() if pid != os.getpid() and mark in _environment(pid) and is_alive(pid)]
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def is_alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    return _state(pid) not in ("", "Z", "X")


def _below(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for one in _all():
        children.setdefault(_parent(one), []).append(one)
    found, waiting = list[int](), [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _all() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def _environment(pid: int) -> bytes:
    """What a process was started with; nothing if it is gone, or another user's."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""


def _parent(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[1]) if fields else 0


def _state(pid: int) -> str:
    fields = _fields(pid)
    return fields[0] if fields else ""


def _fields(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
