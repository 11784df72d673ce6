"""What any event log refuses before it writes or reads."""

from __future__ import annotations

import orjson

from services.common.store import DocumentTooLarge, InvalidDocument, InvalidQuery
from services.runs.log.port import MAX_HEADER_BYTES, MAX_SEGMENT_BYTES, BrokenLog, SegmentHeader


def checked_state(header: SegmentHeader, events: bytes) -> bytes:
    """The header's state as JSON, once header and events are within their bounds.

    Errors: `BrokenLog` for numbers no segment can have, `InvalidDocument`, `DocumentTooLarge`.
    """
    follows = header.index >= 1 and 1 <= header.first_sequence <= header.last_sequence + 1
    starts = header.index > 1 or header.first_sequence == 1
    if not follows or not starts or (header.is_seal and events):
        raise BrokenLog(
            f"run {header.run_id}: segment {header.index} cannot hold sequences {header.first_sequence} to "
            f"{header.last_sequence} in {len(events)} bytes"
        )
    try:
        state = orjson.dumps(header.state)
    except TypeError as error:
        raise InvalidDocument(f"run {header.run_id}: the segment's state is not JSON-safe: {error}") from error
    if len(state) > MAX_HEADER_BYTES:
        raise DocumentTooLarge(f"run {header.run_id}: the segment's state", len(state), MAX_HEADER_BYTES)
    if len(events) > MAX_SEGMENT_BYTES:
        raise DocumentTooLarge(f"run {header.run_id}: the segment", len(events), MAX_SEGMENT_BYTES)
    return state


def check_bound(what: str, value: int, least: int, most: int) -> None:
    """Errors: `InvalidQuery` outside the bounds (I35)."""
    if not least <= value <= most:
        raise InvalidQuery(f"{what} {value} is not within {least} to {most}")


def does_not_follow(run_id: str, index: int, first_sequence: int) -> BrokenLog:
    """I7: a log without gaps is a property of the log, not only of who writes it."""
    return BrokenLog(
        f"run {run_id}: segment {index} from sequence {first_sequence} does not follow on from segment {index - 1}"
    )
