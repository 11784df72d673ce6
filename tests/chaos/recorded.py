"""What clients were answered and what subscribers were sent."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from harness.run.v1 import run_service_pb2
from tests.chaos.stored import OPEN, TERMINALS, StoredMesh


@dataclass(slots=True)
class Seen:
    """What one subscriber saw of a run, over all its connections: frames over SSE, or events over gRPC."""

    run_id: str
    over: str = "sse"
    frames: dict[int, bytes] = field(default_factory=dict[int, bytes])
    last: int = 0
    last_type: str = ""
    connections: int = 0
    wrong: list[str] = field(default_factory=list[str])

    @property
    def ended(self) -> bool:
        """Whether it saw the terminal."""
        return self.last_type in TERMINALS

    def take(self, frame: bytes) -> None:
        """One more frame of a stream of server-sent events."""
        fields = dict(line.split(b": ", 1) for line in frame.strip().split(b"\n"))
        self._next(int(fields[b"id"]), fields[b"event"].decode(), frame)

    def take_events(self, response: run_service_pb2.WatchRunResponse) -> None:
        """One more message of a gRPC watch."""
        for event in response.events:
            kind = (event.payload.WhichOneof("kind") or "").replace("_", ".", 1)
            self._next(event.sequence, kind, event.SerializeToString(deterministic=True))

    def _next(self, sequence: int, kind: str, content: bytes) -> None:
        if sequence != self.last + 1:  # I7
            self.wrong.append(f"I7: saw {sequence} ({kind}) after {self.last} ({self.last_type}) over {self.over}")
        if self.ended:  # I9
            self.wrong.append(f"I9: saw {sequence} ({kind}) after the terminal {self.last} ({self.last_type})")
        self.frames[sequence] = content
        self.last, self.last_type = sequence, kind


@dataclass(slots=True)
class Recorded:
    """What clients were told. `point` is the number of the fault injected last, which every complaint names."""

    by_request: dict[tuple[str, str], set[str]] = field(default_factory=dict[tuple[str, str], set[str]])
    watchers: list[Seen] = field(default_factory=list[Seen])
    wrong: list[str] = field(default_factory=list[str])
    answers: Counter[str] = field(default_factory=Counter[str])
    retries: int = 0
    clears: dict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: defaultdict[str, list[dict[str, Any]]](list)
    )
    saves: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    ends: dict[str, int] = field(default_factory=dict[str, int])
    resumes: dict[str, dict[str, set[str]]] = field(default_factory=dict[str, dict[str, set[str]]])
    """Per run, interrupt and revision: decision → runs that a resume with it was answered with."""
    point: int = 0

    def complain(self, what: str) -> None:
        """Something that must not be."""
        self.wrong.append(f"{what} [after point {self.point}]")

    def run_of(self, request: tuple[str, str], run_id: str) -> None:
        """A start was answered with a run."""
        runs = self.by_request.setdefault(request, set())
        runs.add(run_id)
        if len(runs) > 1:
            self.complain(f"I6: request {request[1]} of {request[0]} was answered with {sorted(runs)}")

    def new_watcher(self, run_id: str, over: str = "sse") -> Seen:
        """Somebody watches a run."""
        self.watchers.append(Seen(run_id, over))
        return self.watchers[-1]

    def cancelled(self, run_id: str, answer: dict[str, Any] | None, stored: StoredMesh) -> None:
        """A cancel was answered: the log must have its terminal now, and never grow again (I12)."""
        events = stored.log(run_id)
        if not events or events[-1].kind not in TERMINALS:
            self.complain(f"I12: cancel of {run_id} was answered, its log ends with {events[-1:]}")
            return
        if answer is not None and answer["status"] in OPEN:
            self.complain(f"I12: cancel of {run_id} was answered with status {answer['status']}")
        if answer is not None and answer["last_sequence"] != len(events):
            self.complain(f"I12: cancel of {run_id} said {answer['last_sequence']} events, the log has {len(events)}")
        self.ends[run_id] = len(events)

    def cleared(self, talk: str, answer: dict[str, Any]) -> None:
        """A clear was answered."""
        self.clears[talk].append(answer)

    def saved(self, agent: str, version: int, prompt: str) -> None:
        """A save was answered with a version."""
        before = self.saves.setdefault((agent, version), prompt)
        if before != prompt:
            self.complain(f"I15: version {version} of {agent} was given to two saves")

    def shown(self, run_id: str, stored: StoredMesh) -> None:
        """An interrupt was shown: the run that asked must have ended in the log by then (run protocol, Resume)."""
        events = stored.log(run_id)
        if [event.kind for event in events[-2:]] != ["interrupt.requested", "run.interrupted"]:
            self.complain(
                f"I24: the interrupt of {run_id} is shown, its log ends with {[event.kind for event in events[-2:]]}"
            )

    def resumed(self, interrupted: str, decision: str, run_id: str) -> None:
        """A resume was answered with a run: the interrupt is consumed by one run with one decision (I24)."""
        by_decision = self.resumes.setdefault(interrupted, {})
        by_decision.setdefault(decision, set()).add(run_id)
        if len(by_decision) > 1 or any(len(runs) > 1 for runs in by_decision.values()):
            self.complain(f"I24: the interrupt of {interrupted} was consumed by {by_decision}")
