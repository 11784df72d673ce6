"""Percentiles of samples, and what a tree of processes has used."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Summary:
    """Samples in short, in milliseconds."""

    count: int
    least: float
    p50: float
    p99: float
    most: float


def summary_of(seconds: Sequence[float]) -> Summary:
    """The summary of samples in seconds. Raises ValueError if there are none."""
    if not seconds:
        raise ValueError("nothing was measured")
    ordered = sorted(seconds)
    return Summary(
        len(ordered),
        _milliseconds(ordered[0]),
        _milliseconds(percentile(ordered, 0.5)),
        _milliseconds(percentile(ordered, 0.99)),
        _milliseconds(ordered[-1]),
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The sample below which `share` (0 to 1) of the ordered samples lie."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class ProcessTree:
    """A process and all its descendants, looked up anew each time: workers and restarted services count too."""

    def __init__(self, root_pid: int, names: Iterable[tuple[str, int]] = ()) -> None:
        """`names` of processes of it by pid, for `cpu_seconds_of`."""
        self._root_pid = root_pid
        self._names = tuple(names)

    def cpu_seconds_of(self) -> dict[str, float]:
        """User and system time of each process that has a name and lives, without what it started."""
        found: dict[str, float] = {}
        for name, pid in self._names:
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.NoSuchProcess:
                continue
            found[name] = times.user + times.system
        return found

    def cpu_seconds(self) -> float:
        """User and system time of those that live. What a process that ended had used is gone: see `restarts` of the mesh."""
        total = 0.0
        for process in self._processes():
            try:
                times = process.cpu_times()
                total += times.user + times.system
            except psutil.NoSuchProcess:
                continue
        return total

    def memory_mib(self) -> float:
        """Resident memory. Pages that several processes share are counted in each."""
        total = 0
        for process in self._processes():
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return round(total / (1 << 20), 1)

    def _processes(self) -> list[psutil.Process]:
        root = psutil.Process(self._root_pid)
        return [root, *root.children(recursive=True)]


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 2)
