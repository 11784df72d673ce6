"""The command of a worker: bubblewrap around Python for a strict sandbox, Python alone for none."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.sandbox.backends.local.view import View
from services.sandbox.profile import Profile
from services.sandbox.settings import SOCKET_NAME

STAGE_FOLDER = "/tmp"  # noqa: S108 - a mount point of a private mount namespace, nothing of the real /tmp is touched
INSIDE = "/run/harness"
SOCKET_FOLDER_INSIDE = f"{INSIDE}/w"
WORKSPACE = "/workspace"
TMP_MIB = 64
SHM_MIB = 16
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Command:
    """What the keeper starts."""

    arguments: list[str]
    environment: dict[str, str]
    stage: list[dict[str, str]]
    """Sources that only root can reach: mounted where the sandbox's own user can."""
    folder: str


@dataclass(frozen=True, slots=True)
class Places:
    """Folders of one sandbox outside: its own, and the one with its socket."""

    own: Path
    sockets: Path


def worker_arguments(python: str, worker_module: str, address: str) -> list[str]:
    """The worker itself. Nothing is imported from the workspace (-P), nothing written beside the code (-B)."""
    return [python, "-s", "-P", "-B", "-m", worker_module, "--worker", "--listen", address]


def worker_environment(python_path: Sequence[str], home: str, tmp: str, ready_fd: int) -> dict[str, str]:
    """All of a worker's environment: nothing of the mesh's (worker protocol, "What a worker never receives")."""
    return {
        "HARNESS_READY_FD": str(ready_fd),
        "HOME": home,
        "LANG": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": ":".join(python_path),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": tmp,
    }


def plain_command(view: View, worker: list[str], places: Places, ready_fd: int) -> Command:
    """Isolation none: a plain process with a workspace, an environment and a process group of its own, and nothing more."""
    workspace = places.own / "workspace"
    environment = worker_environment(view.python_path_outside, str(workspace), str(workspace), ready_fd)
    return Command(worker, {**environment, "HARNESS_DIE_WITH_PARENT": "1"}, [], str(workspace))


def strict_command(
    bwrap: str,
    view: View,
    worker: list[str],
    profile: Profile,
    places: Places,
    facades: dict[str, Path],
    *,
    staged: bool,
    ready_fd: int,
) -> Command:
    """Bubblewrap with everything unshared, a read-only root of little more than Python, and bounded places to write.

    `facades` maps a folder name below /run/harness to the socket, or folder with the socket, that is let in. With `staged`, sources are
    found in the stage of the keeper instead of where they are.
    """
    stage: list[dict[str, str]] = []

    def source(path: Path) -> str:
        if not staged:
            return str(path)
        name = f"b{len(stage)}"
        stage.append({"name": name, "source": str(path), "kind": "folder" if path.is_dir() else "file"})
        return f"{STAGE_FOLDER}/{name}"

    options = [
        "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--as-pid-1",
        "--clearenv", "--cap-drop", "ALL", "--hostname", "sandbox",
    ]  # fmt: skip
    # I35: every place that can be written has a size. They come first, or they would cover an interpreter that lies below them.
    options += ["--size", str(TMP_MIB * _MIB), "--perms", "0700", "--tmpfs", "/tmp"]  # noqa: S108
    options += ["--size", str(profile.workspace_mib * _MIB), "--perms", "0700", "--tmpfs", WORKSPACE]
    for link in view.links:
        options += ["--symlink", link.target, link.inside]
    for shown in view.shown:
        options += ["--ro-bind", source(shown.source), shown.inside]
    for name in ("passwd", "group"):
        options += ["--ro-bind", source(places.own / name), f"/etc/{name}"]
    options += ["--proc", "/proc", "--dev", "/dev"]
    # /dev and the root need no size, because they are read-only below.
    options += ["--size", str(SHM_MIB * _MIB), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108
    options += ["--bind", source(places.sockets), SOCKET_FOLDER_INSIDE]
    for name, path in facades.items():
        options += ["--ro-bind", source(path), f"{INSIDE}/{name}"]
    for name, value in worker_environment(view.python_path, WORKSPACE, "/tmp", ready_fd).items():  # noqa: S108
        options += ["--setenv", name, value]
    options += ["--chdir", WORKSPACE, "--remount-ro", "/", "--"]
    return Command([bwrap, *options, *worker], {}, stage, "/")


def address_inside() -> str:
    """Where a strict sandbox's worker listens, as it sees it."""
    return f"unix:{SOCKET_FOLDER_INSIDE}/{SOCKET_NAME}"
