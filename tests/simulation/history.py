"""What happened in one schedule, in the order in which it happened: the checker's only source, and the trace for people."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message


@dataclass(slots=True)
class Entry:
    """One thing that happened. `who` is a life or a client; `facts` depend on the kind."""

    at: float
    who: str
    kind: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        shown = "  ".join(f"{name}={_shown(value)}" for name, value in self.facts.items())
        return f"{self.at:9.4f}  {self.who:<12} {self.kind:<16} {shown}"


@dataclass(slots=True)
class History:
    """Entries in order, counts of what occurred, and the names by which long ids are shown."""

    entries: list[Entry] = field(default_factory=list[Entry])
    counts: Counter[str] = field(default_factory=Counter[str])

    def add(self, at: float, who: str, kind: str, **facts: Any) -> None:
        """Something happened."""
        self.entries.append(Entry(at, who, kind, facts))

    def count(self, what: str) -> None:
        """Something occurred that only the summary names."""
        self.counts[what] += 1

    def digest(self) -> str:
        """The same for the same history."""
        digest = hashlib.blake2b(digest_size=16)
        for entry in self.entries:
            digest.update(str(entry).encode())
        digest.update(repr(sorted(self.counts.items())).encode())
        return digest.hexdigest()


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value)}B"
    if isinstance(value, Message):
        return type(value).__name__ + "{" + " ".join(str(value).split()) + "}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {_shown(v)}" for k, v in value.items()) + "}"
    return str(value)
