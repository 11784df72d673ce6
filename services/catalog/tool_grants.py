"""The tools a version's agent may call, as the operator registers them now: for the tool broker, never for clients (ResolutionService)."""

from __future__ import annotations

from harness.catalog.v1 import resolution_service_pb2 as pb
from harness.common.v1 import blueprint_pb2
from harness.runtime.v1.runtime_pb2 import ToolDescriptor
from services.catalog.canonical import struct_of
from services.catalog.tool_registry import RegisteredTool, Tools


def grants(spec: blueprint_pb2.ToolsSpec, tools: Tools) -> list[pb.ToolGrant]:
    """A grant for each binding, in their order. A binding whose tool is not registered any more has none: its ids differ from the blueprint's,
    and no run of such a version may start.
    """
    return [
        _grant(tools[binding.tool_id], _policy(binding, spec)) for binding in spec.bindings if binding.tool_id in tools
    ]


def _policy(
    binding: blueprint_pb2.ToolBinding, spec: blueprint_pb2.ToolsSpec
) -> blueprint_pb2.ApprovalPolicy.ValueType:
    # I25: what nobody has decided asks a person.
    return binding.approval_policy or spec.approval_policy or blueprint_pb2.APPROVAL_POLICY_SENSITIVE_ONLY


def _grant(tool: RegisteredTool, policy: blueprint_pb2.ApprovalPolicy.ValueType) -> pb.ToolGrant:
    return pb.ToolGrant(
        descriptor=ToolDescriptor(
            tool_id=tool.tool_id,
            provider_name=tool.provider_name,
            description=tool.description,
            input_schema=struct_of(tool.input_schema),
            sensitive=tool.sensitive,
            idempotent=tool.idempotent,
        ),
        approval_policy=policy,
        provider=tool.provider,
        provider_token="" if tool.token is None else tool.token.get_secret_value(),
        settings=struct_of(tool.settings),
        timeout_seconds=tool.timeout_seconds,
        max_attempts=tool.max_attempts,
        max_result_bytes=tool.max_result_bytes,
    )
