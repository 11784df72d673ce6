"""The bus port: live notices and dispatch hints between replicas.

Everything on the bus is a hint. It may be lost, doubled, late or out of order, and it may be away: the log and the sweep lose
nothing by it, they only take longer (I34).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol

from services.runs.segment import Segment


@dataclass(frozen=True, slots=True)
class Notice:
    """The log of a run goes to `last_sequence`. It may carry the durable segment that ends there."""

    run_id: str
    last_sequence: int
    segment: Segment | None


Listener = Callable[[Notice], None]
"""Takes a notice at once; never blocks, never raises."""


class LiveBus(Protocol):
    """Which segments are new, per run."""

    def listen(self, listener: Listener) -> None:
        """Who gets the notices of followed runs. Called once, before anything is followed."""
        ...

    def publish(self, segment: Segment) -> None:
        """Tell other replicas of a durable segment. Never blocks, never raises; what does not fit is dropped and counted."""
        ...

    def follow(self, run_id: str) -> None:
        """Hear of this run from soon on; repeating it is harmless. When it takes effect, the newest notice of the run comes once, so that
        nothing published before is missed without a sign."""
        ...

    def unfollow(self, run_id: str) -> None:
        """Hear no more of this run; repeating it is harmless."""
        ...


class DispatchBus(Protocol):
    """Which queued runs are ready for an executor; each announcement reaches one replica at most."""

    def announce(self, run_id: str) -> None:
        """A queued run may be taken. Never blocks, never raises; a lost one is found by the sweep."""
        ...

    def announcements(self) -> AsyncGenerator[str, None]:
        """Run ids to look at, one at a time: the next one is fetched only when it is asked for, so whoever has no room does not ask. Endless."""
        ...


class Bus(LiveBus, DispatchBus, Protocol):
    """Both, over one server."""

    @property
    def is_up(self) -> bool:
        """Whether the server answered when it was last asked. For health and metrics; nothing depends on it."""
        ...

    async def start(self) -> None:
        """Begin to work, whether or not the server is there."""
        ...

    async def close(self) -> None:
        """Stop, within a bounded time; what was not sent is dropped."""
        ...


class NoBus:
    """For a single process: watchers are woken directly, and there is nobody else to tell."""

    is_up = True

    def listen(self, listener: Listener) -> None:
        """See `LiveBus.listen`."""

    def publish(self, segment: Segment) -> None:
        """See `LiveBus.publish`."""

    def follow(self, run_id: str) -> None:
        """See `LiveBus.follow`."""

    def unfollow(self, run_id: str) -> None:
        """See `LiveBus.unfollow`."""

    def announce(self, run_id: str) -> None:
        """See `DispatchBus.announce`."""

    async def announcements(self) -> AsyncGenerator[str, None]:
        """See `DispatchBus.announcements`: none ever comes."""
        await asyncio.Event().wait()
        yield ""

    async def start(self) -> None:
        """See `Bus.start`."""

    async def close(self) -> None:
        """See `Bus.close`."""
