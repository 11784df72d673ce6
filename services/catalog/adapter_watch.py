"""Watching one adapter: what it is, whether it is well, and when it is back (adapter contract, "Health"; I23).

Every adapter has its own watch with its own connection, deadlines and pace, so that none can hold up another.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from google.protobuf import json_format

from harness.adapter.v1.adapter_service_pb2 import EvaluateRequest, EvaluateResponse
from harness.adapter.v1.descriptor_pb2 import Descriptor
from harness.catalog.v1 import harness_pb2 as pb
from harness.common.v1.health_pb2 import (
    HEALTH_STATUS_DEGRADED,
    HEALTH_STATUS_HEALTHY,
    HEALTH_STATUS_UNHEALTHY,
    HealthReport,
)
from services.catalog.canonical import digest
from services.catalog.clients import AdapterClient, AnswerRefused
from services.catalog.descriptor_policy import DescriptorRefused, KnownDescriptor, admit
from services.catalog.disclosure import safe_text
from services.catalog.operator_file import AllowedAdapter
from services.catalog.snapshot import DISABLED, HarnessState
from services.common.errors import HarnessError, Reason
from services.common.logs import get_logger
from services.common.tasks import BackgroundTasks

FIRST_RETRY_SECONDS: Final = 0.25
LONGEST_RETRY_SECONDS: Final = 2.0
LEAST_PAUSE_SECONDS: Final = 0.05
"""Between two looks, however often the connection comes and goes (I23)."""
SLOW_ANSWERS_ALLOWED: Final = 3
"""Deadlines an adapter may miss in a row before it counts as away: a busy one is slow, a dead one refuses at once."""

_log = get_logger(__name__)


class Descriptors(Protocol):
    """Where the last descriptor of each adapter is kept."""

    async def descriptor(self, harness_id: str) -> dict[str, Any] | None: ...
    async def keep_descriptor(self, harness_id: str, document: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Pace:
    """How often a watch looks. Seconds."""

    interval: float
    clock: Callable[[], float]
    """Monotonic."""


class AdapterWatch:
    """One adapter's state, kept current in the background and on demand; `state` is replaced, never changed."""

    def __init__(
        self,
        adapter: AllowedAdapter,
        client: AdapterClient,
        descriptors: Descriptors,
        pace: Pace,
        changed: Callable[[], None],
    ) -> None:
        self._adapter = adapter
        self._client = client
        self._descriptors = descriptors
        self._pace = pace
        self._changed = changed
        self._look_under_way: asyncio.Task[Any] | None = None
        self._wake = asyncio.Event()
        self._tasks: BackgroundTasks | None = None
        self._slow_answers = 0
        self._last_said: tuple[bytes, KnownDescriptor | DescriptorRefused] | None = None
        self._kept_digest = ""
        self.state = HarnessState(adapter)
        if not adapter.enabled:
            self.state = replace(self.state, availability=pb.AVAILABILITY_BLOCKED, reason=DISABLED)

    async def load(self) -> None:
        """Takes up what the adapter was last seen with, under the rules of today."""
        document = await self._descriptors.descriptor(self._adapter.harness_id)
        if document is None:
            return
        try:
            said = json_format.ParseDict(document["descriptor"], Descriptor(), ignore_unknown_fields=True)
            known = admit(self._adapter.harness_id, said)
        except (DescriptorRefused, json_format.ParseError) as error:
            _log.warning("kept_descriptor_refused", harness_id=self._adapter.harness_id, why=type(error).__name__)
            return
        self._kept_digest = digest(known.document)
        self._set(replace(self.state, known=known))

    def start(self, tasks: BackgroundTasks) -> None:
        """Starts watching; a disabled adapter is never called."""
        self._tasks = tasks
        if self._adapter.enabled:
            tasks.spawn(f"watch {self._adapter.harness_id}", self._run())
            tasks.spawn(f"connection {self._adapter.harness_id}", self._watch_connection())

    async def look(self, wait: float) -> None:
        """Looks at the adapter now; calls at the same time share one look. Waits for it at most `wait` seconds."""
        if not self._adapter.enabled or self._tasks is None:
            return
        if self._look_under_way is None or self._look_under_way.done():
            self._look_under_way = self._tasks.spawn(f"look at {self._adapter.harness_id}", self._look())
        await asyncio.wait([self._look_under_way], timeout=wait)

    async def evaluate(self, request: EvaluateRequest) -> EvaluateResponse | None:
        """The adapter's verdict, None if there is none to be had."""
        if not self.state.available:
            return None
        try:
            return await self._client.evaluate(request)
        except (HarnessError, AnswerRefused) as error:
            _log.warning("evaluation_failed", harness_id=self._adapter.harness_id, why=str(error))
            return None

    async def _run(self) -> None:
        retry = FIRST_RETRY_SECONDS
        while True:
            self._wake.clear()
            await self.look(wait=60.0)
            if self.state.available:
                retry, pause = FIRST_RETRY_SECONDS, self._pace.interval
            else:
                pause, retry = retry, min(retry * 2, LONGEST_RETRY_SECONDS)
            await asyncio.sleep(LEAST_PAUSE_SECONDS)
            try:
                async with asyncio.timeout(pause * random.uniform(0.75, 1.25)):  # noqa: S311 - jitter, no secret
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _watch_connection(self) -> None:
        while True:
            await self._client.readiness_changes()
            self._wake.set()

    async def _look(self) -> None:
        try:
            described = await self._client.describe()
        except HarnessError as error:
            self._missed(error, self.state)
            return
        except AnswerRefused as error:
            self._block(f"The adapter's descriptor breaks the contract: {error}.")
            return
        known = await self._admitted(described.descriptor)
        if isinstance(known, DescriptorRefused):
            self._block(str(known))
            return
        await self._keep(known)
        seen = replace(self.state, known=known, blocked="", incarnation=described.incarnation)
        await self._look_at_health(seen)

    async def _look_at_health(self, seen: HarnessState) -> None:
        try:
            report = _safe_report(await self._client.check_health())
        except HarnessError as error:
            # The process is there, and another one perhaps: what was said of the old one's health no longer counts.
            if seen.incarnation == self.state.incarnation:
                self._missed(error, seen)
            else:
                self._away(seen, "The adapter's health check did not answer.")
            return
        except AnswerRefused as error:
            self._away(seen, f"The adapter's health report breaks the contract: {error}.")
            return
        self._slow_answers = 0
        if report.status in (HEALTH_STATUS_HEALTHY, HEALTH_STATUS_DEGRADED):
            well = replace(seen, availability=pb.AVAILABILITY_AVAILABLE, reason=_what_is_short(report), health=report)
            self._set(replace(well, looked_at=self._pace.clock()))
        else:
            self._away(replace(seen, health=report), _why_unwell(report))

    async def _admitted(self, said: Descriptor) -> KnownDescriptor | DescriptorRefused:
        # A descriptor is constant for the life of its process: the same one needs no second look.
        encoded = said.SerializeToString(deterministic=True)
        if self._last_said is None or self._last_said[0] != encoded:
            self._last_said = (encoded, await asyncio.to_thread(_admit, self._adapter.harness_id, said))
        return self._last_said[1]

    async def _keep(self, known: KnownDescriptor) -> None:
        current = digest(known.document)
        if current == self._kept_digest:
            return
        document = {"harness_id": self._adapter.harness_id, "descriptor": dict(known.document)}
        try:
            await self._descriptors.keep_descriptor(self._adapter.harness_id, document)
        except HarnessError as error:
            # What is kept only bridges a restart: without the store the adapter works all the same, and the next look tries again.
            _log.warning("descriptor_not_kept", harness_id=self._adapter.harness_id, why=error.reason.value)
            return
        self._kept_digest = current

    def _missed(self, error: HarnessError, seen: HarnessState) -> None:
        if error.reason is Reason.DEADLINE_EXCEEDED and self.state.available:
            self._slow_answers += 1
            if self._slow_answers < SLOW_ANSWERS_ALLOWED:
                self._set(replace(seen, looked_at=self._pace.clock()))
                return
        self._slow_answers = 0
        # I22: our own words; what a peer says of its failure may quote anything.
        reason = {
            Reason.UNAUTHENTICATED: "The adapter refuses our credential.",
            Reason.DEADLINE_EXCEEDED: "The adapter does not answer in time.",
            Reason.CAPACITY: "The adapter is at its limit, or says more of itself than is read.",
            Reason.UNIMPLEMENTED: "What answers at the adapter's address is no adapter.",
        }.get(error.reason, "The adapter cannot be reached.")
        self._away(replace(seen, health=None), reason)

    def _away(self, state: HarnessState, reason: str) -> None:
        gone = replace(state, availability=pb.AVAILABILITY_UNAVAILABLE, reason=reason, looked_at=self._pace.clock())
        if state.blocked:
            gone = replace(gone, availability=pb.AVAILABILITY_BLOCKED, reason=state.blocked)
        self._set(gone)

    def _block(self, why: str) -> None:
        self._set(
            replace(
                self.state,
                availability=pb.AVAILABILITY_BLOCKED,
                blocked=why[:500],
                reason=why[:500],
                health=None,
                looked_at=self._pace.clock(),
            )
        )

    def _set(self, state: HarnessState) -> None:
        before, self.state = self.state, state
        if before.availability != state.availability or before.reason != state.reason:
            _log.info(
                "adapter_state_changed",
                harness_id=self._adapter.harness_id,
                availability=pb.Availability.Name(state.availability),
                why=state.reason,
            )
        if before.known is not state.known or before.blocked != state.blocked:
            self._changed()


def _admit(harness_id: str, said: Descriptor) -> KnownDescriptor | DescriptorRefused:
    try:
        return admit(harness_id, said)
    except DescriptorRefused as error:
        return error


def _what_is_short(report: HealthReport) -> str:
    """What an operator reads of an adapter that works in part: the first such check that says why; empty: nothing is short."""
    for check in report.checks:
        if check.status == HEALTH_STATUS_DEGRADED and check.reason:
            return f"Works in part ({check.name}): {check.reason}"[:500]
    return ""


def _why_unwell(report: HealthReport) -> str:
    """What an operator reads in a list: the first check that failed, with the adapter's own, sanitised reason."""
    for check in report.checks:
        if check.status == HEALTH_STATUS_UNHEALTHY and check.reason:
            return f"The adapter is not well ({check.name}): {check.reason}"
    return "The adapter says that it is not well; see its health."


def _safe_report(report: HealthReport) -> HealthReport:
    """The report without any reason that holds what may not be shown (I18, I22)."""
    report.DiscardUnknownFields()
    for check in report.checks:
        check.reason = safe_text(check.reason, "The adapter's reason holds what may not be shown: see its logs.", 500)
    return report
