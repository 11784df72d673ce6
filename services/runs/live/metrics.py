"""What the read side counts. No label ever names a run."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

FOLLOWERS: Final = Gauge("harness_live_followers", "Runs that are followed in this process because somebody watches.")
WATCHERS: Final = Gauge("harness_live_watchers", "Watches, long polls and waits that are open.")
RECENT_BYTES: Final = Gauge("harness_live_recent_bytes", "Bytes of recent segments kept for watchers.")
LOG_READS: Final = Counter(
    "harness_live_log_reads_total",
    "Reads of the event log: by a watcher behind what is kept, by a follower that missed a notice, by its slow poll.",
    ["by"],
)
READS_OF_WATCHERS: Final = LOG_READS.labels("watcher")
READS_OF_FOLLOWERS: Final = LOG_READS.labels("follower")
READS_OF_POLLS: Final = LOG_READS.labels("poll")
