"""The mesh that is put to the test: which processes it has now, which life of runs is which, what its stores are."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from harness.run.v1 import run_service_pb2, run_service_pb2_grpc
from tests.chaos.store_server import StoreServer
from tests.chaos.stored import SqliteStores, Stores
from tests.chaos.stored_mongo import MongoStores
from tests.support.mesh import RunningMesh

PROBE_SUBJECT: Final = "chaos-probe"
LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Member:
    """One process as it is now; `pid` 0: it does not run."""

    name: str
    service: str
    pid: int
    address: str


@dataclass(slots=True)
class ChaosMesh:
    """A running mesh, and the server its records are on when that is a process of its own."""

    mesh: RunningMesh
    server: StoreServer | None = None
    lives: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    """Runs processes, by name and pid, and how each names itself on the leases it holds."""

    @property
    def bus_path(self) -> str:
        """The socket of the bus."""
        return next(member.address for member in self.members("bus")).removeprefix("unix:")

    @property
    def urls(self) -> list[str]:
        """Where the gateways are."""
        return [f"http://{member.address}" for member in self.members("gateway")]

    def store_file(self, service: str) -> Path:
        """The embedded store of a service."""
        return self.mesh.data_dir / "store" / f"{service}.sqlite3"

    def stores(self) -> Stores:
        """Its stores, to be read; each time by connections of their own."""
        return SqliteStores(self.mesh.data_dir / "store") if self.server is None else MongoStores(self.server.url)

    def members(self, service: str = "") -> list[Member]:
        """All processes, or those of one service, also the ones that do not run."""
        found = [
            Member(
                str(entry["name"]),
                "adapter" if str(entry["service"]).startswith("adapter-") else str(entry["service"]),
                int(entry["pid"]),
                str(entry["address"]),
            )
            for entry in self.mesh.state["processes"]
        ]
        if self.server is not None and self.server.restarts:
            found.append(Member("store", "store", self.server.pid, self.server.url))
        return [member for member in found if not service or member.service == service]

    def life_of(self, member: Member) -> str:
        """How a runs process names itself on the leases it holds; empty while that is not known."""
        return self.lives.get((member.name, member.pid), "")

    def member_of(self, holder: str) -> Member | None:
        """The process of a life, if it is known and still that."""
        if not holder:
            return None
        for (name, pid), life in self.lives.items():
            if life == holder:
                return next(
                    (member for member in self.members("runs") if (member.name, member.pid) == (name, pid)), None
                )
        return None

    async def back(self, member: Member, seconds: float) -> None:
        """Returns once a process that was ended has a successor, bounded."""
        bound = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < bound:
            now = next((each for each in self.members(member.service) if each.name == member.name), member)
            if now.pid not in (0, member.pid):
                return
            await asyncio.sleep(LOOK_SECONDS)

    def service_token(self) -> str:
        """The credential of its services."""
        return (self.mesh.data_dir / "secrets" / "service-token").read_text("utf-8").strip()

    @asynccontextmanager
    async def stub_of(self, member: Member) -> AsyncGenerator[run_service_pb2_grpc.RunServiceStub]:
        """A stub of exactly this runs process, for callers that add `metadata`."""
        async with grpc.aio.insecure_channel(member.address) as channel:
            yield run_service_pb2_grpc.RunServiceStub(channel)

    def metadata(self, subject: str) -> list[tuple[str, str]]:
        """What a service sends along."""
        return [("authorization", f"Bearer {self.service_token()}"), ("harness-subject", subject)]

    async def learn_lives(self, agent: str) -> None:
        """Finds out how every runs process names itself, for as long as it is not cancelled: what is started at it is held by it."""
        stores = self.stores()
        while True:
            for member in self.members("runs"):
                if member.pid and (member.name, member.pid) not in self.lives:
                    holder = await self._holder_of_a_start(member, agent, stores)
                    if holder:
                        self.lives[member.name, member.pid] = holder
            await asyncio.sleep(4 * LOOK_SECONDS)

    async def _holder_of_a_start(self, member: Member, agent: str, stores: Stores) -> str:
        request = run_service_pb2.StartRunRequest(
            agent_id=agent,
            conversation_id=f"probe-{os.urandom(8).hex()}",
            message=json.dumps({"n": 1, "delay": 0.3}),
        )
        async with self.stub_of(member) as stub:
            try:
                started = await stub.StartRun(request, timeout=5, metadata=self.metadata(PROBE_SUBJECT))
            except grpc.aio.AioRpcError:  # it is not there yet, or another fault came in between: asked again
                return ""
        document = stores.run(started.run.run_id)
        return str(document["holder"]) if document is not None else ""
