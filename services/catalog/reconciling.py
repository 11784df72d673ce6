"""Seeing to what adapters keep for each agent: which agents live under a profile, and of which nothing is needed any more
(AgentReconciliationService; agents of one adapter never wait for another, I23).

A round is complete in itself and may be held by several replicas at once. What an adapter has for an agent that was not named in a round is looked into
at the beginning of the next: it has ended when the agent is disabled or has another profile, and its last conversation under this one was closed.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from harness.adapter.v1.reconciliation_service_pb2 import ReconcileAgentsRequest, ReconcileAgentsResponse
from services.catalog import metrics
from services.catalog.canonical import struct_of
from services.catalog.clients import AnswerRefused
from services.catalog.operator_file import ProfileEntry
from services.catalog.snapshot import HarnessState
from services.common.errors import HarnessError, Reason
from services.common.logs import get_logger, log_incident
from services.common.tasks import BackgroundTasks

MAX_AGENTS: Final = 10_000
"""Agents of one request; more are named in further ones (I35)."""
MAX_UNLISTED: Final = 100
"""Agents of one profile that are looked into in one round (I35)."""
PAGE: Final = 200
AWAY_SECONDS: Final = 1.0
"""Between two looks whether an adapter is there, which asks nobody anything."""
MORE_SECONDS: Final = 5.0
"""Before the next round when the last one left changes to it."""

Document = dict[str, Any]
_log = get_logger(__name__)


class AgentRecords(Protocol):
    """The agents; see `services.catalog.agents.Agents`."""

    async def page(self, size: int, token: str) -> tuple[list[Document], str]: ...
    async def record(self, agent_id: str) -> Document: ...
    async def version(self, agent: Document, number: int) -> Document: ...


class Bindings(Protocol):
    """The sessions service; see `services.catalog.clients.SessionsClient`."""

    async def bound_agents(self, harness_id: str, profile_id: str, agent_ids: Sequence[str]) -> set[str]: ...


class Adapters(Protocol):
    """The adapters; see `services.catalog.registry.Registry`."""

    def state(self, harness_id: str) -> HarnessState: ...
    async def reconcile_agents(self, harness_id: str, request: ReconcileAgentsRequest) -> ReconcileAgentsResponse: ...


@dataclass
class _Seen:
    """What a harness's rounds remember. Lost with the process: the next round finds it again."""

    without: str = ""
    """The incarnation that said that it has no such service."""
    profiles: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    """The profile of a published version, for ever the same."""
    unlisted: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """By profile: agents of which the adapter has something, and which were not named as living."""


class Reconciler:
    """The rounds of one harness. Without `bindings` nothing ever counts as ended."""

    def __init__(self, harness_id: str, adapters: Adapters, agents: AgentRecords, bindings: Bindings | None) -> None:
        self._harness_id = harness_id
        self._adapters = adapters
        self._agents = agents
        self._bindings = bindings
        self._seen = _Seen()

    def start(self, tasks: BackgroundTasks, interval: float) -> None:
        """Holds rounds in the background, `interval` seconds apart, jittered by a quarter."""
        tasks.spawn(f"reconcile the agents of {self._harness_id}", self._run(interval))

    async def round(self) -> int:
        """One round over all profiles of the harness; how many changes it left. Errors: `HarnessError` when the agents cannot be listed."""
        state = self._adapters.state(self._harness_id)
        living = await self._living()
        left = 0
        for profile in state.adapter.profiles.values():
            if profile.placement != "sandbox_pod":  # there the adapter's host is not what runs the agent
                left += await self._profile_round(state, profile, living.get(profile.id, []))
        return left

    @property
    def wanted(self) -> bool:
        """Whether the adapter is there and not known to keep nothing for agents."""
        state = self._adapters.state(self._harness_id)
        return state.available and state.incarnation != self._seen.without

    async def _run(self, interval: float) -> None:
        while True:
            pause = AWAY_SECONDS
            if self.wanted:
                left = await self._guarded()
                pause = min(interval, MORE_SECONDS) if left else interval
            await asyncio.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311 - jitter, no secret

    async def _guarded(self) -> int:
        try:
            return await self.round()
        except HarnessError as error:
            _log.warning("agents_not_listed", harness_id=self._harness_id, reason=error.reason.value)
        except Exception as error:  # noqa: BLE001 - logged; the next round is held all the same
            log_incident(_log, "agents_round_failed", error, harness_id=self._harness_id)
        return 0

    async def _living(self) -> Mapping[str, list[str]]:
        """Enabled agents of this harness by the profile of their newest version, in order of their ids."""
        living: defaultdict[str, list[str]] = defaultdict(list)
        known, self._seen.profiles = self._seen.profiles, {}
        token = ""
        while True:
            page, token = await self._agents.page(PAGE, token)
            for agent in page:
                if agent["enabled"] and agent["harness_id"] == self._harness_id:
                    version = (agent["agent_id"], agent["current_version"])
                    profile_id = known.get(version) or await self._profile_of(agent)
                    self._seen.profiles[version] = profile_id
                    living[profile_id].append(agent["agent_id"])
            if not token:
                return living

    async def _profile_of(self, agent: Document) -> str:
        version = await self._agents.version(agent, 0)
        profile_id: str = version["blueprint"]["harness"]["profile_id"]
        return profile_id

    async def _profile_round(self, state: HarnessState, profile: ProfileEntry, agent_ids: list[str]) -> int:
        """Names the living, and who has ended since the round before. What fails is left to the next round."""
        if state.incarnation == self._seen.without:
            return 0
        left, unlisted = 0, set[str]()
        ended = await self._ended(profile.id, self._seen.unlisted.pop(profile.id, []))
        try:
            for first in range(0, max(len(agent_ids), 1), MAX_AGENTS):
                answer = await self._ask(profile, agent_ids[first : first + MAX_AGENTS], [] if first else ended)
                left += answer.left
                unlisted.update(answer.unlisted_agent_ids)
        except HarnessError as error:
            if error.reason is Reason.UNIMPLEMENTED:
                self._seen.without = state.incarnation
                return 0
            self._failed(profile.id, error.reason.value)
            return 0
        except AnswerRefused as error:
            self._failed(profile.id, str(error))
            return 0
        self._seen.unlisted[profile.id] = sorted(unlisted.difference(agent_ids))[:MAX_UNLISTED]
        metrics.LEFT.labels(self._harness_id, profile.id).set(left)
        return left

    def _failed(self, profile_id: str, why: str) -> None:
        metrics.ROUNDS.labels(self._harness_id, "failed").inc()
        _log.warning("agents_not_reconciled", harness_id=self._harness_id, profile_id=profile_id, why=why)

    async def _ask(self, profile: ProfileEntry, living: Sequence[str], ended: Sequence[str]) -> ReconcileAgentsResponse:
        request = ReconcileAgentsRequest(
            profile_settings=struct_of(profile.settings), agent_ids=living, ended_agent_ids=ended
        )
        answer = await self._adapters.reconcile_agents(self._harness_id, request)
        metrics.ROUNDS.labels(self._harness_id, "faults" if answer.fault_codes else "done").inc()
        changes = {"created": answer.created, "updated": answer.updated, "removed": answer.removed}
        for change, count in changes.items():
            metrics.CHANGES.labels(self._harness_id, change).inc(count)
        if any(changes.values()) or answer.fault_codes:
            _log.info(
                "agents_reconciled",
                harness_id=self._harness_id,
                profile_id=profile.id,
                **changes,
                left=answer.left,
                fault_codes=list(answer.fault_codes),
            )
        return answer

    async def _ended(self, profile_id: str, candidates: Sequence[str]) -> list[str]:
        """Those of which nothing is needed any more; none when that cannot be found out."""
        if self._bindings is None or not candidates:
            return []
        try:
            gone = [agent_id for agent_id in candidates if await self._has_left(profile_id, agent_id)]
            # Asked after the record was read: of an agent that had left by then there are no new conversations, so none is missed.
            bound = await self._bindings.bound_agents(self._harness_id, profile_id, gone) if gone else set[str]()
        except HarnessError as error:
            _log.warning(
                "agents_not_looked_into", harness_id=self._harness_id, profile_id=profile_id, reason=error.reason.value
            )
            return []
        return [agent_id for agent_id in gone if agent_id not in bound]

    async def _has_left(self, profile_id: str, agent_id: str) -> bool:
        """Whether the agent is disabled, or has another profile. One that is not known here is perhaps another mesh's: it is left alone."""
        try:
            agent = await self._agents.record(agent_id)
        except HarnessError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            _log.warning("agent_of_another_mesh", harness_id=self._harness_id, profile_id=profile_id, agent_id=agent_id)
            return False
        if not agent["enabled"] or agent["harness_id"] != self._harness_id:
            return True
        return await self._profile_of(agent) != profile_id
