"""Real servers on unix sockets for the tests of services/common."""

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import grpc.aio
import pytest
from pydantic import SecretStr

from services.common.capability_token import CapabilitySigner, CapabilityVerifier, generate_private_key
from services.common.channels import Peer, connect
from services.common.interceptors import (
    Authenticator,
    CapabilityAuthenticator,
    ServiceAuthenticator,
    ServiceInterceptor,
)
from services.common.logs import configure_logging
from services.common.server import server_options
from tests.common.toy import ToyServicer, ToyStub, add_toy_servicer_to_server

TOKENS = (SecretStr("first-token-0123456789"), SecretStr("second-token-0123456789"))
ROOT = Path(__file__).parents[2]


@contextmanager
def service_logs(log_format: Literal["json", "console"] = "json", level: str = "info") -> Generator[None]:
    """Logs as a service makes them, inside a test: pytest's own handlers change with each of its phases."""
    root = logging.getLogger()
    before = root.handlers, root.level
    configure_logging("toy", level, log_format)
    try:
        yield
    finally:
        root.handlers, root.level = before


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: its names can be longer than a socket address may be.
    path = Path(tempfile.mkdtemp(prefix="hm-"))
    yield path
    shutil.rmtree(path)


@dataclass
class Toy:
    address: str
    servicer: ToyServicer
    peer: Peer
    stub: ToyStub
    interceptor: ServiceInterceptor


StartToy = Callable[..., Awaitable[Toy]]


@pytest.fixture
async def start_toy(folder: Path) -> AsyncIterator[StartToy]:
    async with AsyncExitStack() as stack:

        async def start(
            authenticator: Authenticator | None = None,
            *,
            default_deadline_seconds: float = 30,
            token: SecretStr | None = TOKENS[0],
        ) -> Toy:
            address = f"unix:{folder}/toy.sock"
            interceptor = ServiceInterceptor(
                authenticator or ServiceAuthenticator(TOKENS), default_deadline_seconds=default_deadline_seconds
            )
            server = grpc.aio.server(interceptors=[interceptor], options=server_options())
            servicer = ToyServicer()
            add_toy_servicer_to_server(servicer, server)
            server.add_insecure_port(address)
            await server.start()
            stack.push_async_callback(server.stop, 0)
            peer = connect(address, token)
            stack.push_async_callback(peer.close)
            return Toy(address, servicer, peer, ToyStub(peer.channel), interceptor)

        yield start


@pytest.fixture
async def toy(start_toy: StartToy) -> Toy:
    return await start_toy()


@dataclass
class Keys:
    signer: CapabilitySigner
    verifier: CapabilityVerifier

    def authenticator(self) -> CapabilityAuthenticator:
        return CapabilityAuthenticator(self.verifier)


@pytest.fixture
def keys() -> Keys:
    signer = CapabilitySigner(generate_private_key())
    return Keys(signer, CapabilityVerifier([signer.public_key_pem], "harness.toy.v1.ToyService"))


class ToyProcess:
    """The toy service in a process of its own; ended with the test."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.socket = folder / "toy.sock"
        self.address = f"unix:{self.socket}"
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "gen" / "python")]),
            "HARNESS_LISTEN": self.address,
            "HARNESS_DATA_DIR": str(folder / "data"),
            "HARNESS_SERVICE_TOKENS": ",".join(token.get_secret_value() for token in TOKENS),
            "HARNESS_IDENTITY_KEY": "identity-key-0123456789",
            **environment,
        }
        self.log = folder / "log"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> bytes:
        """Starts it and returns its line of readiness; empty when it ended without one."""
        reading, writing = os.pipe()
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "tests.common.toy_main",
                env={"HARNESS_READY_FD": str(writing), **self.environment},
                pass_fds=[writing],
                stderr=log,
                cwd=self.folder,
            )
        os.close(writing)
        with os.fdopen(reading, "rb") as ready:
            return await asyncio.to_thread(ready.readline)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def wait(self) -> int:
        assert self.process is not None
        return await self.process.wait()

    def log_text(self) -> str:
        return self.log.read_text()

    def journal(self) -> list[str]:
        return (self.folder / "data" / "journal").read_text().split()


@pytest.fixture
async def toy_process(folder: Path) -> AsyncIterator[Callable[..., ToyProcess]]:
    made: list[ToyProcess] = []

    def make(**environment: str) -> ToyProcess:
        made.append(ToyProcess(folder, **environment))
        return made[-1]

    yield make
    for each in made:
        if each.process is not None and each.process.returncode is None:
            each.process.kill()
            await each.process.wait()
