"""The MongoDB a campaign's mesh keeps its records in, started again whenever a fault has ended it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.mongodb import FerretServer, MongodServer, database, own_server


@dataclass(slots=True)
class StoreServer:
    """A server; `restarts` says whether it is ours, so that a fault may end it."""

    url: str
    restarts: bool
    pid: int = 0


@asynccontextmanager
async def store_server(folder: Path, named: str) -> AsyncGenerator[StoreServer]:
    """A server of our own that keeps its files in `folder`, or, when one is `named` by an address, a database there."""
    if named:
        with database() as url:
            yield StoreServer(url, restarts=False)
        return
    server = own_server()
    assert isinstance(server, FerretServer | MongodServer)
    server.folder.rmdir()
    server.folder = folder
    await asyncio.to_thread(server.start)
    served = StoreServer(f"mongodb://{server.address}/chaos-{secrets.token_hex(4)}", restarts=True)
    keeping = asyncio.create_task(_keep(server, served))
    try:
        yield served
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})
        await asyncio.to_thread(server.kill)


async def _keep(server: FerretServer | MongodServer, served: StoreServer) -> None:
    while server.process is not None:
        served.pid = server.process.pid
        await asyncio.to_thread(server.process.wait)
        served.pid = 0
        await asyncio.to_thread(server.kill)  # it is gone: this clears up after it
        await asyncio.to_thread(server.start)
