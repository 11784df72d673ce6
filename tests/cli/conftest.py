"""The command as a process, and a stand-in for the gateway."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stand_in import StandIn, serving

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "cli.main")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        return json.loads(self.err)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment without anybody's settings of the mesh or of colours."""
    dropped = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HARNESS_") and k not in dropped}
    return {**inherited, "TERM": "xterm-256color", **variables}


async def start(*arguments: str, **variables: str) -> asyncio.subprocess.Process:
    """Starts the command; the test ends it."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, cwd=ROOT, env=environment(variables), stdin=pipe, stdout=pipe, stderr=pipe
    )


async def ended(process: asyncio.subprocess.Process, stdin: bytes = b"") -> Ended:
    """Waits for the end of a started command."""
    try:
        out, err = await process.communicate(stdin)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Ended(process.returncode or 0, out.decode(), err.decode())


async def harness(*arguments: str, stdin: bytes = b"", **variables: str) -> Ended:
    """Runs the command to its end."""
    return await ended(await start(*arguments, **variables), stdin)


@pytest.fixture
async def mesh() -> AsyncIterator[StandIn]:
    async with serving(StandIn()) as stand_in:
        yield stand_in
