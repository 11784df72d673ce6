"""What a campaign found: a table for people, a document for machines, and one sum of several."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos.recorded import Recorded
from tests.chaos.stored import TERMINALS, StoredSegment


@dataclass(slots=True)
class PointDone:
    """One point as it came out. `moment` is where its run was when it stood still; `hit` whether there was one."""

    number: int
    kind: str
    wanted: str
    moment: str
    hit: bool
    injected: list[str] = field(default_factory=list[str])
    recovered: list[float] = field(default_factory=list[float])
    """Seconds until each affected run went on."""


@dataclass(slots=True)
class Result:
    """What one mesh came to, or several together."""

    points: list[PointDone] = field(default_factory=list[PointDone])
    violations: list[str] = field(default_factory=list[str])
    takeovers: int = 0
    reattached: int = 0
    runs: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    answers: Counter[str] = field(default_factory=Counter[str])
    retries: int = 0
    subscribers: int = 0
    reconnects: int = 0
    seconds: float = 0.0
    left_out: list[str] = field(default_factory=list[str])
    """What could not be done here, and why."""

    def violate(self, wrong: list[str]) -> None:
        """More violations."""
        self.violations += wrong

    def take(self, recorded: Recorded, logs: dict[str, list[StoredSegment]]) -> None:
        """The sums of the logs and the answers."""
        self.runs = len(logs)
        self.answers, self.retries = recorded.answers, recorded.retries
        for segments in logs.values():
            seals = [place for place, segment in enumerate(segments) if segment.is_seal]
            self.takeovers += len(seals)
            self.reattached += sum(_went_on(segments[place + 1 :]) for place in seals)
            last = [event.kind for segment in segments for event in segment.events][-1:]
            self.ends.update(last)

    def to_document(self) -> dict[str, Any]:
        """For `--json`."""
        document = {name: getattr(self, name) for name in self.__dataclass_fields__}
        points = [asdict(point) for point in self.points]
        return {**document, "points": points, "recovery": self.recovery(), "refused": self.refused}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Result:
        """What `to_document` gave."""
        known = {name: document[name] for name in cls.__dataclass_fields__}
        known["points"] = [PointDone(**each) for each in known["points"]]
        known["ends"], known["answers"] = Counter(known["ends"]), Counter(known["answers"])
        return cls(**known)

    @classmethod
    def together(cls, results: Sequence[Result]) -> Result:
        """The sum of several meshes that ran beside each other."""
        total = cls()
        for each in results:
            total.points += each.points
            total.violations += each.violations
            total.ends += each.ends
            total.answers += each.answers
            for name in ("takeovers", "reattached", "runs", "retries", "subscribers", "reconnects"):
                setattr(total, name, getattr(total, name) + getattr(each, name))
            total.seconds = max(total.seconds, each.seconds)
            total.left_out += [reason for reason in each.left_out if reason not in total.left_out]
        total.points.sort(key=lambda point: point.number)
        return total

    @property
    def injections(self) -> int:
        """Faults injected; a pair is two."""
        return sum(len(point.injected) for point in self.points)

    @property
    def refused(self) -> dict[str, int]:
        """Requests that were refused, or that nobody answered, by answer."""
        return {name: count for name, count in sorted(self.answers.items()) if name.split()[1] not in ("200", "202")}

    def recovery(self) -> dict[str, float]:
        """Seconds from a fault to the next event, or the end, of the runs it met."""
        took = sorted(seconds for point in self.points for seconds in point.recovered)
        return {"runs": len(took), "p50": _at(took, 0.5), "p95": _at(took, 0.95), "max": _at(took, 1.0)}

    def table(self) -> str:
        """For people."""
        moments = sorted({point.moment for point in self.points})
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        took: dict[str, list[float]] = defaultdict(list)
        for point in self.points:
            counts[point.kind][point.moment] += 1
            took[point.kind] += point.recovered
        lines = [_row("fault", [*moments, "all", "p50 s", "max s"])]
        for kind in sorted(counts):
            each = sorted(took[kind])
            times = [f"{_at(each, 0.5):.2f}", f"{_at(each, 1.0):.2f}"]
            cells = [str(counts[kind][moment] or "") for moment in moments]
            lines.append(_row(kind, [*cells, str(counts[kind].total()), *times]))
        total = [str(sum(counts[kind][moment] for kind in counts)) for moment in moments]
        recovery = self.recovery()
        lines.append(_row("all", [*total, str(len(self.points)), f"{recovery['p50']:.2f}", f"{recovery['max']:.2f}"]))
        ends = ", ".join(f"{name.removeprefix('run.')} {count}" for name, count in sorted(self.ends.items()))
        asked, exact = len(self.points), sum(point.wanted == point.moment for point in self.points)
        return "\n".join(
            [
                *lines,
                "",
                f"points             {asked} ({self.injections} faults; {exact} in the moment that was aimed at)",
                f"runs               {self.runs}: {ends}",
                f"takeovers          {self.takeovers}, of them {self.reattached} re-attached",
                f"time to recovery   p50 {recovery['p50']:.2f} s, p95 {recovery['p95']:.2f} s, max {recovery['max']:.2f} s, of "
                f"{recovery['runs']:.0f} runs that were met",
                f"subscribers        {self.subscribers}, reconnects {self.reconnects}",
                f"requests           {self.answers.total()}, refused or unanswered {sum(self.refused.values())}, repeated {self.retries}",
                *(f"not done here      {reason}" for reason in self.left_out),
                f"took               {self.seconds:.0f} s",
                f"violations         {len(self.violations)}",
            ]
        )


def _went_on(after: list[StoredSegment]) -> bool:
    """Whether the runtime was still heard of after a seal."""
    events = [event.kind for segment in after for event in segment.events]
    return any(kind not in TERMINALS for kind in events[:-1]) or events[-1:] == ["run.completed"]


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _row(name: str, cells: list[str]) -> str:
    return f"{name:<18}" + "".join(f"{cell:>11}" for cell in cells)
