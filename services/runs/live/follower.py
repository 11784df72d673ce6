"""What is known of one run that somebody watches in this process: how far its log goes, its newest segments, its end (run protocol, Read)."""

from __future__ import annotations

import asyncio

from services.runs.live.recent import RecentMemory, RecentSegments
from services.runs.log.port import SegmentHeader
from services.runs.segment import TERMINAL, Segment


class Follower:
    """One per run and process, whatever the number of watchers; it goes when the last of them leaves.

    It only ever goes forward. `offer` takes durable segments in any order and any number of times; `hint` takes what may be a lie. Both wake
    the watchers if something came of it. What it misses, `wanted` says, until somebody reads it from the log and offers it.
    """

    __slots__ = (
        "_closed",
        "_memory",
        "catching_up",
        "changed",
        "ended",
        "known",
        "lost",
        "opened",
        "opening",
        "recent",
        "run_id",
        "wanted",
        "watchers",
    )

    def __init__(self, run_id: str, memory: RecentMemory) -> None:
        self.run_id = run_id
        self.watchers = 0
        self.known = 0
        """The last sequence that is known to be durable."""
        self.wanted = 0
        """The last sequence that was heard of; past `known`, the log has to be read."""
        self.ended: int | None = None
        """Sequence of the terminal, once it is known to be durable."""
        self.lost = False
        """Whether events after `known` were deleted before they were read here: nobody who waits for them will ever get them."""
        self.opened = False
        """Whether the log's end was read since the run is followed."""
        self.opening = asyncio.Lock()
        self.catching_up = False
        self.changed = asyncio.Event()
        """Pulsed, never left set: whoever waits looks again at all of the above."""
        self.recent = RecentSegments()
        self._memory = memory
        self._closed = False

    @property
    def is_behind(self) -> bool:
        """Whether there is something to read from the log."""
        return self.wanted > self.known and self.ended is None and not self.lost

    def is_over(self, cursor: int) -> bool:
        """Whether no event will ever come after this cursor (I9: nothing follows the terminal)."""
        return self.ended is not None and cursor >= self.ended

    def open(self, tail: SegmentHeader | None) -> None:
        """The log's end, read after the run began to be followed: whatever was appended before is behind it, all else will be heard of."""
        self.opened = True
        if tail is None:
            return
        if not self.recent.segments:
            # Nothing is kept yet, so nothing has to follow on: who is behind reads the log.
            self.known = max(self.known, tail.last_sequence)
        self.wanted = max(self.wanted, tail.last_sequence)
        if tail.state.get(TERMINAL, False) and tail.last_sequence <= self.known:
            self.ended = tail.last_sequence
        self.wake()

    def offer(self, segment: Segment) -> None:
        """A durable segment, from whatever source (I8). Old ones are dropped, those that skip ahead only say what is missing."""
        if segment.last_sequence <= self.known or segment.is_seal or self._closed:
            return
        if not self.recent.segments and not self.opened:
            # I8: what stands before a durable segment is durable too.
            self.known = max(self.known, segment.first_sequence - 1)
        self.wanted = max(self.wanted, segment.last_sequence)
        # I7: only cursor + 1 is taken, so that what is kept has no gap and no repetition.
        if segment.first_sequence != self.known + 1:
            return
        self.known = segment.last_sequence
        if segment.terminal:
            self.ended = segment.last_sequence
        self._memory.add(self.recent, segment)
        self.wake()

    def hint(self, last_sequence: int) -> None:
        """Somebody says that the log goes at least that far. Only the log says whether it is true."""
        self.wanted = max(self.wanted, last_sequence)

    def give_up(self, wanted: int) -> None:
        """The log does not go to `wanted`; whatever was heard of since stays to be read."""
        if self.wanted == wanted:
            self.wanted = self.known

    def lose(self) -> None:
        """The log was deleted past `known`: whoever waits is told so, for there is nothing left to wait for (I9)."""
        self.lost = True
        self.wanted = self.known
        self.wake()

    def wake(self) -> None:
        """Let every watcher look again."""
        self.changed.set()
        self.changed.clear()

    def close(self) -> None:
        """Nobody watches any more: keep nothing, also of a read of the log that is still under way."""
        self._closed = True
        self._memory.clear(self.recent)
