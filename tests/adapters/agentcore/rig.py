"""The adapter with its real SDK behind the contract, between the stand-in of its provider and a control plane of the test's own."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapters.agentcore.adapter import AgentCoreAdapter
from adapters.sdk.serve import AdapterServer, serve_adapter
from conformance.plane.binding import Binding, Setting
from conformance.plane.broker import ECHO, PAY, SUM, AskFirst, Break, Succeed
from conformance.plane.canary import Canaries
from conformance.plane.facades import Facades
from conformance.plane.observations import Observations
from conformance.plane.run import Run
from conformance.plane.target import Target
from harness.common.v1 import blueprint_pb2, placement_pb2
from harness.runtime.v1 import runtime_pb2
from tests.standins.agentcore import ACCOUNT, REGION, AgentCore

HARNESS = f"arn:aws:bedrock-agentcore:{REGION}:{ACCOUNT}:harness/agent-0123456789"
RUNTIME = f"arn:aws:bedrock-agentcore:{REGION}:{ACCOUNT}:runtime/agent-0123456789"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/approved"
ANSWERS = {
    ECHO: Succeed({"said": "hello"}),
    SUM: Break("sum_failed", "Cannot add."),
    PAY: AskFirst(Succeed("paid"), Succeed("paid otherwise")),
}


class Conversation(Binding):
    """A binding whose thread a test may do without."""

    ephemeral = False

    def blueprint(self) -> blueprint_pb2.AgentBlueprint:
        blueprint = super().blueprint()
        if self.ephemeral:
            blueprint.thread.persistence = blueprint_pb2.THREAD_PERSISTENCE_EPHEMERAL
        return blueprint


@dataclass
class Rig:
    """Everything of one test."""

    standin: AgentCore
    folder: Path
    facades: Facades
    canaries: Canaries
    server: AdapterServer
    servers: list[AdapterServer] = field(default_factory=list[AdapterServer])
    targets: list[Target] = field(default_factory=list[Target])

    async def conversation(
        self, *, options: Mapping[str, Any] | None = None, ephemeral: bool = False, **settings: Any
    ) -> Conversation:
        """A new conversation, its runtime made, with a profile of these settings."""
        profile = {"region": REGION, "endpoint_url": self.standin.url, "harness_arn": HARNESS, **settings}
        target = self.target(self.server.address)
        setting = Setting(
            target,
            self.facades,
            self.server.adapter.descriptor,
            Observations(),
            False,
            placement_pb2.PLACEMENT_PROVIDER_MANAGED,
            profile,
            dict(options or {}),
        )
        made = Conversation(setting, target)
        made.ephemeral = ephemeral
        made.tools.answers = dict(ANSWERS)
        await made.create()
        return made

    def target(self, address: str) -> Target:
        self.targets.append(Target(address, self.canaries))
        return self.targets[-1]

    async def another_host(self) -> Target:
        """A second adapter host."""
        address = f"unix:{self.folder / f'host-{len(self.servers)}.sock'}"
        self.servers.append(await serve_adapter(AgentCoreAdapter, listen=address))
        return self.target(address)

    async def close(self) -> None:
        for target in self.targets:
            await target.close()
        for server in (self.server, *self.servers):
            await server.stop(0)


@contextlib.asynccontextmanager
async def rigged(standin: AgentCore) -> AsyncGenerator[Rig, None]:
    """A rig, gone afterwards."""
    canaries = Canaries()
    with tempfile.TemporaryDirectory(prefix="ac-") as folder:
        server = await serve_adapter(AgentCoreAdapter, listen=f"unix:{folder}/host.sock")
        async with Facades(canaries, server.address) as facades:
            made = Rig(standin, Path(folder), facades, canaries, server)
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


def decision(run: Run, **decided: str | dict[str, Any]) -> runtime_pb2.ResumeDecision:
    """Decisions on calls, by id: `approve`, other arguments, or why they are refused."""
    made = runtime_pb2.ResumeDecision(interrupt_id=run.last.payload.run_interrupted.interrupt_id, revision=1)
    for identity, what in decided.items():
        one = made.tool_decisions.decisions.add(tool_call_id=identity)
        if isinstance(what, dict):
            one.edit.update(what)
        elif what == "approve":
            one.approve = True
        else:
            one.reject = what
    return made


async def reached(condition: Callable[[], object], seconds: float = 90.0) -> None:
    """Waits for a condition that nothing signals."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - threads and sockets signal nothing
            await asyncio.sleep(0.005)
