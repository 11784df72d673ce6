"""Announcing queued runs: one stream per environment, one consumer group of all executors, one consumer per process.

An entry is pending with the process it was handed to until that has decided about the run; then it is acknowledged and deleted. What a
process leaves pending, another one claims; consumers that are gone are removed. Nothing rests on any of it: the sweep finds the same runs.
"""

# pyright: standard
# redis-py leaves much of what its client takes and returns untyped.

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from services.runs.bus import metrics
from services.runs.bus.redis_link import BLOCK_MILLISECONDS, BUS_ERRORS, Backoff, answer_in_time
from services.runs.bus.redis_sender import Entry, Sender, Settled

MAX_ANNOUNCED: Final = 10_000
"""Announcements kept, about; older ones go (I35)."""
KEPT_SECONDS: Final = 3_600
GROUP: Final = "executors"
MAX_AT_ONCE: Final = 64
"""Handed out in one answer."""
MAX_HELD: Final = 4_096
"""Handed out here and not settled; what is beyond is left to whoever claims it (I35)."""
LOOK_SECONDS: Final = 5.0
"""Between two looks at who else is there, at most: one that comes is not announced to for so long."""
GONE_LOOKS: Final = 6
"""A consumer that did nothing for the time of so many looks is gone."""
_RUN: Final = b"run"
_NEVER: Final = 1 << 50
"""Milliseconds that nothing is ever idle for."""
_LOOK: Final = """
redis.call('XAUTOCLAIM', KEYS[1], ARGV[1], ARGV[2], ARGV[4], '0-0', 'COUNT', 1, 'JUSTID')
local others = 0
for _, said in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for at = 1, #said, 2 do consumer[said[at]] = said[at + 1] end
  if consumer['name'] ~= ARGV[2] then
    if consumer['idle'] < tonumber(ARGV[3]) then
      others = others + 1
    elseif consumer['pending'] == 0 then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer['name'])
    end
  end
end
return others
"""
"""Says that this consumer is there (claiming what is idle for longer than anything can be), removes those that are gone and hold nothing, and
counts the others. In one step, for removing a consumer forgets what was handed to it since it was looked at."""
_LEAVE: Final = """
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])
if #pending == 0 then redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2]) end
return #pending
"""


def dispatch_key(environment: str) -> bytes:
    """The stream of an environment."""
    return f"harness:dispatch:{environment}".encode()


class Announcements:
    """One process's side of the stream. `client` is its own: it waits at the server."""

    def __init__(self, client: Redis, sender: Sender, key: bytes, consumer: str, claim_after_seconds: float) -> None:
        self._client = client
        self._sender = sender
        self._key = key
        self._consumer = consumer
        self._claim_seconds = claim_after_seconds
        self._claim_at = 0.0
        self._backoff = Backoff()
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._others: int | None = None
        self._look_script = client.register_script(_LOOK)
        self._leave_script = client.register_script(_LEAVE)

    @property
    def look_seconds(self) -> float:
        """How often `look` is due."""
        return min(self._claim_seconds, LOOK_SECONDS)

    def announce(self, run_id: str) -> None:
        """See `DispatchBus.announce`. To nobody when this process is known to be alone; one that comes is seen with the next look."""
        if self._others == 0:
            metrics.NOT_ANNOUNCED.inc()
            return
        self._sender.put(
            Entry(self._key, (_RUN, run_id.encode()), keep=MAX_ANNOUNCED, seconds=KEPT_SECONDS, exactly=False)
        )

    def settle(self, run_id: str) -> None:
        """See `DispatchBus.settle`."""
        entry_id = self._held.pop(run_id, None)
        if entry_id is not None:
            self._sender.put(Settled(self._key, GROUP, entry_id))

    async def take(self, most: int) -> list[str]:
        """See `DispatchBus.announced`."""
        while True:
            count = max(1, min(most, MAX_AT_ONCE))
            try:
                run_ids = self._hold(await self._claim(count) or await self._read(count))
                self._backoff.reset()
            except BUS_ERRORS as error:
                if not (_is(error, "NOGROUP", "UNBLOCKED") and await self._make_group()):
                    # Whether the bus is away, its other connections say.
                    await self._backoff.wait()
                continue
            if run_ids:
                metrics.ANNOUNCED.inc(len(run_ids))
                return run_ids

    async def look(self) -> None:
        """Who else is there; those who are gone are removed. For whoever has no room too. Never raises what the bus raises."""
        gone_after = int(self.look_seconds * GONE_LOOKS * 1000)
        try:
            async with answer_in_time():
                others: Any = await self._look_script([self._key], [GROUP, self._consumer, gone_after, _NEVER])
        except BUS_ERRORS as error:
            self._others = None  # unknown: announce
            metrics.OTHERS.set(0)
            if _is(error, "NOGROUP"):
                await self._make_group()
            return
        self._others = int(others)
        metrics.OTHERS.set(self._others)

    async def leave(self) -> None:
        """Take this process out of the group, unless something that was handed to it has to be claimed by others first."""
        try:
            async with answer_in_time():
                await self._leave_script([self._key], [GROUP, self._consumer])
        except BUS_ERRORS:
            return  # whoever looks removes it

    async def _claim(self, count: int) -> list[tuple[bytes, Mapping[bytes, bytes]]]:
        """What a consumer holds for longer than a lease lasts, jittered so that not all replicas ask at once."""
        now = asyncio.get_running_loop().time()
        if now < self._claim_at:
            return []
        async with answer_in_time():
            _, entries, *_ = await self._client.xautoclaim(
                self._key, GROUP, self._consumer, int(self._claim_seconds * 1000), b"0-0", count
            )
        if not entries:
            self._claim_at = now + self._claim_seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, no secret
        metrics.CLAIMED.inc(len(entries))
        return entries

    async def _read(self, count: int) -> list[tuple[bytes, Mapping[bytes, bytes]]]:
        block = min(BLOCK_MILLISECONDS, int(self._claim_seconds * 1000))
        async with answer_in_time():
            answer: Any = await self._client.xreadgroup(
                GROUP, self._consumer, {self._key: ">"}, count=count, block=block
            )
        return [entry for _, entries in answer or () for entry in entries]

    def _hold(self, entries: list[tuple[bytes, Mapping[bytes, bytes]]]) -> list[str]:
        run_ids: list[str] = []
        for entry_id, fields in entries:
            run_id = (fields or {}).get(_RUN)
            if run_id is None:
                metrics.MALFORMED.inc()
                self._sender.put(Settled(self._key, GROUP, entry_id))
                continue
            name = run_id.decode(errors="replace")
            if self._held.get(name) != entry_id:  # the same one comes again when it was claimed back from this process
                self.settle(name)  # announced twice: the older entry says nothing more
            self._held[name] = entry_id
            run_ids.append(name)
        while len(self._held) > MAX_HELD:
            self._held.popitem(last=False)
        return run_ids

    async def _make_group(self) -> bool:
        """Make the group, and the stream, when the server has none (any more); what was announced meanwhile is still handed out."""
        try:
            async with answer_in_time():
                await self._client.xgroup_create(self._key, GROUP, id="0", mkstream=True)
        except BUS_ERRORS as error:
            return _is(error, "BUSYGROUP")
        return True


def _is(error: Exception, *codes: str) -> bool:
    return isinstance(error, ResponseError) and str(error).startswith(codes)
