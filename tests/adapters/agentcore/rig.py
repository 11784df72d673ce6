"""The adapter with its real SDK behind the contract, between the stand-in of its provider and a control plane of the test's own."""

import contextlib
import json
import tempfile
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapters.agentcore.adapter import AgentCoreAdapter
from adapters.sdk.serve import serve_adapter
from conformance.plane.canary import Canaries
from conformance.plane.facades import Facades
from harness.common.v1 import blueprint_pb2, placement_pb2
from tests.adapters.rig import Conversation, HostRig
from tests.standins.agentcore import ACCOUNT, REGION, AgentCore

HARNESS = f"arn:aws:bedrock-agentcore:{REGION}:{ACCOUNT}:harness/agent-0123456789"
RUNTIME = f"arn:aws:bedrock-agentcore:{REGION}:{ACCOUNT}:runtime/agent-0123456789"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/approved"


@dataclass(kw_only=True)
class Rig(HostRig):
    """Everything of one test."""

    adapter = AgentCoreAdapter

    standin: AgentCore

    async def conversation(
        self, *, options: Mapping[str, Any] | None = None, ephemeral: bool = False, **settings: Any
    ) -> Conversation:
        """A new conversation, its runtime made, with a profile of these settings."""
        profile = {"region": REGION, "endpoint_url": self.standin.url, "harness_arn": HARNESS, **settings}
        change = _ephemeral if ephemeral else None
        made = self.bound(profile, options, placement_pb2.PLACEMENT_PROVIDER_MANAGED, change)
        await made.create()
        return made


@contextlib.asynccontextmanager
async def rigged(standin: AgentCore) -> AsyncGenerator[Rig, None]:
    """A rig, gone afterwards."""
    canaries = Canaries()
    with tempfile.TemporaryDirectory(prefix="ac-") as folder:
        server = await serve_adapter(AgentCoreAdapter, listen=f"unix:{folder}/host.sock")
        async with Facades(canaries, server.address) as facades:
            made = Rig(standin=standin, folder=Path(folder), facades=facades, canaries=canaries, server=server)
            try:
                yield made
            finally:
                await made.close()


def script(*steps: Mapping[str, Any]) -> str:
    """A message that is a script of the stand-in."""
    return json.dumps({"script": list(steps)})


def call(name: str, call_id: str, **arguments: Any) -> dict[str, Any]:
    """A call within a `tools` step."""
    return {"id": call_id, "name": name, "arguments": arguments}


def answers(standin: AgentCore, place: int = -1) -> dict[str, dict[str, Any]]:
    """What the provider was told of each call in the last request, or in the one at that place."""
    (message,) = standin.of("InvokeHarness")[place].document["messages"]
    told: dict[str, dict[str, Any]] = {}
    for block in message["content"]:
        if "toolResult" in block:
            result = block["toolResult"]
            assert result["toolUseId"] not in told, "a call has one result"
            (content,) = result["content"]
            told[result["toolUseId"]] = {**content["json"], "status": result["status"]}
    return told


def _ephemeral(blueprint: blueprint_pb2.AgentBlueprint) -> None:
    blueprint.thread.persistence = blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL
