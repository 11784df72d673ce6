"""What other people's text may look like on this terminal, and the one form of JSON the command writes."""

from __future__ import annotations

import json
import re
from typing import Any

REPLACEMENT = "\ufffd"
# Control characters (an agent's text must not steer the terminal), the marks that reorder what stands around them, and halves of surrogate pairs.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_LINE_ENDS = re.compile(r"\r\n?")
# JSON escapes what is below a space; these would reach a terminal raw.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def safe_text(text: str) -> str:
    """Text that a terminal only shows: tab and newline are the only control characters left."""
    return _UNSAFE.sub(REPLACEMENT, _LINE_ENDS.sub("\n", text))


def safe_line(text: str, limit: int = 0) -> str:
    """The same in one line, of at most `limit` characters if given."""
    line = " ".join(safe_text(text).split())
    return f"{line[: limit - 1]}…" if 0 < limit < len(line) else line


def json_line(value: Any) -> str:
    """`value` as JSON in one line that is safe on a terminal and the same value to every parser."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
