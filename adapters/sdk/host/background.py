"""Work that nobody awaits at once: kept alive, its failures logged, ended with the host."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from adapters.sdk.logs import describe, get_logger

T = TypeVar("T")
_log = get_logger(__name__)


class Background:
    """A set of tasks."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Runs `work`; an exception of it is logged. Whoever waits for the task may leave without ending it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background_work_failed", error=describe(error))

    async def close(self, seconds: float) -> None:
        """Waits for what is running at most `seconds`, then cancels the rest."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=1.0)
