"""HarnessService over gRPC."""

from __future__ import annotations

from typing import Any

from harness.catalog.v1 import harness_service_pb2 as pb
from harness.catalog.v1.harness_service_pb2_grpc import HarnessServiceServicer
from services.catalog.published import public_harness
from services.catalog.registry import Registry
from services.catalog.snapshot import CONTRACT_VERSION
from services.common.errors import not_found


class HarnessServicer(HarnessServiceServicer):
    """Shows which harnesses there are."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def ListHarnesses(self, request: pb.ListHarnessesRequest, context: Any) -> pb.ListHarnessesResponse:
        snapshot = self._registry.snapshot()
        return pb.ListHarnessesResponse(
            contract_version=CONTRACT_VERSION,
            catalog_revision=snapshot.revision,
            harnesses=[public_harness(state, self._registry.standing(state)) for state in snapshot.harnesses.values()],
        )

    async def GetHarnessHealth(self, request: pb.GetHarnessHealthRequest, context: Any) -> pb.GetHarnessHealthResponse:
        state = await self._registry.health(request.harness_id)
        if state is None:
            raise not_found("harness")
        health = pb.HarnessHealth(harness_id=request.harness_id, availability=state.availability, report=state.health)
        return pb.GetHarnessHealthResponse(health=health)
