"""Where a mesh on this machine keeps what: one data folder, and a folder for sockets whose paths are short enough."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from services.common.errors import ConfigurationError
from services.common.settings import MAX_UNIX_PATH_BYTES

DATA_DIR_VARIABLE = "HARNESS_DATA_DIR"
LONGEST_SOCKET = "sb/lse_00000000000000000000000000/s/w.sock"
"""The longest path below the socket folder: that of a sandbox worker."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders of one mesh. Everything in them is private to the user that runs it."""

    data: Path
    sockets: Path

    @property
    def state_file(self) -> Path:
        """What `harness status` reads: the processes as they are now."""
        return self.data / "mesh.json"

    @property
    def lock_file(self) -> Path:
        """Locked by the mesh that runs on this data folder."""
        return self.data / "mesh.lock"

    @property
    def logs(self) -> Path:
        """One bounded log a process."""
        return self.data / "logs"

    @property
    def secrets(self) -> Path:
        """Keys made at the first start."""
        return self.data / "secrets"

    @property
    def operator_file(self) -> Path:
        """The operator file that is used when none is given."""
        return self.data / "harness.yaml"

    @property
    def store(self) -> Path:
        """The embedded stores."""
        return self.data / "store"

    def socket(self, name: str) -> str:
        """The address of one listener."""
        return f"unix:{self.sockets / name}.sock"

    def facade(self, replica: int) -> str:
        """The address of the state facade of one replica of sessions, in a folder of its own."""
        return f"unix:{self._facade_folder(replica) / 'state.sock'}"

    def tool_facade(self, replica: int) -> str:
        """The address of the tool broker of one replica of runs, in a folder of its own."""
        return f"unix:{self._tool_folder(replica) / 'tool.sock'}"

    @property
    def model_facade(self) -> str:
        """The address of the model egress, in a folder of its own."""
        return f"unix:{self._model_folder / 'model.sock'}"

    @property
    def _model_folder(self) -> Path:
        return self.sockets / "models"

    def _facade_folder(self, replica: int) -> Path:
        return self.sockets / replica_name("facade", replica)

    def _tool_folder(self, replica: int) -> Path:
        return self.sockets / replica_name("tools", replica)

    def create(self, facades: int = 1, tool_facades: int = 1) -> None:
        """Makes the folders, one for each of the facades of sessions and of runs. Raises ConfigurationError when one cannot be made or is somebody
        else's.
        """
        for folder in (self.data, self.logs, self.secrets, self.store, self.sockets):
            _own_folder(folder, 0o700)
        for replica in range(1, facades + 1):
            # Sandboxes of other users get such a folder alone, and find a socket in it that was made anew after a restart.
            _own_folder(self._facade_folder(replica), 0o711)
        for replica in range(1, tool_facades + 1):
            _own_folder(self._tool_folder(replica), 0o711)
        _own_folder(self._model_folder, 0o711)


def replica_name(service: str, replica: int) -> str:
    """What the n-th replica of a service is called, counted from 1: the first as the service."""
    return service if replica == 1 else f"{service}-{replica}"


def default_data_dir() -> Path:
    """HARNESS_DATA_DIR, or `.harness` in the working folder."""
    return Path(os.environ.get(DATA_DIR_VARIABLE) or ".harness")


def layout_of(data_dir: Path) -> Layout:
    """The layout of a data folder; its sockets move to the temporary folder when their paths would be no addresses: too long for the
    system, or with the comma in them that separates addresses.
    """
    data = data_dir.absolute()
    sockets = data / "run"
    if "," in str(data) or len(os.fsencode(sockets / LONGEST_SOCKET)) > MAX_UNIX_PATH_BYTES:
        digest = hashlib.sha256(os.fsencode(data)).hexdigest()[:12]
        sockets = Path(tempfile.gettempdir()) / f"harness-{os.getuid()}-{digest}"
    return Layout(data, sockets)


def _own_folder(folder: Path, mode: int) -> None:
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigurationError(
            f"cannot make the folder {folder}: {error.strerror}; choose another --data-dir."
        ) from None
    # A folder in a shared temporary folder may have been put there by somebody else.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigurationError(f"{folder} is not a folder of this user; choose another --data-dir.")
    folder.chmod(mode)
