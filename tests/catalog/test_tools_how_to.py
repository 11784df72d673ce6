"""The page on giving an agent tools is true: its files are accepted, and its provider answers as the contract says."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import yaml
from google.protobuf import json_format

from harness.event.v1 import payload_pb2
from harness.tool.v1 import tool_provider_service_pb2 as pb
from harness.tool.v1 import tool_provider_service_pb2_grpc as pb_grpc
from services.catalog.operator_file import load_operator_file
from services.catalog.validation import judge
from tests.catalog.processes import end, message, operator, spawn
from tests.catalog.test_tools import BASIC, snapshot

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "give-an-agent-tools.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_tools_of_the_page_can_be_registered_and_its_agent_saved(tmp_path: Path) -> None:
    tools, agent = (yaml.safe_load(block) for block in blocks("yaml"))
    path = tmp_path / "harness.yaml"
    path.write_text(yaml.safe_dump(operator(**tools)))
    registered = load_operator_file(path, tmp_path, {"STOCK_TOKEN": "x"}).tools
    assert set(registered) == {"calculator", "clock", "http_get", "stock.count"}
    # As the page of the command's agents spells it; the harness of the page is not the one of these tests.
    agent["harness"] = {"id": "toy"}
    for section in (agent["tools"], *agent["tools"]["bindings"]):
        if "approval_policy" in section:
            section["approval_policy"] = f"APPROVAL_POLICY_{section['approval_policy'].upper()}"
    verdict = judge(message(agent), snapshot(registered, (*BASIC, "interrupt.tool_approval")))
    assert verdict.issues == ()


async def test_the_provider_of_the_page_answers(tmp_path: Path, folder: Path) -> None:
    program = tmp_path / "stock.py"
    # The line it prints is what its reader waits for.
    program.write_text(blocks("python")[0].replace('print("serving", flush=True)', SAYS))
    address = f"unix:{folder}/stock.sock"
    environment = {**os.environ, "STOCK_TOKEN": "secret"}
    process, line = await spawn([sys.executable, str(program), address], environment, tmp_path / "log")
    try:
        assert line, (tmp_path / "log").read_text()
        async with grpc.aio.insecure_channel(address) as channel:
            stub: Any = pb_grpc.ToolProviderServiceStub(channel)
            good = (("authorization", "Bearer secret"),)
            listed = await stub.ListProviderTools(pb.ListProviderToolsRequest(), metadata=good)
            assert [tool.tool_id for tool in listed.tools] == ["stock.count"]
            found = await stub.InvokeProviderTool(request("chair"), metadata=good)
            assert found.outcome == payload_pb2.TOOL_OUTCOME_SUCCESS
            assert json_format.MessageToDict(found.result) == {"pieces": 4}
            unknown = await stub.InvokeProviderTool(request("table"), metadata=good)
            assert (unknown.outcome, unknown.error.code) == (payload_pb2.TOOL_OUTCOME_ERROR, "article_unknown")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.InvokeProviderTool(request("chair"))
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    finally:
        await end(process)


SAYS = 'os.write(int(os.environ["HARNESS_READY_FD"]), b"serving\\n")'


def request(article: str) -> pb.InvokeProviderToolRequest:
    made = pb.InvokeProviderToolRequest(tool_id="stock.count", idempotency_key="k1")
    made.arguments.update({"article": article})
    return made
