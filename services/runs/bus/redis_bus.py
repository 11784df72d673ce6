"""The bus on Redis or Valkey streams."""

# pyright: standard
# redis-py leaves much of what its client takes and returns untyped.

from __future__ import annotations

from typing import Final

from services.common.ids import new_nonce
from services.common.tasks import BackgroundTasks
from services.runs.bus.notices import ENDED_SECONDS, MAX_NOTICES, RUNNING_SECONDS, encode, live_key
from services.runs.bus.port import Listener, SignalListener
from services.runs.bus.redis_dispatch import Announcements, dispatch_key
from services.runs.bus.redis_link import BusHealth, check_bus_url, connect
from services.runs.bus.redis_reader import Reader, signal_to
from services.runs.bus.redis_sender import Entry, Sender
from services.runs.segment import Segment

RESTART_SECONDS: Final = 1.0
CLAIM_SECONDS: Final = 5.0


class RedisBus:
    """Implements `Bus`. Three connections: one that sends, one that waits for notices and signals, and one that waits for announcements."""

    def __init__(
        self, url: str, environment: str, holder: str | None = None, claim_after_seconds: float = CLAIM_SECONDS
    ) -> None:
        """`holder` names this process on its leases and in the consumer group; what another one was handed and did not decide about within
        `claim_after_seconds` is claimed. Errors: `ConfigurationError` for a url that cannot be one. Nothing is dialled yet."""
        holder = holder or new_nonce()
        self._url = check_bus_url(url)
        self._health = BusHealth()
        self._clients = [connect(url), connect(url), connect(url)]
        self._sender = Sender(self._clients[0], self._health)
        self._reader = Reader(
            self._clients[1], self._health, holder, interrupt=lambda: self._sender.put(signal_to(holder, ""))
        )
        self._announcements = Announcements(
            self._clients[2], self._sender, dispatch_key(environment), holder, claim_after_seconds
        )
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
        self._announcements.announce(run_id)

    async def announced(self, most: int) -> list[str]:
        """See `DispatchBus.announced`."""
        return await self._announcements.take(most)

    def settle(self, run_id: str) -> None:
        """See `DispatchBus.settle`."""
        self._announcements.settle(run_id)

    def signal(self, holder: str, run_id: str) -> None:
        """See `DispatchBus.signal`."""
        self._sender.put(signal_to(holder, run_id))

    def on_signal(self, listener: SignalListener) -> None:
        """See `DispatchBus.on_signal`."""
        self._reader.on_signal(listener)

    async def start(self) -> None:
        """See `Bus.start`."""
        # Neither ever ends; should one fail in a way that nobody thought of, it begins again.
        self._tasks.every("bus_sender", RESTART_SECONDS, self._sender.run)
        self._tasks.every("bus_reader", RESTART_SECONDS, self._reader.run)
        self._tasks.every("bus_executors", self._announcements.look_seconds, self._announcements.look)

    async def close(self) -> None:
        """See `Bus.close`."""
        await self._tasks.close()
        if self._health.is_up:
            await self._announcements.leave()
        self._health.close()
        for client in self._clients:
            await client.aclose()
