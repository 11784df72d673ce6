"""Text of events: what replaces control characters, and where a long delta is split."""

import re
from collections.abc import Iterator

# Control characters (C0, DEL, C1) other than tab and newline (events, Bounds).
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def is_clean(text: str) -> bool:
    """Whether `text` needs no replacement."""
    # isprintable is false for some clean text (newline, tab), but answers the common case at a third of the cost.
    return text.isprintable() or _CONTROL.search(text) is None


def cleaned(text: str) -> str:
    """`text` with each control character replaced by U+FFFD; never a reason to fail a run."""
    return text if text.isprintable() else _CONTROL.sub(REPLACEMENT, text)


def fits(text: str, limit: int) -> bool:
    """Whether `text` takes at most `limit` bytes of UTF-8."""
    length = len(text)
    return length * 4 <= limit or (length <= limit and (text.isascii() or len(text.encode()) <= limit))


def split(text: str, limit: int) -> Iterator[str]:
    """Pieces of `text`, in order, each at most `limit` bytes of UTF-8 (at least 4), no character cut (rule 8)."""
    data = text.encode()
    start = 0
    while start < len(data):
        end = min(start + limit, len(data))
        # 0b10xxxxxx continues a character: the piece ends before the character it belongs to.
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        yield data[start:end].decode()
        start = end
