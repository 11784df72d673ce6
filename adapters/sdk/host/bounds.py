"""How long a call may take: what its caller waits, and never more than the host's own bound (I35)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from adapters.sdk.errors import DeadlineError

LEAST_SECONDS = 0.05


def call_seconds(context: Any, most: float) -> float:
    """Seconds for a call of gRPC: a little less than its caller waits, so that it hears the answer."""
    left: float | None = context.time_remaining()
    return most if left is None else max(LEAST_SECONDS, min(left * 0.9, most))


@asynccontextmanager
async def within(seconds: float, message: str, code: str) -> AsyncGenerator[None]:
    """Cuts off what takes longer. Raises DeadlineError with `message` and `code` then; a time-out of the work's own stays what it is."""
    bound = asyncio.timeout(seconds)
    try:
        async with bound:
            yield
    except TimeoutError:
        if not bound.expired():
            raise
        raise DeadlineError(message, code=code) from None
