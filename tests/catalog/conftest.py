"""Catalogs, toy adapters and clients, ended with their test."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.catalog.processes import AVAILABLE, Catalog, Client, operator, until
from tests.catalog.toy_adapter import ToyAdapter, descriptor, serve

Start = Callable[..., Awaitable[Client]]
Host = Callable[..., Awaitable[ToyAdapter]]


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: a socket's path must be short.
    path = Path(tempfile.mkdtemp(prefix="hc-"))
    (path / "run").mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def servers() -> AsyncIterator[dict[str, grpc.aio.Server]]:
    running: dict[str, grpc.aio.Server] = {}
    yield running
    for server in running.values():
        await server.stop(0)


@pytest.fixture
async def host(folder: Path, servers: dict[str, grpc.aio.Server]) -> Host:
    """Serves a toy adapter of an id in this process, and returns it."""

    async def host_one(harness_id: str = "toy", **says: Any) -> ToyAdapter:
        adapter = ToyAdapter({"descriptor": descriptor(harness_id), **says})
        servers[harness_id] = await serve(adapter, f"unix:{folder}/run/{harness_id}.sock")
        return adapter

    return host_one


@pytest.fixture
async def start(folder: Path) -> AsyncIterator[Start]:
    """Starts a catalog on this test's store and returns a client of it."""
    catalogs: list[Catalog] = []
    clients: list[Client] = []

    async def start_one(config: dict[str, Any] | None = None, name: str = "a", **settings: Any) -> Client:
        catalog = Catalog(folder, name, {f"HARNESS_{key.upper()}": str(value) for key, value in settings.items()})
        catalog.write_config(config or operator())
        catalogs.append(catalog)
        await catalog.start()
        client = Client(catalog.address)
        client.catalog = catalog
        clients.append(client)
        return client

    yield start_one
    for client in clients:
        await client.close()
    for catalog in catalogs:
        if catalog.process is not None:
            await catalog.stop()
            log = catalog.log.read_text()
            assert "incident" not in log, log
            assert "Traceback" not in log, log


@pytest.fixture
async def client(host: Host, start: Start) -> Client:
    """A catalog whose toy adapter is up."""
    await host()
    client = await start()
    await until(client.harness, lambda harness: harness.availability == AVAILABLE)
    return client
