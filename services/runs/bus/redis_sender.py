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
  local how, keep, seconds, fields = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  local done
  if how == 'ack' then
    done = redis.pcall('XACK', key, ARGV[at + 4], ARGV[at + 5])
    if type(done) ~= 'table' then done = redis.pcall('XDEL', key, ARGV[at + 5]) end
  else
    done = redis.pcall('XADD', key, 'MAXLEN', how, keep, '*', unpack(ARGV, at + 4, at + 3 + fields))
  end
  if type(done) == 'table' and done.err then
    refusals[#refusals + 1] = done.err
  elseif how ~= 'ack' then
    redis.call('EXPIRE', key, seconds)
  end
  at = at + 4 + fields
end
return refusals
"""
"""Adds a batch of entries, and acknowledges others; answers what was refused. One command and one answer for all: packing and parsing two for
each entry took more of this process than all else that a notice costs."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry for one stream: at most `keep` entries stay, or about as many unless `exactly`, and the stream expires `seconds` later."""

    key: bytes
    fields: tuple[bytes, ...]
    keep: int
    seconds: int
    exactly: bool = True

    @property
    def size(self) -> int:
        """Bytes it takes while it waits."""
        return sum(map(len, self.fields)) + _OVERHEAD

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the script takes for it."""
        return "=" if self.exactly else "~", self.keep, self.seconds, len(self.fields), *self.fields


@dataclass(frozen=True, slots=True)
class Settled:
    """An entry of a group that is acknowledged and deleted: it is decided, and nobody reads it again."""

    key: bytes
    group: str
    entry_id: bytes

    @property
    def size(self) -> int:
        """Bytes it takes while it waits."""
        return _OVERHEAD

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the script takes for it."""
        return "ack", 0, 0, 2, self.group, self.entry_id


class Sender:
    """A bounded queue; when it is full the oldest entries go, since the newest say the most (I35)."""

    def __init__(self, client: Redis, health: BusHealth) -> None:
        self._client = client
        self._add_all = client.register_script(_ADD_ALL)
        self._health = health
        self._queue: deque[Entry | Settled] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait."""
        return self._bytes

    def put(self, entry: Entry | Settled) -> None:
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
            # Once more when the server is back: that it was away shows first in what is sent first after that, a signal perhaps.
            if not await self._try(batch) and not await self._try(batch):
                metrics.DROPPED_AWAY.inc(len(batch))

    async def _try(self, batch: list[Entry | Settled]) -> bool:
        """Whether the server took it, or refused it for good; if not, it is back when this returns."""
        try:
            refusals = await self._send(batch)
        except BUS_ERRORS as error:
            self._health.failed(_CONNECTION, error)
            await self._until_back()
            return False
        metrics.SENT.inc(len(batch) - len(refusals))
        if refusals:
            metrics.DROPPED_REFUSED.inc(len(refusals))
            self._health.failed(_CONNECTION, refusals[0])
        else:
            self._health.answered(_CONNECTION)
        return True

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

    def _take(self) -> list[Entry | Settled]:
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))]
        self._bytes -= sum(entry.size for entry in batch)
        return batch

    async def _send(self, batch: list[Entry | Settled]) -> list[Exception]:
        """What the server answered to entries that it refused, as when its memory is full."""
        arguments: list[Any] = []
        for entry in batch:
            arguments += entry.arguments
        try:
            async with answer_in_time():
                refusals: list[bytes] = await self._add_all([entry.key for entry in batch], arguments)
        except ResponseError as refusal:  # of the whole, as when the server's memory is full
            return [refusal] * len(batch)
        return [ResponseError(refusal.decode(errors="replace")) for refusal in refusals]
