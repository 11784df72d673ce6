"""Adapter processes, and `harness certify` as a process."""

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.reference.adapter import ReferenceAdapter
from adapters.sdk.serve import serve_adapter, serve_worker
from tests.support.adapters import folder, start

__all__ = ["folder", "start"]
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


async def ended(*command: str) -> Ended:
    """Runs a command to its end."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HARNESS_")}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        env=inherited,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


async def certify(*arguments: str) -> Ended:
    """`harness certify` with these arguments."""
    return await ended(sys.executable, "-m", "cli.main", "certify", *arguments)


@contextlib.asynccontextmanager
async def hosted(
    factory: Any = ReferenceAdapter, *, worker: bool = False, token: str = ""
) -> AsyncGenerator[str, None]:
    """The adapter in this process; its address."""
    serve = serve_worker if worker else serve_adapter
    with tempfile.TemporaryDirectory(prefix="hc-") as folder:
        server = await serve(factory, listen=f"unix:{folder}/a.sock", token=token)
        try:
            yield server.address
        finally:
            await server.stop(0)
