"""Fixtures of whoever starts adapters as processes; a conftest that wants them imports them by name."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.adapters.processes import AdapterProcess


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: a socket's path must be short.
    path = Path(tempfile.mkdtemp(prefix="ha-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def start(folder: Path) -> AsyncIterator:
    """Starts an adapter process; every one started is gone after the test."""
    processes: list[AdapterProcess] = []

    async def start_one(*arguments: str, **settings) -> AdapterProcess:
        process = AdapterProcess(folder, arguments=arguments, name=f"p{len(processes)}", **settings)
        processes.append(process)
        return await process.start()

    yield start_one
    for process in processes:
        if process.process is not None:
            await process.stop()
