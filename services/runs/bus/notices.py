"""How notices stand on the bus: one short stream per run, `harness:live:<run_id>`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.runs.bus.port import Notice
from services.runs.segment import Segment

LIVE_PREFIX: Final = "harness:live:"
MAX_CARRIED_BYTES: Final = 64 << 10
"""A larger segment is only announced; whoever wants it reads the log."""
MAX_NOTICES: Final = 16
"""Kept per run. With the bound above, a run takes 1 MiB of the server at most (I35)."""
RUNNING_SECONDS: Final = 900
"""A run's stream goes when nothing was published for so long; the next notice makes it again."""
ENDED_SECONDS: Final = 60
_WHERE: Final = b"at"
_EVENTS: Final = b"events"


def live_key(run_id: str) -> bytes:
    """The stream of a run."""
    return (LIVE_PREFIX + run_id).encode()


def encode(segment: Segment) -> tuple[bytes, ...]:
    """The fields of an entry, alternating names and values."""
    where = b"%d %d %d %d" % (segment.index, segment.first_sequence, segment.last_sequence, segment.terminal)
    if len(segment.packed) > MAX_CARRIED_BYTES:
        return (_WHERE, where)
    return (_WHERE, where, _EVENTS, segment.packed)


def decode(run_id: str, fields: Mapping[bytes, bytes]) -> Notice | None:
    """The notice of an entry; None when it is none of ours."""
    try:
        index, first, last, terminal = (int(part) for part in fields[_WHERE].split())
    except (KeyError, ValueError):
        return None
    packed = fields.get(_EVENTS)
    if not packed:
        return Notice(run_id, last, None)
    return Notice(run_id, last, Segment(run_id, index, first, last, bool(terminal), packed))
