"""One string per record and index that sorts as the index does, so that every question is a range over one field.

MongoDB compares values of one type only and would need a chain of alternatives for a position in a compound index. The
text of an entry has neither problem: it puts integers before strings, integers by value, strings by their UTF-8 bytes, field after field.
No encoded value begins another one, so what begins with the encoded first values are exactly the records that have them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from services.common.store.port import Range, Scalar

ABOVE: Final = "\x7f"
"""Follows everything that can come after an encoded value, which starts with i or s."""

_END: Final = "\x01"
# The three lowest characters make room for the end of a string; what replaces them is above the end and below the rest.
_ESCAPES: Final = str.maketrans({"\x00": "\x02\x03", "\x01": "\x02\x04", "\x02": "\x02\x05"})
_OFFSET: Final = 1 << 63


def entry(values: Iterable[Scalar]) -> str:
    """The place of these values, one after the other."""
    return "".join(_encoded(value) for value in values)


def _encoded(value: Scalar) -> str:
    if isinstance(value, int):
        return f"i{value + _OFFSET:016x}"
    return f"s{value.translate(_ESCAPES)}{_END}"


def entries(prefix: str, within: Range) -> tuple[str, str]:
    """The entries after `prefix` whose next value is in the range: from the first, up to and without the second."""
    low, high = prefix, prefix + ABOVE
    if within.at_least is not None:
        low = max(low, prefix + _encoded(within.at_least))
    if within.above is not None:
        low = max(low, prefix + _encoded(within.above) + ABOVE)
    if within.at_most is not None:
        high = min(high, prefix + _encoded(within.at_most) + ABOVE)
    if within.below is not None:
        high = min(high, prefix + _encoded(within.below))
    return low, high


def keys(within: Range) -> dict[str, Any]:
    """The same question asked of the keys, which are stored as they are. Empty: all of them."""
    signs = (("$gte", within.at_least), ("$gt", within.above), ("$lte", within.at_most), ("$lt", within.below))
    return {sign: value for sign, value in signs if value is not None}
