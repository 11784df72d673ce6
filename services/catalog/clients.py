"""The one edge where the catalog calls adapters and providers of tools: bounded calls, answers checked against the contract."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import grpc
import protovalidate

from harness.adapter.v1 import adapter_service_pb2 as pb
from harness.adapter.v1.adapter_service_pb2_grpc import AdapterServiceStub
from harness.adapter.v1.descriptor_pb2 import Descriptor
from harness.adapter.v1.reconciliation_service_pb2 import ReconcileAgentsRequest, ReconcileAgentsResponse
from harness.adapter.v1.reconciliation_service_pb2_grpc import AgentReconciliationServiceStub
from harness.common.v1.health_pb2 import HealthReport
from harness.session.v1.session_service_pb2 import ListBoundAgentsRequest, ListBoundAgentsResponse
from harness.session.v1.session_service_pb2_grpc import SessionServiceStub
from harness.tool.v1.tool_provider_service_pb2 import ListProviderToolsRequest, ListProviderToolsResponse
from harness.tool.v1.tool_provider_service_pb2_grpc import ToolProviderServiceStub
from services.catalog.operator_file import AllowedAdapter
from services.catalog.provider_check import Offered
from services.catalog.tool_registry import RegisteredTool
from services.common.channels import Peer, connect
from services.common.errors import HarnessError, Reason
from services.common.interceptors.validation import field_path

RECONCILE_SECONDS: Final = 120.0
"""A round makes a bounded number of changes at a provider that allows a few a second; it is in nobody's way."""
_KEY: Final = re.compile(r'\[".*"\]', re.DOTALL)


class Described(NamedTuple):
    """What an adapter says it is, and which process of it said so."""

    descriptor: Descriptor
    incarnation: str


class AnswerRefused(Exception):
    """An answer that breaks the contract; the text names the field and the rule, never a value."""


class AdapterClient:
    """One adapter. Every call raises `HarnessError` when the adapter fails or stays silent, `AnswerRefused` when it answers wrongly."""

    def __init__(self, adapter: AllowedAdapter, timeout: float) -> None:
        self._peer: Peer = connect(adapter.address, adapter.token)
        self._stub: Any = AdapterServiceStub(self._peer.channel)
        self._reconciliation: Any = AgentReconciliationServiceStub(self._peer.channel)
        self._timeout = timeout

    async def describe(self) -> Described:
        """The descriptor and the incarnation."""
        answer: pb.GetDescriptorResponse = await self._call(self._stub.GetDescriptor, pb.GetDescriptorRequest())
        return Described(answer.descriptor, answer.incarnation)

    async def check_health(self) -> HealthReport:
        """The health report."""
        answer: pb.CheckHealthResponse = await self._call(self._stub.CheckHealth, pb.CheckHealthRequest())
        return answer.report

    async def evaluate(self, request: pb.EvaluateRequest) -> pb.EvaluateResponse:
        """The adapter's verdict on a blueprint."""
        answer: pb.EvaluateResponse = await self._call(self._stub.Evaluate, request)
        return answer

    async def reconcile_agents(self, request: ReconcileAgentsRequest) -> ReconcileAgentsResponse:
        """What was done for the agents that live, and for those that ended."""
        method = self._reconciliation.ReconcileAgents
        answer: ReconcileAgentsResponse = await self._call(method, request, RECONCILE_SECONDS)
        return answer

    async def _call(self, method: Any, request: Any, timeout: float | None = None) -> Any:
        answer = await self._peer.call(method, request, timeout=timeout or self._timeout)
        violations = protovalidate.collect_violations(answer)
        if violations:
            first = violations[0].proto
            # A key of a map is the adapter's own text, so its place is all that is told (I18).
            path = _KEY.sub("[key]", field_path(first.field)) or "the answer"
            raise AnswerRefused(f"{path} breaks the rule {first.rule_id}"[:400])
        return answer

    async def readiness_changes(self) -> None:
        """Returns when the connection is made or lost: the earliest sign of a restart."""
        channel = self._peer.channel
        state = channel.get_state(try_to_connect=True)
        was_ready = state is grpc.ChannelConnectivity.READY
        while (state is grpc.ChannelConnectivity.READY) == was_ready:
            if state is grpc.ChannelConnectivity.SHUTDOWN:
                raise HarnessError(Reason.UNAVAILABLE, "The connection is closed.")
            await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)

    async def close(self) -> None:
        """Ends the connection and every call on it."""
        await self._peer.close()


class SessionsClient:
    """Bindings, as far as the catalog asks for them: by agent, never by person."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._stub: Any = SessionServiceStub(peer.channel)

    async def bound_agents(self, harness_id: str, profile_id: str, agent_ids: Sequence[str]) -> set[str]:
        """Those of at most 100 agents that have an open binding under the profile. Errors: `HarnessError`."""
        request = ListBoundAgentsRequest(harness_id=harness_id, profile_id=profile_id, agent_ids=agent_ids)
        answer: ListBoundAgentsResponse = await self._peer.call(self._stub.ListBoundAgents, request)
        return set(answer.agent_ids)


class ProviderClient:
    """The provider of one tool, and so of all tools that name the same address and token."""

    def __init__(self, tool: RegisteredTool, timeout: float) -> None:
        self._peer = connect(tool.provider, tool.token)
        self._stub: Any = ToolProviderServiceStub(self._peer.channel)
        self._timeout = timeout

    async def tools(self) -> Sequence[Offered]:
        """See `services.catalog.provider_check.Provider`."""
        answer: ListProviderToolsResponse = await self._peer.call(
            self._stub.ListProviderTools, ListProviderToolsRequest(), timeout=self._timeout
        )
        if protovalidate.collect_violations(answer):
            raise HarnessError(Reason.PROTOCOL_VIOLATION, "The provider's list of tools breaks the contract.")
        return [Offered(tool.tool_id, tool.idempotent) for tool in answer.tools]

    async def close(self) -> None:
        """Ends the connection and every call on it."""
        await self._peer.close()
