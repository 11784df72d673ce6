"""The adapter with its real SDK and program, behind the contract, between a provider and a control plane of the test's own."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from adapters.claude_agent_sdk.adapter import ClaudeAdapter
from conformance.plane.run import Draft, Stream, kind
from harness.common.v1 import placement_pb2
from tests.adapters.claude.model import Model
from tests.adapters.rig import Change, Conversation, HostRig, reached

KEY = "test-key-of-the-profile"


@dataclass(kw_only=True)
class Rig(HostRig):
    """Everything of one test."""

    adapter = ClaudeAdapter

    model: Model

    def conversation(
        self,
        *,
        options: Mapping[str, Any] | None = None,
        change: Change | None = None,
        placement: "placement_pb2.Placement.ValueType" = placement_pb2.PLACEMENT_IN_PROCESS,
        address: str = "",
        **settings: Any,
    ) -> Conversation:
        """A new conversation with a profile of these settings; None takes one of the rig's own out. `address`: of another host."""
        given = {
            "credential_file": str(self.folder / "key"),
            "base_url": self.model.url,
            "model": "claude-test-1",
            "workspace_root": str(self.folder / "first"),
            **settings,
        }
        profile = {key: value for key, value in given.items() if value is not None}
        return self.bound(profile, options, placement, change, address)

    async def reached(self, condition: Callable[[], object]) -> None:
        """Waits for a condition that nothing signals."""
        await reached(condition)

    def left_behind(self) -> list[str]:
        """What is left of all runtimes below the profile's folder."""
        return sorted(str(path) for path in (self.folder / "first").rglob("*"))


async def until(stream: Stream, wanted: str) -> None:
    """Reads on until an event of this kind came."""
    while not any(kind(draft) == wanted for draft in stream.drafts):
        assert await stream.read() is not None, f"the run ended before {wanted}"


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
