"""Leases on runs: when a holder must stop and when an observer may take over (run protocol, Take 1).

Both sides measure on their own monotonic clock and never compare wall clocks of two machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from services.runs.run import Run, Status

STOP_SHARE: Final = 0.6
"""A holder stops this share of the TTL after it sent its last successful renewal: it spares takeovers, safety does not rest on it."""
RENEW_SHARE: Final = 0.3
"""A holder renews once this share of the TTL has passed, so that a run shorter than that never does."""
LEAST_DETACH_GRACE_SECONDS: Final = 60
_TAKING_SECONDS: Final = 1.0
"""From the moment a lease is seen to be dead to the call that attaches, at most, while stores and runtime answer (I9)."""


def detach_grace_seconds(ttl: float, sweep_interval: float) -> int:
    """Seconds for which a runtime goes on with a run nobody follows: three takeovers, or none could come in time where leases are long
    (worker protocol, AttachRun).
    """
    return max(LEAST_DETACH_GRACE_SECONDS, math.ceil(3 * (ttl + sweep_interval + _TAKING_SECONDS)))


@dataclass(slots=True)
class HeldLease:
    """The holder's view of its own lease. `sent_at` is when the last successful claim or renewal was sent, monotonic seconds."""

    ttl: float
    sent_at: float

    def is_due(self, now: float) -> bool:
        """Whether it is time to renew."""
        return now - self.sent_at >= self.ttl * RENEW_SHARE

    def must_stop(self, now: float) -> bool:
        """Whether others may soon believe that the holder is dead."""
        return now - self.sent_at >= self.ttl * STOP_SHARE


@dataclass(slots=True)
class LeaseWatch:
    """What one observer has seen of other holders' leases. Holds one entry for each running run of its last look (I35)."""

    ttl: float
    _seen: dict[str, tuple[int, int, float]] = field(default_factory=dict[str, tuple[int, int, float]])

    def is_dead(self, run: Run, now: float) -> bool:
        """Whether a running run may be taken: nobody holds it, or its generation and renewals stood still for a TTL.

        The first look at a lease starts its time, so every holder is granted a whole TTL by each observer.
        """
        if run.status is not Status.RUNNING:
            return False
        if not run.holder:
            return True
        seen = self._seen.get(run.run_id)
        if seen is None or seen[:2] != (run.run_generation, run.renewals):
            self._seen[run.run_id] = (run.run_generation, run.renewals, now)
            return False
        return now - seen[2] >= self.ttl

    def keep_only(self, run_ids: Iterable[str]) -> None:
        """Forget every run but these."""
        kept = set(run_ids)
        for run_id in [run_id for run_id in self._seen if run_id not in kept]:
            del self._seen[run_id]
