"""The folder of one runtime: configuration, home, temporary files and working directory of its program, gone with the runtime (I20)."""

import fcntl
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from adapters.claude_agent_sdk import launcher
from adapters.claude_agent_sdk.processes import end_those_of
from adapters.sdk.logs import describe, get_logger

PREFIX = "harness-claude-"
UNFINISHED = "making-harness-claude-"
"""What a folder is called until it is locked, so that one without a living owner is known at once."""
YOUNG_SECONDS = 60.0
MAX_SWEPT = 100
_OWN = 0o700
_LOCK = "lock"
_log = get_logger(__name__)


class Home:
    """Where one runtime's programs live. Nobody but this process's user may look into it."""

    def __init__(self, root: Path | None) -> None:
        if root is not None:
            root.mkdir(parents=True, exist_ok=True)
        sweep(root or Path(tempfile.gettempdir()))
        unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=root))
        # Held until this process ends, however it ends.
        self._lock = os.open(unfinished / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.folder = unfinished.rename(unfinished.with_name(PREFIX + unfinished.name.removeprefix(UNFINISHED)))
        # The agent's own files, which stay from turn to turn. Where they are changes from host to host.
        self.workspace = self.folder / "workspace"
        self.workspace.mkdir(mode=_OWN)
        self.launcher = self.folder / "launch"
        body = Path(launcher.__file__).read_text("utf-8")
        self.launcher.write_text(f"#!{sys.executable} -IS\n{body}", "utf-8")
        self.launcher.chmod(_OWN)

    def turn(self, prompt: str) -> "TurnFolder":
        """A folder for one turn, with its system prompt in it."""
        return TurnFolder(Path(tempfile.mkdtemp(prefix="turn-", dir=self.folder)), prompt)

    def remove(self) -> None:
        """Ends what was started here and still runs, and removes everything. Idempotent. Raises OSError for what cannot be removed."""
        _removed(self.folder)
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


class TurnFolder:
    """What one turn's program has to itself: the next turn starts from the committed state alone (I30)."""

    def __init__(self, folder: Path, prompt: str) -> None:
        self.folder = folder
        self.config = folder / "config"
        self.home = folder / "home"
        self.temporary = folder / "tmp"
        for one in (self.config, self.home, self.temporary):
            one.mkdir(mode=_OWN)
        self.pid_file = folder / "pid"
        # A file: an argument would be bounded, and seen by every user of the machine.
        self.prompt = folder / "prompt"
        self.prompt.write_text(prompt, "utf-8")

    def pid(self) -> int:
        """The process id of the turn's program; 0: it has none yet."""
        try:
            return int(self.pid_file.read_text("ascii") or "0")
        except FileNotFoundError:
            return 0

    def remove(self) -> None:
        """Ends what was started here and still runs, and removes everything. Idempotent. Raises OSError for what cannot be removed."""
        _removed(self.folder)


def sweep(root: Path) -> None:
    """Removes what runtimes of processes that were killed left below `root` (I20). At most 100 of them at a time."""
    removed = 0
    for entry in os.scandir(root):
        if entry.name.startswith((PREFIX, UNFINISHED)):
            removed += _swept(Path(entry.path))
        if removed == MAX_SWEPT:
            return


def _swept(folder: Path) -> bool:
    """Removes a folder if no process that lives has it; whether it did. Folders of other users are none of ours."""
    try:
        # One that is about to be locked, or whose removal has begun, is left alone for a while.
        young = time.time() - folder.stat().st_mtime < YOUNG_SECONDS
        if young and (folder.name.startswith(UNFINISHED) or not (folder / _LOCK).exists()):
            return False
        lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _removed(folder)
    except (BlockingIOError, FileNotFoundError):
        # Its process lives, or another one was here first.
        return False
    except (OSError, RecursionError) as error:
        # I23: whatever an agent left there, the runtimes of others begin.
        _log.warning("left_behind_not_removed", error=describe(error))
        return False
    finally:
        os.close(lock)
    _log.info("left_behind_removed")
    return True


def _removed(folder: Path) -> None:
    if not folder.exists():
        return
    end_those_of(folder)
    try:
        shutil.rmtree(folder)
    except PermissionError:
        # A tool may close a folder to its owner.
        _open(folder)
        shutil.rmtree(folder)


def _open(folder: Path) -> None:
    waiting = [folder]
    while waiting:
        one = waiting.pop()
        one.chmod(_OWN)
        waiting += [Path(entry.path) for entry in os.scandir(one) if entry.is_dir(follow_symlinks=False)]
