"""An adapter behind the contract, between a provider and a control plane of the test's own: what the tests of all adapters with a real SDK share."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from adapters.sdk.serve import AdapterServer, serve_adapter
from adapters.sdk.simple import BaseAdapter
from conformance.plane.binding import Binding, Setting
from conformance.plane.broker import ECHO, PAY, SUM, AskFirst, Break, Succeed
from conformance.plane.canary import Canaries
from conformance.plane.facades import Facades
from conformance.plane.observations import Observations
from conformance.plane.run import Run
from conformance.plane.target import Target
from harness.common.v1 import blueprint_pb2, placement_pb2
from harness.runtime.v1 import runtime_pb2

ANSWERS = {
    ECHO: Succeed({"said": "hello"}),
    SUM: Break("sum_failed", "Cannot add."),
    PAY: AskFirst(Succeed("paid"), Succeed("paid otherwise")),
}
Change = Callable[[blueprint_pb2.AgentBlueprint], None]


class Conversation(Binding):
    """A binding whose blueprint a test may change."""

    change: Change | None = None

    def blueprint(self) -> blueprint_pb2.AgentBlueprint:
        """The kit's agent, changed."""
        blueprint = super().blueprint()
        if self.change is not None:
            self.change(blueprint)
        return blueprint


@dataclass
class HostRig:
    """Everything of one test but the provider. `server` is one adapter host; `another_host` makes more."""

    adapter: ClassVar[type[BaseAdapter]]

    folder: Path
    facades: Facades
    canaries: Canaries
    server: AdapterServer
    servers: list[AdapterServer] = field(default_factory=list[AdapterServer])
    targets: list[Target] = field(default_factory=list[Target])

    def bound(
        self,
        profile: Mapping[str, Any],
        options: Mapping[str, Any] | None,
        placement: "placement_pb2.Placement.ValueType",
        change: Change | None = None,
        address: str = "",
    ) -> Conversation:
        """A new conversation with a profile of these settings. `address`: of another host."""
        target = self.target(address or self.server.address)
        descriptor = self.server.adapter.descriptor
        setting = Setting(
            target, self.facades, descriptor, Observations(), False, placement, dict(profile), dict(options or {})
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
        self.servers.append(await serve_adapter(self.adapter, listen=address))
        return self.target(address)

    async def close(self) -> None:
        """Ends every host and channel."""
        for target in self.targets:
            await target.close()
        for server in (self.server, *self.servers):
            await server.stop(0)


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
    """Waits for a condition of files, processes, threads or sockets, which signal nothing."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - as the docstring says
            await asyncio.sleep(0.005)
