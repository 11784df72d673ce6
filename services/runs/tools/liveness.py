"""Whether the broker of a call that is under way is still there: judged as leases on runs are, on the observer's own clock. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from services.runs.tools.record import CallRecord

MAX_WATCHED: Final = 10_000
"""Calls of other brokers that are remembered; the longest unseen is forgotten first, and its time starts anew (I35)."""
RENEW_SHARE: Final = 0.3
"""A broker renews a call once this share of the TTL has passed, so that a call shorter than that never is."""


@dataclass(slots=True)
class BrokerWatch:
    """What one observer has seen of calls that others make. `ttl` in seconds."""

    ttl: float
    _seen: OrderedDict[str, tuple[str, int, float]] = field(default_factory=OrderedDict[str, tuple[str, int, float]])

    def is_gone(self, record: CallRecord, now: float) -> bool:
        """Whether the call's broker and renewals stood still for a TTL. The first look starts its time."""
        seen = self._seen.pop(record.key, None)
        if seen is None or seen[:2] != (record.broker, record.renewals):
            seen = (record.broker, record.renewals, now)
        self._seen[record.key] = seen
        if len(self._seen) > MAX_WATCHED:
            self._seen.popitem(last=False)
        return now - seen[2] >= self.ttl

    def forget(self, key: str) -> None:
        """The call ended."""
        self._seen.pop(key, None)
