"""Unix sockets of listeners: taken over only when nobody listens, private from the first moment."""

import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from services.common.errors import ConfigurationError

PRIVATE = 0o600


def prepare_unix_socket(path: Path, setting: str, *, folder_mode: int = 0o700) -> None:
    """Makes the folder, if missing, and removes the socket a dead process left.

    `ConfigurationError` when something else is there, somebody listens, or the folder cannot be made.
    """
    try:
        path.parent.mkdir(mode=folder_mode, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{setting}: cannot make the folder {path.parent}: {error.strerror}.") from None
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"{setting}: {path} exists and is not a socket: remove it or choose another path.")
    if _is_listening(path):
        raise ConfigurationError(f"{setting}: another process listens on {path}: stop it or choose another path.")
    path.unlink(missing_ok=True)


@contextmanager
def private_umask() -> Generator[None]:
    """Files made meanwhile are the owner's alone, so that a socket is never open to others between bind and chmod."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            return True  # its backlog is full: somebody is there
        return True
