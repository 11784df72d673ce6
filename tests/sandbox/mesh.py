"""What the tests stand on: the real service in a process of its own, a catalog stand-in with profiles, calls into workers."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from pydantic import SecretStr

from harness.catalog.v1 import resolution_service_pb2, resolution_service_pb2_grpc
from harness.common.v1 import blueprint_pb2, fence_pb2, placement_pb2
from harness.runtime.v1 import runtime_pb2
from harness.sandbox.v1 import lease_pb2, sandbox_service_pb2, sandbox_service_pb2_grpc
from services.common.channels import Peer, connect
from services.sandbox.backends.local.cgroups import Cgroups, find_cgroups
from tests.sandbox.probe_worker import HARNESS_ID, RUN

TOKEN = "sandbox-test-token-0001"
CANARY = "canary-5b1f0c77"
SECONDS = 90.0


def _strict_missing() -> str:
    import shutil

    missing = []
    if os.geteuid() != 0:
        missing.append("root")
    if shutil.which("bwrap") is None:
        missing.append("bubblewrap")
    cgroups = find_cgroups(f"harness-sandboxes-tests-{os.getpid()}")
    if isinstance(cgroups, Cgroups):
        cgroups.close()
    else:
        missing.append("writable control groups")
    return ", ".join(missing)


STRICT_MISSING = _strict_missing()
needs_strict = pytest.mark.skipif(bool(STRICT_MISSING), reason=f"strict sandboxes need: {STRICT_MISSING}")


def fence(binding: str, generation: int = 1, epoch: int = 1) -> fence_pb2.Fence:
    return fence_pb2.Fence(protocol_version=1, binding_id=binding, epoch=epoch, runtime_generation=generation)


def context(facades: dict[str, str] | None = None) -> runtime_pb2.RuntimeContext:
    made = runtime_pb2.RuntimeContext(
        contract_version=1,
        blueprint=blueprint_pb2.AgentBlueprint(
            id="a", name="a", harness=blueprint_pb2.HarnessSelection(id=HARNESS_ID, profile_id="none")
        ),
        agent_version=1,
        placement=placement_pb2.PLACEMENT_SANDBOX_POD,
    )
    for audience, address in (facades or {}).items():
        made.facades.add(audience=audience, address=address)
    return made


class Catalog(resolution_service_pb2_grpc.ResolutionServiceServicer):
    """Profiles by id; the real contract, the smallest content."""

    def __init__(self) -> None:
        small = {"worker_module": "tests.sandbox.probe_worker", "memory_mib": 160, "max_pids": 48, "workspace_mib": 8}
        self.profiles: dict[str, dict[str, Any]] = {
            "none": {**small, "isolation": resolution_service_pb2.ISOLATION_NONE},
            "strict": small,
        }

    async def ResolveAgent(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    async def ResolveProfile(self, request: Any, context: Any) -> resolution_service_pb2.ResolveProfileResponse:
        sandbox = resolution_service_pb2.SandboxProfile(**self.profiles[request.profile_id])
        return resolution_service_pb2.ResolveProfileResponse(
            placement=placement_pb2.PLACEMENT_SANDBOX_POD, sandbox=sandbox, contract_version=1
        )


class Mesh:
    """One folder, one catalog, one lifeline, and the sandbox service, which can be killed and started again."""

    def __init__(self, folder: Path, catalog: Catalog, lifeline: bool) -> None:
        self.folder = folder
        self.catalog = catalog
        self.settings: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self.lifeline: tuple[int, int] | None = os.pipe2(os.O_CLOEXEC) if lifeline else None
        self.peer: Peer | None = None
        self.stub: Any = None

    @property
    def root(self) -> Path:
        return self.folder / "data" / "sb"

    @property
    def log(self) -> str:
        return (self.folder / "service.log").read_text()

    async def start(self) -> None:
        read, write = os.pipe2(os.O_CLOEXEC)
        keep = [write, *([self.lifeline[0]] if self.lifeline else [])]
        environment = {
            "PATH": os.environ["PATH"],
            "HARNESS_LISTEN": f"unix:{self.folder}/sandbox.sock",
            "HARNESS_DATA_DIR": f"{self.folder}/data",
            "HARNESS_SERVICE_TOKENS": TOKEN,
            "HARNESS_IDENTITY_KEY": f"{CANARY}-identity-key",
            "HARNESS_CATALOG_ADDRESS": f"unix:{self.folder}/catalog.sock",
            "HARNESS_READY_FD": str(write),
            "AWS_SECRET_ACCESS_KEY": CANARY,
            **({"HARNESS_LIFELINE_FD": str(self.lifeline[0])} if self.lifeline else {}),
            **self.settings,
        }
        with (self.folder / "service.log").open("ab") as log:
            self.process = subprocess.Popen(  # noqa: ASYNC220 - returns at once
                [sys.executable, "-m", "services.sandbox"], env=environment, pass_fds=keep, stderr=log, stdout=log
            )
        os.close(write)
        with os.fdopen(read, "rb") as ready:
            line = await asyncio.to_thread(ready.readline)
        assert line, self.log
        self.peer = connect(environment["HARNESS_LISTEN"], SecretStr(TOKEN))
        self.stub = sandbox_service_pb2_grpc.SandboxServiceStub(self.peer.channel)

    async def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.peer is not None:
            await self.peer.close()
        self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait)

    def cut_lifeline(self) -> None:
        assert self.lifeline is not None
        os.close(self.lifeline[1])
        os.close(self.lifeline[0])
        self.lifeline = None

    async def call(self, name: str, request: Message) -> Any:
        assert self.peer is not None
        return await self.peer.call(getattr(self.stub, name), request, timeout=SECONDS)

    async def acquire(
        self,
        binding: str,
        generation: int = 1,
        *,
        profile: str = "none",
        harness: str = HARNESS_ID,
        reuse_only: bool = False,
        facades: dict[str, str] | None = None,
    ) -> sandbox_service_pb2.AcquireSandboxResponse:
        request = sandbox_service_pb2.AcquireSandboxRequest(
            fence=fence(binding, generation),
            harness_id=harness,
            profile_id=profile,
            context=context(facades),
            reuse_only=reuse_only,
        )
        return await self.call("AcquireSandbox", request)

    async def release(self, binding: str, generation: int = 1) -> bool:
        request = sandbox_service_pb2.ReleaseSandboxRequest(fence=fence(binding, generation))
        return (await self.call("ReleaseSandbox", request)).released

    async def get(self, binding: str) -> lease_pb2.Lease:
        return (await self.call("GetSandbox", sandbox_service_pb2.GetSandboxRequest(binding_id=binding))).lease

    async def in_state(self, binding: str, state: int) -> lease_pb2.Lease:
        """Polls, for nothing signals a lease's state to a client."""
        async with asyncio.timeout(SECONDS):
            while (lease := await self.get(binding)).state != state:  # noqa: ASYNC110 - polls a service
                await asyncio.sleep(0.02)
        return lease

    def keepers(self) -> dict[str, int]:
        """Pids of the keepers by sandbox id."""
        return {path.parent.name: json.loads(path.read_text())["pid"] for path in self.root.glob("lse_*/keeper.json")}

    def keeper_pidfds(self) -> list[int]:
        return [os.pidfd_open(pid) for pid in self.keepers().values() if exists(pid)]


async def inside(lease: lease_pb2.Lease, code: str, timeout: float = SECONDS) -> Any:
    """What `result` is after the code ran in the worker."""
    async with grpc.aio.insecure_channel(
        lease.runtime_ref.address, options=[("grpc.default_authority", "localhost")]
    ) as channel:
        answer = json.loads(await channel.unary_unary(RUN)(code.encode(), timeout=timeout))
    assert "error" not in answer, answer["error"]
    return answer["result"]


def descendants(pid: int) -> set[int]:
    """The process and everything below it."""
    found = {pid}
    for task in Path(f"/proc/{pid}/task").glob("*"):
        for child in (task / "children").read_text().split():
            found |= descendants(int(child))
    return found


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def of_process(pid: int, name: str) -> bytes:
    """A file of /proc/<pid>."""
    return Path(f"/proc/{pid}", name).read_bytes()


def uid_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def control_groups(name: str) -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").rglob(f"{name}*") if path.is_dir()]


async def all_gone(pidfds: list[int]) -> None:
    """Waits until every process has ended; each descriptor becomes readable then."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(SECONDS):
        for pidfd in pidfds:
            ended = asyncio.Event()
            loop.add_reader(pidfd, ended.set)
            await ended.wait()
            loop.remove_reader(pidfd)
            os.close(pidfd)


@asynccontextmanager
async def running_mesh(*, lifeline: bool = True, start: bool = True, **settings: str) -> AsyncGenerator[Mesh]:
    """Everything in a short folder of its own; all ended by pid, and nothing may be left at the end."""
    with tempfile.TemporaryDirectory(prefix="hs-") as name:
        folder = Path(name)
        catalog = Catalog()
        server = grpc.aio.server()
        resolution_service_pb2_grpc.add_ResolutionServiceServicer_to_server(catalog, server)
        server.add_insecure_port(f"unix:{folder}/catalog.sock")
        await server.start()
        mesh = Mesh(folder, catalog, lifeline)
        mesh.settings = dict(settings)
        try:
            if start:
                await mesh.start()
            yield mesh
        except BaseException:
            sys.stderr.write(mesh.log)
            raise
        finally:
            if mesh.process is not None and mesh.process.poll() is None:
                await mesh.stop()
            keepers = mesh.keeper_pidfds()
            if mesh.lifeline is not None:
                mesh.cut_lifeline()
            await all_gone(keepers)
            await server.stop(0)
