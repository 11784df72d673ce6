"""What a provider has against what the operator registered: told in the log, and nothing else changes (tool provider contract; I18, I23)."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from harness.runtime.v1.runtime_pb2 import ToolDescriptor
from harness.tool.v1 import tool_provider_service_pb2 as pb
from harness.tool.v1 import tool_provider_service_pb2_grpc as pb_grpc
from services.catalog.provider_check import Finding, Offered, findings
from tests.catalog.conftest import Start
from tests.catalog.processes import until
from tests.catalog.test_tools import CLOCK, CRM, file_with, load

IDEMPOTENT = CRM | {"id": "crm.read", "idempotent": True}


def test_only_what_an_operator_has_to_know_is_a_finding(tmp_path: Path) -> None:
    tools = load(tmp_path / "harness.yaml", CRM, IDEMPOTENT, CLOCK).tools
    registered = [tools["crm.find"], tools["crm.read"]]
    assert list(findings(registered, [])) == [
        Finding("tool_not_offered", "crm.find"),
        Finding("tool_not_offered", "crm.read"),
    ]
    offered = [Offered("crm.find", True), Offered("crm.read", False), Offered("crm.more", False)]
    assert list(findings(registered, offered)) == [Finding("tool_not_idempotent", "crm.read")]


class Provider(pb_grpc.ToolProviderServiceServicer):
    def __init__(self, *tool_ids: str) -> None:
        self.tool_ids = tool_ids
        self.credentials: list[str] = []

    async def ListProviderTools(self, request: Any, context: Any) -> pb.ListProviderToolsResponse:
        self.credentials += [str(value) for key, value in context.invocation_metadata() if key == "authorization"]
        tools = [ToolDescriptor(tool_id=tool_id, provider_name="x") for tool_id in self.tool_ids]
        return pb.ListProviderToolsResponse(tools=tools)

    async def InvokeProviderTool(self, request: Any, context: Any) -> pb.InvokeProviderToolResponse:
        raise AssertionError("the catalog calls no tool")


@asynccontextmanager
async def served(provider: Provider, address: str) -> AsyncGenerator[None]:
    server = grpc.aio.server()
    pb_grpc.add_ToolProviderServiceServicer_to_server(provider, server)
    server.add_insecure_port(address)
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


async def test_the_catalog_serves_at_once_and_tells_of_providers_when_they_are_there(
    folder: Path, start: Start
) -> None:
    (folder / "token").write_text("canary-token-66")
    there = {"provider": f"unix:{folder}/there.sock", "token_file": str(folder / "token")}
    tools = [CRM | there, IDEMPOTENT | there, CRM | {"id": "away", "provider": f"unix:{folder}/away.sock"}]
    provider = Provider("crm.read")
    async with served(provider, there["provider"]):
        client = await start(file_with(*tools))

        async def said() -> list[tuple[str, str]]:
            text = await asyncio.to_thread(client.catalog.log.read_text)
            lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
            return [(line["event"], line.get("tool_id", "")) for line in lines]

        wanted = {
            ("tool_not_offered", "crm.find"),
            ("tool_not_idempotent", "crm.read"),
            ("tool_provider_seen", ""),
            ("tool_provider_not_seen", "away"),
        }
        await until(said, wanted.issubset)
    # One provider of two tools is asked once, with its own credential, which is nowhere in the log.
    assert provider.credentials == ["Bearer canary-token-66"]
    assert "canary" not in client.catalog.log.read_text()
