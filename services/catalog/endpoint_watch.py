"""Which profiles cannot reach their model, because the endpoint they name lacks its credential: a line in the list of harnesses, and no run has to find out.

Only the model egress may read credentials (I28), so it is asked. What is found blocks nothing: other profiles of the harness work, and a key may come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

from harness.common.v1.health_pb2 import HEALTH_STATUS_DEGRADED, HealthCheck, HealthReport
from services.catalog.operator_file import AllowedAdapter
from services.catalog.snapshot import HarnessState
from services.common.logs import get_logger
from services.common.tasks import BackgroundTasks

CHECK: Final = "model_endpoint"
MAX_CHECKS: Final = 32
RETRY_SECONDS: Final = 1.0
MAX_NAMED: Final = 4
"""Profiles that a line names."""
AWAY: Final = "The model egress cannot be reached, so no profile with a model_endpoint reaches its model."
_log = get_logger(__name__)


class EgressAway(Exception):
    """The model egress gives no answer that can be read. The text is for the log."""


class EndpointWatch:
    """What the model egress says of its endpoints, kept current in the background."""

    def __init__(self, ask: Callable[[], Awaitable[Mapping[str, bool]]], interval: float) -> None:
        """`ask`: whether each endpoint has its credential; raises `EgressAway`. `interval`: seconds between two questions."""
        self._ask = ask
        self._interval = interval
        # None: not known yet, or the egress is away.
        self._ready: Mapping[str, bool] | None = None
        self._away = False

    def start(self, tasks: BackgroundTasks) -> None:
        """Begins to ask."""
        tasks.spawn("watch the model egress", self._run())

    def shown(self, state: HarnessState) -> HarnessState:
        """The state with what its profiles lack: still available, and degraded."""
        problem = self.problem(state.adapter)
        if not problem or not state.available:
            return state
        report = HealthReport()
        if state.health is not None:
            report.CopyFrom(state.health)
        del report.checks[MAX_CHECKS - 1 :]
        report.checks.append(HealthCheck(name=CHECK, status=HEALTH_STATUS_DEGRADED, reason=problem))
        report.status = max(report.status, HEALTH_STATUS_DEGRADED)
        return replace(state, reason=state.reason or f"Works in part ({CHECK}): {problem}", health=report)

    def problem(self, adapter: AllowedAdapter) -> str:
        """What an operator has to do about the adapter's profiles, as a line; empty: nothing is known to be wrong."""
        named = {name: profile.model_endpoint for name, profile in adapter.profiles.items() if profile.model_endpoint}
        if self._away and named:
            return AWAY
        lacking = sorted(
            name for name, endpoint in named.items() if self._ready and not self._ready.get(endpoint, True)
        )
        if not lacking:
            return ""
        # I18: which file or variable is the operator's; the egress's log has it.
        said = ", ".join(lacking[:MAX_NAMED]) + (" and others" if len(lacking) > MAX_NAMED else "")
        return f"The model endpoint of {said} has no credential: the log of the model egress says what is missing."

    async def _run(self) -> None:
        while True:
            try:
                self._ready, self._away = await self._ask(), False
            except EgressAway as error:
                if not self._away:
                    _log.warning("model_egress_away", why=str(error))
                self._ready, self._away = None, True
            await asyncio.sleep(RETRY_SECONDS if self._away else self._interval)
