"""The committed transcript as the program finds it: every line where it looks for it, and no file anywhere else."""

import uuid
from pathlib import Path

import orjson
import pytest
from claude_agent_sdk import project_key_for_directory

from adapters.claude_agent_sdk.restoring import restore
from adapters.sdk.errors import PersistenceError

SESSION = str(uuid.UUID(int=7))
LINES = [{"uuid": "a", "text": "größe\u2028x"}, {"uuid": "b"}]


def lines(path: Path) -> list[object]:
    return [orjson.loads(line) for line in path.read_bytes().removesuffix(b"\n").split(b"\n")]


def test_a_conversation_and_its_subagents_lie_where_the_program_looks(tmp_path: Path):
    """Of what is told of a subagent the last line counts; the program wants it beside the transcript, without its type."""
    config, workspace = tmp_path / "config", tmp_path / "workspace"
    told = [{"type": "agent_metadata", "agentType": each} for each in ("old", "helper")]
    restore(config, workspace, SESSION, {"": LINES, "subagents/agent-1": [told[0], *LINES, told[1]]})
    project = config / "projects" / project_key_for_directory(workspace)
    assert lines(project / f"{SESSION}.jsonl") == LINES
    assert lines(project / SESSION / "subagents" / "agent-1.jsonl") == LINES
    assert lines(project / SESSION / "subagents" / "agent-1.meta.json") == [{"agentType": "helper"}]
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 3


@pytest.mark.parametrize(
    ("session", "subpath"),
    [
        ("../../escaped", ""),
        ("session", ""),
        (SESSION, "../escaped"),
        (SESSION, "/escaped"),
        (SESSION, "subagents/../../../escaped"),
        (SESSION, "subagents//agent"),
        (SESSION, "./agent"),
        (SESSION, "a\0b"),
        (SESSION, ".."),
    ],
)
def test_a_name_that_would_leave_the_folder_is_a_damaged_conversation(tmp_path: Path, session: str, subpath: str):
    with pytest.raises(PersistenceError) as raised:
        restore(tmp_path / "config", tmp_path, session, {"": LINES, subpath: LINES})
    assert raised.value.code == "state_damaged"
    assert list(tmp_path.iterdir()) == []


def test_a_conversation_that_cannot_be_written_is_not_restored(tmp_path: Path):
    (tmp_path / "config").write_text("no folder")
    with pytest.raises(PersistenceError) as raised:
        restore(tmp_path / "config", tmp_path, SESSION, {"": LINES})
    assert raised.value.code == "restore_failed"
    assert str(tmp_path) not in raised.value.message
