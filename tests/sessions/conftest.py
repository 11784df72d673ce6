"""Processes and clients, ended with their test."""

import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sessions.processes import Client, Sessions

Start = Callable[..., Awaitable[Client]]


@pytest.fixture
def folder() -> Iterator[Path]:
    yield from _folder()


def _folder() -> Iterator[Path]:
    # Not tmp_path: a socket's path must be short.
    path = Path(tempfile.mkdtemp(prefix="hs-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def start(folder: Path) -> AsyncIterator[Start]:
    """Starts a process on this test's store and returns a client of it."""
    processes: list[Sessions] = []
    clients: list[Client] = []

    async def start_one(name: str = "a", **settings: Any) -> Client:
        sessions = Sessions(folder, name, {f"HARNESS_{key.upper()}": str(value) for key, value in settings.items()})
        processes.append(sessions)
        await sessions.start()
        client = Client(sessions)
        clients.append(client)
        return client

    yield start_one
    for client in clients:
        await client.close()
    for sessions in processes:
        await sessions.stop()


@pytest.fixture(scope="session")
def shared() -> Iterator[Sessions]:
    """One process for all tests that neither end it nor look at all it keeps."""
    for path in _folder():
        sessions = Sessions(path).start_and_wait()
        yield sessions
        sessions.stop_and_wait()


@pytest.fixture
async def client(shared: Sessions) -> AsyncIterator[Client]:
    """A client of the shared process that is alone with its conversations."""
    client = Client(shared, agent=f"agent-{uuid.uuid4().hex}")
    yield client
    await client.close()
