"""What the tool broker counts. Labels name tools an operator registered, never a run or a person."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

CALLS: Final = Counter(
    "harness_tool_calls_total",
    "Tool calls that ended, by tool and outcome (success, error, rejected, lost); a call that is asked again is not counted again.",
    ["tool", "outcome"],
)
REFUSED: Final = Counter(
    "harness_tool_calls_refused_total", "Tool calls that were refused before they were accepted, by reason.", ["reason"]
)
PROVIDER_FULL: Final = Counter(
    "harness_tool_provider_full_total",
    "Tool calls that were refused because this process made as many of their provider's calls as it may, by tool.",
    ["tool"],
)
REFUSALS_NOT_LOGGED: Final = Counter(
    "harness_tool_refusals_not_logged_total",
    "Refused tool calls without a line of their own in the log: more came than it takes.",
)
WAITING: Final = Counter(
    "harness_tool_calls_waiting_total", "Tool calls that had to wait for a person's approval, by tool.", ["tool"]
)
UNDER_WAY: Final = Gauge("harness_tool_calls_under_way", "Tool calls this process is making.")
SECONDS: Final = Histogram(
    "harness_tool_call_seconds",
    "Seconds from a tool call's start to its outcome, all tries included, by tool.",
    ["tool"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
