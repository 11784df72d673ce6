"""ResolutionService over gRPC."""

from __future__ import annotations

from typing import Any

from harness.catalog.v1 import resolution_service_pb2 as pb
from harness.catalog.v1.resolution_service_pb2_grpc import ResolutionServiceServicer
from services.catalog.agents import Agents
from services.catalog.registry import Registry
from services.catalog.resolution import resolve
from services.catalog.service.messages import record_message, version_message
from services.catalog.tool_grants import grants


class ResolutionServicer(ResolutionServiceServicer):
    """Answers what stands behind an agent and a profile."""

    def __init__(self, agents: Agents, registry: Registry) -> None:
        self._agents = agents
        self._registry = registry

    async def ResolveAgent(self, request: pb.ResolveAgentRequest, context: Any) -> pb.ResolveAgentResponse:
        agent = await self._agents.record(request.agent_id)
        if request.record_only:
            return pb.ResolveAgentResponse(record=record_message(agent))
        version = await self._agents.version(agent, request.version)
        answer = pb.ResolveAgentResponse(record=record_message(agent), version=version_message(version))
        answer.tools.extend(grants(answer.version.blueprint.tools, self._registry.tools))
        return answer

    async def ResolveProfile(self, request: pb.ResolveProfileRequest, context: Any) -> pb.ResolveProfileResponse:
        state = await self._registry.current(request.harness_id)
        shown = None if state is None else self._registry.shown(state)
        return resolve(state, request.profile_id, shown)
