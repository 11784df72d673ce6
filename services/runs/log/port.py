"""The event log port: append-only segments of packed events (run protocol, Three documents; architecture, Stores).

A segment is durable before anybody sees its events (I8). The log decides one thing only: who is first at an index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

MAX_HEADER_BYTES: Final = 2 << 20
"""Bound of a header's `state` as JSON: more than all that can be open in a run takes, the arguments of open tool calls written out."""
MAX_SEGMENT_BYTES: Final = 4 << 20
"""Bound of the packed events of one segment."""
MAX_READ_BYTES: Final = 16 << 20
MAX_READ_SEGMENTS: Final = 1000
MAX_HEADERS: Final = 1000
MAX_DELETE: Final = 1000


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment says without its events.

    A seal has no events: its `last_sequence` is that of the segment before it and `first_sequence` is one more.
    `state` is JSON-safe and the executor's own: through_offset, runtime_ref, what is open.
    """

    run_id: str
    index: int
    first_sequence: int
    last_sequence: int
    run_generation: int
    nonce: str
    state: dict[str, Any]

    @property
    def is_seal(self) -> bool:
        """True for a segment that ends an older generation and carries no event."""
        return self.first_sequence > self.last_sequence


@dataclass(frozen=True, slots=True)
class Segment:
    """A header with its packed events (empty for a seal)."""

    header: SegmentHeader
    events: bytes


@dataclass(frozen=True, slots=True)
class Appended:
    """The segment is durable."""


@dataclass(frozen=True, slots=True)
class DuplicateSegment:
    """The index is taken. With the own nonce in `existing`, an earlier attempt had got through; else stop (I10)."""

    existing: SegmentHeader


class BrokenLog(Exception):
    """A segment that would break the log: a gap before it, or sequences that do not follow on (I7).

    Nothing was written. Never a race between writers (that is `DuplicateSegment`) but a mistake, or a log that was
    deleted meanwhile.
    """


class SegmentLog(Protocol):
    """The segments of every run. Raises what the record store raises: `StoreUnavailable`, `StoreFull`,
    `DocumentTooLarge`; an `InvalidQuery` for a bound out of range."""

    async def append(self, header: SegmentHeader, events: bytes) -> Appended | DuplicateSegment:
        """Insert the segment, unique on (run_id, index), durable when this returns.

        Index and first sequence start at 1 and follow on from the segment before. Errors: `BrokenLog`.
        """
        ...

    async def tail(self, run_id: str) -> SegmentHeader | None:
        """The header of the last segment, None for a run without any."""
        ...

    async def headers(self, run_id: str, from_index: int = 1, limit: int = MAX_HEADERS) -> list[SegmentHeader]:
        """Headers from this index on, in order, seals included."""
        ...

    async def read(
        self,
        run_id: str,
        after_sequence: int,
        *,
        max_bytes: int = MAX_READ_BYTES,
        limit: int = MAX_READ_SEGMENTS,
    ) -> list[Segment]:
        """Segments in order, beginning with the one that contains `after_sequence` + 1. Empty: nothing after it yet.

        A seal comes with the segments around it, never alone. Stops at `limit` segments or before the one
        that would pass `max_bytes` of events; the first always comes whole.
        """
        ...

    async def delete(self, run_id: str, limit: int = MAX_DELETE) -> int:
        """Delete up to `limit` segments from the front; how many were. 0 means the run has none left.

        Mark the run as trimmed first (run protocol, Read).
        """
        ...
