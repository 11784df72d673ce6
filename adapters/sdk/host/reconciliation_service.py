"""`harness.adapter.v1.AgentReconciliationService`: what the provider keeps for each agent, where an adapter has such a thing."""

import random
from typing import Any

from adapters.sdk.contract import AgentReconciler, plain
from harness.adapter.v1 import reconciliation_service_pb2 as pb2
from harness.adapter.v1 import reconciliation_service_pb2_grpc

MAX_UNLISTED = 100
MAX_FAULTS = 16
Context = Any


class ReconciliationServicer(reconciliation_service_pb2_grpc.AgentReconciliationServiceServicer):
    """One adapter's agents as the catalog sees to them."""

    def __init__(self, adapter: AgentReconciler) -> None:
        self._adapter = adapter

    async def ReconcileAgents(
        self, request: pb2.ReconcileAgentsRequest, context: Context
    ) -> pb2.ReconcileAgentsResponse:
        """One round for one profile."""
        living = set(request.agent_ids)
        ended = [agent_id for agent_id in request.ended_agent_ids if agent_id not in living]
        done = await self._adapter.reconcile_agents(plain(request.profile_settings), list(request.agent_ids), ended)
        return pb2.ReconcileAgentsResponse(
            created=done.created,
            updated=done.updated,
            removed=done.removed,
            left=done.left,
            unlisted_agent_ids=_some_of(sorted(set(done.unlisted))),
            fault_codes=sorted(set(done.faults))[:MAX_FAULTS],
        )


def _some_of(agent_ids: list[str]) -> list[str]:
    """All of them, or others each time: those that have conversations stay unlisted for long, and must not hide the rest for ever."""
    if len(agent_ids) <= MAX_UNLISTED:
        return agent_ids
    return sorted(random.sample(agent_ids, MAX_UNLISTED))
