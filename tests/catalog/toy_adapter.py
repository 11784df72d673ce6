"""A small real adapter host for the tests, in this process or as one of its own: `python -m tests.catalog.toy_adapter FILE`.

What it says is a dict, so that a test can write it down, change it while it runs, and hand it to a process as a file.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import json_format

from harness.adapter.v1 import adapter_service_pb2 as pb
from harness.adapter.v1.adapter_service_pb2_grpc import AdapterServiceServicer, add_AdapterServiceServicer_to_server

OPTIONS_SCHEMA = {
    "type": "object",
    "properties": {
        "max_turns": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
        "tone": {"type": "string", "enum": ["warm", "dry"]},
        "nested": {"type": "object", "properties": {"depth": {"type": "integer", "default": 2}}},
        "tag": {"type": "string", "pattern": "^[a-z]+$"},
    },
}
NATIVE = "CAPABILITY_LEVEL_NATIVE"


def descriptor(harness_id: str = "toy", **changes: Any) -> dict[str, Any]:
    """A good descriptor, with changes."""
    return {
        "harness_id": harness_id,
        "display_name": "Toy harness",
        "description": "Plays.",
        "adapter_version": "1.2.3",
        "sdk_name": "toy-sdk",
        "sdk_version": "9.1",
        "contract_versions": [1],
        "placements": ["PLACEMENT_PROVIDER_MANAGED", "PLACEMENT_SANDBOX_POD"],
        "trust_boundary": "TRUST_BOUNDARY_PROCESS",
        "thread_state_strategy": "THREAD_STATE_STRATEGY_ADAPTER_STORE",
        "options_schema": OPTIONS_SCHEMA,
        "presentation": {"order": ["tone", "max_turns"]},
        "capabilities": {
            "stream.text": {"level": NATIVE, "evidence_id": "claimed-by-itself"},
            "session.multi_turn": {"level": NATIVE},
            "subagents": {"level": "CAPABILITY_LEVEL_UNSUPPORTED"},
        },
        "evidence_id": "claimed-by-itself",
        "replay_safe": True,
    } | changes


class ToyAdapter(AdapterServiceServicer):
    """Answers from `says`: `descriptor`, `incarnation`, `health`, `evaluate`; `hang` names methods that never answer."""

    def __init__(self, says: Mapping[str, Any]) -> None:
        self.says: dict[str, Any] = {"descriptor": descriptor(), "incarnation": "inc-1", **says}
        self.asked: dict[str, int] = {}
        self.tokens: list[str] = []
        self.evaluated: list[pb.EvaluateRequest] = []
        self.released = asyncio.Event()

    async def _enter(self, method: str, context: Any) -> None:
        self.asked[method] = self.asked.get(method, 0) + 1
        self.tokens.append(dict(context.invocation_metadata()).get("authorization", ""))
        if method in self.says.get("hang", ()):
            await self.released.wait()
        failure = self.says.get("fail", {}).get(method)
        if failure:
            await context.abort(grpc.StatusCode[failure[0]], failure[1])

    async def GetDescriptor(self, request: Any, context: Any) -> pb.GetDescriptorResponse:
        await self._enter("GetDescriptor", context)
        return json_format.ParseDict(
            {"descriptor": self.says["descriptor"], "incarnation": self.says["incarnation"]}, pb.GetDescriptorResponse()
        )

    async def CheckHealth(self, request: Any, context: Any) -> pb.CheckHealthResponse:
        await self._enter("CheckHealth", context)
        health = self.says.get("health", {"status": "HEALTH_STATUS_HEALTHY"})
        return json_format.ParseDict({"report": health}, pb.CheckHealthResponse())

    async def Evaluate(self, request: pb.EvaluateRequest, context: Any) -> pb.EvaluateResponse:
        await self._enter("Evaluate", context)
        self.evaluated.append(request)
        return json_format.ParseDict(self.says.get("evaluate", {}), pb.EvaluateResponse())

    async def CreateRuntime(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the catalog runs nothing")

    async def OpenSession(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the catalog runs nothing")

    async def CloseSession(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "the catalog runs nothing")


async def serve(adapter: ToyAdapter, address: str) -> grpc.aio.Server:
    """Serves the adapter at an address; the caller stops the server."""
    server = grpc.aio.server()
    add_AdapterServiceServicer_to_server(adapter, server)
    server.add_insecure_port(address)
    await server.start()
    return server


async def _main(says: dict[str, Any]) -> None:
    server = await serve(ToyAdapter(says), says["address"])
    descriptor_number = int(os.environ["HARNESS_READY_FD"])
    os.write(descriptor_number, b"ready\n")
    os.close(descriptor_number)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_main(json.loads(Path(sys.argv[1]).read_text())))
