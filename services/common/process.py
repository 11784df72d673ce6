"""One process of the mesh, gRPC or not: event loop, logs, signals, readiness, death with its parent, exit codes (I32, I33)."""

import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NoReturn, TypeVar

from services.common import tracing
from services.common.errors import ConfigurationError
from services.common.logs import configure_logging, get_logger, log_incident
from services.common.settings import EXIT_CONFIGURATION, ProcessSettings

READY_FD_VARIABLE = "HARNESS_READY_FD"
DIE_WITH_PARENT_VARIABLE = "HARNESS_DIE_WITH_PARENT"
EXIT_FAILURE = 1
_PR_SET_PDEATHSIG = 1

S = TypeVar("S", bound=ProcessSettings)
_log = get_logger(__name__)


class Process(Generic[S]):
    """The running process, handed to its main function.

    `stop_requested` is set by the first SIGTERM or SIGINT, `stop_now` by the second.
    """

    def __init__(self, name: str, settings: S) -> None:
        self.name = name
        self.settings = settings
        self.stop_requested = asyncio.Event()
        self.stop_now = asyncio.Event()
        self._ready_fd = _take_ready_fd()

    def announce_ready(self, **facts: str | int) -> None:
        """Tells whoever started the process that it serves: one JSON line on the descriptor named by HARNESS_READY_FD, then closed."""
        _log.info("ready", **facts)
        descriptor, self._ready_fd = self._ready_fd, None
        if descriptor is None:
            return
        line = json.dumps({"service": self.name, "pid": os.getpid(), **facts}) + "\n"
        try:
            os.write(descriptor, line.encode("utf-8"))
        except BrokenPipeError:
            _log.warning("nobody_waits_for_readiness")
        finally:
            os.close(descriptor)

    def handle_signals(self) -> None:
        """SIGTERM and SIGINT ask for a graceful stop; a second one for a stop at once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        _log.info("stop_requested", signal=signal.Signals(number).name)
        if self.stop_requested.is_set():
            self.stop_now.set()
        self.stop_requested.set()


def run_process(name: str, settings: S, main: Callable[[Process[S]], Awaitable[None]]) -> NoReturn:
    """Runs `main` to its end and exits: 0 after a stop, 2 for a wrong setting (I32), 1 for any other failure. For `__main__` alone."""
    configure_logging(name, settings.log_level, settings.log_format)
    code = _run(name, settings, main)
    # I33: all that is ours is closed. The interpreter's own end waits for threads of grpc, seconds on a loaded machine, and would be killed in the middle.
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _run(name: str, settings: S, main: Callable[[Process[S]], Awaitable[None]]) -> int:
    async def run() -> None:
        process = Process(name, settings)
        process.handle_signals()
        await main(process)

    try:
        die_with_parent()
        tracing.configure(name, enabled=settings.otel_enabled)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(run())
    except ConfigurationError as error:
        sys.stderr.write(f"configuration error: {error}\n")
        return EXIT_CONFIGURATION
    except Exception as error:  # noqa: BLE001 - logged; the exit code says the rest
        incident_id = log_incident(_log, "process_failed", error)
        sys.stderr.write(f"{name} stopped by an unexpected error: see the log entry of incident {incident_id}\n")
        return EXIT_FAILURE
    finally:
        tracing.shutdown()
    return 0


def die_with_parent() -> None:
    """With HARNESS_DIE_WITH_PARENT set (to 1, or better to the parent's pid), the kernel kills this process when its parent dies, however it dies.

    SIGKILL, because a parent that was itself killed cannot see to a stop that hangs, and I33 makes a kill safe.
    """
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
        raise SystemExit(EXIT_FAILURE)


def _take_ready_fd() -> int | None:
    # Taken out of the environment and not inherited: a child of ours must neither announce for us nor keep the pipe open.
    text = os.environ.pop(READY_FD_VARIABLE, "")
    if not text:
        return None
    try:
        descriptor = int(text)
        os.set_inheritable(descriptor, False)
    except (ValueError, OSError):
        raise ConfigurationError(f"{READY_FD_VARIABLE}: {text!r} is not an open file descriptor.") from None
    return descriptor


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Any = uvloop.new_event_loop
    return factory
