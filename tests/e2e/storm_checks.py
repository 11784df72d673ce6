"""What must be true of a mesh after a storm, read from its stores and from what clients were told."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.run.v1 import run_service_pb2
from tests.e2e.turns import TERMINALS

OPEN = ("queued", "running")


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event as the log has it. `at` is when it was made, nanoseconds."""

    sequence: int
    kind: str
    at: int


class StoredMesh:
    """Reads the stores of a mesh, also while its processes are dead or stopped."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "store"

    @contextmanager
    def _open(self, service: str) -> Generator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._folder / f"{service}.sqlite3", timeout=30)) as connection:
            connection.execute("PRAGMA query_only = 1")
            yield connection

    def _documents(self, service: str, collection: str) -> list[dict[str, Any]]:
        with self._open(service) as connection:
            return [json.loads(row[0]) for row in connection.execute(f'SELECT document FROM "records_{collection}"')]

    def runs(self) -> list[dict[str, Any]]:
        """All runs; tombstones are left out."""
        return [run for run in self._documents("runs", "runs") if run["status"] != "tombstone"]

    def bindings(self) -> list[dict[str, Any]]:
        """The bindings of all conversations as they are now."""
        return self._documents("sessions", "bindings")

    def archived(self) -> list[dict[str, Any]]:
        """The closed epochs."""
        return self._documents("sessions", "archived_bindings")

    def versions(self) -> list[dict[str, Any]]:
        """All versions of all agents."""
        return self._documents("catalog", "agent_versions")

    def agents(self) -> list[dict[str, Any]]:
        """All agents."""
        return self._documents("catalog", "agents")

    def leases(self) -> list[dict[str, Any]]:
        """All sandbox leases."""
        return self._documents("sandbox", "sandbox_leases")

    def segments(self, run_id: str) -> list[tuple[int, int, int, int, bytes]]:
        """(index, first sequence, last sequence, generation, packed events) of a run's log, in order."""
        with self._open("runs") as connection:
            return connection.execute(
                "SELECT number, first_sequence, last_sequence, run_generation, events FROM segments WHERE run_id = ? ORDER BY number",
                (run_id,),
            ).fetchall()

    def log(self, run_id: str) -> list[LoggedEvent]:
        """A run's events in the order of the log."""
        events: list[LoggedEvent] = []
        for *_, packed in self.segments(run_id):
            for event in run_service_pb2.WatchRunResponse.FromString(packed).events:
                kind = (event.payload.WhichOneof("kind") or "").replace("_", ".", 1)
                events.append(LoggedEvent(event.sequence, kind, event.time.ToNanoseconds()))
        return events

    def unsettled(self) -> list[str]:
        """What has not come to its end: runs that are open, bindings that are held, awaited or closing."""
        left = [f"{run['run_id']} {run['status']}" for run in self.runs() if run["status"] in OPEN]
        for binding in self.bindings():
            if binding["active"] or binding["waiting"] or binding["status"] != "active":
                held = (binding["active"] or {}).get("run_id", "")
                left.append(f"{binding['conversation_id']} {binding['status']} {held} +{len(binding['waiting'])}")
        return left


@dataclass(slots=True)
class Seen:
    """What one subscriber saw of a run, over all its connections."""

    run_id: str
    frames: dict[int, bytes] = field(default_factory=dict[int, bytes])
    last: int = 0
    last_type: str = ""
    wrong: list[str] = field(default_factory=list[str])

    @property
    def ended(self) -> bool:
        """Whether it saw the terminal."""
        return self.last_type in TERMINALS

    def take(self, frame: bytes) -> None:
        """One more frame."""
        fields = dict(line.split(b": ", 1) for line in frame.strip().split(b"\n"))
        sequence, kind = int(fields[b"id"]), fields[b"event"].decode()
        if sequence != self.last + 1:  # I7
            self.wrong.append(f"I7: saw {sequence} ({kind}) after {self.last} ({self.last_type})")
        if self.ended:  # I9
            self.wrong.append(f"I9: saw {sequence} ({kind}) after the terminal {self.last} ({self.last_type})")
        self.frames[sequence] = frame
        self.last, self.last_type = sequence, kind


@dataclass(slots=True)
class Recorded:
    """What clients were told during a storm."""

    by_request: dict[tuple[str, str], set[str]]
    watchers: list[Seen] = field(default_factory=list[Seen])
    wrong: list[str] = field(default_factory=list[str])
    answers: Counter[str] = field(default_factory=Counter[str])
    clears: dict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: defaultdict[str, list[dict[str, Any]]](list)
    )
    saves: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    ends: dict[str, int] = field(default_factory=dict[str, int])
    settled_in: float = 0.0

    def run_of(self, request: tuple[str, str], run_id: str) -> None:
        """A start was answered with a run."""
        self.by_request.setdefault(request, set()).add(run_id)

    def new_watcher(self, run_id: str) -> Seen:
        """Somebody watches a run."""
        self.watchers.append(Seen(run_id))
        return self.watchers[-1]

    def cancelled(self, run_id: str, answer: dict[str, Any] | None, stored: StoredMesh) -> None:
        """A cancel was answered: the log must have its terminal now, and never grow again (I12)."""
        events = stored.log(run_id)
        if not events or events[-1].kind not in TERMINALS:
            self.wrong.append(f"I12: cancel of {run_id} was answered, its log ends with {events[-1:]}")
            return
        if answer is not None and answer["status"] in OPEN:
            self.wrong.append(f"I12: cancel of {run_id} was answered with status {answer['status']}")
        if answer is not None and answer["last_sequence"] != len(events):
            self.wrong.append(
                f"I12: cancel of {run_id} said {answer['last_sequence']} events, the log has {len(events)}"
            )
        self.ends[run_id] = len(events)

    def cleared(self, talk: str, answer: dict[str, Any]) -> None:
        """A clear was answered."""
        self.clears[talk].append(answer)

    def saved(self, agent: str, version: int, prompt: str) -> None:
        """A save was answered with a version."""
        before = self.saves.setdefault((agent, version), prompt)
        if before != prompt:
            self.wrong.append(f"I15: version {version} of {agent} was given to two saves")

    def summary(self) -> str:
        """What happened, in a line."""
        answers = ", ".join(f"{name}: {count}" for name, count in sorted(self.answers.items()))
        ends = Counter(seen.last_type for seen in self.watchers)
        return f"{answers}; watchers {dict(ends)}; settled in {self.settled_in:.1f} s; {len(self.wrong)} violations"


def violations_of(stored: StoredMesh, recorded: Recorded) -> list[str]:
    """Every broken invariant, in words."""
    wrong: list[str] = []
    runs = {run["run_id"]: run for run in stored.runs()}
    logs = {run_id: stored.log(run_id) for run_id in runs}
    for run_id, run in runs.items():
        wrong += _log_violations(run, logs[run_id], stored.segments(run_id))
    for (talk, request), run_ids in recorded.by_request.items():
        if len(run_ids) > 1:
            wrong.append(f"I6: request {request} of {talk} was answered with {sorted(run_ids)}")
        wrong += [f"I33: {run_id} was answered and is not there" for run_id in run_ids if run_id not in runs]
    wrong += [f"I12: {run_id} grew after its cancel" for run_id, n in recorded.ends.items() if len(logs[run_id]) != n]
    for seen in recorded.watchers:
        wrong += [f"{seen.run_id}: {what}" for what in seen.wrong]
        kinds = [event.kind for event in logs.get(seen.run_id, [])]
        if seen.ended and seen.last != len(kinds):
            wrong.append(f"I7: a watcher of {seen.run_id} saw {seen.last} events, the log has {len(kinds)}")
    wrong += _different_bytes(recorded)
    wrong += _overlaps(list(runs.values()), logs)
    wrong += _epoch_violations(stored, recorded)
    wrong += _version_violations(stored, recorded)
    return wrong


def _log_violations(
    run: dict[str, Any], events: list[LoggedEvent], segments: list[tuple[int, int, int, int, bytes]]
) -> list[str]:
    run_id, wrong = run["run_id"], list[str]()
    if run["status"] in OPEN:
        wrong.append(f"I9: {run_id} is {run['status']}")
    if [event.sequence for event in events] != list(range(1, len(events) + 1)):
        wrong.append(f"I7: {run_id} has {[event.sequence for event in events]}")
    terminals = [event.kind for event in events if event.kind in TERMINALS]
    if len(terminals) != 1 or events[-1].kind not in TERMINALS:
        wrong.append(f"I9: {run_id} ({run['status']}) has terminals {terminals}, ends with {events[-1:]}")
    elif run["status"] not in OPEN and terminals[0] != f"run.{run['status']}":
        wrong.append(f"I9: {run_id} is {run['status']} and its log says {terminals[0]}")
    if events and events[0].kind != "run.started":
        wrong.append(f"{run_id} begins with {events[0].kind}")
    if run["status"] not in OPEN and run["last_sequence"] != len(events):
        wrong.append(f"{run_id} says {run['last_sequence']} events, its log has {len(events)}")
    if [segment[0] for segment in segments] != list(range(1, len(segments) + 1)):
        wrong.append(f"I7: {run_id} has segments {[segment[0] for segment in segments]}")
    generations = [segment[3] for segment in segments]
    if generations != sorted(generations):
        wrong.append(f"I10: {run_id} has segments of generations {generations}")
    return wrong


def _different_bytes(recorded: Recorded) -> list[str]:
    """I8: what one subscriber saw, every other one saw, byte for byte."""
    wrong: list[str] = []
    known: dict[tuple[str, int], bytes] = {}
    for seen in recorded.watchers:
        for sequence, frame in seen.frames.items():
            if known.setdefault((seen.run_id, sequence), frame) != frame:
                wrong.append(f"I8: {seen.run_id} {sequence}: {known[seen.run_id, sequence]!r} and {frame!r}")
    return wrong


def _overlaps(runs: list[dict[str, Any]], logs: dict[str, list[LoggedEvent]]) -> list[str]:
    """I6: the runs of a conversation follow each other, in the order of their turns."""
    wrong: list[str] = []
    talks: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        if run["turn"] and logs[run["run_id"]]:
            talks[run["agent_id"], run["conversation_id"]].append(run)
    for talk, of_talk in talks.items():
        of_talk.sort(key=lambda run: (run["epoch"], run["turn"]))
        for before, after in pairwise(of_talk):
            if before["turn"] == after["turn"] and before["epoch"] == after["epoch"]:
                wrong.append(f"I6: turn {after['turn']} of {talk} is {before['run_id']} and {after['run_id']}")
            ended, began = logs[before["run_id"]][-1].at, logs[after["run_id"]][0].at
            if began < ended:
                ago = (ended - began) / 1e6
                wrong.append(f"I6: {after['run_id']} of {talk} began {ago:.1f} ms before {before['run_id']} ended")
    return wrong


def _epoch_violations(stored: StoredMesh, recorded: Recorded) -> list[str]:
    """I5: epochs of a conversation are 1..n, each archived once but the last."""
    wrong: list[str] = []
    closed: dict[tuple[str, str], list[int]] = defaultdict(list)
    for binding in stored.archived():
        closed[binding["agent_id"], binding["conversation_id"]].append(binding["epoch"])
    for binding in stored.bindings():
        epochs = sorted(closed[binding["agent_id"], binding["conversation_id"]])
        if epochs != list(range(1, binding["epoch"])):
            wrong.append(f"I5: {binding['conversation_id']} is in epoch {binding['epoch']}, closed are {epochs}")
        for answer in recorded.clears.get(binding["conversation_id"], []):
            if answer["next_epoch"] > binding["epoch"]:
                wrong.append(f"I5: clear of {binding['conversation_id']} said {answer}, it is in {binding['epoch']}")
    return wrong


def _version_violations(stored: StoredMesh, recorded: Recorded) -> list[str]:
    """I15: versions are 1..n, the pointer at the last, and every save that was answered is there."""
    wrong: list[str] = []
    versions: dict[str, dict[int, str]] = defaultdict(dict)
    for version in stored.versions():
        versions[version["agent_id"]][version["version"]] = version["blueprint"]["prompt"]["system"]
    for agent in stored.agents():
        numbers = sorted(versions[agent["agent_id"]])
        # One more than the pointer is a save that died before it was published; readers never see it.
        if numbers[: agent["current_version"]] != list(range(1, agent["current_version"] + 1)):
            wrong.append(f"I15: {agent['agent_id']} points at {agent['current_version']}, versions are {numbers}")
    for (agent_id, number), prompt in recorded.saves.items():
        if versions[agent_id].get(number) != prompt:
            wrong.append(f"I15: version {number} of {agent_id} is not what was saved")
    return wrong
