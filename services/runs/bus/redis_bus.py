"""The bus on Redis or Valkey streams."""

# pyright: standard
# redis-py leaves much of what its client takes and returns untyped.

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from services.common.ids import new_nonce
from services.common.tasks import BackgroundTasks
from services.runs.bus.notices import ENDED_SECONDS, MAX_NOTICES, RUNNING_SECONDS, encode, live_key
from services.runs.bus.port import Listener
from services.runs.bus.redis_dispatch import announcement, dispatch_key, read_announcements
from services.runs.bus.redis_link import BusHealth, check_bus_url, connect
from services.runs.bus.redis_reader import Reader
from services.runs.bus.redis_sender import Entry, Sender
from services.runs.segment import Segment

CONTROL_SECONDS: Final = 60
RESTART_SECONDS: Final = 1.0


class RedisBus:
    """Implements `Bus`. Three connections: one that sends, one that waits for notices, and one that waits for announcements if asked to."""

    def __init__(self, url: str, environment: str) -> None:
        """Errors: `ConfigurationError` for a url that cannot be one. Nothing is dialled yet."""
        self._url = check_bus_url(url)
        self._dispatch = dispatch_key(environment)
        self._health = BusHealth()
        self._clients = [connect(url), connect(url)]
        self._sender = Sender(self._clients[0], self._health)
        control = f"harness:reader:{new_nonce()}".encode()
        interrupt = Entry(control, (b"look", b""), keep=1, seconds=CONTROL_SECONDS)
        self._reader = Reader(self._clients[1], self._health, control, lambda: self._sender.put(interrupt))
        self._tasks = BackgroundTasks()

    @property
    def is_up(self) -> bool:
        """See `Bus.is_up`."""
        return self._health.is_up

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._sender.queued_bytes

    def listen(self, listener: Listener) -> None:
        """See `LiveBus.listen`."""
        self._reader.listen(listener)

    def publish(self, segment: Segment) -> None:
        """See `LiveBus.publish`."""
        seconds = ENDED_SECONDS if segment.terminal else RUNNING_SECONDS
        self._sender.put(Entry(live_key(segment.run_id), encode(segment), MAX_NOTICES, seconds))

    def follow(self, run_id: str) -> None:
        """See `LiveBus.follow`."""
        self._reader.follow(run_id)

    def unfollow(self, run_id: str) -> None:
        """See `LiveBus.unfollow`."""
        self._reader.unfollow(run_id)

    def announce(self, run_id: str) -> None:
        """See `DispatchBus.announce`."""
        self._sender.put(announcement(self._dispatch, run_id))

    async def announcements(self) -> AsyncGenerator[str, None]:
        """See `DispatchBus.announcements`."""
        client = connect(self._url)
        try:
            async with aclosing(read_announcements(client, self._dispatch)) as run_ids:
                async for run_id in run_ids:
                    yield run_id
        finally:
            await client.aclose()

    async def start(self) -> None:
        """See `Bus.start`."""
        # Neither ever ends; should one fail in a way that nobody thought of, it begins again.
        self._tasks.every("bus_sender", RESTART_SECONDS, self._sender.run)
        self._tasks.every("bus_reader", RESTART_SECONDS, self._reader.run)

    async def close(self) -> None:
        """See `Bus.close`."""
        await self._tasks.close()
        for client in self._clients:
            await client.aclose()
