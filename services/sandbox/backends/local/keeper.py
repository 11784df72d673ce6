"""The keeper: one small process per sandbox that starts the worker, holds the lifeline, and leaves nothing behind.

Run by path, isolated (`python -I -S -B keeper.py`), with its order as JSON on stdin, so it imports the standard library alone and stays
small. It outlives the sandbox service, and ends, with everything it started, when

- the worker ends,
- the lifeline (a pipe whose writing end the mesh's first process holds) is at its end,
- it is asked to by SIGTERM.

How it ended is in `exit.json`. If it is itself killed, the kernel kills the worker (parent-death signal), and what is left on disk and of
control groups is found by the next sweep.
"""

import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

MAX_LOG_BYTES = 1 << 20
_CLONE_NEWNS = 0x0002_0000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 0x4_0000
_MS_NOSUID_NODEV = 0x2 | 0x4
_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_LAST_CAPABILITY = 40
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    order: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    folder = Path(order["folder"])
    # First of all, so that whoever finds the folder finds the process that belongs to it.
    write_json(folder / "keeper.json", {"pid": os.getpid(), "start_time": start_time("self"), "boot_id": boot_id()})
    stop_read, stop_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(stop_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Orphans of the worker become children of the keeper and are reaped here (isolation none; strict has its own process 1).
    call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    log = Log(folder / "worker.log")
    output_read, output_write = os.pipe2(os.O_CLOEXEC)
    problem_read, problem_write = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        become_worker(order, output_write, problem_write)
    for descriptor in (output_write, problem_write, order["ready_fd"]):
        os.close(descriptor)
    problem = read_all(problem_read)
    if problem:
        os.waitpid(child, 0)
        outcome: dict[str, Any] = {"end": "setup", "detail": problem}
    else:
        outcome = watch(child, order.get("lifeline_fd"), stop_read, output_read, log)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kill_everything(order)
    if outcome["end"] == "exit" and memory_kills(order["cgroups"]) > 0:
        outcome["end"] = "memory"
    remove_cgroups(order["cgroups"])
    write_json(folder / "exit.json", outcome)
    return 0


# --- the worker's side of the fork ---


def become_worker(order: dict[str, Any], output: int, problem: int) -> None:
    """Turns this process into the worker, or says on `problem` which step failed. Never returns."""
    step = "session"
    try:
        os.setsid()
        # For the time until bubblewrap sets its own; changing the user would clear it, so it is set again below.
        call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        step = "control group"
        for cgroup in order["cgroups"]:
            Path(cgroup["folder"], "cgroup.procs").write_text("0")
        step = "file view"
        if order["stage"]:
            stage(order["stage"], order["stage_folder"])
        step = "resource limits"
        for name, value in order["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        step = "user"
        if order["uid"] is not None:
            drop_root(order["uid"])
        call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == 1:
            raise OSError("the keeper died")
        step = "start"
        arguments = [*order["arguments"]]
        if order["seccomp"]:
            descriptor = os.memfd_create("seccomp", 0)
            os.write(descriptor, bytes.fromhex(order["seccomp"]))
            os.lseek(descriptor, 0, os.SEEK_SET)
            arguments[1:1] = ["--seccomp", str(descriptor)]
        os.chdir(order["folder_inside"])
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.set_inheritable(order["ready_fd"], True)
        for descriptor in order["close_fds"]:
            os.set_inheritable(descriptor, False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.execve(arguments[0], arguments, order["environment"])  # noqa: S606 - a fixed list, no shell
    except BaseException as error:  # noqa: BLE001 - the process ends here; the keeper reports it
        os.write(problem, f"{step}: {type(error).__name__}: {error}".encode()[:2000])
    finally:
        os._exit(125)


def stage(entries: list[dict[str, str]], folder: str) -> None:
    """A file view of its own in which `folder/<name>` is each entry's source, whoever may traverse the way there.

    Sources are opened before anything is mounted, so one of them may lie where the stage goes.
    """
    call("unshare", _CLONE_NEWNS)
    call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    opened = [(os.open(entry["source"], os.O_PATH | os.O_CLOEXEC), entry) for entry in entries]
    call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", _MS_NOSUID_NODEV, b"mode=0755,size=64k")
    for descriptor, entry in opened:
        target = Path(folder, entry["name"])
        if entry["kind"] == "folder":
            target.mkdir(mode=0o755)
        else:
            target.touch(mode=0o644)
        source = f"/proc/self/fd/{descriptor}".encode()
        call("mount", source, bytes(target), None, _MS_BIND | _MS_REC, None)
        os.close(descriptor)


def drop_root(uid: int) -> None:
    """Leaves root for good: no group, no capability that could come back."""
    for capability in range(_LAST_CAPABILITY + 1):
        if (
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 and ctypes.get_errno() != 22
        ):  # unknown to this kernel
            raise OSError(ctypes.get_errno(), "prctl(PR_CAPBSET_DROP)")
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


# --- the keeper's side ---


def watch(child: int, lifeline: int | None, stop: int, output: int, log: "Log") -> dict[str, Any]:
    """Waits for the first end there is; keeps the worker's output meanwhile."""
    process = os.pidfd_open(child)
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.register(stop, select.POLLIN)
    poll.register(output, select.POLLIN)
    if lifeline is not None:
        poll.register(lifeline, 0)  # nothing but its end counts: nobody writes to it
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == output:
                data = os.read(output, 65_536)
                if not data:
                    poll.unregister(output)
                log.write(data)
            elif descriptor == lifeline:
                return {"end": "mesh"}
            elif descriptor == stop:
                return {"end": "stopped"}
            elif descriptor == process:
                _, status = os.waitpid(child, 0)
                drain(output, log)
                return {"end": "exit", "status": os.waitstatus_to_exitcode(status)}


def drain(output: int, log: "Log") -> None:
    os.set_blocking(output, False)
    try:
        while data := os.read(output, 65_536):
            log.write(data)
    except BlockingIOError:
        return  # a process of the worker's still holds it open; it is killed next


def kill_everything(order: dict[str, Any]) -> None:
    """Kills until nothing is left: children (and orphans, which are children too), then whatever the control group still names."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        pids = children() | cgroup_pids(order["cgroups"])
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if not reap() and not pids:
            return
        time.sleep(
            0.002
        )  # the kernel takes a moment to end a killed process, and nothing signals the last one of a group


def children() -> set[int]:
    pid = os.getpid()
    return {int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def cgroup_pids(cgroups: list[dict[str, str]]) -> set[int]:
    pids: set[int] = set()
    for cgroup in cgroups:
        try:
            pids.update(int(text) for text in Path(cgroup["folder"], "cgroup.procs").read_text().split())
        except FileNotFoundError:
            continue
    return pids


def reap() -> bool:
    """Collects ended children; whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def memory_kills(cgroups: list[dict[str, str]]) -> int:
    """How often the kernel killed in the sandbox for its memory limit."""
    total = 0
    for cgroup in cgroups:
        for name in ("memory.events", "memory.oom_control"):
            path = Path(cgroup["folder"], name)
            if path.exists():
                for line in path.read_text().splitlines():
                    key, _, value = line.partition(" ")
                    total += int(value) if key == "oom_kill" else 0
    return total


def remove_cgroups(cgroups: list[dict[str, str]]) -> None:
    deadline = time.monotonic() + 2
    for cgroup in cgroups:
        while True:
            try:
                os.rmdir(cgroup["folder"])
            except FileNotFoundError:
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    sys.stderr.write(f"control group left behind: {error}\n")
                    break
                time.sleep(0.005)  # an ended process leaves its group a moment after it was reaped
            else:
                break


class Log:
    """The worker's output on disk, the first MiB of it (I35)."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._left = MAX_LOG_BYTES

    def write(self, data: bytes) -> None:
        if self._left <= 0:
            return
        os.write(self._descriptor, data[: self._left])
        self._left -= len(data)
        if self._left <= 0:
            os.write(self._descriptor, b"\n[the rest is not kept: 1 MiB is the limit]\n")


def read_all(descriptor: int) -> str:
    data = b""
    while part := os.read(descriptor, 4096):
        data += part
    os.close(descriptor)
    return data.decode(errors="replace")


def write_json(path: Path, value: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value))
    part.replace(path)


def start_time(pid: int | str) -> int:
    """Clock ticks from boot to the start of the process: with its pid and the boot, it names one process for ever."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    raise SystemExit(main())
