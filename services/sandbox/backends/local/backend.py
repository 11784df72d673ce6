"""The local backend: makes, recognises and destroys sandboxes that are processes of this machine."""

import asyncio
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.errors import ConfigurationError, HarnessError, Reason
from services.common.ids import new_lease_id
from services.common.logs import get_logger
from services.common.sandbox_cause import SandboxCause, caused
from services.sandbox.backend import End, Ended, Sandbox, SandboxSpec
from services.sandbox.backends.local.cgroups import PARENT_PREFIX, Cgroups, Limits, find_cgroups
from services.sandbox.backends.local.command import (
    Command,
    Places,
    address_inside,
    plain_command,
    strict_command,
    worker_arguments,
)
from services.sandbox.backends.local.ending import has_hung_up, open_lifeline, stop_keeper
from services.sandbox.backends.local.facade_sockets import facade_mounts
from services.sandbox.backends.local.identity import has_ended, is_locked, open_process
from services.sandbox.backends.local.launch import Launch
from services.sandbox.backends.local.order import Held, keeper_order
from services.sandbox.backends.local.seccomp import supported
from services.sandbox.backends.local.uids import Uids
from services.sandbox.backends.local.view import python_view
from services.sandbox.profile import STRICT, Profile, checked_profile
from services.sandbox.settings import SOCKET_FOLDER, SOCKET_NAME

_log = get_logger(__name__)
_PREFIX = "lse_"
_PROBE = "import os; os.write(int(os.environ['HARNESS_READY_FD']), b'{}\\n'); import time; time.sleep(60)"
MAX_LOG_TAIL_BYTES = 2_000


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """What the operator decided about this machine."""

    root: Path
    bwrap: str = "bwrap"
    limits: str = "cgroup"
    uid_base: int = 200_000
    uid_count: int = 10_000
    start_seconds: float = 20.0
    lifeline_fd: int | None = None


@dataclass(slots=True)
class _Live:
    """A keeper that is watched."""

    pidfd: int
    process: subprocess.Popen[bytes] | None


class LocalBackend:
    """Implements `Backend`. Use `open`; one process per folder."""

    def __init__(self, options: LocalOptions, lock: int, lifeline: int, own_lifeline: int | None) -> None:
        self._options = options
        self._lock = lock
        self._lifeline = lifeline
        self._own_lifeline = own_lifeline
        self._live: dict[str, _Live] = {}
        self._destroying: dict[str, asyncio.Task[None]] = {}
        self._ended: Ended = lambda _sandbox_id: None
        self._uids = Uids(options.uid_base, options.uid_count) if os.geteuid() == 0 else None
        digest = hashlib.sha256(f"{platform.node()}\0{options.root.resolve()}".encode()).hexdigest()[:12]
        self.place = f"local-{digest}"
        cgroups = find_cgroups(f"{PARENT_PREFIX}{digest}")
        self._cgroups = cgroups if isinstance(cgroups, Cgroups) else None
        self._bwrap = shutil.which(options.bwrap)
        self.missing = self._missing(cgroups if isinstance(cgroups, str) else "")
        """What a strict sandbox needs and this machine does not have; empty when strict sandboxes can be made."""

    @classmethod
    async def open(cls, options: LocalOptions) -> "LocalBackend":
        """Takes the folder and tries a strict sandbox out. `ConfigurationError` when the folder or the lifeline cannot be had."""
        try:
            options.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(options.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"HARNESS_SANDBOX_DIR: another process makes sandboxes in {options.root}: choose another folder."
            ) from None
        except OSError as error:
            raise ConfigurationError(f"HARNESS_SANDBOX_DIR: cannot use {options.root}: {error.strerror}.") from None
        lifeline, own = open_lifeline(options.lifeline_fd)
        backend = cls(options, lock, lifeline, own)
        await backend._remove_unused()
        await backend._try_out()
        return backend

    def on_ended(self, callback: Ended) -> None:
        self._ended = callback

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """See `Backend.create`. Strict isolation that cannot be had is refused, never weakened."""
        profile = spec.profile
        if profile.isolation == STRICT and self.missing:
            raise caused(
                SandboxCause.NO_ISOLATION,
                "The profile wants strict isolation and the machine of the sandbox service cannot give it: "
                f"{'; '.join(self.missing)}. Provide that, or use a profile for another placement.",
                retryable=False,
            )
        places = self._places(spec.sandbox_id)
        mounts = facade_mounts(spec.facades, strict=profile.isolation == STRICT)
        try:
            view = python_view(profile.worker_module)
            address = address_inside() if profile.isolation == STRICT else f"unix:{places.sockets / SOCKET_NAME}"
            worker = worker_arguments(view.python, profile.worker_module, address)
            handle = await self._start(spec.sandbox_id, profile, worker, mounts.sources)
            self._seal(places)
        except BaseException as error:
            self._log_tail(spec.sandbox_id, error)
            # Also when the caller gave up: I29, nothing half-made stays.
            await self.destroy(spec.sandbox_id)
            if isinstance(error, OSError):
                raise caused(
                    SandboxCause.NO_RESOURCES,
                    f"The machine of the sandbox service refused a sandbox its resources ({os.strerror(error.errno or 0)}).",
                ) from None
            raise
        return Sandbox(f"unix:{places.sockets / SOCKET_NAME}", mounts.addresses, handle)

    def is_alive(self, sandbox_id: str, handle: Mapping[str, Any]) -> bool:
        """See `Backend.is_alive`."""
        live = self._live.get(sandbox_id)
        if live is not None:
            return not has_ended(live.pidfd)
        pidfd = open_process(handle) if handle else None
        if pidfd is None:
            return False
        os.close(pidfd)
        return True

    def how_it_ended(self, sandbox_id: str) -> End:
        """See `Backend.how_it_ended`."""
        try:
            outcome: dict[str, Any] = json.loads((self._places(sandbox_id).own / "exit.json").read_text())
        except FileNotFoundError:
            return End.EXIT  # the keeper itself was killed
        try:
            return End(outcome["end"])
        except ValueError:
            return End.EXIT

    async def adopt(self, sandbox_id: str, handle: Mapping[str, Any]) -> bool:
        """See `Backend.adopt`."""
        if sandbox_id in self._live:
            return True
        pidfd = open_process(handle) if handle else None
        if pidfd is None or not self._places(sandbox_id).own.is_dir():
            return False
        self._watch(sandbox_id, pidfd, None)
        return True

    async def destroy(self, sandbox_id: str) -> None:
        """See `Backend.destroy`. Asked for twice at once, it is done once; a caller that leaves does not stop it."""
        task = self._destroying.get(sandbox_id)
        if task is None:
            task = asyncio.create_task(self._destroy(sandbox_id))
            self._destroying[sandbox_id] = task
            task.add_done_callback(lambda _: self._destroying.pop(sandbox_id))
        await asyncio.shield(task)

    async def _destroy(self, sandbox_id: str) -> None:
        folder = self._places(sandbox_id).own
        live = self._live.pop(sandbox_id, None)
        if live is not None:
            asyncio.get_running_loop().remove_reader(live.pidfd)
            pidfd, process = live.pidfd, live.process
        else:
            pidfd, process = await self._find_keeper(folder), None
        if pidfd is not None:
            try:
                await stop_keeper(pidfd)
            finally:
                os.close(pidfd)
        if process is not None:
            await asyncio.to_thread(process.wait)
        await self._empty_cgroup(sandbox_id)
        if folder.exists():
            await asyncio.to_thread(shutil.rmtree, folder)

    def all_end(self) -> bool:
        """See `Backend.all_end`."""
        return self._own_lifeline is not None or has_hung_up(self._lifeline)

    async def list_all(self) -> list[str]:
        """See `Backend.list_all`: folders and control groups, both of this mesh's own places."""
        names = {entry.name for entry in self._options.root.iterdir()}
        if self._cgroups is not None:
            names |= self._cgroups.names()
        return sorted(name for name in names if name.startswith(_PREFIX))

    async def close(self) -> None:
        """See `Backend.close`. With a lifeline of its own, its end ends the sandboxes."""
        loop = asyncio.get_running_loop()
        for live in self._live.values():
            loop.remove_reader(live.pidfd)
            os.close(live.pidfd)
        self._live.clear()
        if self._cgroups is not None:
            self._cgroups.close()
        if self._own_lifeline is not None:
            os.close(self._own_lifeline)
            os.close(self._lifeline)
        os.close(self._lock)

    # --- making ---

    async def _start(
        self, sandbox_id: str, profile: Profile, worker: list[str], facades: dict[str, Path]
    ) -> dict[str, Any]:
        """Starts the keeper and waits for the worker's signal."""
        places = self._places(sandbox_id)
        held: list[int] = []
        launch: Launch | None = None
        try:
            uid = self._prepare(places, profile, held)
            launch = Launch(places.own)
            command = self._command(profile, worker, places, facades, launch.ready_fd)
            cgroups = self._new_cgroups(sandbox_id, profile)
            inherited = Held(launch.ready_fd, self._lifeline, tuple(held))
            order = keeper_order(places.own, profile, command, uid=uid, cgroups=cgroups, held=inherited)
            handle = await asyncio.to_thread(launch.start, order, held)
            assert launch.process is not None  # noqa: S101 - started
            self._watch(sandbox_id, os.pidfd_open(launch.process.pid), launch.process)
            await launch.wait_ready(self._options.start_seconds)
        finally:
            if launch is not None:
                launch.close()
            for descriptor in held:
                os.close(descriptor)
        return {**handle, "uid": uid}

    def _prepare(self, places: Places, profile: Profile, held: list[int]) -> int | None:
        """The folder, the lock that says a keeper lives, and the user id; descriptors the keeper is to hold go to `held`."""
        places.own.mkdir(mode=0o700)
        lock = os.open(places.own / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        held.append(lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        places.sockets.mkdir(mode=0o700)
        (places.own / "workspace").mkdir(mode=0o700)
        if profile.isolation != STRICT or self._uids is None:
            uid = None
        else:
            uid, descriptor = self._uids.take()
            held.append(descriptor)
            # The worker may make its socket here until it is sealed.
            os.chown(places.sockets, 0, uid)
            places.sockets.chmod(0o770)
        inside = os.geteuid() if uid is None else uid
        for name, text in (
            ("passwd", f"worker:x:{inside}:{inside}::/workspace:/usr/sbin/nologin\n"),
            ("group", f"worker:x:{inside}:\n"),
        ):
            (places.own / name).write_text(text)
            (places.own / name).chmod(0o644)
        return uid

    def _command(
        self, profile: Profile, worker: list[str], places: Places, facades: dict[str, Path], ready_fd: int
    ) -> Command:
        view = python_view(profile.worker_module)
        if profile.isolation != STRICT:
            return plain_command(view, worker, places, ready_fd)
        assert self._bwrap is not None  # noqa: S101 - part of `missing`
        staged = self._uids is not None
        return strict_command(self._bwrap, view, worker, profile, places, facades, staged=staged, ready_fd=ready_fd)

    def _new_cgroups(self, sandbox_id: str, profile: Profile) -> list[Path]:
        if self._cgroups is None:
            return []
        return self._cgroups.create(sandbox_id, Limits(profile.memory_mib, profile.max_pids, profile.cpu_millis))

    def _seal(self, places: Places) -> None:
        """Nothing but the worker's socket is in the folder it shares with us, and nothing more can be put there."""
        if self._uids is not None:
            places.sockets.chmod(0o750)
        found = {entry.name: entry.lstat().st_mode for entry in places.sockets.iterdir()}
        if set(found) != {SOCKET_NAME} or not stat.S_ISSOCK(found[SOCKET_NAME]):
            raise caused(
                SandboxCause.NOT_STARTED, "The worker signalled readiness without listening where it was told to."
            )

    # --- watching and ending ---

    def _watch(self, sandbox_id: str, pidfd: int, process: subprocess.Popen[bytes] | None) -> None:
        self._live[sandbox_id] = _Live(pidfd, process)
        asyncio.get_running_loop().add_reader(pidfd, self._keeper_ended, sandbox_id)

    def _keeper_ended(self, sandbox_id: str) -> None:
        live = self._live.pop(sandbox_id)
        asyncio.get_running_loop().remove_reader(live.pidfd)
        os.close(live.pidfd)
        if live.process is not None:
            live.process.wait()  # it has ended: this only collects it
        self._ended(sandbox_id)

    async def _find_keeper(self, folder: Path) -> int | None:
        """The keeper of a folder another process left, or made just now: by its record, which a living one has or is about to write."""
        for _ in range(200):
            try:
                pidfd = open_process(json.loads((folder / "keeper.json").read_text()))
            except FileNotFoundError:
                pidfd = None
            if pidfd is not None or not is_locked(folder / "lock"):
                return pidfd
            await asyncio.sleep(0.01)  # it holds the lock and has not written its record yet: nothing signals that
        raise HarnessError(Reason.SANDBOX_NOT_READY, "A sandbox that is being started cannot be ended yet.")

    async def _empty_cgroup(self, sandbox_id: str) -> None:
        """Kills what a killed keeper left in the control group, and removes it."""
        if self._cgroups is None:
            return
        async with asyncio.timeout(10):
            while True:
                for pid in self._cgroups.pids(sandbox_id):
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                if self._cgroups.remove(sandbox_id):
                    return
                await asyncio.sleep(0.005)  # the kernel ends killed processes in its own time

    # --- the machine ---

    def _missing(self, no_cgroups: str) -> list[str]:
        missing: list[str] = []
        if self._bwrap is None:
            missing.append("the program bubblewrap (bwrap) is not installed")
        if not supported():
            missing.append("no system call filter for this processor architecture")
        if no_cgroups and self._options.limits == "cgroup":
            missing.append(no_cgroups)
        return missing

    async def _remove_unused(self) -> None:
        if self._cgroups is None:
            return
        try:
            removed = await asyncio.to_thread(self._cgroups.remove_unused)
        except OSError as error:
            _log.warning("unused_control_groups_not_removed", error=os.strerror(error.errno or 0))
            return
        if removed:
            _log.info("unused_control_groups_removed", count=removed)

    async def _try_out(self) -> None:
        """Makes a real strict sandbox and destroys it: the only way to know whether this machine can."""
        if not self.missing:
            sandbox_id = new_lease_id()
            profile = checked_profile("harness", STRICT, 0)
            worker = [python_view("harness").python, "-I", "-S", "-c", _PROBE]
            try:
                await self._start(sandbox_id, profile, worker, {})
            except (HarnessError, OSError) as error:
                self._log_tail(sandbox_id, error)
                self.missing.append("a trial sandbox did not start (the log of the sandbox service says why)")
            finally:
                await self.destroy(sandbox_id)
        facts = {"own_users": self._uids is not None, "cgroup_version": self._cgroups.version if self._cgroups else 0}
        if self.missing:
            _log.warning("strict_isolation_unavailable", missing=self.missing, **facts)
        else:
            _log.info("strict_isolation_available", **facts)

    def _log_tail(self, sandbox_id: str, error: BaseException) -> None:
        """What the operator needs to find out why a sandbox did not start; for the log alone (I22)."""
        tails: dict[str, str] = {}
        for name in ("exit.json", "keeper.log", "worker.log"):
            path = self._places(sandbox_id).own / name
            if path.exists() and (data := path.read_bytes()):
                tails[name] = data[-MAX_LOG_TAIL_BYTES:].decode(errors="replace")
        _log.warning("sandbox_not_started", sandbox_id=sandbox_id, error=type(error).__name__, **tails)

    def _places(self, sandbox_id: str) -> Places:
        own = self._options.root / sandbox_id
        return Places(own, own / SOCKET_FOLDER)
