"""How a mesh on this machine is: every process asked itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import grpc
import httpx
import redis.asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cli.mesh.layout import Layout
from cli.mesh.state_file import ProcessEntry, read_state
from harness.adapter.v1 import adapter_service_pb2, adapter_service_pb2_grpc

CHECK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One process. `version` is empty when it could not be asked, `url` where it is no gateway."""

    name: str
    service: str
    replica: int
    pid: int
    address: str
    url: str
    healthy: bool
    version: str


async def mesh_status(layout: Layout) -> list[dict[str, Any]] | None:
    """The processes of the mesh on this data folder, in the order they were started; None: no mesh runs there."""
    state = read_state(layout.state_file)
    if state is None:
        return None
    statuses = await asyncio.gather(*(_status(entry) for entry in state.processes))
    return [asdict(status) for status in statuses]


async def _status(entry: ProcessEntry) -> ServiceStatus:
    healthy, found = False, ""
    if entry.pid:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                healthy, found = await _check_of(entry.service)(entry.address)
        except (TimeoutError, grpc.aio.AioRpcError, httpx.HTTPError, redis.RedisError, OSError):
            healthy = False
    return ServiceStatus(entry.name, entry.service, entry.replica, entry.pid, entry.address, entry.url, healthy, found)


def _check_of(service: str) -> Callable[[str], Awaitable[tuple[bool, str]]]:
    if service == "bus":
        return _check_bus
    if service == "gateway":
        return _check_gateway
    if service == "egress":
        return _check_egress
    return _check_adapter if service.startswith("adapter-") else _check_service


async def _check_service(address: str) -> tuple[bool, str]:
    async with grpc.aio.insecure_channel(address) as channel:
        return await _serving(channel), version("harness-mesh")


async def _check_adapter(address: str) -> tuple[bool, str]:
    async with grpc.aio.insecure_channel(address) as channel:
        serving = await _serving(channel)
        answer = await adapter_service_pb2_grpc.AdapterServiceStub(channel).GetDescriptor(
            adapter_service_pb2.GetDescriptorRequest(), timeout=CHECK_SECONDS
        )
        return serving, answer.descriptor.adapter_version


async def _serving(channel: grpc.aio.Channel) -> bool:
    stub: Any = health_pb2_grpc.HealthStub(channel)  # the package comes without types
    answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=CHECK_SECONDS)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def _check_gateway(address: str) -> tuple[bool, str]:
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"http://{address}/readyz", timeout=CHECK_SECONDS)
        return answer.status_code == 200, version("harness-mesh")


async def _check_egress(address: str) -> tuple[bool, str]:
    transport = httpx.AsyncHTTPTransport(uds=address.removeprefix("unix:"))
    async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
        answer = await client.get("http://egress/healthz", timeout=CHECK_SECONDS)
        return answer.status_code == 200, version("harness-mesh")


async def _check_bus(address: str) -> tuple[bool, str]:
    client = redis.asyncio.Redis(unix_socket_path=address.removeprefix("unix:"), socket_timeout=CHECK_SECONDS)
    try:
        information = await client.info("server")
    finally:
        await client.aclose()
    return True, str(information.get("valkey_version") or information.get("redis_version", ""))
