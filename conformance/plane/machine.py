"""What the kit can see of the machine it runs on: connections to its own facades, and a target's process (Linux)."""

import sys
from pathlib import Path

# State 01 of /proc/net/tcp, and 03 of /proc/net/unix.
_ESTABLISHED, _CONNECTED = "01", "03"
SEES = sys.platform == "linux"


def connections_to(address: str) -> int:
    """Connections that stand at an address of this process's own, `unix:/path` or `host:port`. Needs `SEES`."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        lines = (line.split() for line in Path("/proc/self/net/unix").read_text().splitlines()[1:])
        return sum(len(line) > 7 and line[7] == path and line[5] == _CONNECTED for line in lines)
    port = f":{int(address.rpartition(':')[2]):04X}"
    return sum(_established(Path("/proc/self/net") / name, port) for name in ("tcp", "tcp6"))


def _established(table: Path, port: str) -> int:
    if not table.exists():
        return 0
    lines = (line.split() for line in table.read_text().splitlines()[1:])
    return sum(line[1].endswith(port) and line[3] == _ESTABLISHED for line in lines)


class TargetProcess:
    """The process that serves the target, by its id: processes below it, and what it holds open. Methods raise OSError if it is gone or another user's."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def descriptors(self) -> int:
        """Open descriptors: files, sockets, pipes."""
        return sum(1 for _ in Path(f"/proc/{self._pid}/fd").iterdir())

    def processes(self) -> int:
        """Processes that descend from it, ended ones that nobody has waited for among them."""
        parents = dict(filter(None, (_parent(entry) for entry in Path("/proc").glob("[0-9]*"))))
        return sum(self._is_above(parents, pid) for pid in parents)

    def _is_above(self, parents: dict[int, int], pid: int) -> bool:
        seen: set[int] = set()
        while (pid := parents.get(pid, 0)) and pid not in seen:
            if pid == self._pid:
                return True
            seen.add(pid)
        return False


def _parent(entry: Path) -> tuple[int, int] | None:
    try:
        # The name stands in brackets and may hold anything; what follows it does not.
        fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(entry.name), int(fields[1])
    except (OSError, ValueError, IndexError):
        # It ended meanwhile.
        return None
