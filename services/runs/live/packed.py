"""Cutting and joining packed events without decoding them.

A packed segment is a serialized `WatchRunResponse`: `events` is its only field, so it is nothing but `tag, length, event` again and again. Two of
them joined are one message with the events of both, and every event stays what it was, byte for byte (I8).
"""

from __future__ import annotations

from typing import Final

_EVENT_TAG: Final = 0x0A
"""Field 1, length-delimited: `WatchRunResponse.events`."""


def drop_first(packed: bytes, count: int) -> bytes:
    """The packed events without the first `count`. Errors: `ValueError` when it holds no such events."""
    at = 0
    for _ in range(count):
        at = _end_of_event(packed, at)
    return packed[at:]


def take_first(packed: bytes, most: int, max_bytes: int) -> tuple[bytes, int]:
    """The longest beginning of at most `most` events and `max_bytes`, and how many events it has. The first event always comes."""
    at = taken = 0
    while taken < most and at < len(packed):
        end = _end_of_event(packed, at)
        if taken and end > max_bytes:
            break
        at = end
        taken += 1
    return packed[:at], taken


def _end_of_event(packed: bytes, at: int) -> int:
    if at >= len(packed) or packed[at] != _EVENT_TAG:
        raise ValueError(f"no packed event at byte {at} of {len(packed)}")
    at += 1
    length = shift = 0
    while True:
        byte = packed[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    if at + length > len(packed):
        raise ValueError(f"the packed event at byte {at} is cut off")
    return at + length
