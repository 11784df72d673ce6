"""Sealing a log for a new generation, so that its old writer can append nothing more (run protocol, Take 3)."""

from __future__ import annotations

from typing import Final

from services.common.ids import new_nonce
from services.common.store import StoreUnavailable
from services.runs.appending import Fenced
from services.runs.log import DuplicateSegment, SegmentHeader, SegmentLog
from services.runs.segmenting import Tail

MAX_ATTEMPTS: Final = 1000
"""Segments an old writer may still append while it is sealed off (I35)."""


async def seal(log: SegmentLog, run_id: str, run_generation: int) -> Tail:
    """Insert a seal at the next free index and return the log's end, or the end as it is when a terminal stands there.

    Errors: `Fenced` when a younger generation was met.
    """
    nonce = new_nonce()
    header = await log.tail(run_id)
    for _ in range(MAX_ATTEMPTS):
        tail = Tail() if header is None else Tail.of(header)
        if tail.terminal_status:  # a terminal ends the run, whoever wrote it (I9)
            return tail
        if tail.run_generation > run_generation:  # I10: we are the old holder
            raise Fenced(f"{run_id}: generation {tail.run_generation} writes the log, not {run_generation}")
        outcome = await log.append(_seal(run_id, run_generation, nonce, tail), b"")
        if not isinstance(outcome, DuplicateSegment):
            return Tail.of(_seal(run_id, run_generation, nonce, tail))
        header = outcome.existing
        if header.nonce == nonce:
            return Tail.of(header)
    raise StoreUnavailable(f"the log of {run_id} could not be sealed")


def _seal(run_id: str, run_generation: int, nonce: str, tail: Tail) -> SegmentHeader:
    return SegmentHeader(
        run_id=run_id,
        index=tail.index + 1,
        first_sequence=tail.last_sequence + 1,
        last_sequence=tail.last_sequence,
        run_generation=run_generation,
        nonce=nonce,
        state=tail.state(""),
    )
