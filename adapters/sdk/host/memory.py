"""The memory all runs of a host share for drafts that are not yet durable: bounded in total (I35)."""

import asyncio
import time
from typing import Protocol

from adapters.sdk.logs import get_logger

# How often at most the log says that the bound was hit.
WARN_SECONDS = 10.0
_log = get_logger(__name__)


class Dispensable(Protocol):
    """What can give up its drafts when others need the room."""

    def give_up_drafts(self) -> None:
        """Forgets all drafts that are kept, and frees their bytes."""
        ...


class DraftMemory:
    """Counts encoded bytes over all runs. Past the bound ended runs that were handed over give theirs up, the oldest first; when
    that is not enough, no provider is read until there is room. What is kept exceeds the bound by no more than one provider event per
    run, and by terminals.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.used = 0
        # Oldest first.
        self._dispensable: dict[Dispensable, None] = {}
        # Those who wait for room, the longest first.
        self._waiting: dict[Dispensable, asyncio.Future[None]] = {}
        self._warned_at = -WARN_SECONDS

    @property
    def is_full(self) -> bool:
        """Whether no provider must be read any further."""
        return self.used >= self._max_bytes

    def take(self, size: int) -> None:
        """Counts `size` bytes more."""
        self.used += size

    def free(self, size: int) -> None:
        """Counts `size` bytes less, and wakes who waits if that makes room."""
        self.used -= size
        if self._waiting and not self.is_full:
            for room in self._waiting.values():
                if not room.done():
                    room.set_result(None)

    def offer(self, run: Dispensable) -> None:
        """The run's drafts may be given up when others need the room: it has ended, and its reader has been given all of them."""
        self._dispensable.setdefault(run)
        if self._waiting:
            self.make_room()

    def withdraw(self, run: Dispensable) -> None:
        """The run's drafts are gone, or somebody reads them again."""
        self._dispensable.pop(run, None)

    def make_room(self) -> None:
        """Lets ended runs give up their drafts until there is room, or none is left that could."""
        while self.is_full and self._dispensable:
            run = next(iter(self._dispensable))
            del self._dispensable[run]
            run.give_up_drafts()

    def wait(self, run: Dispensable, room: "asyncio.Future[None]") -> None:
        """Resolves `room` when there may be room. Until `leave` the run keeps its place: who was woken in vain is first the next time."""
        self._waiting[run] = room
        now = time.monotonic()
        if now - self._warned_at >= WARN_SECONDS:
            self._warned_at = now
            _log.warning(
                "draft_memory_full",
                used=self.used,
                bound=self._max_bytes,
                meaning="providers wait for acknowledgements",
            )

    def leave(self, run: Dispensable) -> None:
        """The run waits no longer."""
        self._waiting.pop(run, None)
