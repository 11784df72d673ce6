"""AgentService over gRPC."""

from __future__ import annotations

from typing import Any

from harness.catalog.v1 import agent_service_pb2 as pb
from harness.catalog.v1.agent_service_pb2_grpc import AgentServiceServicer
from services.catalog.agents import Agents, Claims
from services.catalog.service.messages import record_message, report_message, version_message


class AgentServicer(AgentServiceServicer):
    """Keeps agents."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    async def ValidateAgentDraft(
        self, request: pb.ValidateAgentDraftRequest, context: Any
    ) -> pb.ValidateAgentDraftResponse:
        verdict = await self._agents.validate(request.blueprint, request.catalog_revision)
        return pb.ValidateAgentDraftResponse(report=report_message(verdict))

    async def SaveAgent(self, request: pb.SaveAgentRequest, context: Any) -> pb.SaveAgentResponse:
        claims = Claims(
            request.expected_revision if request.HasField("expected_revision") else None,
            request.catalog_revision,
            request.config_fingerprint,
        )
        published = await self._agents.save(request.agent_id, request.blueprint, claims)
        return pb.SaveAgentResponse(record=record_message(published.agent), version=version_message(published.version))

    async def ListAgents(self, request: pb.ListAgentsRequest, context: Any) -> pb.ListAgentsResponse:
        agents, following = await self._agents.page(request.page_size, request.page_token)
        return pb.ListAgentsResponse(agents=[record_message(agent) for agent in agents], next_page_token=following)

    async def GetAgent(self, request: pb.GetAgentRequest, context: Any) -> pb.GetAgentResponse:
        agent = await self._agents.record(request.agent_id)
        version = await self._agents.version(agent, 0)
        return pb.GetAgentResponse(record=record_message(agent), version=version_message(version))

    async def ListAgentVersions(
        self, request: pb.ListAgentVersionsRequest, context: Any
    ) -> pb.ListAgentVersionsResponse:
        agent = await self._agents.record(request.agent_id)
        versions, following = await self._agents.version_page(agent, request.page_size, request.page_token)
        return pb.ListAgentVersionsResponse(
            record=record_message(agent),
            versions=[version_message(version) for version in versions],
            next_page_token=following,
        )

    async def GetAgentVersion(self, request: pb.GetAgentVersionRequest, context: Any) -> pb.GetAgentVersionResponse:
        agent = await self._agents.record(request.agent_id)
        version = await self._agents.version(agent, request.version)
        return pb.GetAgentVersionResponse(record=record_message(agent), version=version_message(version))

    async def DisableAgent(self, request: pb.DisableAgentRequest, context: Any) -> pb.DisableAgentResponse:
        return pb.DisableAgentResponse(record=record_message(await self._agents.disable(request.agent_id)))
