"""`harness up --demo`: the example agent's first turn, and what to try next."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from cli.api import Api
from cli.blueprints import applied_line, apply_one
from cli.connection import DEFAULT_URL, DEVELOPMENT_TOKEN, LOCAL_SUBJECT, connection_from
from cli.documents import read_document
from cli.errors import CommandError, ExitCode, usage_error
from cli.output import Output
from cli.turn import Turn, start_and_watch

MESSAGE = "Hello! What are you?"
_EXAMPLE = Path("examples", "agents", "agent-example.yaml")


async def show_demo(url: str) -> None:
    """Saves the example agent in the mesh at `url`, runs a turn of it live, says what to try. Raises CommandError."""
    output = Output(as_json=False)
    document = read_document(str(_example()))
    connection = connection_from(_environment(), url)
    async with Api(connection) as api:
        output.note("")
        output.note(applied_line(await apply_one(api, document)), "bold")
        agent_id = document.value["id"]
        output.note(f'$ harness run {agent_id} "{MESSAGE}"', "bold")
        turn = Turn.create(agent_id, MESSAGE, None, None, "reject", None)
        code = await start_and_watch(api, output, turn)
    if code != ExitCode.OK:
        raise CommandError(
            "The example agent's turn did not complete.",
            ExitCode.FAILED,
            "demo_failed",
            "See the logs in the data folder.",
        )
    for line in next_steps(url, agent_id, turn.request["conversation_id"]):
        output.note(line, "")


def next_steps(url: str, agent_id: str, conversation_id: str) -> list[str]:
    """What to try, as lines that can be pasted into another terminal."""
    # A token of one's own is not written on the screen.
    token = "$HARNESS_TOKEN" if _environment()["HARNESS_TOKEN"] else DEVELOPMENT_TOKEN
    subject = os.environ.get("HARNESS_SUBJECT") or LOCAL_SUBJECT
    prefix = "" if url == DEFAULT_URL else f"HARNESS_URL={url} "
    body = f'{{"agent_id":"{agent_id}","conversation_id":"from-curl","message":"Hello"}}'
    return [
        "",
        "The mesh keeps running; Ctrl-C stops it. Try in another terminal:",
        *_activation(),
        f'  {prefix}harness run {agent_id} "And now?" --conversation {conversation_id}',
        f"  {prefix}harness runs list",
        f'  curl {url}/api/v1/invoke -H "Authorization: Bearer {token}" -H {shlex.quote(f"X-Harness-Engine-Subject: {subject}")} '
        f"-H 'Content-Type: application/json' -d '{body}'",
        "",
    ]


def _activation() -> list[str]:
    """What puts `harness` on the path of another terminal, when it is in a virtual environment."""
    activate = Path(sys.prefix, "bin", "activate")
    return [f"  . {shlex.quote(str(activate))}"] if activate.is_file() else []


def _environment() -> dict[str, str]:
    """The caller's own, completed: with the token the gateway was given, and a subject for the demo's conversation."""
    subject = os.environ.get("HARNESS_SUBJECT") or LOCAL_SUBJECT
    token = os.environ.get("HARNESS_API_TOKENS", "").partition(",")[0].strip() or os.environ.get("HARNESS_TOKEN", "")
    return {**os.environ, "HARNESS_SUBJECT": subject, "HARNESS_TOKEN": token}


def _example() -> Path:
    # Beside the package in a source tree, inside it when installed.
    package = Path(__file__).parent
    for folder in (package.parent, package):
        if (folder / _EXAMPLE).is_file():
            return folder / _EXAMPLE
    raise usage_error(f"--demo: {_EXAMPLE} is not there.", "Run it from a source tree, or start without --demo.")
