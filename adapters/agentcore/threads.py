"""Blocking calls beside the event loop: a thread for each, named, and gone when its work is."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Generic, TypeVar, cast

from adapters.agentcore.lines import Line

MAX_WAITING = 64
"""Items that a stream holds for a reader that is slow; then the thread reads no further from the provider."""
THREAD_PREFIX = "agentcore"
T = TypeVar("T")


async def in_thread(work: Callable[[], T], name: str = "call") -> T:
    """What `work` returns or raises. Cancelled, it no longer waits; the thread ends with its work, which bounds itself."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: object, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(cast("T", result))
        else:
            done.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised where it is waited for
            failure = error
        _on_loop(loop, lambda: tell(result, failure))

    threading.Thread(target=run, name=f"{THREAD_PREFIX}-{name}", daemon=True).start()
    return await done


class Handover(Generic[T]):
    """Items from one thread to one reader on a loop, in order, at most `MAX_WAITING` of them at rest (I35)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._changed = threading.Condition()
        self._items: list[T] = []
        self._ended = self._left = self._told = False
        self._error: BaseException | None = None
        self._ready = asyncio.Event()

    def put(self, item: T) -> bool:
        """The thread's: waits while the reader is slow. False: nobody reads any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._left or len(self._items) < MAX_WAITING)
            if self._left:
                return False
            self._items.append(item)
            self._tell()
        return True

    def end(self, error: BaseException | None) -> None:
        """The thread's last word."""
        with self._changed:
            self._ended, self._error = True, error
            self._tell()

    def leave(self) -> None:
        """The reader's last word: a thread that waits goes on, and learns it."""
        with self._changed:
            self._left = True
            self._items.clear()
            self._changed.notify_all()

    async def take(self) -> list[T] | None:
        """What came since; None at the end. Raises what the thread did."""
        while True:
            await self._ready.wait()
            with self._changed:
                items, self._items = self._items, []
                self._told = False
                self._ready.clear()
                self._changed.notify_all()
                if items:
                    if self._ended:
                        self._tell()
                    return items
                if self._ended:
                    self._ready.set()
                    if self._error is not None:
                        raise self._error
                    return None

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            _on_loop(self._loop, self._ready.set)


async def read_in_thread(read: Callable[[], Iterator[T]]) -> AsyncGenerator[list[T], None]:
    """The items of a blocking iterator, in lots, read by a thread of its own. Closed or cancelled, its connection is cut at once, and the thread ends."""
    handover = Handover[T](asyncio.get_running_loop())
    line = Line()

    def run() -> None:
        failure: BaseException | None = None
        try:
            with line:
                for item in read():
                    if not handover.put(item):
                        break
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised where the stream is read
            failure = error
        handover.end(failure)
        # Its traceback holds this frame.
        failure = None

    threading.Thread(target=run, name=f"{THREAD_PREFIX}-stream", daemon=True).start()
    try:
        while (items := await handover.take()) is not None:
            yield items
    finally:
        # I12: not by closing the response, which would wait for the thread that reads it.
        handover.leave()
        line.cut()


def _on_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if not loop.is_closed():
            raise
        # The process is ending; nobody waits any more.
