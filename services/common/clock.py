"""Time as a dependency, so that domain modules stay pure and tests decide what time it is."""

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks that must never be mixed."""

    def wall(self) -> float:
        """Seconds since the Unix epoch: for records, deadlines and people. May jump."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary point of this process: for measuring waits and lease expiry. Never jumps."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()
