"""Everything this process reads of live notices and signals: one task, one blocking XREAD over the streams that are followed."""

# pyright: standard
# redis-py leaves much of what its client takes and returns untyped.

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from redis.asyncio import Redis

from services.runs.bus import metrics
from services.runs.bus.notices import LIVE_PREFIX, decode, live_key
from services.runs.bus.port import Listener, SignalListener
from services.runs.bus.redis_link import BLOCK_MILLISECONDS, BUS_ERRORS, Backoff, BusHealth, answer_in_time
from services.runs.bus.redis_sender import Entry

MAX_FOLLOWED: Final = 2_000
"""Runs followed at once; beyond it their watchers poll the log (I35)."""
MAX_ENTRIES: Final = 8
"""Of one stream in one answer."""
MAX_SIGNALS: Final = 256
"""Kept of what is told to one process; a signal that goes is made up for by the next renewal (I35)."""
SIGNALS_SECONDS: Final = 60
_RUN: Final = b"run"
_FROM_THE_START: Final = b"0-0"
_CONNECTION: Final = "reader"


def holder_key(holder: str) -> bytes:
    """The stream of what is told to one process."""
    return f"harness:holder:{holder}".encode()


def signal_to(holder: str, run_id: str) -> Entry:
    """What stands in a holder's stream for a run that it has to look at; without a run, for nothing but to be read."""
    return Entry(
        holder_key(holder), (_RUN, run_id.encode()) if run_id else (b"look", b""), MAX_SIGNALS, SIGNALS_SECONDS
    )


class Reader:
    """Follows a set of runs that changes while it waits.

    The process has a stream of its own beside them, that of its `holder` id: an entry there ends the wait, even when it was written before the
    wait began, so a run that is added is never added too late; `interrupt` writes one. An entry that names a run is a signal (I12).
    """

    def __init__(self, client: Redis, health: BusHealth, holder: str, interrupt: Callable[[], None]) -> None:
        self._client = client
        self._health = health
        self._control = holder_key(holder)
        self._interrupt = interrupt
        self._signalled: SignalListener | None = None
        self._followed: set[str] = set()
        self._outdated = False
        self._listener: Listener | None = None

    def listen(self, listener: Listener) -> None:
        """Who gets the notices."""
        self._listener = listener

    def on_signal(self, listener: SignalListener) -> None:
        """Who gets the signals."""
        self._signalled = listener

    def follow(self, run_id: str) -> None:
        """See `LiveBus.follow`."""
        if run_id in self._followed:
            return
        if len(self._followed) >= MAX_FOLLOWED:
            metrics.NOT_FOLLOWED.inc()
            return
        self._followed.add(run_id)
        metrics.FOLLOWED.inc()
        if not self._outdated:
            self._outdated = True
            self._interrupt()

    def unfollow(self, run_id: str) -> None:
        """See `LiveBus.unfollow`. The wait goes on as it is: what still comes for the run finds no listener."""
        if run_id in self._followed:
            self._followed.discard(run_id)
            metrics.FOLLOWED.dec()

    async def run(self) -> None:
        """Read for ever, dialling again after every failure."""
        backoff = Backoff()
        while True:
            try:
                async with answer_in_time():
                    await self._client.ping()
                self._health.answered(_CONNECTION)
                backoff.reset()
                await self._read_until_failure()
            except BUS_ERRORS as error:
                self._health.failed(_CONNECTION, error)
                await backoff.wait()

    async def _read_until_failure(self) -> None:
        """Positions are not kept over a failure: the server may have forgotten everything, and the newest notice says what was missed."""
        positions: dict[bytes, bytes] = {self._control: _FROM_THE_START}
        while True:
            self._outdated = False
            await self._follow_new(positions)
            streams: dict[Any, Any] = dict(positions)
            async with answer_in_time():
                answer: Any = await self._client.xread(streams, count=MAX_ENTRIES, block=BLOCK_MILLISECONDS)
            self._health.answered(_CONNECTION)
            for key, entries in answer or ():
                positions[key] = entries[-1][0]
                for _, fields in entries:
                    if key == self._control:
                        self._pass_on(fields or {})
                    else:
                        self._deliver(key, fields)

    async def _follow_new(self, positions: dict[bytes, bytes]) -> None:
        wanted = {live_key(run_id) for run_id in self._followed} | {self._control}
        for key in positions.keys() - wanted:
            del positions[key]
        new = sorted(wanted - positions.keys())
        if not new:
            return
        async with answer_in_time(), self._client.pipeline(transaction=False) as pipeline:
            for key in new:
                pipeline.xrevrange(key, count=1)
            newest: list[Any] = await pipeline.execute()
        for key, entries in zip(new, newest, strict=True):
            positions[key] = _FROM_THE_START
            for entry_id, fields in entries:
                # Whatever was published before this moment lies at or before the newest notice: it says how far the log has to be read.
                positions[key] = entry_id
                self._deliver(key, fields)

    def _pass_on(self, fields: dict[bytes, bytes]) -> None:
        run_id = fields.get(_RUN)
        if run_id is not None and self._signalled is not None:
            metrics.SIGNALS.inc()
            self._signalled(run_id.decode(errors="replace"))

    def _deliver(self, key: bytes, fields: dict[bytes, bytes] | None) -> None:
        run_id = key.decode().removeprefix(LIVE_PREFIX)
        notice = decode(run_id, fields or {})
        if notice is None:
            metrics.MALFORMED.inc()
        elif self._listener is not None and run_id in self._followed:
            self._listener(notice)
