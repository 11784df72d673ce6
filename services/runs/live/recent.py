"""The newest segments of every followed run, shared by all its watchers, within bounds of bytes (I14, I35)."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Final

from services.runs.live.packed import drop_first
from services.runs.segment import Segment

RUN_BYTES: Final = 2 << 20
"""Kept of one run, at most."""
TOTAL_BYTES: Final = 64 << 20
"""Kept of all runs together, at most."""
CHUNK_BYTES: Final = 256 << 10
"""What one step of a watcher forwards, at most, unless a single segment is larger."""
SEGMENT_OVERHEAD: Final = 256
"""Bytes a kept segment takes beside its events, counted so that many small ones stay bounded too."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive events as one packed message, and the cursor behind them."""

    packed: bytes
    last_sequence: int


def chunk_after(segments: list[Segment], cursor: int) -> Chunk:
    """The events after `cursor` in consecutive segments, the first of which contains `cursor` + 1."""
    first = segments[0]
    # I7: a cursor inside a segment cuts it, once; everything after it is forwarded as it is stored.
    beginning = drop_first(first.packed, cursor + 1 - first.first_sequence)
    if len(segments) == 1:
        return Chunk(beginning, first.last_sequence)
    return Chunk(b"".join((beginning, *(one.packed for one in segments[1:]))), segments[-1].last_sequence)


class RecentSegments:
    """The newest segments of one run: consecutive, without seals, oldest first."""

    __slots__ = ("segments", "size")

    def __init__(self) -> None:
        self.segments: deque[Segment] = deque()
        self.size = 0

    def after(self, cursor: int) -> Chunk | None:
        """The next chunk after the cursor; None when its next event is not kept (or not there yet)."""
        segments = self.segments
        if not segments or not segments[0].first_sequence <= cursor + 1 <= segments[-1].last_sequence:
            return None
        # Watchers are mostly at the end, so that is where the search begins.
        at = len(segments) - 1
        while segments[at].first_sequence > cursor + 1:
            at -= 1
        chosen = [segments[at]]
        size = len(segments[at].packed)
        for position in range(at + 1, len(segments)):
            size += len(segments[position].packed)
            if size > CHUNK_BYTES:
                break
            chosen.append(segments[position])
        return chunk_after(chosen, cursor)


class RecentMemory:
    """Bounds what is kept: per run, and of all runs together, where the run that was quiet the longest gives way first."""

    def __init__(self, *, run_bytes: int = RUN_BYTES, total_bytes: int = TOTAL_BYTES) -> None:
        self._run_bytes = run_bytes
        self._total_bytes = total_bytes
        self._runs: OrderedDict[RecentSegments, None] = OrderedDict()
        self.size = 0
        """Bytes kept now."""

    def add(self, recent: RecentSegments, segment: Segment) -> None:
        """Keep the segment, which follows on from the last one kept of its run, and let go of old ones."""
        size = _size(segment)
        recent.segments.append(segment)
        recent.size += size
        self.size += size
        self._runs[recent] = None
        self._runs.move_to_end(recent)
        while recent.size > self._run_bytes:  # I14
            self._drop_oldest(recent)
        while self.size > self._total_bytes:  # I35
            self._drop_oldest(next(iter(self._runs)))

    def clear(self, recent: RecentSegments) -> None:
        """Let go of everything of a run."""
        self.size -= recent.size
        recent.size = 0
        recent.segments.clear()
        self._runs.pop(recent, None)

    def _drop_oldest(self, recent: RecentSegments) -> None:
        size = _size(recent.segments.popleft())
        recent.size -= size
        self.size -= size
        if not recent.segments:
            del self._runs[recent]


def _size(segment: Segment) -> int:
    return len(segment.packed) + SEGMENT_OVERHEAD
