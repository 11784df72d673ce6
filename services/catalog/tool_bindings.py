"""The tools of a draft against the operator's registry: is each registered, may it be called, can its approval be asked for (I16)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from harness.common.v1 import blueprint_pb2 as pb
from harness.common.v1.capability_pb2 import Capability
from services.catalog.tool_registry import Tools
from services.common.capabilities import approval_needs, unmet
from services.common.errors import FieldIssue

UNREGISTERED: Final = "tool_unregistered"


def binding_issues(blueprint: pb.AgentBlueprint, tools: Tools) -> Iterator[FieldIssue]:
    """What is wrong with the tools of a normalised blueprint, whatever its harness can do."""
    bindings = blueprint.tools.bindings
    first: dict[str, int] = {}
    for number, binding in enumerate(bindings):
        path = f"tools.bindings[{number}].tool_id"
        if first.setdefault(binding.tool_id, number) != number:
            message = f"The tool is already that of tools.bindings[{first[binding.tool_id]}]: remove one of them."
            yield FieldIssue(path, "duplicate", message)
        elif binding.tool_id not in tools:
            known = ", ".join(sorted(tools)[:20]) or "none"
            message = f"The operator has registered no such tool; there is: {known}."
            yield FieldIssue(path, UNREGISTERED, message[:1000])
    if bindings and blueprint.limits.max_tool_calls == 0:
        message = "The agent has tools and may call none: allow at least one call, or remove the tools."
        yield FieldIssue("limits.max_tool_calls", "out_of_range", message)


def approval_issues(
    blueprint: pb.AgentBlueprint, tools: Tools, effective: Mapping[str, Capability], harness_id: str
) -> Iterator[FieldIssue]:
    """Sensitive tools whose approval nobody can be asked for. Policy `always` needs no look at the tool and is a need of its own."""
    waiting = {binding.tool_id for binding in blueprint.tools.bindings if _is_sensitive(tools, binding.tool_id)}
    return unmet(approval_needs(blueprint.tools, waiting), effective, harness_id)


def _is_sensitive(tools: Tools, tool_id: str) -> bool:
    tool = tools.get(tool_id)
    return tool is not None and tool.sensitive
