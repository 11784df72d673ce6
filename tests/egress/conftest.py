"""A real egress process between a real sessions process and an endpoint on loopback."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.common.caller import Capability
from tests.egress.upstream import Upstream, serving
from tests.sessions.processes import SIGNER, TOKEN, Client, Sessions, fence_of

KEY = "provider-key-canary-91c4"


class Egress:
    """One process of the egress, and what a worker and its operator do with it."""

    def __init__(self, folder: Path, sessions: Client, upstream: Upstream, **settings: str) -> None:
        self.folder = folder
        self.sessions = sessions
        self.upstream = upstream
        self.key_file = folder / "key"
        self.key_file.write_text(KEY)
        config = folder / "harness.json"
        endpoints = [
            {"id": "main", "kind": "anthropic", "base_url": upstream.url, "credential_file": str(self.key_file)},
            {"id": "bearer", "kind": "anthropic", "base_url": f"{upstream.url}/gate", "credential_env": "GATE_KEY",
             "credential_header": "authorization"},
            {"id": "gone", "kind": "anthropic", "base_url": "http://127.0.0.1:1", "credential_env": "GATE_KEY"},
        ]  # fmt: skip
        config.write_text(json.dumps({"version": 1, "adapters": [], "model_endpoints": endpoints}))
        self.socket = folder / "m" / "model.sock"
        self.log = folder / "egress.log"
        keep = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
        environment = keep | {
            "GATE_KEY": "gate-key-canary-77d0",
            "HARNESS_SERVICE_TOKENS": TOKEN,
            "HARNESS_CONFIG_FILE": str(config),
            "HARNESS_FACADE_LISTEN": f"unix:{self.socket}",
            "HARNESS_SESSIONS_ADDRESS": sessions.sessions.address,
            "HARNESS_CAPABILITY_VERIFY_KEYS": SIGNER.public_key_pem,
            "HARNESS_DIE_WITH_PARENT": str(os.getpid()),
            "HARNESS_LOG_LEVEL": "debug",
            **{f"HARNESS_{name.upper()}": value for name, value in settings.items()},
        }
        reading, writing = os.pipe()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.egress"],
                env=environment | {"HARNESS_READY_FD": str(writing)},
                pass_fds=[writing],
                stdout=log,
                stderr=log,
            )
        os.close(writing)
        self._reading = reading

    async def started(self) -> "Egress":
        def wait() -> str:
            with os.fdopen(self._reading) as pipe:
                return pipe.readline()

        assert await asyncio.to_thread(wait), self.log.read_text()
        return self

    def client(self) -> httpx.AsyncClient:
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket))
        return httpx.AsyncClient(transport=transport, base_url="http://model", timeout=60, trust_env=False)

    async def token(self, conversation: str, **changes: Any) -> str:
        """The token of a run that holds the conversation."""
        binding = await self.sessions.granted(f"run-{conversation}", conversation)
        return self.token_of(fence_of(binding), **changes)

    def token_of(self, fence: Any, seconds: float = 600, **changes: Any) -> str:
        parts: dict[str, Any] = {
            "audience": "model",
            "binding_id": fence.binding_id,
            "epoch": fence.epoch,
            "runtime_generation": fence.runtime_generation,
            "run_id": fence.run_id,
            "model_endpoint": "main",
        }
        return SIGNER.sign(Capability(**(parts | changes)), deadline_at=time.time() + seconds)

    async def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, 60)


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: a socket's path must be short.
    path = Path(tempfile.mkdtemp(prefix="he-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def sessions() -> Iterator[Sessions]:
    path = Path(tempfile.mkdtemp(prefix="he-"))
    process = Sessions(path).start_and_wait()
    yield process
    process.stop_and_wait()
    shutil.rmtree(path)


@pytest.fixture
async def egress(folder: Path, sessions: Sessions) -> AsyncIterator[Egress]:
    async with _running(folder, sessions) as egress:
        yield egress


@pytest.fixture
async def few_connections(folder: Path, sessions: Sessions) -> AsyncIterator[Egress]:
    """Four, and no more."""
    async with _running(folder, sessions, max_connections="4") as egress:
        yield egress


@asynccontextmanager
async def _running(folder: Path, sessions: Sessions, **settings: str) -> AsyncGenerator[Egress]:
    client = Client(sessions, agent=f"agent-{folder.name}")
    bounds = {"max_requests_of_run": "2", "max_body_bytes": "65536", "look_again_seconds": "0.2"}
    async with serving() as upstream:
        egress = await Egress(folder, client, upstream, **(bounds | settings)).started()
        yield egress
        upstream.go_on.set()
        await egress.stop()
    await client.close()
