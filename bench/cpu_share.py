"""A fixed share of CPU for chosen processes, by control groups: so each replica brings its own, as it does on a machine of its own."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Final

LEAST: Final = 0.02
"""Of a core. Less, and a process does not get through its own health checks."""
_LEAST_QUOTA_US: Final = 1_000
_PERIOD_US: Final = 10_000
"""Short: one that has used its part up waits for the next period, in every hop of a request."""
_GONE_SECONDS: Final = 5.0


class CpuShares:
    """Gives each process a group of its own. Made by `cpu_shares`."""

    def __init__(self, folder: Path, version: int, cores: float) -> None:
        self._folder = folder
        self._version = version
        self._cores = cores
        self.groups: dict[int, Path] = {}
        """The group of each process that was given one."""

    def give(self, pids: Iterable[int]) -> None:
        """Puts each process, with what it forks from now on, into a group that gets so many cores and no more. Raises OSError."""
        period = max(_PERIOD_US, int(_LEAST_QUOTA_US / self._cores))
        quota = int(period * self._cores)
        for pid in pids:
            group = self._folder / f"process-{pid}"
            group.mkdir()
            if self._version == 2:
                (group / "cpu.max").write_text(f"{quota} {period}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(period))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            (group / "cgroup.procs").write_text(str(pid))
            self.groups[pid] = group

    def close(self) -> None:
        """Removes the groups; their processes have been ended."""
        until = time.monotonic() + _GONE_SECONDS
        for group in [*self._folder.glob("process-*"), self._folder]:
            while True:
                try:
                    group.rmdir()
                    break
                except OSError:  # the last of them is not reaped yet
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.02)


@contextmanager
def cpu_shares(cores: float) -> Generator[CpuShares]:
    """Groups of `cores` each. Raises SystemExit, saying why, where this process may not make them."""
    name = f"harness-bench-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        found = _version_1(name) or _version_2(name)
    except OSError as error:
        raise SystemExit(f"bench: --cpu-share: control groups cannot be made here: {error}") from None
    if found is None:
        raise SystemExit(
            "bench: --cpu-share needs control groups for cpu that this process may write: run it as root where they are mounted "
            "(in a container: with its own, writable /sys/fs/cgroup), or leave the option out"
        )
    shares = CpuShares(*found, cores)
    try:
        yield shares
    finally:
        shares.close()


def _version_1(name: str) -> tuple[Path, int] | None:
    for mount, kind, options in _mounts():
        if kind == "cgroup" and "cpu" in options:
            folder = _below(mount, "cpu") / name
            folder.mkdir()
            return folder, 1
    return None


def _version_2(name: str) -> tuple[Path, int] | None:
    for mount, kind, _ in _mounts():
        if kind != "cgroup2":
            continue
        own = _below(mount, "")
        # A group with processes in it hands no controllers down, unless it is the root: then a sibling has to do.
        for base in (own, own.parent):
            controllers = base / "cgroup.controllers"
            if not controllers.exists() or "cpu" not in controllers.read_text().split():
                continue
            try:
                (base / "cgroup.subtree_control").write_text("+cpu")
            except OSError:
                continue
            folder = base / name
            folder.mkdir()
            (folder / "cgroup.subtree_control").write_text("+cpu")
            return folder, 2
    return None


def _mounts() -> list[tuple[Path, str, set[str]]]:
    lines = [line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [(Path(point), kind, set(options.split(","))) for _, point, kind, options, *_ in lines]


def _below(mount: Path, controller: str) -> Path:
    """This process's own group; the mount where that lies outside of it, as in a container."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            folder = mount / path.lstrip("/")
            return folder if folder.is_dir() else mount
    return mount
