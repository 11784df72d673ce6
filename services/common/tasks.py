"""Background work of a service, supervised: a failure is logged and repeated or surfaced, never lost."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from services.common.logs import get_logger, log_incident

_log = get_logger(__name__)


class BackgroundTasks:
    """Tasks that live as long as their service. `close()` cancels them and waits until each has ended."""

    def __init__(self, *, max_tasks: int = 100_000) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._max_tasks = max_tasks
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def closed(self) -> bool:
        """Whether nothing more is started."""
        return self._closed

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts one piece of work; an exception of it is logged with an incident id. `RuntimeError` when closed or full (I35)."""
        if self._closed or len(self._tasks) >= self._max_tasks:
            work.close()
            raise RuntimeError(
                "the service is stopping" if self._closed else f"more than {self._max_tasks} background tasks"
            )
        task = asyncio.create_task(self._supervised(name, work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A task cancelled before its first step never awaits its work; closing ended work does nothing.
        task.add_done_callback(lambda _: work.close())
        return task

    def every(self, name: str, interval_seconds: float, work: Callable[[], Awaitable[None]]) -> asyncio.Task[Any]:
        """Repeats `work`, waiting `interval_seconds` (jittered by a quarter) after each turn; a failed turn is logged and the next one runs."""
        return self.spawn(name, self._repeat(name, interval_seconds, work))

    async def close(self) -> None:
        """Cancels all tasks and waits for their end. Repeating it is harmless."""
        self._closed = True
        while self._tasks:
            pending = list(self._tasks)
            for task in pending:
                task.cancel()
            await asyncio.wait(pending)

    async def _supervised(self, name: str, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        except Exception as error:  # noqa: BLE001 - logged; see the docstring
            log_incident(_log, "background_task_failed", error, task=name)
            return None

    async def _repeat(self, name: str, interval_seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - logged; the next turn runs
                log_incident(_log, "background_turn_failed", error, task=name)
            await asyncio.sleep(interval_seconds * random.uniform(0.75, 1.25))  # noqa: S311 - jitter, no secret
