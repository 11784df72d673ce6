"""What dispatch and the release of runtimes count. No label ever names a run."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge

EXECUTED: Final = Gauge("harness_runs_executed", "Runs executed in this process, or about to be.")
WAITING: Final = Gauge("harness_runs_waiting", "Queued runs that wait in this process for an executor.")
LEFT: Final = Counter(
    "harness_dispatch_left_total",
    "Times a queued run was left to the next look of the sweep: its line was full, or too many were looked at already.",
    ["why"],
)
LEFT_LINE_FULL: Final = LEFT.labels("line_full")
LEFT_BUSY: Final = LEFT.labels("busy")
CLEANED: Final = Counter(
    "harness_runtimes_cleaned_total",
    "Runtimes of adapter hosts that were told to release everything: in full, or something of them is left.",
    ["outcome"],
)
CLEANED_IN_FULL: Final = CLEANED.labels("full")
CLEANED_IN_PART: Final = CLEANED.labels("incomplete")
