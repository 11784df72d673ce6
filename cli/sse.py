"""An incremental parser of event streams, as the HTML standard's "Interpreting an event stream" defines them."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_FRAME_BYTES = 4 * 1024 * 1024
"""An event has at most 256 KiB; written as JSON with every character escaped, less than this."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class FrameTooLarge(Exception):
    """A frame is larger than any event can be."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One dispatched event. `id` is the last id the stream gave, which may be an earlier frame's."""

    id: str
    event: str
    data: str


class EventStreamParser:
    """Takes bytes as they come, in any pieces; gives every frame once it is complete. An unfinished frame at the end of a stream is no frame."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max = max_frame_bytes
        self._rest = b""
        self._after_cr = False
        self._first_line = True
        self._size = 0
        self._id = ""
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that `chunk` completes. Raises FrameTooLarge; the parser is of no use afterwards."""
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            # The second half of a line end whose first half came with the chunk before.
            chunk = chunk[1:]
        *lines, self._rest = _LINE_END.split(self._rest + chunk)
        # Not when nothing is left of a chunk that was only the second half.
        self._after_cr = chunk.endswith(b"\r")
        frames: list[Frame] = []
        for line in lines:
            self._take(line, frames)
        self._bound(self._size + len(self._rest))
        return frames

    def _take(self, line: bytes, frames: list[Frame]) -> None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            if self._data:
                frames.append(Frame(self._id, self._event or "message", "\n".join(self._data)))
            self._event, self._data, self._size = "", [], 0
            return
        self._size += len(line)
        self._bound(self._size)
        name, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if name == b"data":
            self._data.append(text)
        elif name == b"event":
            self._event = text
        elif name == b"id" and "\0" not in text:
            self._id = text

    def _bound(self, size: int) -> None:
        # I35: a stream that never ends its frame must not fill the memory.
        if size > self._max:
            raise FrameTooLarge(f"a frame of the event stream is larger than {self._max} bytes")
