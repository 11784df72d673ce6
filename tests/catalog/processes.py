"""Real catalog processes over real sockets and one real SQLite file, and clients of them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import json_format
from pydantic import SecretStr

from harness.catalog.v1 import agent_service_pb2 as agents
from harness.catalog.v1 import agent_service_pb2_grpc, harness_service_pb2_grpc, resolution_service_pb2_grpc
from harness.catalog.v1 import harness_service_pb2 as harnesses
from harness.catalog.v1 import resolution_service_pb2 as resolution
from harness.common.v1.blueprint_pb2 import AgentBlueprint
from services.common.channels import connect
from services.common.errors import HarnessError, Reason

TOKEN = "service-token-of-the-tests"
AVAILABLE, UNAVAILABLE, BLOCKED = 1, 2, 3


def operator(*adapters: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An operator file as a dict; without adapters: the toy one, with its profiles."""
    return {"version": 1, "adapters": list(adapters) or [toy_entry()], **more}


def toy_entry(harness_id: str = "toy", **changes: Any) -> dict[str, Any]:
    return {
        "harness_id": harness_id,
        "address": f"unix:run/{harness_id}.sock",
        "profiles": [
            {
                "id": "default",
                "description": "Runs in the adapter host.",
                "placement": "provider_managed",
                "settings": {"region": "canary-setting-77"},
                "model_aliases": ["fast"],
                "limits": {"max_run_seconds": 1200, "max_concurrent_runs": 7},
            },
            {
                "id": "sandboxed",
                "placement": "sandbox_pod",
                "sandbox": {"worker_module": "adapters.reference", "memory_mib": 256},
            },
            {"id": "inside", "placement": "in_process"},
        ],
    } | changes


def blueprint(agent_id: str = "writer", **changes: Any) -> dict[str, Any]:
    return {"id": agent_id, "name": "Writer", "harness": {"id": "toy"}} | changes


def message(document: dict[str, Any]) -> AgentBlueprint:
    return json_format.ParseDict(document, AgentBlueprint())


@dataclass
class Catalog:
    """One process of the service. Several may share `folder`, and so the store."""

    folder: Path
    name: str = "a"
    settings: dict[str, str] = field(default_factory=dict)
    module: str = "services.catalog"
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def address(self) -> str:
        return f"unix:{self.folder}/{self.name}.sock"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def config(self) -> Path:
        return self.folder / "harness.yaml"

    def write_config(self, document: dict[str, Any]) -> None:
        self.config.write_text(yaml.safe_dump(document))

    def environment(self) -> dict[str, str]:
        keep = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
        return keep | {
            "HARNESS_LISTEN": self.address,
            "HARNESS_DATA_DIR": str(self.folder),
            "HARNESS_CONFIG_FILE": str(self.config),
            "HARNESS_SERVICE_TOKENS": TOKEN,
            "HARNESS_IDENTITY_KEY": "identity-key-of-the-tests",
            "HARNESS_DIE_WITH_PARENT": str(os.getpid()),
            **self.settings,
        }

    async def start(self) -> "Catalog":
        """Returns once the process says that it serves."""
        self.process, line = await spawn([sys.executable, "-m", self.module], self.environment(), self.log)
        assert line, f"the service did not start:\n{self.log.read_text()}"
        assert json.loads(line)["address"] == self.address
        return self

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Ends the process if it still runs; its exit code."""
        assert self.process is not None
        return await end(self.process, number)


async def spawn(command: list[str], environment: dict[str, str], log: Path) -> tuple["subprocess.Popen[bytes]", str]:
    """The process and the line with which it said that it serves; empty if it ended instead."""
    process, reading = _popen(command, environment, log)
    with os.fdopen(reading) as pipe:
        return process, await asyncio.to_thread(pipe.readline)


def _popen(command: list[str], environment: dict[str, str], log: Path) -> tuple["subprocess.Popen[bytes]", int]:
    reading, writing = os.pipe()
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=environment | {"HARNESS_READY_FD": str(writing)},
            pass_fds=[writing],
            stdout=output,
            stderr=output,
        )
    os.close(writing)
    return process, reading


async def end(process: "subprocess.Popen[bytes]", number: int = signal.SIGTERM) -> int:
    if process.poll() is None:
        process.send_signal(number)
    return await asyncio.to_thread(process.wait, 30)


class Client:
    """Calls one catalog as another service would."""

    catalog: Catalog

    def __init__(self, address: str) -> None:
        self.peer = connect(address, SecretStr(TOKEN))
        channel: Any = self.peer.channel
        self.harnesses: Any = harness_service_pb2_grpc.HarnessServiceStub(channel)
        self.agents: Any = agent_service_pb2_grpc.AgentServiceStub(channel)
        self.resolution: Any = resolution_service_pb2_grpc.ResolutionServiceStub(channel)

    async def close(self) -> None:
        await self.peer.close()

    async def list(self) -> Any:
        return await self.peer.call(self.harnesses.ListHarnesses, harnesses.ListHarnessesRequest())

    async def harness(self, harness_id: str = "toy") -> Any:
        return next(one for one in (await self.list()).harnesses if one.harness_id == harness_id)

    async def health(self, harness_id: str = "toy") -> Any:
        request = harnesses.GetHarnessHealthRequest(harness_id=harness_id)
        return (await self.peer.call(self.harnesses.GetHarnessHealth, request)).health

    async def validate(self, document: dict[str, Any] | AgentBlueprint, catalog_revision: str = "") -> Any:
        draft = document if isinstance(document, AgentBlueprint) else message(document)
        request = agents.ValidateAgentDraftRequest(blueprint=draft, catalog_revision=catalog_revision)
        return (await self.peer.call(self.agents.ValidateAgentDraft, request, timeout=30)).report

    async def issues(self, document: dict[str, Any] | AgentBlueprint) -> set[tuple[str, str]]:
        report = await self.validate(document)
        assert report.valid == (not report.issues)
        return {(issue.path, issue.code) for issue in report.issues}

    async def save(self, document: dict[str, Any], **claims: Any) -> Any:
        request = agents.SaveAgentRequest(agent_id=document["id"], blueprint=message(document), **claims)
        return await self.peer.call(self.agents.SaveAgent, request, timeout=60)

    async def get(self, agent_id: str = "writer") -> Any:
        return await self.peer.call(self.agents.GetAgent, agents.GetAgentRequest(agent_id=agent_id))

    async def version(self, number: int, agent_id: str = "writer") -> Any:
        request = agents.GetAgentVersionRequest(agent_id=agent_id, version=number)
        return await self.peer.call(self.agents.GetAgentVersion, request)

    async def versions(self, agent_id: str = "writer", **page: Any) -> Any:
        request = agents.ListAgentVersionsRequest(agent_id=agent_id, **page)
        return await self.peer.call(self.agents.ListAgentVersions, request)

    async def list_agents(self, **page: Any) -> Any:
        return await self.peer.call(self.agents.ListAgents, agents.ListAgentsRequest(**page))

    async def disable(self, agent_id: str = "writer") -> Any:
        return (await self.peer.call(self.agents.DisableAgent, agents.DisableAgentRequest(agent_id=agent_id))).record

    async def resolve_agent(self, agent_id: str = "writer", version: int = 0, record_only: bool = False) -> Any:
        request = resolution.ResolveAgentRequest(agent_id=agent_id, version=version, record_only=record_only)
        return await self.peer.call(self.resolution.ResolveAgent, request)

    async def resolve(self, harness_id: str = "toy", profile_id: str = "default") -> Any:
        request = resolution.ResolveProfileRequest(harness_id=harness_id, profile_id=profile_id)
        return await self.peer.call(self.resolution.ResolveProfile, request)


async def refused(reason: Reason, call: Any) -> HarnessError:
    """The error with which a call ends, which must be of this reason."""
    with pytest.raises(HarnessError) as caught:
        await call
    assert caught.value.reason is reason, caught.value
    return caught.value


async def until(look: Callable[[], Any], holds: Callable[[Any], bool], seconds: float = 60) -> Any:
    """What `look` gives once it `holds`: for what changes by itself and signals nobody here."""
    async with asyncio.timeout(seconds):
        while True:
            seen = await look()
            if holds(seen):
                return seen
            await asyncio.sleep(0.02)
