"""What stands behind an agent and a profile, with bounded caches of what may be old."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from harness.catalog.v1 import agent_pb2, resolution_service_pb2, resolution_service_pb2_grpc
from services.common.channels import Peer
from services.common.clock import Clock

CACHED_VERSIONS: Final = 1_000
CACHED_PROFILES: Final = 1_000
CACHED_GRANTS: Final = 1_000
PROFILE_SECONDS: Final = 2.0
"""How old a profile's answer may be. A changed incarnation is found out earlier, when the runtime is made, and then the run is judged anew."""

VersionKey = tuple[str, int]
ProfileKey = tuple[str, str]


class CatalogClient:
    """The catalog's internal answers. Every call raises `HarnessError`."""

    def __init__(self, peer: Peer, clock: Clock) -> None:
        self._peer = peer
        self._stub = resolution_service_pb2_grpc.ResolutionServiceStub(peer.channel)
        self._clock = clock
        self._versions: OrderedDict[VersionKey, agent_pb2.AgentVersion] = OrderedDict()
        self._profiles: OrderedDict[ProfileKey, tuple[resolution_service_pb2.ResolveProfileResponse, float]] = (
            OrderedDict()
        )
        self._grants: OrderedDict[VersionKey, tuple[list[resolution_service_pb2.ToolGrant], float]] = OrderedDict()
        self._next: dict[str, asyncio.Task[agent_pb2.AgentRecord]] = {}
        self._asking: dict[str, asyncio.Task[agent_pb2.AgentRecord]] = {}

    async def current(self, agent_id: str) -> tuple[agent_pb2.AgentRecord, agent_pb2.AgentVersion]:
        """The agent's record as it is now (I4) and its current version."""
        record = await self._record(agent_id)
        return record, await self.version(agent_id, record.current_version)

    async def version(self, agent_id: str, version: int) -> agent_pb2.AgentVersion:
        """A version; immutable, so remembered (at most 1,000)."""
        known = self._versions.get((agent_id, version))
        if known is not None:
            self._versions.move_to_end((agent_id, version))
            return known
        request = resolution_service_pb2.ResolveAgentRequest(agent_id=agent_id, version=version)
        response: resolution_service_pb2.ResolveAgentResponse = await self._peer.call(self._stub.ResolveAgent, request)
        self._versions[(agent_id, version)] = response.version
        if len(self._versions) > CACHED_VERSIONS:
            self._versions.popitem(last=False)
        return response.version

    async def grants(self, agent_id: str, version: int) -> list[resolution_service_pb2.ToolGrant]:
        """The tools a version's agent may call, as the operator registers them: at most 2 seconds old. For agents with tools alone."""
        key, now = (agent_id, version), self._clock.monotonic()
        known = self._grants.get(key)
        if known is not None and now - known[1] < PROFILE_SECONDS:
            return known[0]
        request = resolution_service_pb2.ResolveAgentRequest(agent_id=agent_id, version=version)
        response: resolution_service_pb2.ResolveAgentResponse = await self._peer.call(self._stub.ResolveAgent, request)
        granted = list(response.tools)
        self._grants[key] = (granted, now)
        self._grants.move_to_end(key)
        if len(self._grants) > CACHED_GRANTS:
            self._grants.popitem(last=False)
        return granted

    async def profile(
        self, harness_id: str, profile_id: str, *, fresh: bool = False
    ) -> resolution_service_pb2.ResolveProfileResponse:
        """What stands behind a profile, at most 2 seconds old; `fresh` asks now."""
        key = (harness_id, profile_id)
        known = self._profiles.get(key)
        now = self._clock.monotonic()
        if known is not None and not fresh and now - known[1] < PROFILE_SECONDS:
            return known[0]
        request = resolution_service_pb2.ResolveProfileRequest(harness_id=harness_id, profile_id=profile_id)
        response: resolution_service_pb2.ResolveProfileResponse = await self._peer.call(
            self._stub.ResolveProfile, request
        )
        self._profiles[key] = (response, now)
        self._profiles.move_to_end(key)
        if len(self._profiles) > CACHED_PROFILES:
            self._profiles.popitem(last=False)
        return response

    async def _record(self, agent_id: str) -> agent_pb2.AgentRecord:
        """The record, from a call that was made after this one began (I4): all who ask while one is under way share the next."""
        group = self._next.get(agent_id)
        if group is None:
            group = self._next[agent_id] = asyncio.create_task(self._ask_in_turn(agent_id))
        # One caller that gives up must not take the answer from the others.
        return await asyncio.shield(group)

    async def _ask_in_turn(self, agent_id: str) -> agent_pb2.AgentRecord:
        under_way = self._asking.get(agent_id)
        if under_way is not None:
            await asyncio.wait({under_way})
        # Whoever asks from here on is not in this group: the call may have been answered before they asked.
        group = self._asking[agent_id] = self._next.pop(agent_id)
        try:
            request = resolution_service_pb2.ResolveAgentRequest(agent_id=agent_id, record_only=True)
            response: resolution_service_pb2.ResolveAgentResponse = await self._peer.call(
                self._stub.ResolveAgent, request
            )
            return response.record
        finally:
            if self._asking.get(agent_id) is group:
                del self._asking[agent_id]
