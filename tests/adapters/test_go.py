"""The reference adapter in Go, built here and run as a real process: its checks, its process, its lifecycle over gRPC, and the certification kit."""

import asyncio
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from adapters.sdk.testing import connected, kinds
from harness.adapter.v1 import adapter_service_pb2 as adapter_pb2
from harness.common.v1 import blueprint_pb2
from tests.adapters.status import refused

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "go"
PROGRAM = BUILD / "harness-reference-go"
BUILD_SECONDS = 900
WAIT_SECONDS = 90
FORM = {"interrupt": {"form": [{"name": "city", "type": "string", "required": True}]}}
FAULTS = {"allow_faults": True}


def _why_not() -> str:
    """Why nothing can be built here, or nothing."""
    if shutil.which("go") is None:
        return "there is no Go on the path"
    said = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, timeout=60, check=False).stdout
    version = re.match(r"go(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < (1, 24):
        return f"Go 1.24 or newer is needed, and this is {said.strip() or 'unknown'}"
    return ""


WHY_NOT = _why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def make(target: str) -> subprocess.CompletedProcess[str]:
    """`make` in the adapter's folder, one at a time on this machine: it writes generated code."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "test.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.run(
            ["make", "-C", str(ROOT / "adapters" / "go"), target],
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )


@dataclass
class GoAdapter:
    """The adapter's process, at a socket in `folder` or at `listen`."""

    folder: Path
    listen: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    ready: dict[str, Any] = field(default_factory=dict)

    def start(self) -> "GoAdapter":
        """Returns once the process says that it serves. From the test's thread: that is the parent whose death it would share."""
        reading, writing = os.pipe()
        environment = {"HARNESS_READY_FD": str(writing), "HARNESS_DIE_WITH_PARENT": str(os.getpid())}
        with (self.folder / "go.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(PROGRAM), "-address", self.listen or f"unix:{self.folder}/go.sock"],
                env=environment | self.environment,
                pass_fds=[writing],
                stdout=log,
                stderr=log,
            )
        os.close(writing)
        with os.fdopen(reading) as pipe:
            line = pipe.readline()
        assert line, f"the adapter did not start:\n{(self.folder / 'go.log').read_text()}"
        self.ready = json.loads(line)
        return self

    @property
    def address(self) -> str:
        """Where it serves, with the real port."""
        return self.ready["address"]

    def stop(self) -> int:
        """Ends the process if it still runs; its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)


@pytest.fixture(scope="session")
def built() -> None:
    made = make("build")
    assert made.returncode == 0, made.stdout + made.stderr


@pytest.fixture(scope="module")
def adapter(built: None) -> Iterator[GoAdapter]:
    """One for all tests that leave it running; each has a binding of its own."""
    with tempfile.TemporaryDirectory(prefix="hg-") as folder:
        started = GoAdapter(Path(folder)).start()
        yield started
        assert started.stop() == 0


def client_of(adapter: GoAdapter, **settings: Any):
    settings.setdefault("persistence", blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL)
    settings.setdefault("profile_settings", FAULTS)
    return connected(adapter.address, harness_id="reference_go", **settings)


def script(*steps: dict[str, Any]) -> str:
    return json.dumps({"script": list(steps)})


def test_vet_format_and_unit_tests(built: None):
    checked = make("check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


async def test_a_stop_ends_a_run_and_its_stream_in_order(built: None, folder: Path):
    adapter = GoAdapter(folder, environment={"HARNESS_SHUTDOWN_GRACE_SECONDS": "0"}).start()
    assert (folder / "go.sock").stat().st_mode & 0o777 == 0o600
    async with client_of(adapter) as client:
        answer = await client.adapter.GetDescriptor(adapter_pb2.GetDescriptorRequest())
        assert answer.incarnation == adapter.ready["incarnation"]
        stub: Any = health_pb2_grpc.HealthStub(client.channel)
        for name in ("", "harness.runtime.v1.RuntimeService", "harness.adapter.v1.AdapterService"):
            assert (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status == 1
        await client.create()
        call = client.start(client.fence(1, "r1"), client.input(script({"text": "hi"}, {"sleep": 3600})))
        await call.read()
        stopping = asyncio.create_task(asyncio.to_thread(adapter.stop))
        assert kinds((await call.read()).batch.drafts) == ["run.cancelled"]
        assert await stopping == 0
    assert not (folder / "go.sock").exists()


async def test_a_port_is_served_to_who_has_the_token(built: None, folder: Path):
    without = subprocess.run(
        [str(PROGRAM), "-address", "127.0.0.1:0"], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    assert (without.returncode, "HARNESS_ADAPTER_TOKEN" in without.stderr) == (2, True), without.stderr
    adapter = GoAdapter(folder, "127.0.0.1:0", {"HARNESS_ADAPTER_TOKEN": "right"}).start()
    try:
        for token in ("right", "wrong", ""):
            async with connected(adapter.address, token=token) as client:
                asked = client.adapter.GetDescriptor(adapter_pb2.GetDescriptorRequest(), metadata=client.metadata)
                if token == "right":
                    await asked
                else:
                    await refused(asked, "UNAUTHENTICATED", "unauthenticated")
    finally:
        assert adapter.stop() == 0
