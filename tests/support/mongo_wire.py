"""The wire between a MongoDB client and its server: counts what is asked, and changes or loses answers."""

from __future__ import annotations

import asyncio
import inspect
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import bson

Answer = dict[str, Any]
OnAnswer = Callable[[str, Answer], "Answer | Awaitable[Answer | None] | None"]
_HEADER = struct.Struct("<iiii")
_BODY = _HEADER.size + 4 + 1  # flags, and the kind of the first section
_MESSAGE = 2013


class Wire:
    """One listener before one server. Only ordinary commands are counted and shown to `on_answer`, not the driver's own looks."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""
        self.commands: list[str] = []
        self.on_answer: OnAnswer | None = None
        """Gets the command and its answer, returns what the client gets, perhaps later: None for a connection that breaks instead."""
        self.connections = 0

    async def carry(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        """One connection, until either side closes it."""
        host, port = self._server.split(":")
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            server, requests = await asyncio.open_connection(host, int(port))
            try:
                while True:
                    request = await _message(client)
                    requests.write(request)
                    answer = await self._changed(request, await _message(server))
                    if answer is None:
                        return
                    answers.write(answer)
                    await answers.drain()
            finally:
                requests.close()
        except (OSError, EOFError):
            return
        finally:
            answers.close()
            self._tasks.discard(task)

    async def _changed(self, request: bytes, answer: bytes) -> bytes | None:
        command = _command(request)
        if command is None:
            return answer
        self.commands.append(command)
        if self.on_answer is None:
            return answer
        wanted = self.on_answer(command, bson.decode(answer[_BODY:]))
        if inspect.isawaitable(wanted):
            wanted = await wanted
        if wanted is None:
            return None
        body = bson.encode(wanted)
        _, *rest = _HEADER.unpack_from(answer)
        return _HEADER.pack(_BODY + len(body), *rest) + bytes(5) + body

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def wire(server: str) -> AsyncGenerator[Wire]:
    """A wire to the server at `host:port`."""
    carrier = Wire(server)
    listener = await asyncio.start_server(carrier.carry, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()
    carrier.address = f"{host}:{port}"
    try:
        yield carrier
    finally:
        listener.close()
        await carrier.stop()
        await listener.wait_closed()


async def _message(reader: asyncio.StreamReader) -> bytes:
    header = await reader.readexactly(_HEADER.size)
    (size, *_) = _HEADER.unpack(header)
    return header + await reader.readexactly(size - _HEADER.size)


def _command(request: bytes) -> str | None:
    """The command's name; None for greetings, looks and what the driver clears up."""
    if _HEADER.unpack_from(request)[3] != _MESSAGE:
        return None
    (size,) = struct.unpack_from("<i", request, _BODY)
    name = next(iter(bson.decode(request[_BODY : _BODY + size])))
    return None if name in ("hello", "ismaster", "isMaster", "ping", "endSessions", "killCursors") else name
