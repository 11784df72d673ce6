"""A connection to a server that can be cut, as when the machine behind it dies; and a server that takes connections and never says a word."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

CHUNK = 65_536


class Wire:
    """Passes bytes on between whoever connects to `address` and the unix socket of a server."""

    def __init__(self, address: str, server: str) -> None:
        self.address = address
        self._to = server.removeprefix("unix:")
        self._writers: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    async def start(self) -> None:
        self._listener = await asyncio.start_unix_server(self._connected, self.address.removeprefix("unix:"))

    async def cut(self) -> None:
        """Every connection breaks, and none can be had any more."""
        if self._listener is not None:
            self._listener.close()
            with suppress(FileNotFoundError):  # later versions of Python do it themselves
                os.unlink(self.address.removeprefix("unix:"))
            self._listener = None
        for writer in self._writers:
            writer.transport.abort()
        for task in self._passing:
            task.cancel()
        if self._passing:
            await asyncio.wait(self._passing)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_unix_connection(self._to)
        self._writers |= {writer, there_writer}
        for source, to in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(_pass(source, to))
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)


async def _pass(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(CHUNK):
            to.write(data)
            await to.drain()
    except OSError:
        return  # it was cut
    finally:
        to.transport.abort()


@asynccontextmanager
async def mute_server(path: str) -> AsyncGenerator[None]:
    """Takes connections, and leaves them unanswered."""
    over = asyncio.Event()

    async def hold(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.transport.abort()

    listener = await asyncio.start_unix_server(hold, path)
    try:
        yield
    finally:
        over.set()
        listener.close()
