"""The tutorial is true: its commands are run, in order, against a real mesh."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "tutorial" / "first-conversation.md"
ACTIVATE = ". .venv/bin/activate\n"


def script() -> str:
    """Every checked block, in one shell that stops at the first failure."""
    found = re.findall(r"<!-- checked -->\n```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return "set -euo pipefail\n" + "".join(found).replace(ACTIVATE, "")


@pytest.fixture
async def environment(tmp_path):
    """What a shell needs to find a mesh of its own."""
    data = tmp_path / "data"
    programs = Path(sys.executable).parent
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HARNESS_")},
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HARNESS_DATA_DIR": str(data),
    }
    process = await asyncio.create_subprocess_exec(
        programs / "harness", "up", "--port", "0", env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        while line := (await process.stdout.readline()).decode():
            if ready := re.match(r"ready in .*?: (http://\S+)", line):
                break
        assert line, "the mesh did not start"
        rest = asyncio.create_task(process.stdout.read())
        yield {**environment, "HARNESS_URL": ready[1]}
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
    await rest


async def test_the_commands_of_the_tutorial_do_what_it_says(environment):
    shell = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        script(),
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = (text.decode() for text in await shell.communicate())
    assert shell.returncode == 0, output + errors
    said = (
        "agent-example: created (version 1)",
        "This is turn 2 of this conversation; before that you said: Hello",
        "event: run.completed",
        '"code":"not_found"',
        "exit code 6 says: cancelled",
        "This is turn 1 of this conversation; nothing was said before.\nNow you say: Do you know me?",
    )
    place = -1
    for text in said:
        place = output.find(text, place + 1)
        assert place >= 0, f"{text!r} is missing, or comes too early, in:\n{output}"
    stream, resumed, *_ = output.split("event: run.started")[-1].split("id: 18\n")[1:]
    assert stream.count("event: ") == resumed.count("event: ") == 2
