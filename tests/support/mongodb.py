"""The MongoDB of the tests: the server that MONGO_TEST_URI names, a `mongod` of our own, or the compatible one this repository builds.

One server serves the tests of a worker process, each test in databases of its own. What the compatible one cannot show is listed in
docs/how-to/use-mongodb.md.
"""

from __future__ import annotations

import atexit
import functools
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

ROOT = Path(__file__).resolve().parents[2]
FERRETDB = ROOT / "build" / "ferretdb" / "ferretdb"
REQUIRED = "HARNESS_TEST_MONGODB_REQUIRED"
"""Set where there must be a server: then its absence fails the tests instead of skipping them."""
NONE = "no MongoDB: name one in MONGO_TEST_URI, put mongod on the path, or build a compatible server once with `make ferretdb` (needs Go)"
START_SECONDS = 90


class Server(Protocol):
    """A server of our own, that a test may kill."""

    address: str
    """`host:port`; the same after a restart."""

    def start(self) -> None:
        """Returns once it answers."""
        ...

    def kill(self) -> None:
        """kill -9; returns once it is gone."""
        ...

    def stop(self) -> None:
        """Ends it and deletes what it kept."""
        ...


class _Process:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hm-mongo-"))
        self.address = f"127.0.0.1:{_free_port()}"
        self.process: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(START_SECONDS)
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
            self.process = None

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class FerretServer(_Process):
    """The compatible server that `make ferretdb` builds."""

    def start(self) -> None:
        self.process = subprocess.Popen(
            [str(FERRETDB), "-listen", self.address, "-data", str(self.folder)],
            stdin=subprocess.PIPE,  # it ends when this does, so it never outlives the tests
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().decode().strip() == self.address


class MongodServer(_Process):
    """A mongod that is a replica set of its own."""

    def start(self) -> None:
        host, port = self.address.split(":")
        with (self.folder / "mongod.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["mongod", "--dbpath", str(self.folder), "--bind_ip", host, "--port", port, "--replSet", "tests"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        seconds = START_SECONDS * 1000
        with MongoClient[dict[str, object]](
            f"mongodb://{self.address}/?directConnection=true", serverSelectionTimeoutMS=seconds
        ) as client:
            try:
                client.admin.command("replSetInitiate", {"_id": "tests", "members": [{"_id": 0, "host": self.address}]})
            except OperationFailure as error:
                if error.code != 23:  # AlreadyInitialized: started again
                    raise
        with MongoClient[dict[str, object]](
            f"mongodb://{self.address}/?replicaSet=tests", serverSelectionTimeoutMS=seconds
        ) as client:
            client.admin.command("ping")  # waits for a primary


def own_server() -> Server:
    """A server for a test that kills it; not started yet. Skips, or fails where one is required, if there is none."""
    if shutil.which("mongod") is not None:
        return MongodServer()
    if FERRETDB.exists():
        return FerretServer()
    if os.environ.get(REQUIRED):
        pytest.fail(NONE)
    pytest.skip(NONE)


@functools.cache
def shared_server() -> str:
    """The address of the server for tests that only use it: `mongodb://…` with any path and options."""
    if uri := os.environ.get("MONGO_TEST_URI"):
        return uri
    server = own_server()
    server.start()
    atexit.register(server.stop)
    return f"mongodb://{server.address}"


@contextmanager
def database() -> Generator[str]:
    """The address of an empty database, which is dropped at the end."""
    parts = urlsplit(shared_server())
    name = f"harness-test-{secrets.token_hex(6)}"
    url = urlunsplit(parts._replace(path=f"/{name}"))
    # Credentials belong to the database the address names, unless it says otherwise.
    if "@" in parts.netloc and "authsource" not in parts.query.lower():
        source = parts.path.strip("/") or "admin"
        url += ("&" if parts.query else "?") + f"authSource={source}"
    try:
        yield url
    finally:
        with MongoClient[dict[str, object]](url, serverSelectionTimeoutMS=START_SECONDS * 1000) as client:
            client.drop_database(name)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]
