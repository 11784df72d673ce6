"""Control groups for sandboxes, version 1 or 2, wherever this process may make them."""

import errno
import fcntl
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

PARENT_PREFIX = "harness-sandboxes-"
"""Of the names of the groups that hold those of sandboxes, one for each sandbox service of this machine."""
MAX_REMOVED = 1_000
"""Groups of services that are gone, removed at one start; the next start removes more."""
_HOLD_ATTEMPTS = 20
_NEEDED = ("memory", "pids")
_CPU_PERIOD_US = 100_000
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one sandbox. Memory includes the files of workspace and tmp, for they are kept in memory. Zero CPU: none."""

    memory_mib: int
    max_pids: int
    cpu_millis: int


class Cgroups:
    """Makes a group per sandbox under `folders` (one per controller in version 1, the same one in version 2)."""

    def __init__(self, folders: dict[str, Path], version: int) -> None:
        self._folders = folders
        self.version = version
        self._held: list[int] = []

    @property
    def has_cpu(self) -> bool:
        return "cpu" in self._folders

    def paths(self, name: str) -> list[Path]:
        """The folders of a sandbox's group, each once."""
        return list(dict.fromkeys(folder / name for folder in self._folders.values()))

    def create(self, name: str, limits: Limits) -> list[Path]:
        """Makes the group with its limits. `OSError` when the kernel refuses; then nothing is left."""
        made: list[Path] = []
        try:
            for path in self.paths(name):
                path.mkdir()
                made.append(path)
            for controller, file, value in self._values(limits):
                (self._folders[controller] / name / file).write_text(value)
        except OSError:
            for path in made:
                path.rmdir()
            raise
        return made

    def _values(self, limits: Limits) -> list[tuple[str, str, str]]:
        memory, pids = str(limits.memory_mib * _MIB), str(limits.max_pids)
        quota = limits.cpu_millis * _CPU_PERIOD_US // 1000
        cpu = limits.cpu_millis and self.has_cpu
        if self.version == 2:
            values = [
                ("memory", "memory.max", memory),
                # One process killed for memory leaves a worker nobody can trust: all or none.
                ("memory", "memory.oom.group", "1"),
                ("pids", "pids.max", pids),
            ]
            if (self._folders["memory"].parent / "memory.swap.max").exists():
                values.append(("memory", "memory.swap.max", "0"))
            return [*values, ("cpu", "cpu.max", f"{quota} {_CPU_PERIOD_US}")] if cpu else values
        values = [("memory", "memory.limit_in_bytes", memory), ("pids", "pids.max", pids)]
        if (self._folders["memory"] / "memory.memsw.limit_in_bytes").exists():
            values.append(("memory", "memory.memsw.limit_in_bytes", memory))
        if not cpu:
            return values
        return [*values, ("cpu", "cpu.cfs_period_us", str(_CPU_PERIOD_US)), ("cpu", "cpu.cfs_quota_us", str(quota))]

    def names(self) -> set[str]:
        """Every group there is."""
        return {
            entry.name
            for folder in self._folders.values()
            if folder.is_dir()
            for entry in folder.iterdir()
            if entry.is_dir()
        }

    def pids(self, name: str) -> set[int]:
        """The processes of a group."""
        found: set[int] = set()
        for path in self.paths(name):
            try:
                found.update(int(text) for text in (path / "cgroup.procs").read_text().split())
            except FileNotFoundError:
                continue
        return found

    def hold(self) -> bool:
        """Says to every other service of this machine that the parent is in use, until `close`; False: one of them has just removed it."""
        for folder in dict.fromkeys(self._folders.values()):
            try:
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._let_go()
                return False
            self._held.append(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # waits for nobody but one that removes it
            if not _is_at(folder, descriptor):
                self._let_go()
                return False
        return True

    def remove_unused(self) -> int:
        """Removes what services that were killed left beside this one's parent, as far as nothing lives in it; how many parents (I29)."""
        removed = 0
        own = set(self._folders.values())
        for base in {folder.parent for folder in own}:
            for entry in [entry for entry in base.iterdir() if entry.name.startswith(PARENT_PREFIX)]:
                if entry not in own and entry.is_dir() and removed < MAX_REMOVED:
                    removed += _remove_unused(entry)
        return removed

    def close(self) -> None:
        """Removes the parent of all groups, unless groups of living sandboxes are in it."""
        for folder in dict.fromkeys(self._folders.values()):
            _remove_empty(folder)
        self._let_go()

    def _let_go(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def remove(self, name: str) -> bool:
        """Removes an empty group; False while a process is still in it."""
        for path in self.paths(name):
            try:
                path.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


def find_cgroups(parent: str) -> Cgroups | str:
    """Control groups below one named `parent` in this process's own, tried out; or why they cannot be had."""
    try:
        found = _held(parent)
        if found is None:
            return (
                "control groups for memory and pids are not mounted, or this process's own group may not hand them down"
            )
        name = f"probe-{secrets.token_hex(4)}"
        found.create(name, Limits(memory_mib=64, max_pids=32, cpu_millis=100))
        found.remove(name)
    except OSError as error:
        return f"control groups cannot be made here ({os.strerror(error.errno or 0)})"
    return found


def _held(parent: str) -> Cgroups | None:
    for _ in range(_HOLD_ATTEMPTS):
        found = _version_2(parent) or _version_1(parent)
        if found is None or found.hold():
            return found
    raise OSError(errno.EBUSY, "control groups are removed as fast as they are made")


def _is_at(folder: Path, descriptor: int) -> bool:
    try:
        there = folder.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(descriptor))


def _remove_unused(parent: Path) -> bool:
    """Removes the parent and the empty groups in it, if no service uses it; whether it is gone."""
    try:
        descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # I29: whoever uses it holds it, so nobody's is taken away, not even an empty one. One in which processes are cannot be removed.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for group in [entry for entry in parent.iterdir() if entry.is_dir()]:
            _remove_empty(group)
        return _remove_empty(parent)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def _remove_empty(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY, errno.ENOENT):
            raise
        return False
    return True


def _mounts() -> dict[str, tuple[Path, set[str]]]:
    """File system type and options by mount point: the cgroup ones."""
    found: dict[str, tuple[Path, set[str]]] = {}
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, options, *_ = line.split(" ")
        if kind in ("cgroup", "cgroup2"):
            found[point] = (Path(point), {kind, *options.split(",")})
    return found


def _own_group(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") or (not controller and not controllers):
            return path
    return "/"


def _below(mount: Path, own: str) -> Path:
    folder = mount / own.lstrip("/")
    # In a cgroup namespace or a container the named path may lie outside what is mounted.
    return folder if folder.is_dir() else mount


def _version_2(parent: str) -> Cgroups | None:
    for mount, kinds in _mounts().values():
        if "cgroup2" not in kinds:
            continue
        own = _below(mount, _own_group(""))
        # A group with processes in it may not hand controllers down (but for the root), so siblings of our own group are used then.
        for base in (own, own.parent):
            if not base.is_relative_to(mount) or not (base / "cgroup.controllers").exists():
                continue
            controllers = set((base / "cgroup.controllers").read_text().split())
            if not controllers.issuperset(_NEEDED):
                continue
            wanted = [name for name in (*_NEEDED, "cpu") if name in controllers]
            try:
                folder = _delegated(base, parent, wanted)
            except OSError:
                continue
            return Cgroups(dict.fromkeys(wanted, folder), version=2)
    return None


def _delegated(base: Path, parent: str, controllers: list[str]) -> Path:
    enable = " ".join(f"+{name}" for name in controllers)
    (base / "cgroup.subtree_control").write_text(enable)
    folder = base / parent
    folder.mkdir(exist_ok=True)
    (folder / "cgroup.subtree_control").write_text(enable)
    return folder


def _version_1(parent: str) -> Cgroups | None:
    folders: dict[str, Path] = {}
    for mount, kinds in _mounts().values():
        if "cgroup" not in kinds:
            continue
        for controller in (*_NEEDED, "cpu"):
            if controller in kinds:
                folders[controller] = _below(mount, _own_group(controller)) / parent
    if not set(folders).issuperset(_NEEDED):
        return None
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    return Cgroups(folders, version=1)
