"""A burst: many deltas at a given rate, for measuring."""

import asyncio
import time
from collections.abc import AsyncIterator

from adapters.reference.message import Burst
from adapters.sdk.events import completed, text
from harness.event.v1 import event_pb2


async def stream(plan: Burst) -> AsyncIterator[event_pb2.EventDraft]:
    """The deltas at their moments of one schedule, so that a late one delays none after it. A burst leaves no thread state."""
    body = "x" * plan.size
    if plan.delay:
        await asyncio.sleep(plan.delay)
    begun = time.monotonic()
    for index in range(plan.n):
        if plan.rate:
            ahead = begun + index / plan.rate - time.monotonic()
            if ahead > 0:
                await asyncio.sleep(ahead)
        elif plan.yield0:
            await asyncio.sleep(0)
        yield text(f"ts={time.time():.6f} {body}" if plan.stamp else body)
    yield completed()
