"""The committed transcript laid down where the program looks for it: in the turn's own folder, which goes with the turn (I20).

The SDK would lay it down as well, but below the system's folder for temporary files, where a process that is killed leaves it for good. So its session
store is asked for nothing, and only takes what the turn adds.
"""

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import orjson
from claude_agent_sdk import project_key_for_directory

from adapters.sdk.errors import PersistenceError

# A line of a subagent's transcript that tells of the subagent itself: the program wants it beside the transcript, the last one alone.
_OF_THE_SUBAGENT = "agent_metadata"
_OWN = 0o700
Entry = dict[str, Any]


def restore(config: Path, workspace: Path, session_id: str, transcripts: Mapping[str, Sequence[Entry]]) -> None:
    """Writes the transcripts of one conversation, by subpath, below a program's configuration folder, for a program that works in `workspace`. Raises
    PersistenceError for a conversation that is damaged, or that cannot be written.
    """
    if not _is_uuid(session_id) or any(not _stays_inside(subpath) for subpath in transcripts if subpath):
        # They become names of files.
        raise PersistenceError("The conversation's state is damaged.", code="state_damaged")
    project = config / "projects" / project_key_for_directory(workspace)
    try:
        project.mkdir(mode=_OWN, parents=True)
        for subpath, entries in transcripts.items():
            # A program's names: the conversation's own, and those of its subagents in a folder beside it.
            name = f"{session_id}/{subpath}" if subpath else session_id
            _write(project / f"{name}.jsonl", [entry for entry in entries if entry.get("type") != _OF_THE_SUBAGENT])
            told = [entry for entry in entries if entry.get("type") == _OF_THE_SUBAGENT]
            if told:
                known = {key: value for key, value in told[-1].items() if key != "type"}
                _write(project / f"{name}.meta.json", [known])
    except OSError as error:
        raise PersistenceError(
            "The conversation could not be restored.", code="restore_failed", diagnostic=f"{error.strerror}"
        ) from None


def _write(path: Path, entries: Sequence[Entry]) -> None:
    path.parent.mkdir(mode=_OWN, parents=True, exist_ok=True)
    path.write_bytes(b"".join(orjson.dumps(entry) + b"\n" for entry in entries))


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _stays_inside(subpath: str) -> bool:
    """Whether a path below the conversation's folder is one."""
    path = PurePosixPath(subpath)
    return not path.is_absolute() and path.as_posix() == subpath and ".." not in path.parts and "\0" not in subpath
