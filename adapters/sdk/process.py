"""An adapter's process: its settings, readiness, signals, and death with its parent."""

import asyncio
import ctypes
import ipaddress
import json
import os
import signal
import socket
import stat
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from adapters.sdk.errors import ConfigurationError
from adapters.sdk.host.limits import DEFAULT_MAX_BUFFERED_BYTES
from adapters.sdk.logs import get_logger

EXIT_FAILURE = 1
EXIT_CONFIGURATION = 2
LISTEN_VARIABLE = "HARNESS_LISTEN"
TOKEN_VARIABLE = "HARNESS_ADAPTER_TOKEN"  # noqa: S105 - the name of a variable
ALLOW_ANONYMOUS_VARIABLE = "HARNESS_ADAPTER_ALLOW_ANONYMOUS"
READY_FD_VARIABLE = "HARNESS_READY_FD"
DIE_WITH_PARENT_VARIABLE = "HARNESS_DIE_WITH_PARENT"
SHUTDOWN_GRACE_VARIABLE = "HARNESS_SHUTDOWN_GRACE_SECONDS"
MAX_RUNS_VARIABLE = "HARNESS_ADAPTER_MAX_RUNS"
MAX_RUNTIMES_VARIABLE = "HARNESS_ADAPTER_MAX_RUNTIMES"
MAX_BUFFERED_BYTES_VARIABLE = "HARNESS_ADAPTER_MAX_BUFFERED_BYTES"
LOG_LEVEL_VARIABLE = "HARNESS_LOG_LEVEL"
_PR_SET_PDEATHSIG = 1
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """How the process is run. `socket_mode` applies to a unix address: 0600, unless a worker's peer is another user."""

    listen: str
    worker: bool
    token: str
    # Development alone: on loopback, whoever is on this machine may call without a token.
    allow_anonymous: bool
    socket_mode: int
    shutdown_grace: float
    max_runs: int
    max_runtimes: int
    max_buffered_bytes: int
    log_level: str


def read_settings(name: str, arguments: Sequence[str]) -> ProcessSettings:
    """Settings from the command line and the environment. Raises ConfigurationError that names the wrong one (I32)."""
    parser = ArgumentParser(prog=f"python -m {name}", description="Serves one harness adapter over gRPC.")
    parser.add_argument("--listen", metavar="ADDRESS", help=f"unix:/path or host:port; default: {LISTEN_VARIABLE}")
    parser.add_argument("--worker", action="store_true", help="serve as the worker of one sandbox")
    parser.add_argument("--socket-mode", default="0600", metavar="OCTAL", help="mode of a unix socket (default 0600)")
    given = parser.parse_args(arguments)
    listen: str = given.listen or os.environ.get(LISTEN_VARIABLE, "")
    if not listen:
        raise ConfigurationError(f"--listen (or {LISTEN_VARIABLE}) is missing: give unix:/path or host:port.")
    settings = ProcessSettings(
        listen=checked_address(listen),
        worker=given.worker,
        token=_secret(TOKEN_VARIABLE),
        allow_anonymous=_switch(ALLOW_ANONYMOUS_VARIABLE),
        socket_mode=_octal(given.socket_mode),
        shutdown_grace=_number(SHUTDOWN_GRACE_VARIABLE, 10.0, 0.0, 3_600.0),
        max_runs=int(_number(MAX_RUNS_VARIABLE, 1_000, 1, 100_000)),
        max_runtimes=int(_number(MAX_RUNTIMES_VARIABLE, 5_000, 1, 1_000_000)),
        max_buffered_bytes=int(_number(MAX_BUFFERED_BYTES_VARIABLE, DEFAULT_MAX_BUFFERED_BYTES, 1 << 20, 1 << 40)),
        log_level=os.environ.get(LOG_LEVEL_VARIABLE, "info"),
    )
    if settings.log_level.lower() not in ("debug", "info", "warning", "error"):
        raise ConfigurationError(f"{LOG_LEVEL_VARIABLE}: use debug, info, warning or error.")
    return settings


def check_access(listen: str, token: str, *, allow_anonymous: bool) -> None:
    """Raises ConfigurationError if callers would be let in whom nothing vouches for: a unix socket has its mode, TCP needs a token.

    A port on loopback is open to every user of the machine, so it needs one too; `allow_anonymous` is for a developer's own machine,
    is good for loopback only, and says in the log that it is used (I32).
    """
    if listen.startswith("unix:") or token:
        return
    if not is_loopback(listen):
        raise ConfigurationError(
            f"{TOKEN_VARIABLE} is missing: every TCP address needs it; {listen} can be reached from other machines."
        )
    if not allow_anonymous:
        raise ConfigurationError(
            f"{TOKEN_VARIABLE} is missing: every TCP address needs it, or any user of this machine could start runs. "
            f"Set it, listen on a unix socket, or, for development, set {ALLOW_ANONYMOUS_VARIABLE}=1."
        )
    _log.warning("anonymous_callers_allowed", address=listen, meaning="any user of this machine can start runs")


def checked_address(address: str) -> str:
    """`address` if it is `unix:/path` or `host:port`; raises ConfigurationError otherwise."""
    if address.startswith("unix:"):
        if len(address) > len("unix:"):
            return address
    else:
        host, _, port = address.rpartition(":")
        if host and port.isascii() and port.isdigit() and int(port) < 65_536:
            return address
    raise ConfigurationError(f"--listen: {address!r} is neither unix:/path nor host:port.")


def is_loopback(address: str) -> bool:
    """Whether only this machine can connect to `host:port`."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def prepare_socket(path: Path) -> None:
    """Removes the socket a dead process left. Raises ConfigurationError if something else is there or somebody listens."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"--listen: {path} exists and is not a socket: remove it or choose another path.")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # its backlog is full: somebody is there
    raise ConfigurationError(f"--listen: another process listens on {path}: stop it or choose another path.")


class ReadinessSignal:
    """The descriptor named by HARNESS_READY_FD: one JSON line when the process serves, then closed."""

    def __init__(self) -> None:
        # Taken out of the environment and not inherited: a child of ours must neither announce for us nor keep the pipe open.
        text = os.environ.pop(READY_FD_VARIABLE, "")
        self._descriptor: int | None = None
        if text:
            try:
                self._descriptor = int(text)
                os.set_inheritable(self._descriptor, False)
            except (ValueError, OSError):
                raise ConfigurationError(f"{READY_FD_VARIABLE}: {text!r} is not an open file descriptor.") from None

    def announce(self, **facts: str | int | bool) -> None:
        """Says that the process serves. Once."""
        _log.info("ready", **facts)
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        try:
            os.write(descriptor, (json.dumps({"pid": os.getpid(), **facts}) + "\n").encode())
        except BrokenPipeError:
            _log.warning("nobody_waits_for_readiness")
        finally:
            os.close(descriptor)


def die_with_parent() -> None:
    """With HARNESS_DIE_WITH_PARENT set to 1 or the parent's pid, the kernel kills this process when its parent dies, however it dies."""
    wanted = os.environ.get(DIE_WITH_PARENT_VARIABLE, "")
    if wanted in ("", "0"):
        return
    if not wanted.isascii() or not wanted.isdigit():
        raise ConfigurationError(f"{DIE_WITH_PARENT_VARIABLE}: {wanted!r} is neither 1 nor a process id.")
    parent = os.getppid() if wanted == "1" else int(wanted)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG): {os.strerror(number)}")
    if os.getppid() != parent:
        # The parent died before prctl took effect: no signal will come for that.
        sys.exit(EXIT_FAILURE)


def stop_on_signals(stop: asyncio.Event, stop_now: asyncio.Event) -> None:
    """SIGTERM and SIGINT ask for a graceful stop; a second one for a stop at once."""

    def on_signal(number: int) -> None:
        _log.info("stop_requested", signal=signal.Signals(number).name)
        if stop.is_set():
            stop_now.set()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _secret(variable: str) -> str:
    if path := os.environ.get(f"{variable}_FILE", ""):
        try:
            return Path(path).read_text("utf-8").strip()
        except OSError as error:
            raise ConfigurationError(f"{variable}_FILE: cannot be read: {error.strerror}.") from None
    return os.environ.get(variable, "")


def _switch(variable: str) -> bool:
    text = os.environ.get(variable, "")
    if text not in ("", "0", "1"):
        raise ConfigurationError(f"{variable}: {text!r} is neither 0 nor 1.")
    return text == "1"


def _octal(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise ConfigurationError(f"--socket-mode: {text!r} is not an octal mode such as 0600.")
    return mode


def _number(variable: str, default: float, least: float, most: float) -> float:
    text = os.environ.get(variable, "")
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise ConfigurationError(f"{variable}: {text!r} is not a number from {least:g} to {most:g}.")
    return number
