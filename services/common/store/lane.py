"""A bounded queue from one event loop to worker threads that answer in batches.

Why not an executor: it wakes the event loop once per call, this once per batch, and a batch is what a group commit
needs. While a batch is being served the next one gathers; a lone job never waits for company.

An event loop that never runs dry starves threads: it lets go of the interpreter only for the instant of a poll, and
has it back before a waiting thread wakes (measured: seconds for one read). So while jobs are in the lane, the loop
looks now and then whether any thread got something done since the last look; if none did, it stands aside
until one does, for a bounded moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from services.common.store.errors import StoreUnavailable

T = TypeVar("T")

_TURN: Final = 0.02
"""Seconds between two looks of the loop at its threads, while jobs are in the lane: what a starved job waits. Most wait for the disk."""
_ASIDE: Final = 0.0005
"""Seconds it stands aside at most, for a thread that computes."""
_ASIDE_FOR_DISK: Final = 0.00005
"""The same for a thread that is waiting for the disk, or has waited and only needs to be let in again."""


class Job(Generic[T]):
    """One piece of work and, once served, either its result or its error."""

    __slots__ = ("atomic", "error", "future", "operation", "result", "size")

    def __init__(self, operation: Callable[..., T], future: asyncio.Future[T], size: int, atomic: bool) -> None:
        self.operation = operation
        self.future = future
        self.size = size
        self.atomic = atomic
        self.result: T | None = None
        self.error: BaseException | None = None


Jobs = list[Job[Any]]


@dataclass(frozen=True, slots=True)
class LaneBounds:
    """What a lane holds at most (I35). `patience` is how many seconds a caller waits for a place in it."""

    jobs: int
    bytes: int
    batch_jobs: int
    batch_bytes: int
    patience: float


class Server(ABC):
    """Serves the batches of one thread. It sets `on_disk` while it does nothing but wait for the disk."""

    on_disk = False

    @abstractmethod
    def serve(self, jobs: Jobs) -> None:
        """Set result or error of every job; raise nothing."""

    @abstractmethod
    def finish(self) -> None:
        """Let go of everything; called once at the end of the thread."""


class _Worker:
    """A thread's server, and how the loop waits for it to get on. The lock is free from a batch served to the next look."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.stopped = asyncio.Event()
        self._served = threading.Lock()
        self._served.acquire()

    def has_served(self) -> None:
        if self._served.locked():  # only this thread ever frees it
            self._served.release()

    def got_on(self) -> bool:
        """Whether it served a batch since the last look."""
        return self._served.acquire(blocking=False)

    def let_run(self) -> None:
        self._served.acquire(timeout=_ASIDE_FOR_DISK if self.server.on_disk else _ASIDE)


class Lane:
    """The queue and its threads. Made and used on one event loop.

    A caller that finds the lane full waits in line, bounded by its own timeout and by `patience`, then gets
    `StoreUnavailable`. A job larger than the whole lane is served alone.
    """

    def __init__(self, name: str, servers: Sequence[Server], bounds: LaneBounds) -> None:
        self._name = name
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._jobs = 0
        self._bytes = 0
        self._line: deque[tuple[asyncio.Future[None], int]] = deque()
        self._closed = False
        self._taking_turns = False
        self._workers = deque(_Worker(server) for server in servers)
        self._threads = [
            threading.Thread(target=self._work, args=(worker,), name=f"{name}-{number}", daemon=True)
            for number, worker in enumerate(self._workers)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, operation: Callable[..., T], size: int = 0, atomic: bool = False) -> T:
        """Have a thread do `operation` and return what it returned; `size` in bytes counts against the bounds.

        Cancelled while waiting, the operation may be done all the same.
        """
        if self._closed:
            raise StoreUnavailable(f"{self._name}: the store is closed")
        if self._line or not self._has_room(size):
            await self._wait_in_line(size)
        else:
            self._enter(size)
        job = Job(operation, self._loop.create_future(), size, atomic)
        self._queue.put(job)
        if not self._taking_turns:
            self._taking_turns = True
            self._loop.call_later(_TURN, self._stand_aside)
        return await job.future

    async def close(self) -> None:
        """Serve what was accepted, turn away who waits in line, end the threads."""
        if not self._closed:
            self._closed = True
            for place, _ in self._line:
                if not place.done():
                    place.set_exception(StoreUnavailable(f"{self._name}: the store is closed"))
            self._line.clear()
            for _ in self._threads:
                self._queue.put(None)
        for worker in self._workers:
            await worker.stopped.wait()
        for thread in self._threads:
            thread.join()

    def _has_room(self, size: int) -> bool:
        return self._jobs < self._bounds.jobs and (not self._jobs or self._bytes + size <= self._bounds.bytes)

    def _enter(self, size: int) -> None:
        self._jobs += 1
        self._bytes += size

    async def _wait_in_line(self, size: int) -> None:
        place: asyncio.Future[None] = self._loop.create_future()
        entry = (place, size)
        self._line.append(entry)
        try:
            async with asyncio.timeout(self._bounds.patience):
                await place
        except BaseException as error:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._leave(size)  # let in and gone at the same moment: the place goes to the next
            else:
                with contextlib.suppress(ValueError):  # close() has already cleared the line
                    self._line.remove(entry)
            self._admit()
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(
                    f"{self._name}: its queue of {self._bounds.jobs} stayed full for {self._bounds.patience:g} s"
                ) from None
            raise

    def _leave(self, size: int) -> None:
        self._jobs -= 1
        self._bytes -= size

    def _admit(self) -> None:
        while self._line and self._has_room(self._line[0][1]):
            place, size = self._line.popleft()
            if not place.done():
                self._enter(size)
                place.set_result(None)

    def _settle(self, jobs: Jobs) -> None:
        for job in jobs:
            self._leave(job.size)
            if job.future.done():  # its caller was cancelled
                continue
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)
        self._admit()

    def _stand_aside(self) -> None:
        if not self._jobs:
            self._taking_turns = False
            return
        # A thread that gets on is let in without help: waiting for it, or for one that has nothing to do beside it, is time lost.
        if not any(worker.got_on() for worker in self._workers):
            self._workers.rotate()
            self._workers[0].let_run()
        self._loop.call_later(_TURN, self._stand_aside)

    def _work(self, worker: _Worker) -> None:
        try:
            open_for_more = True
            while open_for_more:
                jobs, open_for_more = self._take()
                if jobs:
                    _serve(worker.server, jobs)
                    self._tell(self._settle, jobs)
                    worker.has_served()
        finally:
            worker.server.finish()
            self._tell(worker.stopped.set)

    def _tell(self, what: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(what, *args)
        except RuntimeError:
            if not self._loop.is_closed():  # a closed loop has nobody left to tell
                raise

    def _take(self) -> tuple[Jobs, bool]:
        job = self._queue.get()
        if job is None:
            return [], False
        jobs = [job]
        size = job.size
        # Several threads share a backlog instead of one taking it all.
        most = min(self._bounds.batch_jobs, 1 + self._queue.qsize() // len(self._threads))
        while len(jobs) < most and size < self._bounds.batch_bytes:
            try:
                job = self._queue.get_nowait()
            except Empty:
                break
            if job is None:
                return jobs, False
            jobs.append(job)
            size += job.size
        return jobs, True


def _serve(server: Server, jobs: Jobs) -> None:
    """Answer the jobs whatever happens: a thread that ended here would leave its callers waiting for ever (I34)."""
    try:
        server.serve(jobs)
    except BaseException as error:  # noqa: BLE001 - told to every caller
        for job in jobs:
            job.result, job.error = None, StoreUnavailable(f"the store's thread was stopped: {error!r}")
