"""A stored segment as the read side sees it: shared by the executor, which appends, and the readers, which forward (run protocol, Read)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services.runs.log.port import Segment as LoggedSegment

TERMINAL: Final = "terminal"
"""Key of a segment header's `state`: true in the one segment that ends with the run's terminal event (I9)."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive events of one run, durable (I8).

    `packed` is a serialized `harness.run.v1.WatchRunResponse(events=[...])`, so that a watch forwards the stored bytes without
    decoding them; it is empty for a seal, whose `first_sequence` is one more than its `last_sequence`.
    """

    run_id: str
    index: int
    first_sequence: int
    last_sequence: int
    terminal: bool
    packed: bytes

    @classmethod
    def from_log(cls, logged: LoggedSegment) -> Segment:
        """The segment as it was read back from the log."""
        header = logged.header
        return cls(
            run_id=header.run_id,
            index=header.index,
            first_sequence=header.first_sequence,
            last_sequence=header.last_sequence,
            terminal=bool(header.state.get(TERMINAL, False)),
            packed=logged.events,
        )

    @property
    def is_seal(self) -> bool:
        """True for a segment that ends an older run generation and carries no event."""
        return self.first_sequence > self.last_sequence
