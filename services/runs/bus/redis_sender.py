"""Everything this process puts on the bus: one queue, one sender, one batch at a time, so that no run ever waits for it."""

# pyright: standard
# redis-py leaves much of what its client takes and returns untyped.

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from services.runs.bus import metrics
from services.runs.bus.redis_link import BUS_ERRORS, Backoff, BusHealth, answer_in_time

MAX_QUEUED: Final = 4096
MAX_QUEUED_BYTES: Final = 8 << 20
MAX_BATCH: Final = 256
_OVERHEAD: Final = 128
_CONNECTION: Final = "sender"
_ADD_ALL: Final = """
local refusals, at = {}, 1
for _, key in ipairs(KEYS) do
  local keep, seconds, fields = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local added = redis.pcall('XADD', key, 'MAXLEN', keep, '*', unpack(ARGV, at + 3, at + 2 + fields))
  if type(added) == 'table' and added.err then
    refusals[#refusals + 1] = added.err
  else
    redis.call('EXPIRE', key, seconds)
  end
  at = at + 3 + fields
end
return refusals
"""
"""Adds a batch of entries; answers what was refused. One command and one answer for all: packing and parsing two for each entry took more
of this process than all else that a notice costs."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry for one stream: at most `keep` entries stay, and the stream expires `seconds` later."""

    key: bytes
    fields: tuple[bytes, ...]
    keep: int
    seconds: int

    @property
    def size(self) -> int:
        """Bytes it takes while it waits."""
        return sum(map(len, self.fields)) + _OVERHEAD


class Sender:
    """A bounded queue; when it is full the oldest entries go, since the newest say the most (I35)."""

    def __init__(self, client: Redis, health: BusHealth) -> None:
        self._client = client
        self._add_all = client.register_script(_ADD_ALL)
        self._health = health
        self._queue: deque[Entry] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait."""
        return self._bytes

    def put(self, entry: Entry) -> None:
        """Send it soon. Never blocks, never raises."""
        self._queue.append(entry)
        self._bytes += entry.size
        while len(self._queue) > MAX_QUEUED or self._bytes > MAX_QUEUED_BYTES:
            self._bytes -= self._queue.popleft().size
            metrics.DROPPED_FULL.inc()
        self._filled.set()

    async def run(self) -> None:
        """Send what is queued, for ever. While one batch is under way the next one gathers, so load makes them bigger, not more."""
        while True:
            if not self._queue:
                self._filled.clear()
                await self._filled.wait()
            batch = self._take()
            try:
                refusals = await self._send(batch)
            except BUS_ERRORS as error:
                metrics.DROPPED_AWAY.inc(len(batch))
                self._health.failed(_CONNECTION, error)
                await self._until_back()
                continue
            metrics.SENT.inc(len(batch) - len(refusals))
            if refusals:
                metrics.DROPPED_REFUSED.inc(len(refusals))
                self._health.failed(_CONNECTION, refusals[0])
            else:
                self._health.answered(_CONNECTION)

    async def _until_back(self) -> None:
        backoff = Backoff()
        while True:
            await backoff.wait()
            try:
                async with answer_in_time():
                    await self._client.ping()
            except BUS_ERRORS as error:
                self._health.failed(_CONNECTION, error)
            else:
                self._health.answered(_CONNECTION)
                return

    def _take(self) -> list[Entry]:
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))]
        self._bytes -= sum(entry.size for entry in batch)
        return batch

    async def _send(self, batch: list[Entry]) -> list[Exception]:
        """What the server answered to entries that it refused, as when its memory is full."""
        arguments: list[Any] = []
        for entry in batch:
            arguments += (entry.keep, entry.seconds, len(entry.fields), *entry.fields)
        try:
            async with answer_in_time():
                refusals: list[bytes] = await self._add_all([entry.key for entry in batch], arguments)
        except ResponseError as refusal:  # of the whole, as when the server's memory is full
            return [refusal] * len(batch)
        return [ResponseError(refusal.decode(errors="replace")) for refusal in refusals]
