"""The folder of one runtime: configuration, home, temporary files and working directory of its program, gone with the runtime (I20)."""

import shutil
import sys
import tempfile
from pathlib import Path

from adapters.claude_agent_sdk import launcher

PREFIX = "harness-claude-"
_OWN = 0o700


class Home:
    """Where one runtime's programs live. Nobody but this process's user may look into it."""

    def __init__(self, root: Path | None) -> None:
        if root is not None:
            root.mkdir(parents=True, exist_ok=True)
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
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
        """Removes everything. Idempotent. Raises OSError for what cannot be removed."""
        _removed(self.folder)


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
        """Removes everything. Idempotent. Raises OSError for what cannot be removed."""
        _removed(self.folder)


def _removed(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
