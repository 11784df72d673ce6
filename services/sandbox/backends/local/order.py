"""What the keeper of one sandbox is told: what to start, as whom, and under which limits. Pure; the keeper reads it as JSON."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.sandbox.backends.local.command import TMP_MIB, Command
from services.sandbox.backends.local.seccomp import filter_program
from services.sandbox.profile import STRICT, Profile

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Held:
    """Descriptors the keeper inherits. All but `ready` are its own: the worker must not have them."""

    ready: int
    lifeline: int
    others: tuple[int, ...]


def keeper_order(
    folder: Path, profile: Profile, command: Command, *, uid: int | None, cgroups: list[Path], held: Held
) -> dict[str, Any]:
    """The order for a sandbox in `folder`. `uid` is the sandbox's own user, None where there is none; no `cgroups`: limits per process."""
    strict = profile.isolation == STRICT
    return {
        "folder": str(folder),
        "arguments": command.arguments,
        "environment": command.environment,
        "folder_inside": command.folder,
        "stage": command.stage,
        "stage_folder": "/tmp",  # noqa: S108 - see command.STAGE_FOLDER
        "uid": uid,
        "seccomp": filter_program().hex() if strict else "",
        "rlimits": _rlimits(profile, uid, in_cgroup=bool(cgroups)),
        "cgroups": [{"folder": str(path)} for path in cgroups],
        "ready_fd": held.ready,
        "lifeline_fd": held.lifeline,
        "close_fds": [held.lifeline, *held.others],
    }


def _rlimits(profile: Profile, uid: int | None, *, in_cgroup: bool) -> dict[str, int]:
    limits = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": 1024}
    if profile.isolation == STRICT:
        limits["RLIMIT_FSIZE"] = max(profile.workspace_mib, TMP_MIB) * _MIB
        if not in_cgroup:
            limits["RLIMIT_DATA"] = profile.memory_mib * _MIB
        if uid is not None:
            # Counted per user, so only where the user is the sandbox's own.
            limits["RLIMIT_NPROC"] = profile.max_pids
    return limits
