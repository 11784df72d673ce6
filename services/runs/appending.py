"""One run's appends: one in flight, gathering meanwhile; durable before published, before acknowledged (run protocol, Issue and follow 2–4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from services.common.ids import new_nonce
from services.common.logs import get_logger
from services.common.store import StoreError, StoreUnavailable
from services.runs.log import BrokenLog, DuplicateSegment, SegmentHeader, SegmentLog
from services.runs.segment import Segment
from services.runs.segmenting import Packed, Packer, Tail

MAX_PENDING_BYTES: Final = 2 << 20
"""Packed and not yet durable, at most; past it the runtime is not read (I35)."""
GATHER_SECONDS: Final = 0.004
"""From the beginning of one append to that of the next, at least: a stream of small batches costs few appends and hardly any delay."""
RETRY_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
_log = get_logger(__name__)


class Fenced(Exception):
    """Somebody else writes this log now: write nothing more anywhere (I10)."""


class Publisher(Protocol):
    """Who tells watchers."""

    def published(self, run_id: str, segment: Segment) -> None:
        """The segment is durable. Never blocks, never raises."""
        ...


class RunAppender:
    """Appends what the packer holds. `on_failure` is called once, when an append failed for good; `drain` then raises the same."""

    def __init__(
        self,
        log: SegmentLog,
        publisher: Publisher,
        packer: Packer,
        *,
        run_id: str,
        run_generation: int,
        durable: Tail,
        on_failure: Callable[[], None],
    ) -> None:
        self._log = log
        self._publisher = publisher
        self._packer = packer
        self._run_id = run_id
        self._run_generation = run_generation
        self._nonce = new_nonce()
        self._on_failure = on_failure
        self._in_flight: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_at = 0.0
        self._draining = 0
        self._room = asyncio.Event()
        self._failure: Exception | None = None
        self._stopped = False
        self._given_up = asyncio.Event()
        self.runtime = ""
        """Incarnation that the events come from."""
        self.durable_offset = durable.through_offset
        self.durable_sequence = durable.last_sequence
        self.durable_bytes = 0

    def kick(self) -> None:
        """Append soon: at once after a pause, else a moment after the append before, together with what comes until then."""
        if self._in_flight is not None or self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        wait = self._next_at - loop.time()
        if wait <= 0:
            self._begin()
        else:
            self._timer = loop.call_later(wait, self._begin)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._in_flight is None and self._failure is None and not self._stopped:
            self._in_flight = asyncio.create_task(self._flush())

    async def room(self) -> None:
        """Wait while more is packed than may be held."""
        while self._packer.pending_bytes > MAX_PENDING_BYTES and self._failure is None and not self._stopped:
            self._room.clear()
            await self._room.wait()

    async def drain(self) -> None:
        """Wait until all that is packed is durable. Errors: `Fenced`, or what the store raised for good."""
        self._draining += 1
        try:
            while self._failure is None and (self._in_flight is not None or self._packer.pending_bytes):
                self._begin()
                if (task := self._in_flight) is None:
                    raise Fenced(f"{self._run_id}: stopped before all was durable")
                # The append goes on if the waiter is cancelled: its outcome must not stay unknown.
                await asyncio.shield(task)
        finally:
            self._draining -= 1
        if self._failure is not None:
            raise self._failure

    def give_up(self) -> None:
        """Begin no append any more, and repeat none: whoever drains gets `Fenced`."""
        self._stopped = True
        self._given_up.set()
        self._room.set()
        if self._timer is not None:
            self._timer.cancel()

    async def stop(self) -> None:
        """Append nothing more; returns once the append in flight has ended."""
        self.give_up()
        if (task := self._in_flight) is not None:
            await asyncio.shield(task)

    async def _flush(self) -> None:
        self._next_at = asyncio.get_running_loop().time() + GATHER_SECONDS
        try:
            while not self._stopped and (packed := self._packer.take()) is not None:
                await self._append(packed)
                self._room.set()
                if not self._draining and not self._packer.has_full_segment:
                    break
        except (Fenced, BrokenLog, StoreError) as failure:
            self._failure = failure
            self._room.set()
            self._on_failure()
        finally:
            self._in_flight = None
        if self._packer.pending_bytes:
            self.kick()

    async def _append(self, packed: Packed) -> None:
        header = self._header(packed.first_sequence, packed.tail)
        await self._append_durably(header, packed.packed)
        self.durable_offset = packed.tail.through_offset
        self.durable_sequence = packed.tail.last_sequence
        self.durable_bytes += len(packed.packed)
        segment = Segment(
            run_id=self._run_id,
            index=header.index,
            first_sequence=header.first_sequence,
            last_sequence=header.last_sequence,
            terminal=bool(packed.tail.terminal_status),
            packed=packed.packed,
        )
        self._publisher.published(self._run_id, segment)  # I8: durable first, then visible

    async def _append_durably(self, header: SegmentHeader, events: bytes) -> None:
        attempt = 0
        while True:
            try:
                outcome = await self._log.append(header, events)
            except StoreUnavailable:
                if self._stopped:
                    raise Fenced(f"{self._run_id}: stopped while the store was away") from None
                _log.warning("append_repeated", run_id=self._run_id, index=header.index, attempt=attempt)
                await self._pause(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)])
                attempt += 1
                continue
            # I10: an index that somebody else has taken ends this writer; only its own nonce says that an earlier attempt got through.
            if isinstance(outcome, DuplicateSegment) and outcome.existing.nonce != self._nonce:
                raise Fenced(f"{self._run_id}: another executor wrote segment {header.index}")
            return

    async def _pause(self, seconds: float) -> None:
        """Before an append is repeated; over at once when it shall not be."""
        try:
            async with asyncio.timeout(seconds):
                await self._given_up.wait()
        except TimeoutError:
            return

    def _header(self, first_sequence: int, tail: Tail) -> SegmentHeader:
        return SegmentHeader(
            run_id=self._run_id,
            index=tail.index,
            first_sequence=first_sequence,
            last_sequence=tail.last_sequence,
            run_generation=self._run_generation,
            nonce=self._nonce,
            state=tail.state(self.runtime),
        )
