"""From those who make a turn's events (the reader of the program, its tool calls) to the one who yields them: in order, bounded, ended once."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from harness.event.v1 import event_pb2

MAX_WAITING = 256


class Channel:
    """Drafts in their order. Belongs to the event loop."""

    def __init__(self) -> None:
        self._drafts: deque[event_pb2.EventDraft] = deque()
        self._changed = asyncio.Event()
        self._space = asyncio.Event()
        self._ended = False
        self._failure: BaseException | None = None

    async def put(self, draft: event_pb2.EventDraft) -> None:
        """Adds a draft, once there is room (backpressure). After the end it is dropped."""
        while len(self._drafts) >= MAX_WAITING and not self._ended:
            self._space.clear()
            await self._space.wait()
        if not self._ended:
            self._drafts.append(draft)
            self._changed.set()

    def end(self, failure: BaseException | None = None) -> None:
        """No draft follows; with a failure the reader raises it behind the last one. The first end counts."""
        if not self._ended:
            self._ended, self._failure = True, failure
            self._changed.set()
            self._space.set()

    async def drafts(self) -> AsyncIterator[event_pb2.EventDraft]:
        """All drafts to the end. Raises the failure it was ended with."""
        while True:
            while self._drafts:
                draft = self._drafts.popleft()
                self._space.set()
                yield draft
            if self._ended:
                break
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure
