"""What the bus counts. No label ever names a run."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

UP: Final = Gauge(
    "harness_bus_up", "Whether the bus answered when it was last asked (1), or is away or not configured (0)."
)
FOLLOWED: Final = Gauge("harness_bus_followed_runs", "Runs whose notices this process reads.")
SENT: Final = Counter(
    "harness_bus_sent_total", "Notices, announcements, signals and acknowledgements the bus has taken."
)
DROPPED: Final = Counter(
    "harness_bus_dropped_total",
    "Notices, announcements, signals and acknowledgements that were dropped: the queue was full, the bus was away, or it refused them."
    " Nothing is lost by it but time.",
    ["why"],
)
DROPPED_FULL: Final = DROPPED.labels("full")
DROPPED_AWAY: Final = DROPPED.labels("away")
DROPPED_REFUSED: Final = DROPPED.labels("refused")
MALFORMED: Final = Counter("harness_bus_malformed_total", "Entries read from the bus that are none of ours.")
NOT_FOLLOWED: Final = Counter(
    "harness_bus_follow_refused_total", "Times a run was not followed because too many are; it is polled in the log."
)
ANNOUNCED: Final = Counter("harness_dispatch_announced_total", "Queued runs that the bus handed to this process.")
CLAIMED: Final = Counter(
    "harness_dispatch_claimed_total",
    "Of those, how many another process was handed first and did not decide about within the lease TTL.",
)
NOT_ANNOUNCED: Final = Counter(
    "harness_dispatch_unannounced_total", "Queued runs not announced because no other process would have heard of it."
)
OTHERS: Final = Gauge(
    "harness_dispatch_others", "Other executors that use the bus, as far as it is known; 0 while the bus is away."
)
SIGNALS: Final = Counter(
    "harness_bus_signals_total", "Signals that came to this process: runs whose record it had to look at."
)
