"""Keeping the sandbox of a run that is executed: a sandbox ends when nobody used it for its idle time, and a run is a use of it (I29)."""

from __future__ import annotations

import asyncio
from typing import Final

from services.common.errors import HarnessError
from services.common.logs import get_logger
from services.runs.engine import fence_of
from services.runs.held import HeldRun
from services.runs.run import Issued

RENEWALS_PER_IDLE_TIME: Final = 4
"""So that one that fails is made up for in time."""
RENEW_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 1.0
_log = get_logger(__name__)


async def keep_sandbox(held: HeldRun, issued: Issued) -> None:
    """Renew the lease of the run's sandbox until cancelled; returns at once when it has none."""
    while True:
        try:
            plan = await held.plan()
            if not plan.in_sandbox:
                return
            await asyncio.sleep(max(1, plan.profile.sandbox.idle_seconds) / RENEWALS_PER_IDLE_TIME)
            await held.engine.runtimes.renew_sandbox(fence_of(held.run, issued.runtime_generation), RENEW_SECONDS)
        except HarnessError as error:
            # If the sandbox is gone, the run's own stream says so.
            _log.info("sandbox_not_renewed", run_id=held.run_id, reason=error.reason.value)
            await asyncio.sleep(AGAIN_SECONDS)
