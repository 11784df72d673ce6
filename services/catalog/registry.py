"""All allow-listed adapters and what is known of them now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

from harness.adapter.v1.adapter_service_pb2 import EvaluateRequest, EvaluateResponse
from harness.adapter.v1.reconciliation_service_pb2 import ReconcileAgentsRequest, ReconcileAgentsResponse
from services.catalog.adapter_watch import AdapterWatch, Descriptors, Pace
from services.catalog.certification import Standing, standing_of
from services.catalog.clients import AdapterClient
from services.catalog.endpoint_watch import EndpointWatch
from services.catalog.evidence_folder import EvidenceFolder, Shelf
from services.catalog.operator_file import AllowedAdapter, Operator
from services.catalog.snapshot import HarnessState, Snapshot, catalog_revision
from services.catalog.tool_registry import Tools
from services.common.logs import get_logger
from services.common.tasks import BackgroundTasks

OLD_SECONDS: Final = 1.0
"""An unavailable adapter that was looked at longer ago than this is looked at again when it is asked for."""
MAX_WAIT_SECONDS: Final = 3.0
"""What a request waits at most for a look."""
_log = get_logger(__name__)


class Registry:
    """The watches of all adapters."""

    def __init__(
        self,
        operator: Operator,
        descriptors: Descriptors,
        make_client: Callable[[AllowedAdapter], AdapterClient],
        pace: Pace,
        endpoints: EndpointWatch | None = None,
    ) -> None:
        """`endpoints`: what is known of the model egress; None: there is none."""
        self._retention_profiles = operator.retention_profiles
        self.tools: Tools = operator.tools
        self._pace = pace
        self._endpoints = endpoints
        self._revision = ""
        self._evidence = None if operator.evidence is None else EvidenceFolder(operator.evidence)
        self._required = operator.require_evidence
        self.shelf = Shelf()
        """The evidence at hand; replaced, never changed."""
        self._clients = {harness_id: make_client(adapter) for harness_id, adapter in operator.adapters.items()}
        self._watches = {
            harness_id: AdapterWatch(adapter, self._clients[harness_id], descriptors, pace, self._forget_revision)
            for harness_id, adapter in sorted(operator.adapters.items())
        }

    async def start(self, tasks: BackgroundTasks) -> None:
        """Takes up the kept descriptors and the evidence, then watches in the background. Waits for no adapter (I23)."""
        if self._evidence is not None:
            await self._look_at_evidence(self._evidence)
            tasks.spawn("watch the evidence", self._watch_evidence(self._evidence))
        for watch in self._watches.values():
            await watch.load()
        for watch in self._watches.values():
            watch.start(tasks)
        if self._endpoints is not None:
            self._endpoints.start(tasks)

    def standing(self, state: HarnessState) -> Standing:
        """How far the claims of a harness are shown now."""
        return standing_of(state, self.shelf)

    def shown(self, state: HarnessState) -> Mapping[str, Collection[str]] | None:
        """By profile, the capability keys that evidence shows, where the operator requires evidence; None: it does not (I21)."""
        return self.standing(state).shown if self._required else None

    def snapshot(self) -> Snapshot:
        """What is known now."""
        states: Mapping[str, HarnessState] = {name: self._shown(watch) for name, watch in self._watches.items()}
        shown = {name: self.standing(state).shown for name, state in states.items()} if self._required else None
        if not self._revision:
            self._revision = catalog_revision(states.values(), self._retention_profiles, self.tools, shown)
        return Snapshot(states, self._revision, self._retention_profiles, self.tools, shown)

    async def learn(self, harness_id: str) -> None:
        """Looks at a harness of which nothing is known yet."""
        watch = self._watches.get(harness_id)
        if watch is not None and watch.state.known is None:
            await self._look_if_old(watch)

    async def look_again(self) -> None:
        """Looks at every harness, but for those looked at within the last second; all at once, and at most 3 seconds."""
        await asyncio.gather(*(self._look_if_old(watch) for watch in self._watches.values()))

    async def current(self, harness_id: str) -> HarnessState | None:
        """The state of a harness, after another look if it is unavailable and was looked at too long ago. None: not allowed."""
        watch = self._watches.get(harness_id)
        if watch is None:
            return None
        if not watch.state.available:
            await self._look_if_old(watch)
        return watch.state

    async def health(self, harness_id: str) -> HarnessState | None:
        """The state of a harness, at most a second old if the adapter answers. None: not allowed."""
        watch = self._watches.get(harness_id)
        if watch is None:
            return None
        await self._look_if_old(watch)
        return self._shown(watch)

    async def evaluate(self, harness_id: str, request: EvaluateRequest) -> EvaluateResponse | None:
        """The adapter's own verdict on a blueprint, None while it is away."""
        return await self._watches[harness_id].evaluate(request)

    def state(self, harness_id: str) -> HarnessState:
        """What is known now of a harness of the operator's file."""
        return self._watches[harness_id].state

    async def reconcile_agents(self, harness_id: str, request: ReconcileAgentsRequest) -> ReconcileAgentsResponse:
        """Tells an adapter which agents live. Errors: `HarnessError`, with `unimplemented` when it keeps nothing for agents, and `AnswerRefused`."""
        return await self._clients[harness_id].reconcile_agents(request)

    async def close(self) -> None:
        """Ends every connection."""
        await asyncio.gather(*(client.close() for client in self._clients.values()))

    def _shown(self, watch: AdapterWatch) -> HarnessState:
        return watch.state if self._endpoints is None else self._endpoints.shown(watch.state)

    async def _look_if_old(self, watch: AdapterWatch) -> None:
        if self._pace.clock() - watch.state.looked_at >= OLD_SECONDS:
            await watch.look(wait=MAX_WAIT_SECONDS)

    async def _watch_evidence(self, folder: EvidenceFolder) -> None:
        while True:
            await asyncio.sleep(self._pace.interval)
            await self._look_at_evidence(folder)

    async def _look_at_evidence(self, folder: EvidenceFolder) -> None:
        try:
            shelf = await asyncio.to_thread(folder.changed)
        except OSError as error:
            # I34: what was read stays; a folder that is being written to is looked at again.
            _log.warning("evidence_not_read", why=error.strerror)
            return
        if shelf is not None:
            self.shelf = shelf
            # Where evidence is required, other evidence is another verdict.
            self._forget_revision()
            _log.info("evidence_read", accepted=len(shelf.evidence), refused=len(shelf.refused))

    def _forget_revision(self) -> None:
        self._revision = ""
