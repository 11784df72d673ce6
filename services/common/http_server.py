"""uvicorn as a service of ours runs it: on a socket that is there already, started and stopped with the process (I32, I33)."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import uvicorn

from services.common.http_protocol import BoundedHttpProtocol
from services.common.process import Process


async def nothing() -> None:
    """For a server that has nothing to end before its connections."""


async def serve_http(
    process: Process[Any],
    application: Any,
    protocol: type[BoundedHttpProtocol],
    listener: socket.socket,
    address: str,
    *,
    backlog: int,
    keep_alive_seconds: int = 5,
    date_header: bool = True,
    before_stop: Callable[[], Awaitable[None]] = nothing,
) -> None:
    """Says that the process is ready, serves until a stop is asked for, awaits `before_stop`, lets running requests finish inside the grace
    period or until an impatient stop, and returns. Errors: whatever keeps uvicorn from starting.
    """
    server = _Server(
        uvicorn.Config(
            application,
            http=protocol,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=date_header,
            proxy_headers=False,
            backlog=backlog,
            timeout_keep_alive=keep_alive_seconds,
            timeout_graceful_shutdown=max(1, int(process.settings.shutdown_grace_seconds)),
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    started = asyncio.create_task(server.has_started.wait())
    await asyncio.wait((serving, started), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        started.cancel()
        serving.result()
        raise RuntimeError("the HTTP server ended while it started")
    process.announce_ready(address=address)
    await process.stop_requested.wait()
    await before_stop()
    server.should_exit = True
    impatient = asyncio.create_task(process.stop_now.wait())
    await asyncio.wait((serving, impatient), return_when=asyncio.FIRST_COMPLETED)
    server.force_exit = True
    impatient.cancel()
    await serving


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: the process has its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()
