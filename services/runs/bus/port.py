"""The bus port: live notices, dispatch hints and signals between replicas.

Everything on the bus is a hint. It may be lost, doubled, late or out of order, and it may be away: the log, the renewals and the sweep lose
nothing by it, they only take longer (I34).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
SignalListener = Callable[[str], None]
"""Takes the id of a run at once; never blocks, never raises."""


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
    """Which queued runs are ready for an executor, and which executed ones their executor has to look at."""

    def announce(self, run_id: str) -> None:
        """A queued run may be taken by another replica. Never blocks, never raises; a lost one is found by the sweep."""
        ...

    async def announced(self, most: int) -> list[str]:
        """Waits until there are announced runs to look at, for ever if need be; at most `most` of them. Each is handed to one replica, and to
        another one later if it is not settled; whoever has no room does not ask. One caller at a time."""
        ...

    def settle(self, run_id: str) -> None:
        """What was handed out here is decided: the run was taken, here or elsewhere, or waits here. Never blocks, never raises; repeating it is
        harmless, and so is settling what was never handed out."""
        ...

    def signal(self, holder: str, run_id: str) -> None:
        """Tell the process that holds the run's lease to look at the record now. Never blocks, never raises; a lost one is made up for by
        the holder's next renewal (I12)."""
        ...

    def on_signal(self, listener: SignalListener) -> None:
        """Who gets the signals to this process. Called once, before the start."""
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

    async def announced(self, most: int) -> list[str]:
        """See `DispatchBus.announced`: none ever comes."""
        await asyncio.Event().wait()
        return []

    def settle(self, run_id: str) -> None:
        """See `DispatchBus.settle`."""

    def signal(self, holder: str, run_id: str) -> None:
        """See `DispatchBus.signal`."""

    def on_signal(self, listener: SignalListener) -> None:
        """See `DispatchBus.on_signal`."""

    async def start(self) -> None:
        """See `Bus.start`."""

    async def close(self) -> None:
        """See `Bus.close`."""
