"""The adapter with its real SDK and program, behind the contract, between a provider and a control plane of the test's own."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adapters.claude_agent_sdk.adapter import ClaudeAdapter
from adapters.sdk.serve import AdapterServer, serve_adapter
from conformance.plane.binding import Binding, Setting
from conformance.plane.broker import ECHO, PAY, SUM, AskFirst, Break, Succeed
from conformance.plane.canary import Canaries
from conformance.plane.facades import Facades
from conformance.plane.observations import Observations
from conformance.plane.run import Draft, Run, Stream, kind
from conformance.plane.target import Target
from harness.common.v1 import blueprint_pb2, placement_pb2
from harness.runtime.v1 import runtime_pb2
from tests.adapters.claude.model import Model

KEY = "test-key-of-the-profile"
ANSWERS = {
    ECHO: Succeed({"said": "hello"}),
    SUM: Break("sum_failed", "Cannot add."),
    PAY: AskFirst(Succeed("paid"), Succeed("paid otherwise")),
}


class Conversation(Binding):
    """A binding whose blueprint a test may change."""

    change: Callable[[blueprint_pb2.AgentBlueprint], None] | None = None

    def blueprint(self) -> blueprint_pb2.AgentBlueprint:
        """The kit's agent, changed."""
        blueprint = super().blueprint()
        if self.change is not None:
            self.change(blueprint)
        return blueprint


@dataclass
class Rig:
    """Everything of one test. `server` is one adapter host; `another_host` makes more."""

    model: Model
    folder: Path
    facades: Facades
    canaries: Canaries
    server: AdapterServer
    servers: list[AdapterServer] = field(default_factory=list[AdapterServer])
    targets: list[Target] = field(default_factory=list[Target])

    def conversation(
        self,
        *,
        options: Mapping[str, Any] | None = None,
        change: Callable[[blueprint_pb2.AgentBlueprint], None] | None = None,
        placement: "placement_pb2.Placement.ValueType" = placement_pb2.PLACEMENT_IN_PROCESS,
        address: str = "",
        **settings: Any,
    ) -> Conversation:
        """A new conversation with a profile of these settings; None takes one of the rig's own out. `address`: of another host."""
        target = self.target(address or self.server.address)
        given = {
            "credential_file": str(self.folder / "key"),
            "base_url": self.model.url,
            "model": "claude-test-1",
            "workspace_root": str(self.folder / "first"),
            **settings,
        }
        profile = {key: value for key, value in given.items() if value is not None}
        descriptor = self.server.adapter.descriptor
        setting = Setting(
            target, self.facades, descriptor, Observations(), False, placement, profile, dict(options or {})
        )
        conversation = Conversation(setting, target)
        conversation.change = change
        conversation.tools.answers = dict(ANSWERS)
        return conversation

    def target(self, address: str) -> Target:
        """A channel to a host."""
        self.targets.append(Target(address, self.canaries))
        return self.targets[-1]

    async def another_host(self) -> Target:
        """A second adapter host."""
        address = f"unix:{self.folder / f'host-{len(self.servers)}.sock'}"
        self.servers.append(await serve_adapter(ClaudeAdapter, listen=address))
        return self.target(self.servers[-1].address)

    async def close(self) -> None:
        """Ends every host and channel."""
        for target in self.targets:
            await target.close()
        for server in (self.server, *self.servers):
            await server.stop(0)

    async def reached(self, condition: Callable[[], object], seconds: float = 90.0) -> None:
        """Waits for a condition that nothing signals."""
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - a look at files and processes, which signal nothing
                await asyncio.sleep(0.005)

    def left_behind(self) -> list[str]:
        """What is left of all runtimes below the profile's folder."""
        return sorted(str(path) for path in (self.folder / "first").rglob("*"))


async def until(stream: Stream, wanted: str) -> None:
    """Reads on until an event of this kind came."""
    while not any(kind(draft) == wanted for draft in stream.drafts):
        assert await stream.read() is not None, f"the run ended before {wanted}"


def decision(run: Run, **decided: str | dict[str, Any]) -> runtime_pb2.ResumeDecision:
    """Decisions on calls, by id: `approve`, `reject`, or other arguments."""
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


def results(model: Model) -> dict[str, str]:
    """What the model was told of each call in the last request, by call."""
    told: dict[str, str] = {}
    for message in model.requests[-1]["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else []:
            if block["type"] == "tool_result":
                content = block["content"]
                assert block["tool_use_id"] not in told, "a call has one result"
                told[block["tool_use_id"]] = (
                    content if isinstance(content, str) else "\n".join(one["text"] for one in content)
                )
    return told


def calls(drafts: list[Draft]) -> list[tuple[str, str]]:
    """Calls that ended, with their outcomes, in order."""
    completed = [draft.payload.tool_completed for draft in drafts if kind(draft) == "tool_completed"]
    return [(one.tool_call_id, json.dumps(int(one.outcome))) for one in completed]


def usage(drafts: list[Draft]) -> Any:
    """The one update of the usage."""
    updates = [draft.payload.usage_updated for draft in drafts if kind(draft) == "usage_updated"]
    assert len(updates) == 1
    return updates[0]
