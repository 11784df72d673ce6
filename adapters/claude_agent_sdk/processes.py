"""The end of a program and of everything it started, for when asking does not help (I20)."""

import os
import signal
from pathlib import Path


def end_tree(pid: int) -> None:
    """Kills a process and all below it, in whatever session those are. Processes that are gone are no error."""
    for one in reversed([pid, *_below(pid)]):
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue


def is_alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    return _state(pid) not in ("", "Z", "X")


def _below(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            children.setdefault(_parent(int(entry.name)), []).append(int(entry.name))
    found, waiting = list[int](), [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


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
