"""Drafts of one run that are not yet durable: numbered from 1, bounded, forgotten when durable (worker protocol)."""

from collections import deque
from itertools import islice

from adapters.sdk.host.memory import DraftMemory
from harness.event.v1 import event_pb2

MAX_BATCH_EVENTS = 512
MAX_BATCH_BYTES = 512 * 1024


class DraftBuffer:
    """Numbers drafts and keeps them until it is told to forget them. Nothing is dropped by itself; whoever appends asks `is_full` first."""

    __slots__ = ("_bytes", "_drafts", "_max_bytes", "_max_events", "_memory", "_sizes", "forgotten", "last")

    def __init__(self, max_events: int, max_bytes: int, memory: DraftMemory) -> None:
        self._drafts: deque[event_pb2.EventDraft] = deque()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._memory = memory
        # Offset of the last draft, and through which offset drafts are forgotten.
        self.last = 0
        self.forgotten = 0

    @property
    def is_full(self) -> bool:
        """Whether the provider must not be read any further."""
        return len(self._drafts) >= self._max_events or self._bytes >= self._max_bytes or self._memory.is_full

    def append(self, draft: event_pb2.EventDraft) -> bool:
        """Takes the next offset for `draft`; says whether the provider must not be read any further. A terminal may come on top of a full buffer."""
        size = draft.ByteSize()
        self._drafts.append(draft)
        self._sizes.append(size)
        self._bytes += size
        self.last += 1
        self._memory.take(size)
        return self._bytes >= self._max_bytes or len(self._drafts) >= self._max_events or self._memory.is_full

    def forget(self, through: int) -> None:
        """Forgets drafts up to and with offset `through`; a lower offset than before changes nothing."""
        before = self._bytes
        while self.forgotten < through and self._drafts:
            self._drafts.popleft()
            self._bytes -= self._sizes.popleft()
            self.forgotten += 1
        if self._bytes != before:
            self._memory.free(before - self._bytes)

    def settle(self) -> None:
        """Gives up the memory of a buffer that is empty and gets nothing more."""
        if not self._drafts:
            self._drafts, self._sizes = _NO_DRAFTS, _NO_SIZES

    def read(self, after: int) -> list[event_pb2.EventDraft]:
        """The next drafts after offset `after`, which must not be below `forgotten`: at most 512, and 512 KiB unless the first alone is more."""
        start = after - self.forgotten
        drafts = list(islice(self._drafts, start, start + MAX_BATCH_EVENTS))
        size = 0
        for count, draft_size in enumerate(islice(self._sizes, start, start + len(drafts))):
            size += draft_size
            if size > MAX_BATCH_BYTES and count:
                return drafts[:count]
        return drafts


# Shared by all settled buffers; nothing is ever appended to them.
_NO_DRAFTS: deque[event_pb2.EventDraft] = deque(maxlen=0)
_NO_SIZES: deque[int] = deque(maxlen=0)
