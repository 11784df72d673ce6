"""A stream of content to a reader that may stop reading."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any


@asynccontextmanager
async def bounded(pieces: AsyncGenerator[Any, None], seconds: float) -> AsyncGenerator[None]:
    """The pieces are closed with the context. The call is cancelled when it takes longer: a reader that stops reading holds memory and a place, and may not
    do so for ever (I14, I35).
    """
    task = asyncio.current_task()
    timer = asyncio.get_running_loop().call_later(seconds, _end, task)
    try:
        async with aclosing(pieces):
            yield
    finally:
        timer.cancel()


def _end(task: "asyncio.Task[Any] | None") -> None:
    if task is not None:
        task.cancel()
