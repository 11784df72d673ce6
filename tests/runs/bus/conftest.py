"""The server behind the bus, and replicas over one log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.runs.bus import RedisBus
from services.runs.live import LiveHub
from services.runs.log import SegmentLog
from tests.runs.bus.valkey import ValkeyServer
from tests.runs.live.runlog import open_log


@pytest.fixture
def valkey() -> Iterator[ValkeyServer]:
    server = ValkeyServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@dataclass
class Replica:
    """The read side of one process: a log of its own over the same file, a bus connection of its own."""

    log: SegmentLog
    bus: RedisBus
    hub: LiveHub


class Replicas:
    """Makes replicas over one file and one server, and closes them."""

    def __init__(self, folder: Path, url: str, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._url = url
        self._stack = stack

    async def add(self, *, executes: bool = False, poll_seconds: float = 3600.0) -> Replica:
        """One more replica. Its poll is as good as off unless a test wants it: then only notices can wake a watcher."""
        log = await self._stack.enter_async_context(open_log(self._folder))
        bus = RedisBus(self._url, "test")
        hub = LiveHub(log, bus, executes_here=lambda _: executes, poll_seconds=poll_seconds)
        await bus.start()
        self._stack.push_async_callback(bus.close)
        await hub.start()
        self._stack.push_async_callback(hub.stop)
        return Replica(log, bus, hub)


@pytest.fixture
async def replicas(tmp_path: Path, valkey: ValkeyServer) -> AsyncGenerator[Replicas]:
    async with AsyncExitStack() as stack:
        yield Replicas(tmp_path, valkey.url, stack)
