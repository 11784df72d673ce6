"""Repeating an idempotent call while the service behind it is away (I34)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from services.common.clock import Clock
from services.common.errors import HarnessError, Reason

T = TypeVar("T")
PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.5)
AWAY: Final = frozenset({Reason.UNAVAILABLE, Reason.STORE_UNAVAILABLE, Reason.DEADLINE_EXCEEDED, Reason.CANCELLED})
"""What says that a call may or may not have had its effect, and that the same call may be answered later."""
RESTARTING: Final = AWAY | {Reason.HARNESS_UNAVAILABLE}
"""The same for what asks about an adapter: the catalog hears of a host that came back a little after those who call it."""


async def patiently(
    clock: Clock, seconds: float, call: Callable[[], Awaitable[T]], away: frozenset[Reason] = AWAY
) -> T:
    """The call's answer; while its service is `away` it is repeated, for at most `seconds`, then the last `HarnessError` is raised."""
    give_up_at = clock.monotonic() + seconds
    attempt = 0
    while True:
        try:
            return await call()
        except HarnessError as error:
            if error.reason not in away or clock.monotonic() >= give_up_at:
                raise
        await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
        attempt += 1
