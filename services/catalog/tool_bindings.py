"""The tools of a draft against the operator's registry: is each registered, may it be called, can its approval be asked for (I16)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from harness.common.v1 import blueprint_pb2 as pb
from harness.common.v1.capability_pb2 import CAPABILITY_LEVEL_EMULATED, CAPABILITY_LEVEL_NATIVE, Capability
from services.catalog.tool_registry import Tools
from services.common.errors import FieldIssue, Reason

APPROVAL: Final = "interrupt.tool_approval"
UNREGISTERED: Final = "tool_unregistered"
_USABLE: Final = (CAPABILITY_LEVEL_NATIVE, CAPABILITY_LEVEL_EMULATED)


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
    if effective[APPROVAL].level in _USABLE:
        return
    for number, binding in enumerate(blueprint.tools.bindings):
        tool = tools.get(binding.tool_id)
        if tool is None or not tool.sensitive or binding.approval_policy != pb.APPROVAL_POLICY_SENSITIVE_ONLY:
            continue
        yield FieldIssue(
            f"tools.bindings[{number}].approval_policy",
            Reason.HARNESS_CAPABILITY_UNSUPPORTED.value,
            f"The tool is sensitive, so its calls wait for a person, and harness {harness_id} does not offer {APPROVAL}: "
            "set it to never, remove the tool, or choose another harness.",
        )
