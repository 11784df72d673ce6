"""The latest encoded frames of one run, within a bound of bytes: what every subscriber of the run reads from (I14, I35)."""

from array import array
from collections.abc import Callable, Iterable
from typing import NamedTuple

from harness.event.v1 import event_pb2

CHUNK_BYTES = 65_536
# An encoding may show little or nothing of an event: chunks are bounded by their number too, in proportion to their bytes.
BYTES_PER_CHUNK = 64
MIN_CHUNKS = 1024


class Chunk(NamedTuple):
    """Consecutive frames in one piece of bytes."""

    first: int
    """Sequence of the first event."""
    body: bytes
    ends: "array[int]"
    """Where each frame ends in `body`."""
    end_offset: int
    """Where the chunk ends in all bytes ever put into the ring."""

    @property
    def last(self) -> int:
        return self.first + len(self.ends) - 1


class Part(NamedTuple):
    """What a subscriber reads at once, and its cursor afterwards."""

    body: bytes
    cursor: int


class Ring:
    """Frames after `start`, a cursor; the oldest go when the bound is passed."""

    def __init__(self, start: int, max_bytes: int, encode: Callable[[event_pb2.Event], bytes]) -> None:
        self.head = start
        """The last sequence put in, or the cursor it began at."""
        self.kept_after = start
        """The lowest cursor that can still be read from."""
        self.total = 0
        """Bytes ever put in."""
        self._encode = encode
        self._max_bytes = max_bytes
        self._max_chunks = max(MIN_CHUNKS, max_bytes // BYTES_PER_CHUNK)
        self._bytes = 0
        # By number, not in a list: any is found in one step, and the oldest leaves in one step.
        self._chunks: dict[int, Chunk] = {}
        self._oldest = 0
        self._next = 0

    def put(self, events: Iterable[event_pb2.Event]) -> int:
        """Encodes the next events, which must follow on `head`; returns how many. Each event is encoded here once, for everybody."""
        encode = self._encode
        frames: list[bytes] = []
        ends: array[int] = array("I")
        size = count = 0
        for event in events:
            encoded = encode(event)
            frames.append(encoded)
            size += len(encoded)
            ends.append(size)
            count += 1
            if size >= CHUNK_BYTES:
                self._append(b"".join(frames), ends)
                frames, ends, size = [], array("I"), 0
        if frames:
            self._append(b"".join(frames) if len(frames) > 1 else frames[0], ends)
        return count

    def _append(self, body: bytes, ends: "array[int]") -> None:
        self.total += len(body)
        self._bytes += len(body)
        self._chunks[self._next] = Chunk(self.head + 1, body, ends, self.total)
        self._next += 1
        self.head += len(ends)
        # I14, I35: whoever has not read the oldest by now reads the log instead.
        while self._oldest < self._next - 1 and (
            self._bytes > self._max_bytes or self._next - self._oldest > self._max_chunks
        ):
            dropped = self._chunks.pop(self._oldest)
            self._oldest += 1
            self._bytes -= len(dropped.body)
            self.kept_after = dropped.last

    def read(self, cursor: int, max_bytes: int) -> Part | None:
        """The frames after `cursor`, whole chunks until `max_bytes` are reached; empty at the head or beyond it, None when they were dropped."""
        if cursor >= self.head:
            return Part(b"", cursor)
        if cursor < self.kept_after:
            return None
        number = self._find(cursor + 1)
        chunk = self._chunks[number]
        skipped = cursor + 1 - chunk.first
        body = chunk.body[chunk.ends[skipped - 1] :] if skipped else chunk.body
        if len(body) >= max_bytes or number + 1 == self._next:
            return Part(body, chunk.last)
        parts, size = [body], len(body)
        while size < max_bytes and number + 1 < self._next:
            number += 1
            chunk = self._chunks[number]
            parts.append(chunk.body)
            size += len(chunk.body)
        return Part(b"".join(parts), chunk.last)

    def unread(self, cursor: int) -> int:
        """Bytes kept that one at `cursor` has not read."""
        if cursor >= self.head:
            return 0
        if cursor < self.kept_after:
            return self._bytes
        chunk = self._chunks[self._find(cursor + 1)]
        read = chunk.ends[cursor - chunk.first] if cursor >= chunk.first else 0
        return self.total - (chunk.end_offset - len(chunk.body) + read)

    def _find(self, sequence: int) -> int:
        low, high = self._oldest, self._next - 1
        while low < high:
            middle = (low + high) // 2
            if self._chunks[middle].last < sequence:
                low = middle + 1
            else:
                high = middle
        return low
