"""Brings an encoder to a cursor: what is open there is known from the log before it (events, "Other encodings")."""

import asyncio
from typing import Protocol

from harness.event.v1 import event_pb2
from services.common.errors import HarnessError, Reason
from services.gateway import metrics
from services.gateway.encodings import Encoder
from services.gateway.sse.patience import Patience, may_succeed_later

PAGE_EVENTS = 1_000
# I35: a page is at most about 1 MiB, so this bounds the memory of a gateway whose clients all come back at once.
AT_ONCE = 8


class Pages(Protocol):
    async def page(self, run_id: str, subject: str, after: int, limit: int) -> list[event_pb2.Event]: ...


class Restorer:
    """One for all streams of the process. It reads each event before the cursor once, and keeps the encoder's state alone."""

    def __init__(self, source: Pages, retry_seconds: float) -> None:
        self._source = source
        self._retry_seconds = retry_seconds
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def bring(self, encoder: Encoder, run_id: str, subject: str, cursor: int) -> None:
        """Takes the encoder forward to `cursor`, which must not lie past the end of the log. Raises `HarnessError`."""
        patience = Patience(self._retry_seconds)
        while encoder.cursor is not None and encoder.cursor < cursor:
            try:
                async with self._turns:
                    await self._take_page(encoder, encoder.cursor, run_id, subject, cursor)
            except HarnessError as error:
                if not may_succeed_later(error) or not await patience.wait():
                    raise
            else:
                patience.reset()

    async def _take_page(self, encoder: Encoder, at: int, run_id: str, subject: str, cursor: int) -> None:
        limit = min(PAGE_EVENTS, cursor - at)
        events = await self._source.page(run_id, subject, at, limit)
        # I7: a state made with a hole in it would show what is not so.
        if not events or events[0].sequence != at + 1:
            raise HarnessError(Reason.UNAVAILABLE, "The run's log cannot be read now; resume later.")
        for event in events[:limit]:
            encoder.encode(event)
        metrics.RESTORED.inc(min(len(events), limit))
