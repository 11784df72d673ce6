"""What a running mesh tells `harness status`: one small file, replaced whole."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One process as the supervisor sees it. `name` is `service`, from the second replica on with its number; `pid` 0: not running now;
    `url`: of a gateway.
    """

    name: str
    service: str
    replica: int
    pid: int
    address: str
    restarts: int
    url: str = ""


@dataclass(frozen=True, slots=True)
class MeshState:
    """The whole mesh; `url` is its first gateway's."""

    pid: int
    url: str
    processes: Sequence[ProcessEntry]


def write_state(path: Path, state: MeshState) -> None:
    """Replaces the file: a reader sees the old or the new one."""
    temporary = path.with_suffix(f".{os.getpid()}.new")
    temporary.write_text(json.dumps(asdict(state), indent=1) + "\n", "utf-8")
    temporary.replace(path)


def read_state(path: Path) -> MeshState | None:
    """What the file says, or None if there is none that can be read."""
    try:
        with path.open("rb") as file:
            document: Any = json.loads(file.read(MAX_BYTES))
        processes = [ProcessEntry(**entry) for entry in document["processes"]]
        return MeshState(document["pid"], document["url"], processes)
    except (OSError, ValueError, KeyError, TypeError):
        return None
