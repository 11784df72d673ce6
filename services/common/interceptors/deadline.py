"""No call without an end (I35): callers set a deadline, and a unary call that has none gets a default."""

import asyncio
from collections.abc import Awaitable
from typing import Any, cast

import grpc.aio

from services.common.errors import HarnessError, Reason


def remaining_seconds(context: grpc.aio.ServicerContext[Any, Any]) -> float | None:
    """Seconds until the caller's deadline, None when it set none; `deadline_exceeded` when it has passed already."""
    # grpc types the answer as float alone, but it is None without a deadline.
    remaining = cast("float | None", context.time_remaining())
    if remaining is not None and remaining <= 0:
        raise HarnessError(Reason.DEADLINE_EXCEEDED, "The deadline had passed before the call arrived.")
    return remaining


async def bounded(work: Awaitable[Any], seconds: float) -> Any:
    """The result of `work` within the default bound, or `deadline_exceeded`."""
    # I35: an unbounded unary call would hold its stream and its task for ever.
    timeout = asyncio.timeout(seconds)
    try:
        async with timeout:
            return await work
    except TimeoutError:
        if not timeout.expired():
            raise
        raise HarnessError(
            Reason.DEADLINE_EXCEEDED, f"The call took longer than {seconds:g} seconds and had no deadline of its own."
        ) from None
